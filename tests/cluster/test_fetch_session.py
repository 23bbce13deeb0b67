"""Fetch sessions: what is told again, what is left out, who makes room for whom."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.world import Fetched, World
from tests.storage.helpers import batch
from tidelog.clock import ManualClock
from tidelog.cluster.fetch_session import FetchPartition, FetchSessionCache
from tidelog.cluster.partition import Partition
from tidelog.errors import ErrorCode, FencedLeaderEpoch, UnknownTopicOrPartition
from tidelog.server.platform import RealPlatform


def cache(size: int = 2) -> tuple[ManualClock, FetchSessionCache]:
    clock = ManualClock()
    return clock, FetchSessionCache(clock, size, random.Random(1))


def want(index: int, offset: int = 0, **epochs: int) -> FetchPartition:
    return FetchPartition("t", index, offset, 1000, **epochs)


def test_a_fetch_without_a_session_stays_without() -> None:
    _, sessions = cache()
    context = sessions.context(0, -1, [want(0)], [])
    assert (context.session_id, context.incremental, len(sessions)) == (0, False, 0)


def test_a_session_remembers_its_partitions_and_takes_changes() -> None:
    _, sessions = cache()
    first = sessions.context(0, 0, [want(0), want(1)], [])
    assert first.session_id > 0
    second = sessions.context(first.session_id, 1, [want(1, 7), want(2)], [("t", 0)])
    assert second.incremental
    assert [(p.partition, p.fetch_offset) for p in second.due()] == [(1, 7), (2, 0)]


def test_an_incremental_answer_tells_a_partition_only_when_it_changed() -> None:
    partition = want(0)
    assert partition.is_news(0, 10, 0, has_more=False)
    assert not partition.is_news(0, 10, 0, has_more=False)
    assert partition.is_news(0, 11, 0, has_more=False)
    assert partition.is_news(0, 11, 3, has_more=False)
    assert partition.is_news(0, 11, 3, has_more=True)
    assert partition.is_news(1, 11, 3, has_more=False)
    assert partition.is_news(0, 11, 3, has_more=False), "the end of an error is news"
    assert not partition.is_news(0, 11, 3, has_more=False)


def test_a_session_of_another_principal_is_not_there() -> None:
    _, sessions = cache(1)
    session = sessions.context(0, 0, [want(0), want(1)], [], principal="User:alice").session_id
    not_found = ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert sessions.context(session, 1, [], [("t", 0)], principal="User:mallory").error == not_found
    stolen = sessions.context_of_one(session, 1, None, principal="User:mallory", uses_topic_ids=False)
    assert stolen is None
    # Neither a full fetch with a session nor one without ends it.
    for epoch in (0, -1):
        assert sessions.context(session, epoch, [want(5)], [], principal="User:mallory").session_id == 0
    own = sessions.context(session, 1, [], [], principal="User:alice")
    assert [partition.partition for partition in own.due()] == [0, 1]
    assert sessions.context_of_one(session, 2, None, principal="User:alice", uses_topic_ids=False) is not None
    assert sessions.context(session, -1, [], [], principal="User:alice").session_id == 0
    assert len(sessions) == 0


def test_a_broker_draws_the_numbers_of_sessions_from_the_system() -> None:
    """A client that sees 624 numbers of Python's own generator knows all that follow."""
    assert isinstance(RealPlatform().rng, random.SystemRandom)


def test_wrong_epochs_and_unknown_sessions_are_told() -> None:
    _, sessions = cache()
    session = sessions.context(0, 0, [want(0)], []).session_id
    assert sessions.context(session, 5, [], []).error == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert sessions.context(session + 1, 1, [], []).error == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert sessions.context(0, 4, [], []).error == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert sessions.context(session, 1, [], []).error == 0, "a mistake does not end the session"
    mixed = sessions.context(session, 2, [], [], uses_topic_ids=True)
    assert mixed.error == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR


def test_a_session_without_partitions_is_closed() -> None:
    _, sessions = cache()
    session = sessions.context(0, 0, [want(0)], []).session_id
    emptied = sessions.context(session, 1, [], [("t", 0)])
    assert (emptied.error, emptied.session_id, len(sessions)) == (0, 0, 0)
    assert sessions.context(session, 2, [], []).error == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_closing_a_session_frees_its_place() -> None:
    _, sessions = cache()
    session = sessions.context(0, 0, [want(0)], []).session_id
    closed = sessions.context(session, -1, [want(0)], [])
    assert (closed.session_id, len(sessions)) == (0, 0)


