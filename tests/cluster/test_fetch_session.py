"""Fetch sessions: what is told again, what is left out, who makes room for whom."""

from __future__ import annotations

import random

from tidelog.clock import ManualClock
from tidelog.cluster.fetch_session import FetchPartition, FetchSessionCache
from tidelog.errors import ErrorCode


def cache(size: int = 2) -> tuple[ManualClock, FetchSessionCache]:
    clock = ManualClock()
    return clock, FetchSessionCache(clock, size, random.Random(1))


def want(index: int, offset: int = 0) -> FetchPartition:
    return FetchPartition("t", index, offset, 1000)


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
    assert [(p.partition, p.fetch_offset) for p in second.partitions] == [(1, 7), (2, 0)]


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


def test_wrong_epochs_and_unknown_sessions_are_told() -> None:
    _, sessions = cache()
    session = sessions.context(0, 0, [want(0)], []).session_id
    assert sessions.context(session, 5, [], []).error == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert sessions.context(session + 1, 1, [], []).error == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert sessions.context(0, 4, [], []).error == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert sessions.context(session, 1, [], []).error == 0, "a mistake does not end the session"
    mixed = sessions.context(session, 2, [], [], uses_topic_ids=True)
    assert mixed.error == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR


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


def test_partitions_that_gave_data_go_behind_the_others() -> None:
    _, sessions = cache()
    session = sessions.context(0, 0, [want(0), want(1)], []).session_id
    context = sessions.context(session, 1, [], [])
    context.answered_with_data(context.partitions[0])
    assert [p.partition for p in sessions.context(session, 2, [], []).partitions] == [1, 0]


def test_the_epoch_wraps_past_the_largest_number_to_one() -> None:
    _, sessions = cache()
    session = sessions.context(0, 0, [want(0)], []).session
    assert session is not None
    session.epoch = 0x7FFFFFFF
    assert sessions.context(session.session_id, 0x7FFFFFFF, [], []).error == 0
    assert session.epoch == 1
