"""Followers get records first, then the producer has its answer, then the consumers that wait."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from tests.cluster.replicated import Replicated
from tests.cluster.world import FOLLOWER, SELF, Fetched, World, want
from tests.server.test_produce_cost import FakeChannel, body, services, world
from tests.storage.helpers import batch
from tidelog.cluster.fetch import FetchParams
from tidelog.cluster.fetch_session import FetchSessionCache
from tidelog.network.request import FastRequest
from tidelog.server.apis.small_produce import SmallProduces

__all__ = ["world"]


class Producer(FakeChannel):
    """Notes whether a waiting fetch is answered when the producer's answer is sent."""

    def __init__(self, waiting: Fetched, *, breaks: bool = False) -> None:
        super().__init__()
        self._waiting = waiting
        self._breaks = breaks
        self.is_first: bool | None = None

    def send_now(self, taken: FastRequest, frame: bytes) -> None:
        super().send_now(taken, frame)
        self.is_first = not self._waiting.answered
        if self._breaks:
            raise RuntimeError("the channel fails")


def produce(world: World, channel: FakeChannel) -> bool:
    frame = body(batch(value=b"v" * 100, timestamp=world.scheduler.clock.ms()), None)
    request = cast("FastRequest", (channel, SimpleNamespace(api_version=9), 1, len(frame), 0, 0))
    return SmallProduces(services(world)).take(request, frame, 0)


def test_a_waiting_fetch_is_answered_after_the_produce_that_wakes_it(world: World) -> None:
    fetched = world.fetch([want()])
    channel = Producer(fetched)
    assert produce(world, channel)
    assert channel.error_code() == 0
    assert channel.is_first
    assert fetched.offsets() == [[0]]


def test_the_record_is_committed_even_if_its_answer_cannot_be_sent(world: World) -> None:
    fetched = world.fetch([want()])
    with pytest.raises(RuntimeError, match="the channel fails"):
        produce(world, Producer(fetched, breaks=True))
    assert fetched.offsets() == [[0]]


def test_followers_get_a_record_before_the_leader_does_the_rest_for_its_producer(tmp_path: Path) -> None:
    replicated = Replicated(tmp_path)
    partition = replicated.lead(isr=(SELF, FOLLOWER))
    cache = FetchSessionCache(replicated.scheduler.clock, 10)
    params = FetchParams(500, 1, 1 << 20, 0, FOLLOWER)
    replicated.fetcher.fetch(cache.context(0, 0, [want()], [], from_follower=True), params, Fetched())
    replicated.advance(0.5)
    (session_id,) = cache._sessions
    waiting = Fetched()
    replicated.fetcher.fetch(cache.context(session_id, 1, [], [], from_follower=True), params, waiting)

    class Waiting(Producer):
        def defer_response(self) -> None:
            self.is_first = not self._waiting.answered

    channel = Waiting(waiting)
    assert produce(replicated, channel)
    assert channel.is_first is False
    assert waiting.offsets() == [[0]]
    assert channel.answer == b"", "it waits for the follower"
    assert partition.leader_log().log_end_offset == 1
    replicated.close()


def test_a_record_is_counted_when_its_producer_has_the_answer(world: World) -> None:
    counted: list[float] = []

    class Counting(FakeChannel):
        def send_now(self, taken: FastRequest, frame: bytes) -> None:
            counted.append(world.replicas.topic_metrics.all.messages_in.count)

    assert produce(world, Counting())
    assert counted == [1]
