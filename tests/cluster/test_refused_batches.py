"""Batches in flight behind a refused one get its error: the producer sends all of them again in order."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from tests.cluster.test_idempotent_producers import LAST_SEQUENCE, PRODUCER, numbered
from tests.cluster.world import FailingDisk, HeldWorker, World, stored
from tests.storage.helpers import batch
from tidelog.cluster.partition import Partition
from tidelog.errors import (
    InvalidProducerEpoch,
    KafkaStorageError,
    NotEnoughReplicas,
    NotLeaderOrFollower,
    OutOfOrderSequenceNumber,
)
from tidelog.storage.refused_batches import IN_FLIGHT, REMEMBERED_PRODUCERS, RefusedBatches, Sequences


def outcome(world: World, partition: Partition, data: bytearray, heavy: bool = False) -> object:
    produced = world.produce(partition, data, heavy=heavy)
    if heavy:
        world.advance()  # the worker checks it, then writes it
    return produced.offset if produced.error is None else type(produced.error)


@pytest.mark.parametrize("heavy", [False, True], ids=["small", "large"])
@pytest.mark.parametrize("written", [0, 3], ids=["new producer", "known producer"])
def test_the_disk_is_full_for_a_moment(tmp_path: Path, written: int, heavy: bool) -> None:
    disk = FailingDisk()
    world = World(tmp_path, disk=disk)
    partition = world.partition()
    for sequence in range(written):
        assert outcome(world, partition, numbered(sequence)) == sequence
    disk.write_errors.append(errno.ENOSPC)
    in_flight = [numbered(sequence) for sequence in range(written, written + IN_FLIGHT)]
    for data in in_flight:
        assert outcome(world, partition, data, heavy) is KafkaStorageError
    assert outcome(world, partition, batch(1)) == written, "the disk has room again"
    sent_again = [outcome(world, partition, data, heavy) for data in in_flight]
    assert sent_again == list(range(written + 1, written + 1 + IN_FLIGHT))


def test_a_new_segment_has_no_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path)
    partition = world.partition(segment_bytes=300)
    with monkeypatch.context() as full:
        sequence = 0
        while outcome(world, partition, numbered(sequence)) == sequence:
            sequence += 1
            if sequence == 2:
                disk_full = OSError(errno.ENOSPC, "No space left on device")
                full.setattr("tidelog.storage.local_log.LocalLog.roll_to", _raiser(disk_full))
        assert outcome(world, partition, numbered(sequence + 1)) is KafkaStorageError
    assert [outcome(world, partition, numbered(at)) for at in (sequence, sequence + 1)] == [
        sequence,
        sequence + 1,
    ]


def _raiser(error: OSError) -> object:
    def fail(*_: object) -> None:
        raise error

    return fail


def test_replicas_come_back_between_two_batches_in_flight(tmp_path: Path) -> None:
    world = World(tmp_path)
    partition = world.partition(replicas=(0, 1), isr=(0,), min_insync_replicas=2)
    assert outcome(world, partition, numbered(0)) is NotEnoughReplicas
    partition = world.partition(replicas=(0, 1), leader_epoch=1, min_insync_replicas=2)
    assert outcome(world, partition, numbered(1)) is NotEnoughReplicas
    produced = [world.produce(partition, numbered(sequence)) for sequence in (0, 1)]
    world.follower_has(partition, 2)
    assert [answer.offset for answer in produced] == [0, 1]


def test_the_leader_epoch_rises_while_the_first_of_two_batches_is_checked(tmp_path: Path) -> None:
    worker = HeldWorker()
    world = World(tmp_path, worker=worker)
    partition = world.partition()
    first = world.produce(partition, numbered(0), heavy=True)
    world.partition(leader_epoch=1)
    worker.run_all()
    assert isinstance(first.error, NotLeaderOrFollower)
    assert outcome(world, partition, numbered(1)) is NotLeaderOrFollower
    assert [outcome(world, partition, numbered(at)) for at in (0, 1)] == [0, 1]


def test_a_producer_that_gives_a_batch_up_hears_that_its_sequence_has_a_gap(tmp_path: Path) -> None:
    disk = FailingDisk()
    world = World(tmp_path, disk=disk)
    partition = world.partition()
    assert outcome(world, partition, numbered(0)) == 0
    disk.write_errors.append(errno.ENOSPC)
    assert outcome(world, partition, numbered(1)) is KafkaStorageError
    assert outcome(world, partition, numbered(2)) is KafkaStorageError
    assert outcome(world, partition, numbered(2)) is OutOfOrderSequenceNumber, "not in flight any more"
    for sequence in range(3, 2 + IN_FLIGHT - 1):
        assert outcome(world, partition, numbered(sequence)) is KafkaStorageError
    assert outcome(world, partition, numbered(2 + IN_FLIGHT - 1)) is OutOfOrderSequenceNumber
    assert outcome(world, partition, numbered(1)) == 1


def test_a_gap_that_has_nothing_to_do_with_a_refusal_is_one(tmp_path: Path) -> None:
    disk = FailingDisk()
    world = World(tmp_path, disk=disk)
    partition = world.partition()
    assert outcome(world, partition, numbered(LAST_SEQUENCE - 1)) == 0
    disk.write_errors.append(errno.ENOSPC)
    assert outcome(world, partition, numbered(LAST_SEQUENCE, 2)) is KafkaStorageError
    assert outcome(world, partition, numbered(5)) is OutOfOrderSequenceNumber
    assert outcome(world, partition, numbered(LAST_SEQUENCE, 2)) == 1
    assert outcome(world, partition, numbered(2)) is OutOfOrderSequenceNumber
    assert outcome(world, partition, numbered(1)) == 3
    assert outcome(world, partition, numbered(0, epoch=1)) == 4
    disk.write_errors.append(errno.ENOSPC)
    assert outcome(world, partition, numbered(1, epoch=1)) is KafkaStorageError
    assert outcome(world, partition, numbered(0, epoch=2)) == 5
    assert outcome(world, partition, numbered(2, epoch=1)) is InvalidProducerEpoch


def test_the_batches_of_other_producers_in_the_same_turn_are_written(tmp_path: Path) -> None:
    disk = FailingDisk()
    world = World(tmp_path, disk=disk)
    partition = world.partition()
    disk.write_errors.append(errno.ENOSPC)
    assert outcome(world, partition, numbered(0)) is KafkaStorageError
    now_ms = world.scheduler.clock.ms()
    for data in (numbered(1), batch(1, producer=(PRODUCER + 1, 0, 0)), batch(1)):
        partition.append_in_turn(partition.check_now(memoryview(data), now_ms, True))
    refused, *others = partition.write_turn(now_ms)
    partition.turn_written()
    assert isinstance(refused, KafkaStorageError)
    assert others == [0, 1]
    assert len(stored(partition)) == 2


def test_a_log_remembers_a_limited_number_of_producers() -> None:
    refused = RefusedBatches()
    for producer_id in range(REMEMBERED_PRODUCERS + 10):
        refused.add(Sequences(producer_id, 0, 0, 0), None, KafkaStorageError("full"))
    assert len(refused) == REMEMBERED_PRODUCERS
    refused.check(Sequences(9, 0, 1, 1), None)
    with pytest.raises(KafkaStorageError, match="the batch before it was refused: full"):
        refused.check(Sequences(10, 0, 1, 1), None)
