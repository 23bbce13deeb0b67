"""Batches that are appended together leave the log just as batches that are appended one after the other."""

from __future__ import annotations

import errno
import random
from collections.abc import Iterator
from types import ModuleType

import pytest

from tests.storage.helpers import NOW, batch, config, open_log
from tests.support.scale import scale
from tests.support.simdisk import SimulatedDisk
from tidelog.errors import KafkaError, KafkaStorageError
from tidelog.records import _pure_run
from tidelog.records.check import CheckedBatch, check_produced
from tidelog.storage import log_appender
from tidelog.storage.append import DuplicateBatch
from tidelog.storage.log import Log
from tidelog.storage.refused_batches import Sequences

FOLDER, DAY = "/data/topic-0", 86_400_000
_speed = pytest.importorskip("tidelog.records._speed")


@pytest.fixture(autouse=True, params=[_pure_run, _speed], ids=["plain", "compiled"])
def twin(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    made: ModuleType = request.param
    monkeypatch.setattr(log_appender, "lay_out", made.lay_out)
    return made


class Producer:
    """One that mostly goes on, and sometimes repeats itself or skips a sequence."""

    def __init__(self, producer_id: int, transactional: bool) -> None:
        self.id = producer_id
        self.transactional = transactional
        self.next = 0

    def sequence(self, rng: random.Random, count: int) -> int:
        fate = rng.random()
        if fate < 0.1 and self.next >= count:
            return self.next - count
        if fate < 0.15:
            return self.next + 1
        self.next += count
        return self.next - count


def made(rng: random.Random, producers: list[Producer]) -> bytearray:
    count = rng.randrange(1, 4)
    who = rng.choice((None, *producers))
    timestamp = NOW + rng.choice((0, 0, 0, -5, 7, 2 * DAY))
    value = bytes(rng.choice((5, 200, 900)))
    if who is None:
        return batch(count, timestamp=timestamp, value=value)
    producer = (who.id, 0, who.sequence(rng, count))
    return batch(count, timestamp=timestamp, value=value, producer=producer, transactional=who.transactional)


def checked(log: Log, data: bytearray) -> CheckedBatch:
    return check_produced(memoryview(data), log.appender.rules, NOW + 3 * DAY)


def one_by_one(log: Log, batches: list[bytearray]) -> Iterator[int | str]:
    for data in batches:
        of = checked(log, data.copy())
        try:
            prepared = log.appender.prepare(of, 3, NOW)
            if isinstance(prepared, DuplicateBatch):
                yield f"again {prepared.result.base_offset}"
            else:
                yield log.appender.write(prepared, NOW).base_offset
        except KafkaError as error:
            yield type(error).__name__


def together(log: Log, batches: list[bytearray]) -> list[int | str]:
    joined = [checked(log, data.copy()) for data in batches]
    data = bytearray(b"".join(bytes(of.data) for of in joined))
    told: list[int | str] = []
    for outcome in log.appender.append_together(joined, data, 3, NOW):
        if isinstance(outcome, DuplicateBatch):
            told.append(f"again {outcome.result.base_offset}")
        else:
            told.append(outcome if isinstance(outcome, int) else type(outcome).__name__)
    return told


def state(log: Log, disk: SimulatedDisk) -> object:
    segments = [
        (
            segment.base_offset,
            segment.size,
            segment.write_position,
            segment.max_timestamp,
            segment.offset_of_max_timestamp,
            segment.first_timestamp,
            segment.bytes_since_index,
            segment.last_batch_offset,
            segment.last_batch_position,
            disk.read(segment.path(".log")),
            b"" if segment._growing_offsets is None else segment._growing_offsets.encode(),
            b"" if segment._growing_times is None else segment._growing_times.encode(),
        )
        for segment in log.segments
    ]
    producers = {
        one.producer_id: (one.epoch, one.batches, one.last_timestamp, one.transaction_start)
        for one in log.producers.entries.values()
    }
    end = (log.log_end_offset, log.appender.next_offset, log.leader_epochs.latest, log.has_pending)
    return segments, producers, end


@pytest.mark.parametrize("seed", range(scale(25, 400)))
def test_together_is_as_one_by_one(seed: int) -> None:
    rng = random.Random(seed)
    settings = config(
        segment_bytes=rng.choice((2_000, 5_000, 1 << 30)),
        index_interval_bytes=rng.choice((0, 300, 4096)),
        segment_ms=DAY,
        transaction_verification_enable=False,
    )
    disks = SimulatedDisk(), SimulatedDisk()
    one, other = (open_log(FOLDER, settings, disk=disk) for disk in disks)
    producers = [Producer(at, transactional=at % 2 == 1) for at in range(4)]
    for _ in range(12):
        batches = [made(rng, producers) for _ in range(rng.randrange(1, 12))]
        assert together(one, batches) == list(one_by_one(other, batches))
        assert state(one, disks[0]) == state(other, disks[1])


@pytest.mark.parametrize("seed", range(scale(15, 200)))
def test_a_write_that_fails_leaves_what_came_before_it(seed: int) -> None:
    rng = random.Random(seed)
    settings = config(segment_bytes=rng.choice((2_000, 1 << 30)), segment_ms=DAY)
    disk, twin_disk = SimulatedDisk(), SimulatedDisk()
    log, twin_log = (open_log(FOLDER, settings, disk=one) for one in (disk, twin_disk))
    producers = [Producer(at, transactional=False) for at in range(3)]
    first = [made(rng, producers) for _ in range(5)]
    assert together(log, first) == together(twin_log, first)
    lost = [made(rng, producers) for _ in range(6)]
    disk.fail(".log", errno.EIO, "write", times=1)
    told = together(log, lost)
    failed = told.index("KafkaStorageError") if "KafkaStorageError" in told else len(lost)  # none to write
    assert told[failed:] == ["KafkaStorageError"] * (len(lost) - failed)
    disk.heal()
    # What was written is there, and the producers send the rest again as if nothing had happened.
    assert told[:failed] == list(one_by_one(twin_log, lost[:failed]))
    for data in lost[failed:]:
        # Both logs remember what was refused: a batch right behind it has no gap before it.
        refused = Sequences.of(checked(twin_log, data.copy()))
        twin_log.producers.refuse(refused, KafkaStorageError("refused by the disk"))
    rest = together(log, lost[failed:])
    assert rest == list(one_by_one(twin_log, lost[failed:]))
    assert log.log_end_offset == twin_log.log_end_offset
    assert [s.size for s in log.segments] == [s.size for s in twin_log.segments]


def test_the_latest_timestamp_there_is_rolls_nothing() -> None:
    latest, disk = (1 << 63) - 1, SimulatedDisk()
    log = open_log(FOLDER, config(message_timestamp_after_max_ms=latest), disk=disk)
    for first in range(0, 9, 3):
        batches = [batch(timestamp=latest) for _ in range(3)]
        assert together(log, batches) == [first, first + 1, first + 2]
    assert len(log.segments) == 1


def test_few_writes_take_many_batches(twin: ModuleType) -> None:
    disk = SimulatedDisk()
    log = open_log(FOLDER, config(), disk=disk)
    together(log, [batch()])
    together(log, [batch()])  # the second of a segment is looked at closely
    before = disk.operations
    assert together(log, [batch() for _ in range(20)]) == list(range(2, 22))
    assert disk.operations == before + 1


def test_what_is_beyond_the_bytes_is_refused(twin: ModuleType) -> None:
    log = open_log(FOLDER, config(), disk=SimulatedDisk())
    of = checked(log, batch())
    end = (100, 1 << 30, NOW * 2, 1 << 30, 0, 4096)
    with pytest.raises(ValueError, match="bytes"):
        twin.lay_out(bytearray(of.size - 1), 0, [of], 0, 1, 5, 0, end, {}, {})
    with pytest.raises(ValueError, match="batches"):
        twin.lay_out(bytearray(of.size), 0, [of], 0, 2, 5, 0, end, {}, {})
    assert twin.lay_out(bytearray(of.size), 0, [of], 0, 1, 5, 0, end, {}, {})[0] == [5]
