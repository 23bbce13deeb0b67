"""Fetches of followers: what they read, what they say about the follower, and what wakes them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.replicated import OTHER, Replicated
from tests.cluster.world import FOLLOWER, SELF, Fetched, World, want
from tests.storage.helpers import batch
from tidelog.cluster.fetch import FetchParams
from tidelog.cluster.fetch_session import FetchedPartition, FetchSessionCache
from tidelog.cluster.partition import Partition
from tidelog.cluster.replica_manager import ReplicaManager
from tidelog.errors import FencedLeaderEpoch, NotLeaderOrFollower, OffsetOutOfRange, UnknownLeaderEpoch
from tidelog.storage.log import Log
from tidelog.storage.log_read import ReadResult


@pytest.fixture
def world(tmp_path: Path) -> Replicated:
    return Replicated(tmp_path)


class FollowerSession:
    """The incremental fetches of one follower."""

    def __init__(self, world: World, replica_id: int = FOLLOWER) -> None:
        self.world = world
        self.cache = FetchSessionCache(world.scheduler.clock, 10)
        self.params = FetchParams(500, 1, 1 << 20, 0, replica_id)
        self.session_id = self.epoch = 0

    def fetch(self, *positions: tuple[int, int]) -> Fetched:
        """Positions are partitions with their fetch offsets, if they are new."""
        wanted = [want(index=index, offset=offset) for index, offset in positions]
        context = self.cache.context(self.session_id, self.epoch, wanted, [], from_follower=True)
        assert context.error == 0
        self.session_id, self.epoch = context.session_id, self.epoch + 1
        fetched = Fetched()
        self.world.fetcher.fetch(context, self.params, fetched)
        return fetched


def test_a_fetch_says_how_far_the_log_of_a_follower_goes(world: Replicated) -> None:
    partition = world.lead()
    world.produce(partition, batch(3), acks=1)
    assert world.follow(0, epoch=7, fetcher_log_start_offset=0).offsets() == [[0, 1, 2]]
    world.follow(3, epoch=7, fetcher_log_start_offset=2)
    replica = partition.followers.replicas[FOLLOWER]
    assert (replica.log_end_offset, replica.log_start_offset, replica.broker_epoch) == (3, 2, 7)
    assert partition.followers.replicas[OTHER].log_end_offset == -1


def test_records_are_committed_when_all_members_have_fetched_past_them(world: Replicated) -> None:
    partition = world.lead()
    world.produce(partition, batch(3), acks=1)
    world.follow(3)
    assert partition.leader_log().high_watermark == 0
    world.follow(2, replica_id=OTHER)
    assert partition.leader_log().high_watermark == 2
    answer = world.follow(3, replica_id=OTHER)
    assert not answer.answered
    assert partition.leader_log().high_watermark == 3


def test_the_answer_has_the_high_watermark_that_the_fetch_has_moved(world: Replicated) -> None:
    partition = world.lead(isr=(SELF, FOLLOWER))
    world.produce(partition, batch(), acks=1)
    world.produce(partition, batch(), acks=1)
    assert world.follow(1).only.high_watermark == 1


def test_a_fetch_from_outside_of_the_log_says_nothing_about_the_follower(world: Replicated) -> None:
    partition = world.lead()
    assert isinstance(world.follow(5).only.error, OffsetOutOfRange)
    assert partition.followers.replicas[FOLLOWER].log_end_offset == -1


def test_a_log_that_diverges_gets_the_end_of_the_common_epoch(world: Replicated) -> None:
    partition = world.lead(leader_epoch=1)
    world.produce(partition, batch(3), acks=1)
    world.lead(leader_epoch=4)
    world.produce(partition, batch(), acks=1)
    answer = world.follow(4, last_fetched_epoch=2).only
    assert answer.diverging == (1, 3)
    assert answer.records is None
    assert partition.followers.replicas[FOLLOWER].log_end_offset == -1, "it will truncate its log"
    assert world.follow(3, last_fetched_epoch=1).only.diverging is None
    assert partition.followers.replicas[FOLLOWER].log_end_offset == 3


@pytest.mark.parametrize(
    ("epoch", "error"), [(4, FencedLeaderEpoch), (6, UnknownLeaderEpoch), (5, UnknownLeaderEpoch)]
)
def test_a_broker_without_a_replica_is_refused(world: Replicated, epoch: int, error: type[Exception]) -> None:
    world.lead(leader_epoch=5)
    assert isinstance(world.follow(0, replica_id=9, current_leader_epoch=epoch).only.error, error)


def test_a_broker_without_a_replica_and_without_an_epoch_is_refused(world: Replicated) -> None:
    world.lead(leader_epoch=5)
    assert isinstance(world.follow(0, replica_id=9).only.error, NotLeaderOrFollower)


def test_a_fetch_of_an_earlier_registration_is_refused(world: Replicated) -> None:
    partition = world.lead()
    world.follow(0, epoch=8)
    assert isinstance(world.follow(0, epoch=7).only.error, NotLeaderOrFollower)
    assert not world.follow(0, epoch=-1).answered, "a fetch before version 15 has no broker epoch"
    assert partition.followers.replicas[FOLLOWER].broker_epoch == -1


def test_appends_of_one_turn_wake_a_follower_once(world: Replicated, monkeypatch: pytest.MonkeyPatch) -> None:
    partitions = [world.lead(index=index) for index in range(3)]
    follower = FollowerSession(world)
    follower.fetch(*((index, 0) for index in range(3)))
    waiting = follower.fetch()
    for partition in partitions:
        world.produce(partition, batch(), acks=1)
    assert not waiting.answered
    world.advance()
    assert waiting.offsets() == [[0], [0], [0]]


def at_the_end(world: Replicated, *replica_ids: int) -> tuple[Partition, list[FollowerSession]]:
    """A partition, and the sessions of followers that have all of its records."""
    partition = world.lead(leader_epoch=3)
    followers = [FollowerSession(world, replica_id) for replica_id in replica_ids]
    for follower in followers:
        follower.fetch((0, 0))
        world.advance(0.5)
    return partition, followers


def test_followers_that_wait_together_get_the_same_records_from_one_read(
    world: Replicated, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition, followers = at_the_end(world, FOLLOWER, OTHER)
    waiting = [follower.fetch((0, 0)) for follower in followers]
    reads: list[int] = []
    right = Log.read

    def noted(self: Log, offset: int, max_bytes: int, **how: Any) -> ReadResult:
        reads.append(offset)
        return right(self, offset, max_bytes, **how)

    monkeypatch.setattr(Log, "read", noted)
    world.produce(partition, batch(2), acks=1)
    world.advance()
    assert [fetched.offsets() for fetched in waiting] == [[[0, 1]], [[0, 1]]]
    assert reads == [0]
    world.produce(partition, batch(), acks=1)
    assert [follower.fetch((0, 0)).offsets() for follower in followers] == [[[0, 1, 2]], [[0, 1, 2]]]


def test_a_fetch_that_waits_for_the_next_append_takes_few_calls(world: Replicated) -> None:
    """Calls are counted, since times would depend on the machine."""
    partition, (follower,) = at_the_end(world, FOLLOWER)
    count = 0

    def counted(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    for offset in range(3):
        context = follower.cache.context_of_one(
            follower.session_id, follower.epoch, ("t", 0, 3, offset, -1, 0, 1 << 20), uses_topic_ids=False
        )
        assert context is not None
        follower.epoch += 1
        waiting, count = Fetched(), 0
        sys.setprofile(counted)
        try:
            world.fetcher.fetch(context, follower.params, waiting)
        finally:
            sys.setprofile(None)
        world.produce(partition, batch(), acks=1)
        sys.setprofile(counted)
        try:
            world.replicas.follower_fetches.answer_woken()
        finally:
            sys.setprofile(None)
        assert waiting.offsets() == [[offset]]
    assert count <= 66


def test_followers_that_wait_at_different_offsets_get_records_of_their_own(world: Replicated) -> None:
    partition, (follower, other) = at_the_end(world, FOLLOWER, OTHER)
    world.produce(partition, batch(), acks=1)
    other.params = FetchParams(500, 2 * len(batch()), 1 << 20, 0, OTHER)
    waiting = [other.fetch((0, 0)), follower.fetch((0, 1))]
    world.produce(partition, batch(), acks=1)
    world.advance()
    assert [fetched.offsets() for fetched in waiting] == [[[0, 1]], [[1]]]


def test_a_follower_that_waits_for_more_bytes_goes_on_waiting(world: Replicated) -> None:
    partition, (follower,) = at_the_end(world, FOLLOWER)
    follower.params = FetchParams(500, 2 * len(batch()), 1 << 20, 0, FOLLOWER)
    waiting = follower.fetch((0, 0))
    world.produce(partition, batch(), acks=1)
    world.advance()
    assert not waiting.answered
    world.produce(partition, batch(), acks=1)
    world.advance()
    assert waiting.offsets() == [[0, 1]]


def test_a_follower_that_waits_hears_of_a_new_leader_epoch_before_its_records(world: Replicated) -> None:
    partition, (follower,) = at_the_end(world, FOLLOWER)
    context = follower.cache.context_of_one(
        follower.session_id, follower.epoch, ("t", 0, 3, 0, -1, 0, 1 << 20), uses_topic_ids=False
    )
    assert context is not None
    waiting = Fetched()
    assert not world.fetcher.fetch(context, follower.params, waiting)
    world.lead(leader_epoch=4)
    world.produce(partition, batch(), acks=1)
    world.advance()
    assert isinstance(waiting.only.error, FencedLeaderEpoch)


def test_a_follower_that_registered_anew_gets_no_records_of_its_earlier_wait(world: Replicated) -> None:
    partition, (follower,) = at_the_end(world, FOLLOWER)
    waiting = follower.fetch((0, 0))
    world.follow(0, epoch=8)
    follower.params = FetchParams(500, 1, 1 << 20, 0, FOLLOWER, 7)
    assert isinstance(follower.fetch((0, 0)).only.error, NotLeaderOrFollower)
    assert waiting.answered, "a session has one fetch at a time"
    assert partition.followers.replicas[FOLLOWER].broker_epoch == 8


def test_waits_of_followers_end_each_at_its_time(world: Replicated) -> None:
    _, (follower, other) = at_the_end(world, FOLLOWER, OTHER)
    first = follower.fetch()
    world.advance(0.2)
    other.params = FetchParams(100, 1, 1 << 20, 0, OTHER)
    second = other.fetch()
    world.advance(0.1)
    assert (first.answered, second.answered) == (False, True)
    third = other.fetch()
    world.advance(0.1)
    assert (first.answered, third.answered) == (False, True)
    world.advance(0.1)
    assert first.answered
    assert len(world.replicas.follower_fetches) == 0


def test_nothing_of_a_follower_waits_after_the_shutdown(world: Replicated) -> None:
    _, (follower,) = at_the_end(world, FOLLOWER)
    waiting = follower.fetch()
    world.replicas.end_waits()
    assert waiting.answers == []
    assert follower.fetch((0, 0)).answers == []


def test_an_answer_that_fails_is_that_of_one_follower(world: Replicated) -> None:
    partition, (follower, other) = at_the_end(world, FOLLOWER, OTHER)
    failures: list[Exception] = []

    def failing(answers: list[FetchedPartition]) -> None:
        raise RuntimeError("planted")

    context = follower.cache.context(follower.session_id, follower.epoch, [], [], from_follower=True)
    world.fetcher.fetch(context, follower.params, failing, failures.append)
    waiting = other.fetch()
    world.produce(partition, batch(), acks=1)
    world.advance()
    assert [str(failure) for failure in failures] == ["planted"]
    assert waiting.offsets() == [[0]]


def test_a_high_watermark_does_not_wake_a_follower_but_goes_with_its_next_answer(world: Replicated) -> None:
    partition = world.lead(isr=(SELF, FOLLOWER))
    follower = FollowerSession(world)
    world.produce(partition, batch(), acks=1)
    world.advance()
    assert follower.fetch((0, 0)).offsets() == [[0]]
    waiting = follower.fetch((0, 1))
    assert partition.leader_log().high_watermark == 1
    world.advance()
    assert not waiting.answered
    world.advance(0.5)
    assert waiting.only.high_watermark == 1
    idle = follower.fetch()
    world.advance(0.5)
    assert idle.answers == []


def test_a_fetch_without_news_reads_no_partition(world: Replicated, monkeypatch: pytest.MonkeyPatch) -> None:
    for index in range(20):
        world.lead(index=index)
    follower = FollowerSession(world)
    follower.fetch(*((index, 0) for index in range(20)))
    world.advance(0.5)
    seen: list[int] = []
    right = ReplicaManager.partition

    def noted(self: ReplicaManager, topic: str | bytes, index: int) -> object:
        seen.append(index)
        return right(self, topic, index)

    monkeypatch.setattr(ReplicaManager, "partition", noted)
    follower.fetch()
    world.advance(0.5)
    assert seen == []
    world.produce(world.replicas.topics["t"].partitions[7], batch(), acks=1)
    assert follower.fetch().offsets() == [[0]]
    assert seen == [7]


def test_a_partition_that_appears_while_a_fetch_waits_is_in_the_next_fetch(world: Replicated) -> None:
    world.lead()
    follower = FollowerSession(world)
    waiting = follower.fetch((0, 0), (1, 0))
    partition = world.lead(index=1)
    world.advance(0.5)
    assert [answer.error for answer in waiting.answers or ()] == [None, None]
    replica = partition.followers.replicas[FOLLOWER]
    assert replica.log_end_offset == -1, "the request came before the leader knew the partition"
    follower.fetch()
    assert replica.log_end_offset == 0


def append_when_committed(world: Replicated, partition: Partition, to: Partition | None = None) -> None:
    """Append one more record as soon as the high watermark moves, as coordinators do."""
    moved = partition.on_high_watermark
    assert moved is not None

    def once(changed: Partition) -> None:
        partition.on_high_watermark = moved
        moved(changed)
        world.produce(to or partition, batch(), acks=1)

    partition.on_high_watermark = once


def test_a_record_that_the_fetch_itself_brings_about_is_in_the_next_answer(world: Replicated) -> None:
    committed, other = (world.lead(index=index, isr=(SELF, FOLLOWER)) for index in range(2))
    follower = FollowerSession(world)
    world.produce(committed, batch(), acks=1)
    world.produce(other, batch(), acks=1)
    assert follower.fetch((0, 0), (1, 0)).offsets() == [[0], [0]]
    append_when_committed(world, committed)
    world.produce(other, batch(), acks=1)
    assert follower.fetch((0, 1), (1, 1)).offsets() == [[], [1]]
    assert committed.leader_log().log_end_offset == 2
    assert follower.fetch((1, 2)).offsets() == [[1], []]


def test_a_waiting_fetch_is_woken_by_a_record_that_it_brought_about(world: Replicated) -> None:
    partition = world.lead(isr=(SELF, FOLLOWER))
    follower = FollowerSession(world)
    world.produce(partition, batch(), acks=1)
    follower.fetch((0, 0))
    world.advance()  # the election wakes followers in its turn
    append_when_committed(world, partition)
    waiting = follower.fetch((0, 1))
    world.advance()
    assert waiting.offsets() == [[1]]


def test_a_waiting_fetch_is_woken_by_a_record_that_it_brought_about_in_another_partition(
    world: Replicated,
) -> None:
    prepared, marked = (world.lead(index=index, isr=(SELF, FOLLOWER)) for index in range(2))
    follower = FollowerSession(world)
    world.produce(prepared, batch(), acks=1)
    follower.fetch((0, 0), (1, 0))
    world.advance()  # the election wakes followers in its turn
    append_when_committed(world, prepared, to=marked)
    waiting = follower.fetch((0, 1))
    world.advance()
    assert waiting.offsets() == [[], [0]]


def test_a_follower_that_has_waited_before_is_woken_by_a_record_that_it_brought_about_in_another_partition(
    world: Replicated,
) -> None:
    prepared, marked = (world.lead(index=index, isr=(SELF, FOLLOWER)) for index in range(2))
    follower = FollowerSession(world)
    follower.fetch((0, 0), (1, 0))
    world.advance()
    waiting = follower.fetch()
    world.produce(prepared, batch(), acks=1)
    world.advance()
    assert waiting.offsets() == [[0]]
    append_when_committed(world, prepared, to=marked)
    waiting = follower.fetch((0, 1))
    world.advance()
    assert sorted(waiting.offsets()) == [[], [0]]


def test_a_waiting_fetch_is_answered_when_this_broker_begins_to_lead(world: Replicated) -> None:
    world.lead()
    session, other = FollowerSession(world), FollowerSession(world, OTHER)
    session.fetch((0, 0))
    other.fetch((0, 0))
    world.advance(0.5)
    waiting, of_other = session.fetch(), other.fetch()
    world.advance()
    assert not waiting.answered
    world.lead(index=1, isr=(SELF, FOLLOWER))
    world.advance(0.0)
    assert waiting.answered
    assert not of_other.answered  # it is not in the ISR of the new partition


def test_fetches_of_a_follower_that_a_new_leader_awaits_are_short(world: Replicated) -> None:
    world.lead()
    session = FollowerSession(world)
    session.fetch((0, 0))
    world.lead(index=1)
    world.advance()
    before = session.fetch()  # the follower does not know its new leader yet
    world.advance(0.02)
    assert before.answered
    session.fetch((1, 0))
    waiting = session.fetch()
    world.advance(0.4)
    assert not waiting.answered
    world.advance(0.1)
    assert waiting.answered


def test_a_follower_that_does_not_fetch_is_awaited_for_two_seconds(world: Replicated) -> None:
    world.lead()
    session = FollowerSession(world)
    session.fetch((0, 0))
    world.lead(index=1)
    world.advance(2.0)
    waiting = session.fetch()
    world.advance(0.4)
    assert not waiting.answered
