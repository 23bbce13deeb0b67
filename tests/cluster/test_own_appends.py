"""Batches of coordinators for several replicas: written at once, told when they are committed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.replicated import OTHER, REPLICAS, Replicated
from tests.cluster.world import FOLLOWER, SELF
from tests.storage.helpers import batch, marker
from tidelog.cluster.partition import Partition
from tidelog.errors import KafkaError, NotEnoughReplicas, NotLeaderOrFollower, RequestTimedOut
from tidelog.metadata.state import PartitionState
from tidelog.storage.append import AppendResult
from tidelog.storage.config import LogConfig

Outcome = KafkaError | str | None


@pytest.fixture
def world(tmp_path: Path) -> Replicated:
    return Replicated(tmp_path)


def append(world: Replicated, partition: Partition, timeout_ms: int = 1000) -> list[Outcome]:
    """The offset when it is written, then the outcome."""
    told: list[Outcome] = []

    def written(result: AppendResult) -> None:
        told.append(f"written {result.base_offset}")

    world.replicas.append_own(
        partition, memoryview(batch()), timeout_ms=timeout_ms, written=written, done=told.append
    )
    return told


def commit(world: Replicated, offset: int) -> None:
    for follower in (FOLLOWER, OTHER):
        world.follow(offset, replica_id=follower)


def test_it_is_written_at_once_and_committed_with_the_high_watermark(world: Replicated) -> None:
    partition = world.lead()
    first, second = append(world, partition), append(world, partition)
    assert (first, second) == (["written 0"], ["written 1"])
    commit(world, 1)
    assert (first, second) == (["written 0", None], ["written 1"])
    commit(world, 2)
    assert second == ["written 1", None]


def test_a_commit_that_takes_too_long_is_a_time_out(world: Replicated) -> None:
    told = append(world, world.lead(), timeout_ms=100)
    world.advance(0.2)
    assert told[0] == "written 0"
    assert isinstance(told[1], RequestTimedOut)


def test_too_few_replicas_in_sync_refuse_it(world: Replicated) -> None:
    partition = world.lead(isr=(SELF,), min_insync_replicas=2)
    (error,) = append(world, partition)
    assert isinstance(error, NotEnoughReplicas)
    assert partition.leader_log().log_end_offset == 0


def test_a_leader_that_is_replaced_fails_what_is_in_flight(world: Replicated) -> None:
    partition = world.lead()
    told = append(world, partition)
    state = PartitionState(list(REPLICAS), OTHER, 1, list(REPLICAS))
    world.replicas.become_follower("t", partition.topic_id, 0, state, LogConfig())
    assert isinstance(told[1], NotLeaderOrFollower)


def test_markers_are_written_together_and_committed_together(world: Replicated) -> None:
    partition = world.lead()
    for producer_id in (7, 8):
        world.produce(partition, batch(producer=(producer_id, 0, 0), transactional=True), acks=1)
    told: dict[int, KafkaError | None] = {}
    batches = [memoryview(marker(producer_id, commit=True)) for producer_id in (7, 8)]
    world.replicas.append_own_together(
        partition, batches, [0, 0], timeout_ms=1000, done=lambda slot, error: told.update({slot: error})
    )
    assert partition.leader_log().log_end_offset == 4
    commit(world, 3)
    assert told == {}
    commit(world, 4)
    assert told == {0: None, 1: None}


def test_a_flush_comes_before_the_commit_of_the_leader(world: Replicated) -> None:
    partition = world.lead(flush_messages=1)
    told = append(world, partition)
    commit(world, 1)
    world.advance()
    assert told == ["written 0", None]
    assert partition.leader_log().high_watermark == 1
