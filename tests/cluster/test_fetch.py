"""Fetch: at once, when enough has come or when time is over; within byte limits and below the watermark."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.world import FOLLOWER, SELF, World, stored, want
from tests.storage.helpers import batch, marker
from tidelog.cluster.fetch import READ_COMMITTED
from tidelog.errors import (
    FencedLeaderEpoch,
    KafkaStorageError,
    OffsetOutOfRange,
    UnknownLeaderEpoch,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from tidelog.storage.append import AppendOrigin


def test_what_is_there_is_given_at_once(tmp_path: Path) -> None:
    world = World(tmp_path)
    partition = world.partition()
    world.produce(partition, batch(3))
    fetched = world.fetch([want()])
    assert fetched.offsets() == [[0, 1, 2]]
    assert (fetched.only.high_watermark, fetched.only.log_start_offset) == (3, 0)
    assert world.replicas.fetch_purgatory.delayed == 0


def test_an_append_wakes_a_fetch_at_the_end_of_the_log(tmp_path: Path) -> None:
    world = World(tmp_path)
    partition = world.partition()
    world.produce(partition)
    fetched = world.fetch([want(offset=1)])
    assert not fetched.answered
    world.produce(partition, batch(2))
    assert fetched.offsets() == [[1, 2]]
    assert world.replicas.fetch_purgatory.watched == 0


def test_time_ends_the_wait_with_nothing(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.partition()
    fetched = world.fetch([want()], max_wait_ms=500)
    world.advance(0.499)
    assert not fetched.answered
    world.advance(0.002)
    assert fetched.offsets() == [[]]
    assert fetched.only.error is None


def test_max_wait_of_zero_never_waits(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.partition()
    assert world.fetch([want()], max_wait_ms=0).offsets() == [[]]


def test_min_bytes_are_counted_over_all_partitions(tmp_path: Path) -> None:
    world = World(tmp_path)
    partitions = [world.partition(index=index) for index in range(2)]
    size = len(batch())
    fetched = world.fetch([want(index=0), want(index=1)], min_bytes=3 * size)
    world.produce(partitions[0])
    world.produce(partitions[1])
    assert not fetched.answered
    world.produce(partitions[0])
    assert fetched.offsets() == [[0, 1], [0]]


def test_less_than_min_bytes_is_given_when_time_is_over(tmp_path: Path) -> None:
    world = World(tmp_path)
    partition = world.partition()
    fetched = world.fetch([want()], min_bytes=1 << 20, max_wait_ms=100)
    world.produce(partition)
    assert not fetched.answered
    world.advance(0.2)
    assert fetched.offsets() == [[0]]


def test_nobody_reads_what_the_replicas_do_not_have(tmp_path: Path) -> None:
    world = World(tmp_path)
    partition = world.partition(replicas=(SELF, FOLLOWER))
    world.produce(partition, batch(2), acks=1)
    world.produce(partition, batch(2), acks=1)
    fetched = world.fetch([want()])
    assert not fetched.answered
    world.follower_has(partition, 2)
    assert fetched.offsets() == [[0, 1]]
    world.follower_has(partition, 3)
    assert world.fetch([want()]).offsets() == [[0, 1]], "a batch is committed as a whole"


def test_deletion_of_the_partition_ends_the_wait(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.partition("gone")
    world.partition("kept")
    fetched = world.fetch([want("gone"), want("kept")])
    world.replicas.delete_partition("gone", 0)
    assert fetched.answers is not None
    kept, gone = fetched.answers
    assert isinstance(gone.error, UnknownTopicOrPartition)
    assert kept.error is None


def test_a_failed_folder_ends_the_wait(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.partition()
    fetched = world.fetch([want()])
    world.replicas.partitions_offline([("t", 0)])
    assert isinstance(fetched.only.error, KafkaStorageError)


def test_a_stop_answers_those_who_wait_and_those_who_come_late(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.partition()
    waiting = world.fetch([want()], max_wait_ms=30_000)
    world.replicas.end_waits()
    assert waiting.offsets() == [[]]
    assert world.fetch([want()], max_wait_ms=30_000).offsets() == [[]]
    assert world.replicas.fetch_purgatory.delayed == 0


def test_a_partition_with_an_error_is_told_without_waiting(tmp_path: Path) -> None:
    world = World(tmp_path)
    for index in range(2):
        world.partition(index=index)
    named_by_id = want(b"i" * 16)  # type: ignore[arg-type]
    fetched = world.fetch([want(), want("missing"), named_by_id, want(index=1, offset=1)])
    assert fetched.answers is not None
    assert [type(answer.error) for answer in fetched.answers] == [
        type(None),
        OffsetOutOfRange,
        UnknownTopicOrPartition,
        UnknownTopicId,
    ], "unknown partitions come last, as in Kafka"


def test_an_unknown_partition_keeps_nobody_from_waiting_for_the_others(tmp_path: Path) -> None:
    world = World(tmp_path)
    partition = world.partition()
    assert world.fetch([want("missing")]).answered, "there is nothing to wait for"
    fetched = world.fetch([want("missing"), want()])
    assert not fetched.answered
    world.partition("missing")
    assert not fetched.answered
    world.produce(partition)
    assert fetched.offsets() == [[], [0]], "by now the other one is known too"


def test_a_partition_that_is_wanted_twice_is_read_once_as_wanted_last(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.produce(world.partition(), batch(2))
    world.produce(world.partition(), batch(2))
    world.produce(world.partition(index=1))
    fetched = world.fetch([want(), want(index=1), want(offset=2)])
    assert fetched.offsets() == [[2, 3], [0]]


def test_a_follower_reads_what_is_not_committed_and_is_woken_by_appends(tmp_path: Path) -> None:
    world = World(tmp_path)
    partition = world.partition(replicas=(SELF, FOLLOWER))
    world.produce(partition, acks=1)
    assert world.fetch([want()], replica_id=FOLLOWER).offsets() == [[0]]
    first = world.fetch([want(offset=0)])
    assert not first.answered
    follower = world.fetch([want(offset=1)], replica_id=FOLLOWER)
    assert first.offsets() == [[0]], "the follower's fetch offset says that it has the record"
    consumer = world.fetch([want(offset=1)])
    world.produce(partition, batch(2), acks=1)
    world.advance()
    assert (follower.offsets(), consumer.answered) == ([[1, 2]], False)
    world.fetch([want(offset=3)], replica_id=FOLLOWER)
    assert consumer.offsets() == [[1, 2]]


# Byte limits


@pytest.fixture
def full(tmp_path: Path) -> World:
    """Three partitions with five batches each, of the same size."""
    world = World(tmp_path)
    for index in range(3):
        partition = world.partition(index=index)
        for _ in range(5):
            world.produce(partition, batch(value=bytes(100)))
    return world


SIZE = len(batch(value=bytes(100)))
EVERY = [0, 1, 2]


def test_the_limit_of_the_request_holds_over_all_partitions(full: World) -> None:
    fetched = full.fetch([want(index=index) for index in EVERY], max_bytes=7 * SIZE)
    assert fetched.offsets() == [[0, 1, 2, 3, 4], [0, 1], []]


def test_the_limit_of_a_partition_holds_for_it_alone(full: World) -> None:
    fetched = full.fetch([want(index=index, max_bytes=(index + 1) * SIZE) for index in EVERY])
    assert fetched.offsets() == [[0], [0, 1], [0, 1, 2]]


@pytest.mark.parametrize("limit", [0, 1, SIZE - 1])
def test_the_first_batch_comes_whole_however_small_the_limit(full: World, limit: int) -> None:
    fetched = full.fetch([want(index=index, max_bytes=limit) for index in EVERY], max_bytes=limit)
    assert fetched.offsets() == [[0], [], []]


def test_the_first_batch_is_that_of_the_first_partition_that_has_one(full: World) -> None:
    fetched = full.fetch([want(index=0, offset=5), want(index=1), want(index=2)], max_bytes=1)
    assert fetched.offsets() == [[], [0], []]


def test_no_partition_but_for_its_last_batch_gets_parts_of_batches(full: World) -> None:
    for limit in range(0, 8 * SIZE, SIZE // 3):
        fetched = full.fetch([want(index=index) for index in EVERY], max_bytes=limit)
        assert fetched.answers is not None
        for answer in fetched.answers:
            if answer.records is not None:
                assert answer.records.size >= SIZE, "the beginning of a batch is of no use"


def test_a_fetch_does_not_wait_for_more_than_its_limits_allow(full: World) -> None:
    fetched = full.fetch([want(max_bytes=SIZE)], min_bytes=10 * SIZE, max_wait_ms=100)
    full.advance(0.2)
    assert fetched.offsets() == [[0]]


# Isolation


def test_read_committed_ends_where_the_oldest_transaction_begins(tmp_path: Path) -> None:
    world = World(tmp_path)
    partition = world.partition()
    world.produce(partition)
    world.produce(partition, batch(2, producer=(5, 0, 0), transactional=True))
    world.produce(partition)
    committed = world.fetch([want()], isolation_level=READ_COMMITTED)
    assert committed.offsets() == [[0]]
    assert (committed.only.last_stable_offset, committed.only.high_watermark) == (1, 4)
    assert world.fetch([want()]).offsets() == [[0, 1, 2, 3]]


@pytest.mark.parametrize("commit", [True, False])
def test_the_end_of_a_transaction_wakes_a_reader_of_committed_records(tmp_path: Path, commit: bool) -> None:
    world = World(tmp_path)
    partition = world.partition()
    world.produce(partition, batch(2, producer=(5, 0, 0), transactional=True))
    fetched = world.fetch([want()], isolation_level=READ_COMMITTED)
    world.produce(partition)
    assert not fetched.answered, "the transaction is still open"
    world.produce(partition, marker(5, commit=commit), origin=AppendOrigin.COORDINATOR)
    assert fetched.offsets() == [[0, 1, 2, 3]]
    assert fetched.only.aborted == ([] if commit else [(5, 0)])
    assert fetched.only.last_stable_offset == 4


def test_clients_write_no_markers(tmp_path: Path) -> None:
    world = World(tmp_path)
    partition = world.partition()
    assert world.produce(partition, marker(5, commit=True)).error is not None
    assert stored(partition) == []


# Leader epochs


def test_a_reader_with_an_older_or_newer_epoch_is_told(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.partition(leader_epoch=3)
    errors = []
    for epoch in (2, 3, 4, -1):
        errors.append(type(world.fetch([want(current_leader_epoch=epoch)], max_wait_ms=0).only.error))
    assert errors == [FencedLeaderEpoch, type(None), UnknownLeaderEpoch, type(None)]


def test_a_reader_whose_log_parted_is_told_where(tmp_path: Path) -> None:
    """Epoch 0 wrote 0-4, epoch 2 wrote 5-9; epoch 1 wrote nothing that is left."""
    world = World(tmp_path)
    world.produce(world.partition(leader_epoch=0), batch(5))
    world.produce(world.partition(leader_epoch=2), batch(5))
    agrees = world.fetch([want(offset=5, last_fetched_epoch=0)])
    assert agrees.offsets() == [[5, 6, 7, 8, 9]]
    assert agrees.only.diverging is None
    for offset, epoch, where in ((6, 0, (0, 5)), (7, 1, (0, 5)), (11, 2, (2, 10))):
        parted = world.fetch([want(offset=offset, last_fetched_epoch=epoch)])
        assert parted.only.diverging == where
        assert parted.only.records is None
    unknown = world.fetch([want(offset=5, last_fetched_epoch=7)])
    assert isinstance(unknown.only.error, OffsetOutOfRange)
