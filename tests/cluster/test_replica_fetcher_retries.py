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
