"""Idempotent producers: every batch once, in the order of its sequence, also over a restart."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cluster.world import HeldWorker, Produced, World, stored
from tests.storage.helpers import batch
from tests.support.scale import scale
from tidelog.errors import InvalidProducerEpoch, OutOfOrderSequenceNumber

PRODUCER = 42
LAST_SEQUENCE = (1 << 31) - 1


def numbered(sequence: int, count: int = 1, epoch: int = 0) -> bytearray:
    return batch(count, producer=(PRODUCER, epoch, sequence))


def test_sequences_go_on_from_the_last_batch(tmp_path: Path) -> None:
    world = World(tmp_path)
    partition = world.partition()
    assert [world.produce(partition, numbered(at, 2)).offset for at in (0, 2, 4)] == [0, 2, 4]
    for sequence in (7, 5, 100):
        assert isinstance(world.produce(partition, numbered(sequence, 2)).error, OutOfOrderSequenceNumber)
    assert world.produce(partition, numbered(6)).offset == 6


def test_the_last_five_batches_are_answered_with_their_first_offset(tmp_path: Path) -> None:
    world = World(tmp_path)
    partition = world.partition()
    for sequence in range(0, 12, 2):
        world.produce(partition, numbered(sequence, 2))
    for sequence in range(2, 12, 2):
        again = world.produce(partition, numbered(sequence, 2)).result
        assert (again.base_offset, again.last_offset) == (sequence, sequence + 1)
    assert isinstance(world.produce(partition, numbered(0, 2)).error, OutOfOrderSequenceNumber)
    assert partition.log is not None
    assert partition.log.log_end_offset == 12


def test_a_first_sequence_above_zero_is_taken_from_a_producer_that_is_not_known(tmp_path: Path) -> None:
    world = World(tmp_path)
    partition = world.partition()
    assert world.produce(partition, numbered(17)).offset == 0
    assert world.produce(partition, numbered(18)).offset == 1


def test_sequences_begin_anew_behind_the_largest(tmp_path: Path) -> None:
    world = World(tmp_path)
    partition = world.partition()
    world.produce(partition, numbered(LAST_SEQUENCE - 1, 4))
    assert world.produce(partition, numbered(2)).offset == 4
    assert world.produce(partition, numbered(LAST_SEQUENCE - 1, 4)).offset == 0, "a duplicate"


def test_a_new_epoch_begins_with_sequence_zero_and_ends_the_old(tmp_path: Path) -> None:
    world = World(tmp_path)
    partition = world.partition()
    world.produce(partition, numbered(0, 3))
    assert isinstance(world.produce(partition, numbered(3, epoch=1)).error, OutOfOrderSequenceNumber)
    assert world.produce(partition, numbered(0, epoch=1)).offset == 3
    assert isinstance(world.produce(partition, numbered(3, epoch=0)).error, InvalidProducerEpoch)


def test_every_partition_counts_for_itself(tmp_path: Path) -> None:
    world = World(tmp_path)
    first, second = world.partition(index=0), world.partition(index=1)
    world.produce(first, numbered(0))
    assert world.produce(second, numbered(0)).offset == 0
    assert world.produce(first, numbered(1)).offset == 1


@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
def test_what_is_known_of_producers_survives_a_restart(tmp_path: Path, clean: bool) -> None:
    world = World(tmp_path)
    partition = world.partition(segment_bytes=300)
    for sequence in range(8):
        world.produce(partition, numbered(sequence))
    if clean:
        world.close()
    else:
        for folder in world.logs.log_dirs:
            folder.unlock()
    world = World(tmp_path)
    partition = world.partition(leader_epoch=1)
    # The snapshot of a clean stop has, as Kafka's, only the last batch of each producer; the log has them.
    for sequence in (3, 4, 5, 6, 7):
        assert world.produce(partition, numbered(sequence)).offset == sequence
    assert isinstance(world.produce(partition, numbered(2)).error, OutOfOrderSequenceNumber)
    assert isinstance(world.produce(partition, numbered(9)).error, OutOfOrderSequenceNumber)
    assert world.produce(partition, numbered(8)).offset == 8


@settings(max_examples=scale(60, 1_000), derandomize=True, deadline=None)
@given(
    plan=st.lists(
        st.tuples(st.integers(1, 3), st.booleans(), st.integers(0, 2), st.booleans()), min_size=1, max_size=20
    )
)
def test_retries_never_write_a_batch_twice_nor_lose_one(
    plan: list[tuple[int, bool, int, bool]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Each batch is sent, and sent again some times, small or large, before the worker has done the last."""
    worker = HeldWorker()
    world = World(tmp_path_factory.mktemp("retries"), worker=worker)
    partition = world.partition()
    answers: list[list[Produced]] = []
    sequence = 0
    expected: list[int] = []
    for count, heavy, retries, works in plan:
        expected.append(sequence)
        data = numbered(sequence, count)
        answers.append([world.produce(partition, data, acks=1, heavy=heavy)])
        # A producer goes on with its next batch only behind this one: they share a connection.
        while not answers[-1][0].answered:
            worker.run_one()
        answers[-1] += [
            world.produce(partition, data, acks=1, heavy=heavy == bool(n % 2)) for n in range(retries)
        ]
        if works:
            worker.run_one()
        sequence += count
    worker.run_all()
    assert [header.base_offset for header, _ in stored(partition)] == expected
    for offset, attempts in zip(expected, answers, strict=True):
        for answer in attempts:
            # A retry that comes too late is refused; one that is taken has the first offset.
            if answer.error is None:
                assert answer.offset == offset
            else:
                assert isinstance(answer.error, OutOfOrderSequenceNumber)