def test_a_full_cache_gives_no_session_until_one_is_idle() -> None:
    clock, sessions = cache(2)
    old = sessions.context(0, 0, [want(0)], []).session_id
    sessions.context(0, 0, [want(0)], [])
    assert sessions.context(0, 0, [want(0)], []).session_id == 0
    clock.advance(121)
    assert sessions.context(0, 0, [want(0)], []).session_id > 0
    assert sessions.evictions == 1
    assert sessions.context(old, 1, [], []).error == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_a_follower_takes_the_place_of_a_consumer_that_is_not_new() -> None:
    clock, sessions = cache(1)
    consumer = sessions.context(0, 0, [want(0)], []).session_id
    assert sessions.context(0, 0, [want(0)], [], from_follower=True).session_id == 0
    clock.advance(119)
    sessions.context(consumer, 1, [], [])
    clock.advance(2)
    assert sessions.context(0, 0, [want(0)], [], from_follower=True).session_id > 0


def test_the_epoch_wraps_past_the_largest_number_to_one() -> None:
    _, sessions = cache()
    session = sessions.context(0, 0, [want(0)], []).session
    assert session is not None
    session.epoch = 0x7FFFFFFF
    assert sessions.context(session.session_id, 0x7FFFFFFF, [], []).error == 0
    assert session.epoch == 1


# What changed


class Fetching:
    """A session whose requests ask for nothing new; the answers by partition."""

    def __init__(self, world: World, sessions: FetchSessionCache, wanted: list[FetchPartition]) -> None:
        self._world = world
        self._sessions = sessions
        self._epoch = 0
        self.session_id = 0
        self.next(wanted)

    def begin(self, wanted: list[FetchPartition] | None = None, **limits: int) -> Fetched:
        context = self._sessions.context(self.session_id, self._epoch, wanted or [], [])
        assert context.error == 0
        self.session_id, self._epoch = context.session_id, self._epoch + 1
        self.session = context.session
        self.context = context
        return self._world.fetch(context, **limits)

    def next(self, wanted: list[FetchPartition] | None = None, **limits: int) -> list[int]:
        return told(self.begin(wanted, max_wait_ms=0, **limits))

    def looks_at(self) -> list[int]:
        return [want.partition for want in self.session.dirty]


