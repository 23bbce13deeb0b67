"""Consumers that read from followers (KIP-392)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.replicated import OTHER, REPLICAS, Replicated
from tests.cluster.world import FOLLOWER, SELF, Fetched, want, without_session
from tests.storage.helpers import batch
from tidelog.cluster.fetch import CONSUMER, FetchParams
from tidelog.cluster.fetch_session import FetchContext, FetchSessionCache
from tidelog.cluster.partition import Partition
from tidelog.cluster.replica_selector import LEADER_SELECTOR, RACK_AWARE_SELECTOR, ReplicaView, selector_of
from tidelog.endpoints import Endpoint
from tidelog.errors import NotLeaderOrFollower, OffsetOutOfRange
from tidelog.metadata.state import BrokerRegistration, ClusterState, PartitionState

RACKS = {SELF: "a", FOLLOWER: "b", OTHER: "b"}


@pytest.fixture
def world(tmp_path: Path) -> Replicated:
    world = Replicated(tmp_path)
    world.fetcher.selector = selector_of(RACK_AWARE_SELECTOR)
    racks(world, RACKS)
    return world


def racks(world: Replicated, racks: dict[int, str], listeners: dict[int, str] | None = None) -> None:
    state = ClusterState("cluster")
    for broker, rack in racks.items():
        listener = (listeners or {}).get(broker, "CLIENTS")
        endpoint = Endpoint(listener, "PLAINTEXT", "h", 9)
        state.brokers[broker] = BrokerRegistration(broker, [endpoint], rack)
    world.metadata.update(state)


def consume(
    world: Replicated,
    rack: str | None,
    offset: int = 0,
    *,
    context: FetchContext | None = None,
    replica_id: int = CONSUMER,
) -> Fetched:
    fetched = Fetched()
    params = FetchParams(500, 1, 1 << 20, 0, replica_id, client_rack=rack, listener="CLIENTS")
    world.fetcher.fetch(context or without_session([want(offset=offset)]), params, fetched)
    return fetched


@pytest.fixture
def partition(world: Replicated) -> Partition:
    """Five committed records; broker 2 has a sixth."""
    partition = world.lead()
    world.produce(partition, batch(5), acks=1)
    world.produce(partition, batch(), acks=1)
    world.follow(5, fetcher_log_start_offset=0)
    world.follow(6, replica_id=OTHER, fetcher_log_start_offset=0)
    return partition


def test_a_consumer_in_another_rack_is_sent_to_the_best_follower_there(
    world: Replicated, partition: Partition
) -> None:
    answer = consume(world, "b").only
    assert answer.preferred_replica == OTHER
    assert answer.records is None
    assert (answer.high_watermark, answer.log_start_offset, answer.error) == (5, 0, None)


@pytest.mark.parametrize("rack", ["a", "c", "", None])
def test_a_consumer_in_the_rack_of_the_leader_or_in_none_reads_here(
    world: Replicated, partition: Partition, rack: str | None
) -> None:
    answer = consume(world, rack).only
    assert answer.preferred_replica == -1
    assert answer.records is not None


def test_without_a_selector_a_consumer_reads_here(world: Replicated, partition: Partition) -> None:
    world.fetcher.selector = selector_of(LEADER_SELECTOR)
    assert consume(world, "b").only.preferred_replica == -1


def test_only_followers_in_sync_with_the_offset_are_selected(world: Replicated, partition: Partition) -> None:
    partition.followers.commit_isr((SELF, FOLLOWER))
    assert consume(world, "b").only.preferred_replica == FOLLOWER
    partition.followers.replicas[FOLLOWER].log_start_offset = 3
    assert consume(world, "b", 2).only.preferred_replica == -1
    assert consume(world, "b", 3).only.preferred_replica == FOLLOWER
    partition.followers.replicas[FOLLOWER].log_end_offset = 2
    assert consume(world, "b", 3).only.preferred_replica == -1


def test_a_follower_without_the_listener_of_the_client_is_not_selected(
    world: Replicated, partition: Partition
) -> None:
    racks(world, RACKS, {OTHER: "BROKERS"})
    assert consume(world, "b").only.preferred_replica == FOLLOWER


def test_followers_are_never_sent_elsewhere(world: Replicated, partition: Partition) -> None:
    assert consume(world, "b", replica_id=FOLLOWER).only.records is not None


def test_an_incremental_fetch_is_sent_to_the_follower_too(world: Replicated, partition: Partition) -> None:
    cache = FetchSessionCache(world.scheduler.clock, 10)
    session = cache.context(0, 0, [want(offset=5)], [])
    waiting = consume(world, "", context=session)
    world.advance(1)
    assert waiting.only.records is None
    for epoch in (1, 2):
        context = cache.context(session.session_id, epoch, [want(offset=5)] if epoch == 1 else [], [])
        assert consume(world, "b", context=context).only.preferred_replica == OTHER


def test_of_equal_followers_that_caught_up_last_is_selected() -> None:
    selector = selector_of(RACK_AWARE_SELECTOR)
    assert selector is not None
    leader = ReplicaView(0, "a", 9, 0.0)
    late, early, short = ReplicaView(1, "b", 9, 2.0), ReplicaView(2, "b", 9, 1.0), ReplicaView(3, "b", 8, 0.0)
    assert selector.select("b", leader, [late, early, short]) is early


# On the follower


@pytest.fixture
def follower(world: Replicated, partition: Partition) -> Partition:
    state = PartitionState(list(REPLICAS), OTHER, 1, list(REPLICAS))
    partition.become_follower(partition.leader_log(), state)
    return partition


def test_a_follower_serves_consumers_up_to_its_high_watermark(world: Replicated, follower: Partition) -> None:
    assert consume(world, "b").offsets() == [[0, 1, 2, 3, 4]]
    waiting = consume(world, "b", 5)
    assert not waiting.answered, "the record above the high watermark is not there yet"
    assert follower.log is not None
    follower.log.update_high_watermark(6)
    world.replicas.high_watermark_moved(follower)
    assert waiting.offsets() == [[5]]
    assert isinstance(consume(world, "b", 7).only.error, OffsetOutOfRange)


def test_a_follower_refuses_older_consumers_and_followers(world: Replicated, follower: Partition) -> None:
    assert isinstance(consume(world, None).only.error, NotLeaderOrFollower)
    assert isinstance(consume(world, "b", replica_id=FOLLOWER).only.error, NotLeaderOrFollower)


def test_a_consumer_without_a_rack_that_is_further_than_a_follower_looks_for_the_leader(
    world: Replicated, follower: Partition
) -> None:
    assert isinstance(consume(world, "", 7).only.error, NotLeaderOrFollower)
    assert not consume(world, "", 6).answered
    follower.log_or_raise().truncate_fully_and_start_at(3, 0)
    assert isinstance(consume(world, "", 2).only.error, OffsetOutOfRange)
