"""A follower whose leader does not know its leadership yet asks again soon, and then less often."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.scripted_leader import Follower, data, wanted
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