def told(fetched: Fetched) -> list[int]:
    assert fetched.answers is not None, "not answered"
    return [answer.wanted.partition for answer in fetched.answers]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Five partitions with a record each."""
    world = World(tmp_path)
    for index in range(5):
        world.produce(world.partition(index=index))
    yield world
    world.close()


def of(world: World, index: int) -> Partition:
    return world.replicas.partition("t", index)


EVERY = range(5)


def at_the_end(world: World, sessions: FetchSessionCache | None = None) -> Fetching:
    """A session that has read every partition to its end."""
    if sessions is None:
        sessions = FetchSessionCache(world.scheduler.clock, 10, random.Random(1))
    return Fetching(world, sessions, [want(index, 1) for index in EVERY])


def test_a_fetch_looks_at_partitions_that_changed_and_at_no_others(world: World) -> None:
    fetching = at_the_end(world)
    assert fetching.looks_at() == []
    world.produce(of(world, 3))
    assert fetching.looks_at() == [3]
    assert fetching.next() == [3]
    assert fetching.looks_at() == [3], "its record is still behind the offset that was asked for"
    assert fetching.next([want(3, 2)]) == []
    assert fetching.looks_at() == []


def test_a_wait_costs_no_registration_for_a_partition_that_is_idle(world: World) -> None:
    fetching = at_the_end(world)
    waiting = fetching.begin(max_wait_ms=30_000)
    assert (world.replicas.fetch_purgatory.delayed, world.replicas.fetch_purgatory.watched) == (1, 1)
    world.produce(of(world, 4))
    assert told(waiting) == [4]
    assert world.replicas.fetch_purgatory.delayed == 0


def test_min_bytes_are_counted_over_the_appends_of_a_wait(world: World) -> None:
    fetching = at_the_end(world)
    waiting = fetching.begin(max_wait_ms=30_000, min_bytes=3 * len(batch()))
    world.produce(of(world, 4))
    world.produce(of(world, 4))
    assert not waiting.answered
    world.produce(of(world, 0))
    assert told(waiting) == [0, 4], "in the order of the session"


def test_a_partition_that_byte_limits_kept_back_is_read_next(world: World) -> None:
    fetching = at_the_end(world)
    for index in EVERY:
        world.produce(of(world, index))
    assert fetching.next(max_bytes=1) == [0, 1, 2, 3, 4], "the high watermark of all of them is news"
    for index in EVERY:
        assert fetching.next([want(index, 2)], max_bytes=1) == ([index + 1] if index < 4 else [])
    assert fetching.looks_at() == []


def test_partitions_that_gave_records_go_behind_the_others(world: World) -> None:
    fetching = at_the_end(world)
    for index in EVERY:
        world.produce(of(world, index))
    fetching.next()
    first = [fetching.begin(max_wait_ms=0, max_bytes=1) for _ in range(3)]
    gave = [[a.wanted.partition for a in f.answers or [] if a.records is not None] for f in first]
    assert gave == [[0], [1], [2]]
    assert fetching.next() == [3, 4, 0, 1, 2]


def test_a_move_of_the_log_start_is_told(world: World) -> None:
    fetching = at_the_end(world)
    world.delete_records({("t", 2): 1})
    answer = fetching.begin(max_wait_ms=0).only
    assert (answer.wanted.partition, answer.log_start_offset, answer.records) == (2, 1, None)
    assert fetching.next() == []


def test_an_error_is_told_with_every_answer_and_its_end_too(world: World) -> None:
    fetching = at_the_end(world)
    world.replicas.partitions_offline([("t", 1)])
    assert [fetching.next(), fetching.next()] == [[1], [1]]
    world.partition(index=1)
    assert [fetching.next(), fetching.next()] == [[1], []]


def test_a_new_leader_epoch_is_noticed_by_a_reader_that_knows_the_old_one(world: World) -> None:
    fetching = at_the_end(world)
    fetching.next([want(2, 1, current_leader_epoch=0)])
    world.partition(index=2, leader_epoch=1)
    assert isinstance(fetching.begin(max_wait_ms=0).only.error, FencedLeaderEpoch)


def test_a_topic_that_is_made_anew_is_watched_again(world: World) -> None:
    fetching = at_the_end(world)
    waiting = fetching.begin()
    world.replicas.delete_partition("t", 0)
    assert isinstance(waiting.only.error, UnknownTopicOrPartition)
    anew = world.partition(index=0)
    fetching.next([want(0, 0)])
    assert fetching.looks_at() == []
    world.produce(anew)
    assert fetching.next() == [0]


def test_a_request_that_is_overtaken_by_the_next_of_its_session_gets_an_error(world: World) -> None:
    fetching = at_the_end(world)
    overtaken = fetching.begin(max_wait_ms=30_000)
    context = fetching.context
    assert fetching.next() == []
    assert (overtaken.answers, context.error) == ([], ErrorCode.INVALID_FETCH_SESSION_EPOCH)
    assert context.session_id == fetching.session_id
    assert fetching.next() == [], "the session goes on"


def watchers(world: World) -> int:
    return sum(len(p.watchers) + len(p.end_watchers) for p in world.replicas.partitions())


def test_sessions_that_come_and_go_leave_nothing_behind(world: World) -> None:
    """Closed by their client, evicted, replaced, waiting at that moment or not, or without a session."""
    sessions = FetchSessionCache(world.scheduler.clock, 20, random.Random(1))
    rng = random.Random(2)
    made: list[int] = []
    for _ in range(3000):
        fetching = at_the_end(world, sessions)
        made.append(fetching.session_id)
        ended = rng.randrange(4)
        waiting = fetching.begin(max_wait_ms=600_000) if ended == 0 and fetching.session_id else None
        if ended == 1:
            sessions.context(fetching.session_id, -1, [], [])
        elif ended == 2:
            world.fetch([want(index, 1) for index in EVERY], max_wait_ms=100)
        world.advance(121)
        if waiting is not None:
            made.append(sessions.context(fetching.session_id, 0, [], []).session_id)
            assert waiting.answered, "nobody waits in a session that is gone"
    assert sessions.evictions > 500
    assert watchers(world) <= 20 * len(EVERY)
    world.advance(1)
    for session_id in made:
        sessions.context(session_id, -1, [], [])
    assert (watchers(world), len(sessions), world.replicas.fetch_purgatory.delayed) == (0, 0, 0)


def test_a_session_that_nobody_uses_costs_an_append_nothing(world: World) -> None:
    """Each partition tells a session of the first change alone; the next fetch looks at it anyway."""
    fetching = at_the_end(world)
    world.produce(of(world, 0))
    assert (len(of(world, 0).watchers), len(of(world, 1).watchers)) == (0, 1)
    world.produce(of(world, 0))
    fetching.next([want(0, 3)])
    assert len(of(world, 0).watchers) == 1
