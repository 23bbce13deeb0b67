"""A write that fails leaves the log and its producers as they were, whatever the batches were."""

from __future__ import annotations

import errno
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.storage.helpers import NOW, append, batch, config, open_log
from tests.support.scale import scale
from tests.support.simdisk import SimulatedDisk
from tidelog.errors import KafkaStorageError, OutOfOrderSequenceNumber
from tidelog.records.batch import TRANSACTIONAL_FLAG, patch_header
from tidelog.records.check import check_produced
from tidelog.storage.append import AppendOrigin, DuplicateBatch, PendingAppend
from tidelog.storage.disk import RealFile
from tidelog.storage.log import Log
from tidelog.storage.log_listener import LogListener


def prepare(log: Log, data: bytearray) -> PendingAppend:
    checked = check_produced(memoryview(data), log.appender.rules, NOW)
    if checked.attributes & TRANSACTIONAL_FLAG:
        log.producers.start_verification(
            checked.producer_id, checked.producer_epoch, checked.base_sequence, False, NOW
        )
    guard = log.producers.verifications.get(checked.producer_id)
    pending = log.appender.prepare(checked, 0, NOW, guard=guard)
    assert isinstance(pending, PendingAppend)
    return pending


def of_producer(sequence: int, epoch: int = 0, transactional: bool = False) -> bytearray:
    return batch(2, producer=(5, epoch, sequence), transactional=transactional)


@contextmanager
def full_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Half of what is written arrives."""
    whole = RealFile.pwrite

    def half_then_full(self: RealFile, data: memoryview, position: int) -> None:
        whole(self, data[:20], position)
        raise OSError(errno.ENOSPC, "No space left on device")

    def none(self: RealFile, parts: list[memoryview], position: int) -> None:
        half_then_full(self, parts[0], position)

    with monkeypatch.context() as full:
        full.setattr(RealFile, "pwrite", half_then_full)
        full.setattr(RealFile, "pwritev", none)
        yield


def state(log: Log) -> object:
    producers = {
        pid: (e.epoch, e.batches, e.last_timestamp, e.transaction_start)
        for pid, e in log.producers.entries.items()
    }
    file = Path(log.active_segment.path(".log")).read_bytes()
    return log.log_end_offset, producers, dict(log.producers.ongoing), file, log.active_segment.write_position


PLAIN = [batch(1)]
NEXT = [of_producer(at * 2) for at in range(5, 12)]
NEW_EPOCH = [of_producer(0, 1), of_producer(2, 1)]
TRANSACTION = [of_producer(10, 0, True), of_producer(12, 0, True)]
FIVE = [of_producer(at * 2) for at in range(5)]


@pytest.mark.parametrize(
    ("past", "lost"),
    [
        ([], PLAIN),
        ([], FIVE),
        ([], [of_producer(0, 0, True)]),
        (FIVE, PLAIN),
        (FIVE, NEXT),
        (FIVE, NEW_EPOCH),
        (FIVE, TRANSACTION),
        ([*FIVE, *TRANSACTION], [of_producer(14, 0, True)]),
        ([*FIVE, *TRANSACTION], [of_producer(0, 1, True)]),
    ],
)
def test_a_write_that_fails_leaves_the_log_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, past: list[bytearray], lost: list[bytearray]
) -> None:
    log = open_log(tmp_path)
    for data in past:
        log.appender.write(prepare(log, data.copy()), NOW)
    end, before = log.log_end_offset, state(log)
    with full_disk(monkeypatch):
        pending = [prepare(log, data.copy()) for data in lost]
        with pytest.raises(KafkaStorageError):
            log.appender.write_all(pending, NOW)
    assert state(log) == before
    assert not log.has_pending
    # The producer sends the same again, and goes on as if nothing had happened.
    results = log.appender.write_all([prepare(log, data.copy()) for data in lost], NOW)
    assert results[0].base_offset == end


def test_a_producer_goes_on_before_its_last_batch_is_written(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    first = [prepare(log, of_producer(0)), prepare(log, of_producer(2))]
    checked = check_produced(memoryview(of_producer(2)), log.appender.rules, NOW)
    again = log.appender.prepare(checked, 0, NOW)
    assert isinstance(again, DuplicateBatch)
    assert again.result.base_offset == 2
    with pytest.raises(OutOfOrderSequenceNumber):
        prepare(log, of_producer(6))
    assert [result.base_offset for result in log.appender.write_all(first, NOW)] == [0, 2]


def test_a_log_whose_file_cannot_be_opened_refuses_and_stays_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The descriptor was let go of while the log was idle, and now there is none to be had."""
    log = open_log(tmp_path)
    log.appender.write(prepare(log, of_producer(0)), NOW)
    before = state(log)
    copied = bytearray(of_producer(2))
    patch_header(copied, 0, 2, 0)
    log.release_files()
    told: list[OSError] = []

    class Watcher(LogListener):
        def storage_failed(self, log: Log, error: OSError) -> None:
            told.append(error)

    log.listen(Watcher())

    def none_left(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as full:
        full.setattr(type(log.disk), "open", none_left)
        with pytest.raises(KafkaStorageError):
            prepare(log, of_producer(2))
        with pytest.raises(KafkaStorageError):
            log.append_as_follower(copied, NOW)
    assert [error.errno for error in told] == [errno.EMFILE] * 2
    assert state(log) == before
    assert log.appender.write(prepare(log, of_producer(2)), NOW).base_offset == 2


def test_an_own_batch_without_sequences_is_noted(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    data = batch(1, producer=(5, 0, -1))
    log.appender.append_as_leader(data, leader_epoch=0, origin=AppendOrigin.COORDINATOR, now_ms=NOW)
    assert log.producers.entries[5].last_sequence == -1


@pytest.mark.parametrize("seed", range(scale(20, 200)))
def test_a_roll_that_was_taken_back_does_not_come_back_with_a_crash(seed: int) -> None:
    disk = SimulatedDisk()
    log = open_log("/data/topic-0", config(segment_bytes=1000), disk=disk)
    append(log, batch(value=b"a" * 300))
    log.flush(NOW)
    lost = prepare(log, batch(value=b"b" * 300))
    prepare(log, batch(value=b"c" * 700))  # begins a segment
    disk.fsync_dir("/data/topic-0")  # whoever syncs the folder now makes its name durable
    assert len(log.segments) == 2
    disk.fail(".log", errno.EIO, "write")
    with pytest.raises(KafkaStorageError):
        log.appender.write(lost, NOW)
    disk.heal()
    for value in (b"d", b"e"):
        append(log, batch(value=value * 100))
    assert len(log.segments) == 1
    log.flush(NOW)
    end = log.log_end_offset
    found = open_log(
        "/data/topic-0",
        config(segment_bytes=1000),
        disk=disk.after_crash(random.Random(seed)),
        recovery_point=log.recovery_point,
    )
    assert (len(found.segments), found.log_end_offset) == (1, end)
