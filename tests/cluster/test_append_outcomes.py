"""Whatever fails beneath an append, its caller hears of it exactly once, and the log goes on afterwards."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster.world import World
from tests.storage.helpers import batch, marker, records
from tests.support.simdisk import SimulatedDisk
from tidelog.cluster.partition import HEAVY_BYTES, Partition
from tidelog.errors import KafkaError, KafkaStorageError, UnknownServerError
from tidelog.storage.append import AppendOrigin
from tidelog.storage.file_cache import FileCache
from tidelog.storage.log import Log
from tidelog.storage.log_appender import LogAppender
from tidelog.storage.log_manager import LogManager

SEGMENT_BYTES = 400
PRODUCER = 7

# Which files fail, and at what: the transaction index, a roll, the files of the segment before it.
FAULTS = [
    pytest.param(suffix, operations, id=f"{suffix[1:]} {operations[0]}")
    for suffix, operations in [
        (".txnindex", ("open", "create", "write")),
        (".log", ("create",)),
        (".index", ("open", "create", "write")),
        (".timeindex", ("open", "create", "write")),
        (".snapshot", ("open", "create", "write")),
    ]
]
NUMBERS = [pytest.param(number, id=errno.errorcode[number]) for number in (errno.EMFILE, errno.ENOSPC)]
Sender = Callable[[World, Partition, int, list[BaseException | None]], None]


def client_now(
    world: World, partition: Partition, sequence: int, outcomes: list[BaseException | None]
) -> None:
    produced = world.produce(partition, batch(2, producer=(1, 0, sequence), value=b"v" * 50), acks=1)
    world.advance()
    outcomes.append(produced.error)


def client_large(
    world: World, partition: Partition, sequence: int, outcomes: list[BaseException | None]
) -> None:
    data = batch(2, producer=(1, 0, sequence), value=b"v" * 50)
    produced = world.produce(partition, data, heavy=True)
    world.advance()
    outcomes.append(produced.error)


def coordinator(
    world: World, partition: Partition, sequence: int, outcomes: list[BaseException | None]
) -> None:
    world.replicas.append_own(
        partition,
        memoryview(batch(2, value=b"v" * 50)),
        timeout_ms=1000,
        written=lambda _: None,
        done=outcomes.append,
    )
    world.advance()


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[tuple[World, SimulatedDisk, Partition]]:
    disk = SimulatedDisk()
    world = World(tmp_path / "data", disk=disk)
    partition = world.partition(segment_bytes=SEGMENT_BYTES, transaction_verification_enable=False)
    yield world, disk, partition
    world.close()


def log_of(partition: Partition) -> Log:
    assert partition.log is not None
    return partition.log


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize(("suffix", "operations"), FAULTS)
@pytest.mark.parametrize("send", [client_now, client_large, coordinator])
def test_every_append_has_one_outcome_and_the_log_goes_on(
    stage: tuple[World, SimulatedDisk, Partition],
    send: Sender,
    suffix: str,
    operations: tuple[str, ...],
    number: int,
) -> None:
    world, disk, partition = stage
    written = 0
    for turn in range(30):
        if turn == 10:
            disk.fail(suffix, number, *operations)
        elif turn == 20:
            disk.heal()
        outcomes: list[BaseException | None] = []
        before = log_of(partition).log_end_offset
        send(world, partition, 2 * written, outcomes)
        assert len(outcomes) == 1
        error = outcomes[0]
        assert error is None or isinstance(error, KafkaStorageError)
        assert log_of(partition).log_end_offset == before + (2 if error is None else 0)
        if error is None:
            written += 1
        else:
            assert 10 <= turn < 20, error
    assert not partition.offline
    assert len(records(log_of(partition))) == 2 * written
    world.logs.shutdown()
    assert len(records(reopened(world, disk))) == 2 * written


def reopened(world: World, disk: SimulatedDisk) -> Log:
    """The log as the next start finds it."""
    paths = [folder.path for folder in world.logs.log_dirs]
    manager = LogManager(paths, world.logs.defaults, disk=disk, clock=world.scheduler.clock)
    manager.log_dirs.lock()
    manager.load()
    found = manager.get("t", 0)
    assert found is not None
    return found


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("together", [1, 3])
@pytest.mark.parametrize("crash", [False, True])
def test_an_abort_is_known_to_readers_though_its_index_cannot_be_written(
    stage: tuple[World, SimulatedDisk, Partition], number: int, together: int, crash: bool
) -> None:
    """Each marker has one outcome; readers of committed records pass over what was aborted, also later."""
    world, disk, partition = stage
    log = log_of(partition)
    disk.fail(".txnindex", number, "open", "create", "write")
    expected = []
    for turn in range(8):
        producers = [PRODUCER + turn * together + at for at in range(together)]
        for producer in producers:
            first = world.produce(partition, batch(2, producer=(producer, 0, 0), transactional=True), acks=1)
            expected.append((producer, first.offset))
        outcomes: list[tuple[int, KafkaError | None]] = []
        world.replicas.append_own_together(
            partition,
            [memoryview(marker(producer, commit=False)) for producer in producers],
            [0] * together,
            timeout_ms=1000,
            done=lambda slot, error, outcomes=outcomes: outcomes.append((slot, error)),  # type: ignore[misc]
        )
        world.advance()
        assert outcomes == [(slot, None) for slot in range(together)]
        assert log.last_stable_offset == log.high_watermark == log.log_end_offset
    assert len(log.segments) > 3

    def aborted(of: Log) -> list[tuple[int, int]]:
        return [(found.producer_id, found.first_offset) for found in of.aborted_transactions(0, 10_000)]

    assert aborted(log) == expected
    assert log.recovery_point < log.segments[1].base_offset, "nothing counts as flushed without its index"
    disk.heal()
    if crash:
        log.flush(world.scheduler.clock.ms())
        world.logs.checkpoints.write_recovery_points()
        world.advance()
        after = [disk.after_crash(random.Random(seed)) for seed in range(20)]
    else:
        world.logs.shutdown()
        after = [disk]
    for one in after:
        again = reopened(world, one)
        assert aborted(again) == expected
        assert again.producers.ongoing == {}


def test_markers_that_come_with_a_roll_are_in_the_snapshot_before_it(
    stage: tuple[World, SimulatedDisk, Partition],
) -> None:
    """Markers that are written together may lie in two segments: the first ones count for the second."""
    world, disk, partition = stage
    log = log_of(partition)
    producers = list(range(PRODUCER, PRODUCER + 6))
    for producer in producers:
        world.produce(partition, batch(1, producer=(producer, 0, 0), transactional=True), acks=1)
    segments = len(log.segments)
    world.replicas.append_own_together(
        partition,
        [memoryview(marker(producer, commit=True)) for producer in producers],
        [0] * len(producers),
        timeout_ms=1000,
        done=lambda slot, error: None,
    )
    assert len(log.segments) > segments, "they did not all fit"
    world.advance()
    log.flush(world.scheduler.clock.ms())
    point = log.recovery_point
    again = Log.open(
        "t",
        0,
        log.dir,
        log.config,
        disk=disk,
        files=FileCache(),
        now_ms=world.scheduler.clock.ms(),
        recovery_point=point,
    )
    assert again.producers.ongoing == {}


@pytest.mark.parametrize("heavy", [False, True])
def test_a_failure_that_nobody_expects_is_an_outcome_too(
    stage: tuple[World, SimulatedDisk, Partition], monkeypatch: pytest.MonkeyPatch, heavy: bool
) -> None:
    world, _, partition = stage
    log = log_of(partition)
    size = HEAVY_BYTES if heavy else 10
    log.update_config(type(log.config)(transaction_verification_enable=False))
    partition.config_changed()
    own = [memoryview(batch(value=bytes(size))) for _ in range(2)]
    prepare, calls = LogAppender.prepare, 0

    def fails_at_the_second(self: LogAppender, *args: object, **kwargs: object) -> object:
        nonlocal calls
        calls += 1
        if calls % 2 == 0:
            raise ZeroDivisionError
        return prepare(self, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(LogAppender, "prepare", fails_at_the_second)
    outcomes: list[tuple[int, KafkaError | None]] = []
    world.replicas.append_own_together(
        partition, own, [0, 0], timeout_ms=1000, done=lambda slot, error: outcomes.append((slot, error))
    )
    world.advance()
    monkeypatch.undo()
    assert sorted(slot for slot, _ in outcomes) == [0, 1]
    assert isinstance(dict(outcomes)[1], UnknownServerError)
    assert not log.has_pending
    assert world.produce(partition, origin=AppendOrigin.COORDINATOR).offset == log.log_end_offset - 1
