"""The throttle of leaders: followers that are not in sync get no more than a rate of bytes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.replicated import OTHER, REPLICAS, Replicated
from tests.cluster.test_follower_fetches import FollowerSession
from tests.cluster.world import FOLLOWER, SELF
from tests.storage.helpers import batch
from tidelog.clock import ManualClock
from tidelog.cluster.partition import Partition
from tidelog.cluster.replication_quota import ReplicationQuota
from tidelog.storage.config import LogConfig


@pytest.fixture
def world(tmp_path: Path) -> Replicated:
    world = Replicated(tmp_path)
    world.fetcher.leader_quota.configure(1000, 11, 1.0)
    return world


def lead(world: Replicated, throttled: tuple[str, ...], index: int = 0) -> Partition:
    partition = world.lead(index=index, isr=(SELF, OTHER), leader_replication_throttled_replicas=throttled)
    world.produce(partition, batch(value=bytes(500)), acks=1)
    return partition


@pytest.mark.parametrize(
    ("throttled", "is_throttled"),
    [
        (("*",), True),
        (("0:0",), True),
        (("1:0", "0:0"), True),
        (("0:1",), False),
        (("1:0",), False),
        ((), False),
    ],
)
def test_replicas_of_this_broker_are_throttled_by_name(
    world: Replicated, throttled: tuple[str, ...], is_throttled: bool
) -> None:
    partition = lead(world, throttled)
    world.fetcher.leader_quota.record(100_000)
    answer = world.follow(0)
    assert answer.answered is not is_throttled
    assert partition.followers.replicas[FOLLOWER].log_end_offset == 0, "its position counts in any case"


def test_a_member_of_the_isr_is_never_throttled(world: Replicated) -> None:
    lead(world, ("*",))
    world.fetcher.leader_quota.record(100_000)
    assert world.follow(0, replica_id=OTHER).offsets() == [[0]]


def test_without_a_rate_nothing_is_throttled(world: Replicated) -> None:
    lead(world, ("*",))
    world.fetcher.leader_quota.configure(None, 11, 1.0)
    world.fetcher.leader_quota.record(100_000)
    assert world.follow(0).offsets() == [[0]]


def test_a_follower_that_waits_gets_no_throttled_records(world: Replicated) -> None:
    partition = lead(world, ("*",))
    follower = FollowerSession(world)
    follower.fetch((0, 1))
    world.advance(0.5)
    waiting = follower.fetch((0, 1))
    world.fetcher.leader_quota.record(100_000)
    world.produce(partition, batch(), acks=1)
    world.advance()
    assert not waiting.answered


def test_the_rest_of_a_fetch_is_answered_and_throttled_records_come_later(world: Replicated) -> None:
    lead(world, ("*",), index=0)
    lead(world, (), index=1)
    world.fetcher.leader_quota.record(4000)
    follower = FollowerSession(world)
    assert follower.fetch((0, 0), (1, 0)).offsets() == [[], [0]]
    waiting = follower.fetch((1, 1))
    assert not waiting.answered
    world.advance(0.5)
    assert waiting.answers == []
    world.advance(5)
    assert follower.fetch().offsets() == [[0]]


def test_the_rate_is_measured_over_the_windows() -> None:
    clock = ManualClock()
    quota = ReplicationQuota(clock)
    quota.configure(100, 3, 1.0)
    assert quota.rate() == 0
    quota.record(300)
    assert quota.rate() == 300, "at least one window"
    clock.advance(2)
    assert quota.rate() == 150
    quota.record(30)
    clock.advance(1)
    assert quota.rate() == 30, "the first window is over"
    clock.advance(3)
    assert quota.rate() == 0


def test_settings_of_a_topic_that_change_are_followed(world: Replicated) -> None:
    lead(world, ())
    world.fetcher.leader_quota.record(100_000)
    world.replicas.update_config("t", LogConfig(leader_replication_throttled_replicas=("*",)))
    assert not world.follow(0).answered
    assert world.replicas.partition("t", 0).replicas == list(REPLICAS)
