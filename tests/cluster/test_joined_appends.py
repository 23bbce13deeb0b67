"""Small appends of one turn of the loop are written together: all of them, or none."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from tests.cluster.world import FailingDisk, Produced, World, want
from tests.storage.helpers import batch
from tidelog.cluster.partition import Partition
from tidelog.errors import NotLeaderOrFollower
from tidelog.storage.append import AppendOrigin, DuplicateBatch
from tidelog.storage.log import Log


def log_of(partition: Partition) -> Log:
    assert partition.log is not None
    return partition.log


def join(world: World, partition: Partition, data: bytearray) -> None:
    partition.append_in_turn(partition.check_now(memoryview(data), world.scheduler.clock.ms(), True))
    data[:] = bytes(len(data))  # the next frame is read into the same buffer


def of_producer(sequence: int) -> bytearray:
    return batch(2, producer=(5, 0, sequence))


def end_turn(world: World, partition: Partition) -> list[int | str]:
    """The base offsets of the batches of this turn; of a duplicate its first one, of others their errors."""
    told: list[int | str] = []
    try:
        for outcome in partition.write_turn(world.scheduler.clock.ms()):
            if isinstance(outcome, DuplicateBatch):
                told.append(f"again {outcome.result.base_offset}")
            else:
                told.append(outcome if isinstance(outcome, int) else type(outcome).__name__)
    finally:
        partition.turn_written()
    return told


def test_nobody_sees_what_is_not_written_and_readers_wake_when_it_is(tmp_path: Path) -> None:
    world = World(tmp_path)
    partition = world.partition()
    fetched = world.fetch([want()])
    for sequence in (0, 2, 4):
        join(world, partition, of_producer(sequence))
    assert (log_of(partition).log_end_offset, log_of(partition).high_watermark) == (0, 0)
    assert fetched.answers is None
    assert end_turn(world, partition) == [0, 2, 4]
    assert log_of(partition).high_watermark == 6
    assert fetched.offsets() == [list(range(6))]


def test_other_appends_wait_their_turn(tmp_path: Path) -> None:
    world = World(tmp_path)
    partition = world.partition()
    join(world, partition, of_producer(0))
    submitted = Produced()
    world.replicas.append(
        [(partition, memoryview(of_producer(2)))],
        acks=1,
        timeout_ms=1000,
        heavy=False,
        allow_zstd=True,
        origin=AppendOrigin.CLIENT,
        done=submitted,
    )
    own: list[object] = []
    world.replicas.append_own(
        partition, memoryview(batch(1)), timeout_ms=1000, written=own.append, done=own.append
    )
    held: list[bool] = []
    partition.appends.hold(lambda: held.append(True))
    assert not own
    assert not held
    assert end_turn(world, partition) == [0]
    assert held == [True]
    partition.appends.release()
    assert submitted.offset == 2
    assert own[-1] is None
    assert log_of(partition).log_end_offset == 5


def test_a_write_that_fails_takes_back_the_whole_turn_and_what_follows_goes_on(tmp_path: Path) -> None:
    disk = FailingDisk()
    world = World(tmp_path, disk=disk)
    partition = world.partition()
    assert world.produce(partition, of_producer(0)).offset == 0
    for sequence in (2, 4, 6, 4):
        join(world, partition, of_producer(sequence))
    disk.write_errors.append(errno.ENOSPC)
    assert end_turn(world, partition) == ["KafkaStorageError"] * 4
    assert log_of(partition).log_end_offset == log_of(partition).high_watermark == 2
    assert not log_of(partition).has_pending
    for sequence in (2, 4, 6, 4, 10, 8):  # the producer sends the same again, one twice and two out of order
        join(world, partition, of_producer(sequence))
    assert end_turn(world, partition) == [2, 4, 6, "again 4", "OutOfOrderSequenceNumber", 8]
    assert log_of(partition).log_end_offset == 10


def test_a_partition_that_is_deleted_before_the_end_of_the_turn_refuses(tmp_path: Path) -> None:
    world = World(tmp_path)
    partition = world.partition()
    join(world, partition, of_producer(0))
    join(world, partition, of_producer(2))
    world.replicas.delete_partition("t", 0)
    with pytest.raises(NotLeaderOrFollower):
        partition.write_turn(world.scheduler.clock.ms())
    partition.turn_written()


def test_a_turn_goes_through_several_segments(tmp_path: Path) -> None:
    world = World(tmp_path)
    partition = world.partition(segment_bytes=400)
    for sequence in range(0, 20, 2):
        join(world, partition, of_producer(sequence))
    assert end_turn(world, partition) == list(range(0, 20, 2))
    assert len(log_of(partition).segments) > 2
    assert world.fetch([want(offset=0)]).answers is not None
