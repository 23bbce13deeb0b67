"""Retries after a restart, while the log is not in the page cache: the loop does not wait for the disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.test_cold_fetch import LoopsDisk
from tests.cluster.world import Produced, World, stored
from tests.storage.helpers import batch
from tidelog.cluster.partition import Partition
from tidelog.errors import KafkaStorageError, NotLeaderOrFollower, OutOfOrderSequenceNumber
from tidelog.storage.append import AppendOrigin, DuplicateBatch, UnreadBatch
from tidelog.storage.producer_history import SEARCHED_BYTES

SMALL = {"segment_bytes": 3000, "index_interval_bytes": 1}
WAYS = pytest.mark.parametrize("heavy", [False, True], ids=["small", "heavy"])


def numbered(sequence: int) -> bytearray:
    return batch(1, producer=(5, 0, sequence), value=b"v" * 1000)


@pytest.fixture
def disk() -> LoopsDisk:
    return LoopsDisk()


@pytest.fixture
def world(tmp_path: Path, disk: LoopsDisk) -> World:
    """A broker that was restarted after eight batches of a producer in several segments."""
    world = World(tmp_path, disk=disk)
    partition = world.partition(**SMALL)
    for sequence in range(8):
        world.produce(partition, numbered(sequence))
    world.close()
    return World(tmp_path, disk=disk)


def cold(world: World, disk: LoopsDisk) -> Partition:
    partition = world.partition(leader_epoch=1, **SMALL)
    world.produce(partition)  # the files to append to are open
    disk.evict()
    return partition


@WAYS
def test_a_retry_is_answered_when_the_disk_was_read(world: World, disk: LoopsDisk, heavy: bool) -> None:
    partition = cold(world, disk)
    retried = [world.produce(partition, numbered(sequence), heavy=heavy) for sequence in (3, 4, 5, 6, 7, 2)]
    behind = world.produce(partition, numbered(8), heavy=heavy)
    assert not any(each.answered for each in (*retried[:4], behind))
    world.advance()
    disk.make_hot()
    assert [each.offset for each in retried[:5]] == [3, 4, 5, 6, 7]
    assert isinstance(retried[5].error, OutOfOrderSequenceNumber)
    assert behind.offset == 9
    assert disk.brought_in
    assert len(stored(partition)) == 10


def test_what_is_known_needs_no_disk(world: World, disk: LoopsDisk) -> None:
    partition = cold(world, disk)
    assert world.produce(partition, numbered(7)).offset == 7
    assert world.produce(partition, numbered(8)).offset == 9
    assert isinstance(world.produce(partition, numbered(12)).error, OutOfOrderSequenceNumber)
    assert not disk.brought_in


def test_a_disk_that_cannot_be_read_refuses_the_retry_alone(world: World, disk: LoopsDisk) -> None:
    partition = cold(world, disk)
    disk.error = OSError(5, "Input/output error")
    retried = world.produce(partition, numbered(4))
    behind = world.produce(partition, numbered(8))
    world.advance()
    disk.error = None
    assert isinstance(retried.error, KafkaStorageError)
    assert behind.offset == 9
    assert not partition.offline
    retried = world.produce(partition, numbered(4))
    world.advance()
    assert retried.offset == 4


def test_a_new_leader_epoch_ends_the_search(world: World, disk: LoopsDisk) -> None:
    partition = cold(world, disk)
    retried = world.produce(partition, numbered(4))
    partition.appends.between(lambda: world.partition(leader_epoch=2, **SMALL))
    world.advance()
    assert isinstance(retried.error, NotLeaderOrFollower)
    again = world.produce(partition, numbered(4))
    world.advance()
    assert again.offset == 4


def test_a_partition_that_is_deleted_meanwhile_refuses(world: World, disk: LoopsDisk) -> None:
    partition = cold(world, disk)
    retried = world.produce(partition, numbered(4))
    world.replicas.delete_partition("t", 0)
    world.advance()
    assert isinstance(retried.error, NotLeaderOrFollower)


def test_a_turn_of_the_loop_leaves_such_batches_for_later(world: World, disk: LoopsDisk) -> None:
    partition = cold(world, disk)
    now_ms = world.scheduler.clock.ms()
    for sequence in (8, 7, 4, 9, 6):
        partition.append_in_turn(partition.check_now(memoryview(numbered(sequence)), now_ms, True))
    outcomes = partition.write_turn(now_ms)
    kinds = [int, DuplicateBatch, UnreadBatch, UnreadBatch, UnreadBatch]
    assert [type(outcome) for outcome in outcomes] == kinds, "their order holds"
    late = []
    for outcome in outcomes:
        if isinstance(outcome, UnreadBatch):
            late.append(Produced())
            world.replicas.append_checked(partition, outcome.batch, acks=-1, timeout_ms=1000, done=late[-1])
    partition.turn_written()
    assert partition.log is not None
    assert partition.log.high_watermark == 10
    world.advance()
    assert [each.offset for each in late] == [4, 10, 6]


def test_coordinators_do_not_search(world: World, disk: LoopsDisk) -> None:
    partition = cold(world, disk)
    assert world.produce(partition, numbered(4), origin=AppendOrigin.COORDINATOR).offset == 9
    assert not disk.brought_in


def test_a_search_as_long_as_it_may_be_takes_few_turns(tmp_path: Path, disk: LoopsDisk) -> None:
    """Every byte comes from the disk, none of it on the loop, and none of it twice."""
    world = World(tmp_path, disk=disk)
    partition = world.partition()
    for sequence in (0, 1):
        world.produce(partition, numbered(sequence))
    while stored_bytes(partition) < SEARCHED_BYTES + 500_000:
        world.produce(partition, batch(4, value=b"v" * 1000))
    world.produce(partition, numbered(2))
    world.close()
    world = World(tmp_path, disk=disk)
    partition = world.partition(leader_epoch=1)
    world.produce(partition)
    disk.evict()
    retried = world.produce(partition, numbered(0))
    assert not retried.answered
    world.advance()
    assert isinstance(retried.error, OutOfOrderSequenceNumber)
    read = [size for path, size, _ in disk.brought_in if path.endswith(".log")]
    assert len(set(disk.brought_in)) == len(disk.brought_in)
    assert SEARCHED_BYTES <= sum(read) <= 1.2 * SEARCHED_BYTES
    assert len(disk.brought_in) <= 40


def stored_bytes(partition: Partition) -> int:
    assert partition.log is not None
    return partition.log.size
