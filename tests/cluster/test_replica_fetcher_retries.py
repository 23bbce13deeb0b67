"""A follower whose leader does not know its leadership yet asks again soon, and then less often."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.scripted_leader import LEADER, Follower, data, wanted
from tidelog.clock import ManualClock
from tidelog.cluster.lost_leaders import LostLeaders
from tidelog.errors import ErrorCode


@pytest.mark.parametrize(
    ("code", "waits"),
    [
        (ErrorCode.UNKNOWN_LEADER_EPOCH, [10, 20, 35, 35]),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, [10, 20, 35, 35]),
        (ErrorCode.KAFKA_STORAGE_ERROR, [35, 35]),
    ],
)
def test_the_waits_grow_up_to_the_back_off(tmp_path: Path, code: ErrorCode, waits: list[int]) -> None:
    follower = Follower(tmp_path)
    settings = follower.manager.settings
    follower.manager.update_settings(type(settings)(fetchers=1, backoff_ms=35))

    async def test() -> None:
        follower.manager.add([follower.follow(index) for index in range(2)])
        for wait in waits:
            assert 0 in [index for index, *_ in wanted(await follower.asked())]
            before = follower.world.scheduler.clock.monotonic()
            following = await follower.answered(data(index=0, error=code))
            (fetcher,) = follower.manager.fetchers.values()
            until = fetcher.states["t", 0].delayed_until
            assert wait <= (until - before) * 1000 < wait + 4  # the clock moves while it is waited for
            assert 0 not in [index for index, *_ in wanted(following)]
            follower.world.advance(wait / 1000)
            await follower.answered()

    follower.run(test())


def test_a_leader_that_never_knows_its_leadership_is_asked_for_ever(tmp_path: Path) -> None:
    follower = Follower(tmp_path)

    async def test() -> None:
        follower.manager.add([follower.follow(index) for index in range(2)])
        await follower.asked()
        (fetcher,) = follower.manager.fetchers.values()
        state = fetcher.states["t", 0]
        for _ in range(1100):  # more often than a float can be doubled
            follower.leader.answer(data(index=0, error=ErrorCode.UNKNOWN_LEADER_EPOCH))
            await follower.asked(len(follower.leader.fetches) + 1)
            state.delayed_until = 0.0
            follower.leader.answer()
            await follower.asked(len(follower.leader.fetches) + 1)
        assert follower.leader.connections == 1
        await follower.answered(data(index=0))
        assert state.refusals == 0

    follower.run(test())


def test_no_fetch_waits_longer_than_the_delay_of_a_partition(tmp_path: Path) -> None:
    follower = Follower(tmp_path)

    async def test() -> None:
        follower.manager.add([follower.follow(index) for index in range(2)])
        assert (await follower.asked()).max_wait_ms == 500
        following = await follower.answered(data(index=0, error=ErrorCode.UNKNOWN_LEADER_EPOCH))
        assert following.max_wait_ms == 10
        follower.world.advance(0.01)
        assert (await follower.answered()).max_wait_ms == 500

    follower.run(test())


def test_a_lost_connection_is_made_again_at_once_and_then_less_often(tmp_path: Path) -> None:
    follower = Follower(tmp_path)
    waits: list[float] = []

    async def paused(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 5:
            follower.leader.refuses = False

    async def test() -> None:
        follower.manager.add([follower.follow()])
        await follower.answered()
        (fetcher,) = follower.manager.fetchers.values()
        fetcher.sleep = paused
        follower.leader.refuses = True
        follower.leader.close()
        await follower.asked(3)
        assert waits == [0.0, 0.01, 0.02, 0.02, 0.02]  # the back-off is 20 ms here
        await follower.answered()
        waits.clear()
        follower.leader.close()
        await follower.asked(len(follower.leader.fetches) + 1)
        assert waits == [0.0]

    follower.run(test())


def test_a_leader_without_an_answer_is_not_asked_again_at_once(tmp_path: Path) -> None:
    follower = Follower(tmp_path)
    waits: list[float] = []

    async def paused(seconds: float) -> None:
        waits.append(seconds)

    async def test() -> None:
        follower.manager.add([follower.follow()])
        (fetcher,) = follower.manager.fetchers.values()
        fetcher.sleep = paused
        for _ in range(4):
            await follower.asked()
            count = len(follower.leader.fetches)
            follower.leader.close()
            await follower.asked(count + 1)
        assert waits == [0.0, 0.01, 0.02, 0.02]

    follower.run(test())


def test_a_leader_is_lost_for_clients_until_it_is_reached_again(tmp_path: Path) -> None:
    follower = Follower(tmp_path)
    lost = follower.manager.lost_leaders

    async def test() -> None:
        follower.manager.add([follower.follow()])
        await follower.answered()
        assert lost.hidden() == set()
        follower.leader.refuses = True
        follower.leader.close()
        await follower.until(lambda: lost.hidden() == {LEADER}, "the leader is lost")
        follower.leader.refuses = False
        await follower.until(lambda: lost.hidden() == set(), "the leader is reached")

    follower.run(test())


def test_a_leader_that_stays_away_is_shown_again_after_two_seconds() -> None:
    clock = ManualClock()
    lost = LostLeaders(clock)
    lost.lost(LEADER)
    clock.advance(1.9)
    lost.lost(LEADER)
    assert lost.hidden() == {LEADER}
    clock.advance(0.1)
    lost.lost(LEADER)
    assert lost.hidden() == set()
    lost.reached(LEADER)
    lost.lost(LEADER)
    assert lost.hidden() == {LEADER}
