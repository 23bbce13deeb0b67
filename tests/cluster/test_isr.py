"""The in-sync replicas of a partition, and the high watermark that they decide."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.replicated import OTHER, OWN_EPOCH, REPLICAS, Replicated
from tests.cluster.test_follower_fetches import FollowerSession
from tests.cluster.world import FOLLOWER, SELF
from tests.storage.helpers import batch
from tidelog.cluster.alter_partition_manager import AlteredPartition
from tidelog.cluster.isr_manager import OUTDATED, REFUSED
from tidelog.cluster.partition import Partition
from tidelog.errors import ErrorCode


@pytest.fixture
def world(tmp_path: Path) -> Replicated:
    return Replicated(tmp_path)


def high_watermark(partition: Partition) -> int:
    return partition.leader_log().high_watermark


# Joining


def test_a_follower_joins_when_it_has_reached_the_high_watermark(world: Replicated) -> None:
    partition = world.lead(isr=(SELF,))
    for _ in range(3):
        world.produce(partition, batch())
    assert high_watermark(partition) == 3
    world.follow(2)
    assert world.asked.changes == []
    world.follow(3, epoch=7)
    change = world.asked.changes[0]
    assert (change.key, change.leader_epoch, change.partition_epoch) == (("t", 0), 0, 0)
    assert change.isr == [(SELF, OWN_EPOCH), (FOLLOWER, 7)]
    assert partition.isr == [SELF], "the controller has not answered"
    world.asked.grant()
    assert (partition.isr, partition.partition_epoch) == ([SELF, FOLLOWER], 1)
    assert world.meters.expands.count == 1


def test_a_follower_has_to_reach_the_first_offset_of_the_epoch(world: Replicated) -> None:
    partition = world.lead(isr=(SELF, FOLLOWER))
    world.produce(partition, batch(5), acks=1)
    assert high_watermark(partition) == 0
    partition = world.lead(isr=(SELF, FOLLOWER), leader_epoch=1)
    world.follow(3, replica_id=OTHER)
    assert world.asked.changes == [], "records of the older epoch may be missing"
    world.follow(5, replica_id=OTHER)
    assert world.asked.isr() == [SELF, FOLLOWER, OTHER]


def test_a_candidate_counts_while_the_controller_is_asked(world: Replicated) -> None:
    partition = world.lead(isr=(SELF,))
    world.follow(0)
    assert world.asked.isr() == [SELF, FOLLOWER]
    world.produce(partition, batch(), acks=1)
    assert high_watermark(partition) == 0
    world.asked.refuse(ErrorCode.INELIGIBLE_REPLICA)
    world.advance(40)
    world.produce(partition, batch(), acks=1)
    assert high_watermark(partition) == 2


def test_a_follower_that_keeps_up_is_waited_for(world: Replicated) -> None:
    """Otherwise it could never reach the high watermark of a leader alone in the ISR."""
    partition = world.lead(isr=(SELF,))
    world.produce(partition, batch(2))
    world.follow(0)
    world.follow(2)
    world.asked.refuse(ErrorCode.INELIGIBLE_REPLICA)
    world.produce(partition, batch(), acks=1)
    assert high_watermark(partition) == 2
    world.alive(SELF, OTHER)
    world.produce(partition, batch(), acks=1)
    assert high_watermark(partition) == 4, "a broker that is gone is not waited for"


def test_a_broker_that_is_not_alive_does_not_join(world: Replicated) -> None:
    world.lead(isr=(SELF,))
    world.alive(SELF, OTHER)
    world.follow(0)
    assert world.asked.changes == []
    world.alive(*REPLICAS)
    world.follow(0)
    assert world.asked.isr() == [SELF, FOLLOWER]


def test_a_follower_in_a_session_joins_although_its_partition_has_no_news(world: Replicated) -> None:
    world.lead(isr=(SELF,))
    world.alive(SELF)
    follower = FollowerSession(world)
    follower.fetch((0, 0))
    follower.fetch()
    assert world.asked.changes == []
    world.alive(*REPLICAS)
    world.advance(0.5)
    follower.fetch()
    assert world.asked.isr() == [SELF, FOLLOWER]


def test_a_new_leader_begins_with_the_high_watermark_of_its_checkpoint(tmp_path: Path) -> None:
    world = Replicated(tmp_path)
    world.produce(world.lead(), batch(5), acks=1)
    world.follow(3)
    world.follow(4, replica_id=OTHER)
    world.close()
    again = Replicated(tmp_path)
    partition = again.lead(leader_epoch=1)
    assert high_watermark(partition) == 3
    assert partition.leader_epoch_start_offset == 5
    again.follow(5)
    again.follow(4, replica_id=OTHER)
    assert high_watermark(partition) == 4


# Leaving


def test_a_member_leaves_when_it_has_not_been_caught_up_for_too_long(world: Replicated) -> None:
    partition = world.lead()
    for replica_id in (FOLLOWER, OTHER):
        world.follow(0, replica_id=replica_id)
    world.produce(partition, batch(), acks=1)
    world.advance(20)
    world.follow(1, replica_id=OTHER)
    world.advance(10)
    assert world.asked.changes == [], "30 seconds are allowed"
    world.advance(15)
    assert world.asked.isr() == [SELF, OTHER]
    world.produce(partition, batch(), acks=1)
    world.follow(2, replica_id=OTHER)
    assert high_watermark(partition) == 0, "the member that shall leave still counts"
    world.asked.grant()
    assert partition.isr == [SELF, OTHER]
    assert high_watermark(partition) == 2
    assert world.meters.shrinks.count == 1


def test_a_member_that_never_fetches_leaves(world: Replicated) -> None:
    partition = world.lead()
    world.produce(partition, batch(), acks=1)
    world.advance(29)
    assert world.asked.changes == []
    world.advance(30)
    assert world.asked.isr() == [SELF]


def test_an_idle_partition_keeps_its_members(world: Replicated) -> None:
    world.lead()
    for replica_id in (FOLLOWER, OTHER):
        world.follow(0, replica_id=replica_id)
    world.advance(600)
    assert world.asked.changes == []


def test_a_member_that_always_has_what_the_leader_had_before_stays(world: Replicated) -> None:
    partition = world.lead(isr=(SELF, FOLLOWER))
    for offset in range(40):
        world.produce(partition, batch(), acks=1)
        world.follow(offset)
        world.advance(5)
    assert world.asked.changes == []


def test_the_fetches_of_a_session_without_news_count_for_every_partition(world: Replicated) -> None:
    partitions = [world.lead(index=index, isr=(SELF, FOLLOWER)) for index in range(2)]
    follower = FollowerSession(world)
    follower.fetch((0, 0), (1, 0))
    for _ in range(100):
        world.advance(1)
        follower.fetch()
    for partition in partitions:
        world.produce(partition, batch(), acks=1)
    world.advance(29)
    assert world.asked.changes == [], "the last fetch of the session was before the append, not long ago"
    world.advance(30)
    assert {change.key[1] for change in world.asked.changes} == {0, 1}


def test_a_member_that_caught_up_before_it_left_joins_again(world: Replicated) -> None:
    partition = world.lead(isr=(SELF, FOLLOWER))
    follower = FollowerSession(world)
    follower.fetch((0, 0))
    world.advance(100)
    world.produce(partition, batch(), acks=1)
    world.advance(15)
    assert world.asked.isr() == [SELF]
    for positions in ([(0, 1)], [], []):
        follower.fetch(*positions)
        world.advance(0.5)
    assert high_watermark(partition) == 1
    world.asked.grant()
    assert partition.isr == [SELF]
    follower.fetch()
    assert world.asked.isr() == [SELF, FOLLOWER]


def test_a_session_that_went_silent_before_the_append_does_not_count(world: Replicated) -> None:
    partition = world.lead(isr=(SELF, FOLLOWER))
    follower = FollowerSession(world)
    follower.fetch((0, 0))
    world.advance(100)
    world.produce(partition, batch(), acks=1)
    world.advance(15)
    assert world.asked.isr() == [SELF]


# The answers of the controller


def asked_to_join(world: Replicated) -> Partition:
    partition = world.lead(isr=(SELF,))
    world.follow(0)
    assert len(world.asked.changes) == 1
    return partition


@pytest.mark.parametrize("code", sorted(REFUSED))
def test_a_refused_change_may_be_asked_for_again(world: Replicated, code: int) -> None:
    partition = asked_to_join(world)
    world.asked.refuse(code)
    assert partition.followers.pending is None
    world.follow(0)
    assert world.asked.isr() == [SELF, FOLLOWER]
    assert world.meters.failed_updates.count == 1


@pytest.mark.parametrize("code", sorted(OUTDATED))
def test_a_leader_with_an_old_state_waits_for_the_controller(world: Replicated, code: int) -> None:
    partition = asked_to_join(world)
    world.asked.refuse(code)
    world.follow(0)
    world.advance(600)
    assert world.asked.changes == []
    assert set(partition.followers.maximal_isr) == {SELF, FOLLOWER}
    world.lead(isr=(SELF,))
    world.follow(0)
    assert world.asked.isr() == [SELF, FOLLOWER]


def test_any_other_error_makes_the_leader_ask_again(world: Replicated) -> None:
    asked_to_join(world)
    world.asked.refuse(ErrorCode.UNKNOWN_SERVER_ERROR)
    assert world.asked.isr() == [SELF, FOLLOWER]


def test_an_answer_that_a_newer_state_has_overtaken_is_ignored(world: Replicated) -> None:
    partition = asked_to_join(world)
    change = world.asked.only()
    world.lead(isr=(SELF, OTHER))
    change.answered(AlteredPartition(SELF, 0, [SELF, FOLLOWER], 1), 0)
    assert partition.isr == [SELF, OTHER]


def test_an_answer_with_another_leader_epoch_is_ignored(world: Replicated) -> None:
    partition = asked_to_join(world)
    world.asked.only().answered(AlteredPartition(SELF, 3, [SELF, FOLLOWER], 9), 0)
    assert (partition.isr, partition.partition_epoch) == ([SELF], 0)


def test_one_change_of_a_partition_is_in_flight(world: Replicated) -> None:
    asked_to_join(world)
    world.follow(0, replica_id=OTHER)
    assert len(world.asked.changes) == 1
    world.asked.grant()
    world.follow(0, replica_id=OTHER)
    assert world.asked.isr() == [SELF, FOLLOWER, OTHER]


def test_a_follower_that_dies_before_it_joins_does_not_hold_back_the_high_watermark(tmp_path: Path) -> None:
    world = Replicated(tmp_path)
    partition = world.lead(isr=(SELF, FOLLOWER))
    world.follow(0)
    world.follow(0, replica_id=OTHER)  # it has caught up, and is about to join
    world.produce(partition, batch(3), acks=1)
    world.asked.refuse(ErrorCode.INELIGIBLE_REPLICA)
    world.follow(3)
    assert partition.leader_log().high_watermark == 0
    world.alive(SELF, FOLLOWER)
    world.isr.brokers_changed()
    world.advance()
    assert partition.leader_log().high_watermark == 3
