"""A batch that is appended in one step leaves the log just as the three steps of `LogAppender` do."""

from __future__ import annotations

import errno
import random
from pathlib import Path

import pytest

from tests.cluster.world import FailingDisk
from tests.storage.helpers import NOW, append, batch, config, end_transaction, headers, marker, open_log
from tests.support.scale import scale
from tests.support.simdisk import SimulatedDisk
from tidelog.errors import InvalidProducerEpoch, KafkaError, KafkaStorageError, TransactionCoordinatorFenced
from tidelog.records.check import check_produced
from tidelog.records.loops import one_record_batch
from tidelog.storage.append import AppendOrigin, DuplicateBatch
from tidelog.storage.log import Log
from tidelog.storage.marker import Marker

EPOCH, HOUR = 3, 3_600_000

Outcome = tuple[object, ...] | str


class Script:
    """Random batches of a few producers, of this broker, and markers; most are as they have to be."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._next: dict[int, int] = {}

    def step(self) -> tuple[str, bytearray, Marker | None, int]:
        rng, timestamp = self._rng, NOW + self._rng.choice((0, 0, 0, 1, -7, HOUR))
        kind = rng.choice(("own", "plain", "batch", "batch", "batch", "marker"))
        producer_id, epoch = rng.choice((5, 6, 7)), rng.choice((0, 0, 0, 0, 1))
        value = bytes(rng.choice((3, 90, 300)))
        if kind == "own":
            return kind, one_record_batch(b"key", value, timestamp), None, timestamp
        if kind == "plain":
            return kind, batch(rng.randrange(1, 4), timestamp=timestamp, value=value), None, timestamp
        if kind == "marker":
            found = Marker(
                producer_id, epoch, rng.choice((0, 0, 0, 1)), rng.random() < 0.6, rng.choice((0, 2))
            )
            data = marker(
                producer_id,
                commit=found.commit,
                epoch=epoch,
                coordinator_epoch=found.coordinator_epoch,
                timestamp=timestamp,
            )
            return kind, data, found, timestamp
        count = rng.randrange(1, 4)
        sequence = self._next.get(producer_id, 0)
        if rng.random() < 0.1:
            sequence = rng.choice((0, sequence + 1, max(0, sequence - 1)))
        self._next[producer_id] = sequence + count
        data = batch(
            count,
            timestamp=timestamp,
            value=value,
            producer=(producer_id, epoch, sequence),
            transactional=rng.random() < 0.8,
        )
        return kind, data, None, timestamp


def in_three_steps(log: Log, kind: str, data: bytearray, wanted: Marker | None) -> Outcome:
    """What `LogAppender` says to a batch; the first of a transaction is verified."""
    client = kind in ("plain", "batch")
    origin = AppendOrigin.CLIENT if client else AppendOrigin.COORDINATOR
    try:
        checked = check_produced(memoryview(data), log.appender.rules_for(origin), NOW + HOUR)
        guard = None
        if client and checked.attributes & 0x10 and log.producers.begins_transaction(checked):
            guard = log.producers.start_verification(
                checked.producer_id, checked.producer_epoch, checked.base_sequence, False, NOW
            )
        version = 0 if wanted is None else wanted.transaction_version
        prepared = log.appender.prepare(
            checked, EPOCH, NOW, origin=origin, guard=guard, transaction_version=version
        )
        if isinstance(prepared, DuplicateBatch):
            return tuple(prepared.result)
        return tuple(log.appender.write(prepared, NOW))
    except KafkaError as error:
        return type(error).__name__


def in_one_step(
    log: Log, kind: str, data: bytearray, wanted: Marker | None, timestamp: int
) -> Outcome | None:
    """What `QuickAppender` says to it; None if it has changed nothing."""
    quick = log.quick_appender
    try:
        if kind in ("plain", "batch"):
            result = quick.append(
                check_produced(memoryview(data), log.appender.rules, NOW + HOUR), EPOCH, is_verified=True
            )
            return None if result is None else tuple(result)
        if wanted is not None:
            offset = quick.append_marker(wanted, data, timestamp, EPOCH)
        else:
            offset = quick.append_own(data, timestamp, EPOCH)
    except KafkaError as error:
        return type(error).__name__
    return None if offset < 0 else (offset, offset, -1, log.log_start_offset, False)


def state(log: Log, disk: SimulatedDisk) -> tuple[object, ...]:
    producers, segments = log.producers, list(log.segments)
    return (
        [disk.read(segment.path(".log")) for segment in segments],
        [
            (
                segment.size,
                segment.write_position,
                segment.bytes_since_index,
                segment.max_timestamp,
                segment.offset_of_max_timestamp,
                segment.last_batch_offset,
                segment.last_batch_position,
                segment.index_files(),
            )
            for segment in segments
        ],
        (log.log_end_offset, log.appender.next_offset, log.high_watermark, log.last_stable_offset),
        log.leader_epochs.latest,
        {each.producer_id: (each.batches, each.coordinator_epoch) for each in producers.entries.values()},
        (producers.encode_snapshot(), dict(producers.ongoing), list(producers.unreplicated)),
        (producers.first_unstable, sorted(producers.verifications)),
    )


@pytest.mark.parametrize("seed", range(scale(6, 300)))
def test_one_step_leaves_what_three_leave(seed: int) -> None:
    script, rng, quick = Script(seed), random.Random(seed), 0
    settings = config(segment_bytes=6_000, index_interval_bytes=500)
    disks = SimulatedDisk(), SimulatedDisk()
    one, three = (open_log("/data/topic-0", settings, disk=disk) for disk in disks)
    for _ in range(120):
        kind, data, wanted, timestamp = script.step()
        expected = in_three_steps(three, kind, data.copy(), wanted)
        before = state(one, disks[0])
        outcome = in_one_step(one, kind, data.copy(), wanted, timestamp)
        if outcome is None:
            assert state(one, disks[0]) == before
            outcome = in_three_steps(one, kind, data.copy(), wanted)
        else:
            quick += 1
        assert outcome == expected
        if rng.random() < 0.5:
            one.commit_all()
            three.commit_all()
        assert state(one, disks[0]) == state(three, disks[1])
    assert quick > 40, "the comparison says little"


def test_a_disk_that_refuses_leaves_the_log_and_the_producer_as_they_were(tmp_path: Path) -> None:
    disk = FailingDisk()
    log = open_log(tmp_path / "log", disk=disk)
    append(log)
    append(log, batch(producer=(7, 0, 0)))

    def second() -> bytearray:
        return batch(producer=(7, 0, 1))

    disk.write_errors.append(errno.ENOSPC)
    with pytest.raises(KafkaStorageError):
        log.quick_appender.append(check_produced(memoryview(second()), log.appender.rules, NOW), 0)
    assert (log.log_end_offset, log.producers.entries[7].last_sequence) == (2, 0)
    with pytest.raises(KafkaStorageError):  # it is in flight behind the refused one
        append(log, batch(producer=(7, 0, 2)))
    again = log.quick_appender.append(check_produced(memoryview(second()), log.appender.rules, NOW), 0)
    assert again is not None
    assert again.base_offset == 2
    assert [header.base_sequence for header in headers(log)] == [-1, 0, 1]


def test_a_refused_marker_is_not_written(tmp_path: Path) -> None:
    log = open_log(tmp_path / "log")
    append(log, batch(producer=(7, 3, 0)))
    end_transaction(log, 7, commit=True, epoch=3, coordinator_epoch=5)
    for wrong, error in (
        (Marker(7, 2, 5, True), InvalidProducerEpoch),
        (Marker(7, 3, 4, True), TransactionCoordinatorFenced),
    ):
        data = marker(7, commit=True, epoch=wrong.producer_epoch, coordinator_epoch=wrong.coordinator_epoch)
        with pytest.raises(error):
            log.quick_appender.append_marker(wrong, data, NOW, 0)
    assert log.log_end_offset == 2


@pytest.mark.parametrize(
    "setting",
    [
        {"message_timestamp_type": "LogAppendTime"},
        {"compression_type": "gzip"},
        {"flush_messages": 1},
        {"max_message_bytes": 60},
    ],
    ids=str,
)
def test_a_topic_that_changes_or_flushes_batches_takes_those_of_the_broker_the_long_way(
    tmp_path: Path, setting: dict[str, object]
) -> None:
    log = open_log(tmp_path / "log")
    append(log)
    append(log)
    own = one_record_batch(b"key", b"value", NOW)
    assert log.quick_appender.append_own(own.copy(), NOW, 0) == 2
    log.update_config(config(**setting))
    assert log.quick_appender.append_own(own.copy(), NOW, 0) == -1
    log.update_config(config())
    log.appender.roll(NOW)
    assert log.quick_appender.append_own(own.copy(), NOW, 0) == -1  # it begins a segment
