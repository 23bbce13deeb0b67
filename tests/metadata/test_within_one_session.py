"""Work that must be done within one session is repeated when its session expires."""

from __future__ import annotations

import asyncio

from tests.metadata.test_simulated import open_tree, simulate
from tidelog.metadata.async_tree import SessionEvent, within_one_session
from tidelog.metadata.simulated import SimulatedZooKeeper

PATH = "/registered"


def test_a_call_that_ends_with_its_session_is_made_again() -> None:
    async def story(server: SimulatedZooKeeper) -> None:
        tree = await open_tree(server)
        attempts = 0

        async def register() -> None:
            nonlocal attempts
            attempts += 1
            if attempts == 1:
                server.expire("client")
            assert await tree.exists(PATH) is None
            await tree.create(PATH, ephemeral=True)

        await within_one_session(tree, register)
        assert attempts == 2
        stat = await tree.exists(PATH)
        assert stat is not None
        assert stat.ephemeral_owner == tree.session_id

    simulate(story)


def test_a_node_that_went_with_its_session_is_created_again() -> None:
    """No call meets the end of the session here."""

    async def story(server: SimulatedZooKeeper) -> None:
        tree = await open_tree(server)
        expired = asyncio.Event()
        tree.listen(lambda event: expired.set() if event is SessionEvent.EXPIRED else None)
        attempts = 0

        async def register() -> None:
            nonlocal attempts
            attempts += 1
            await tree.create(PATH, ephemeral=True)
            if attempts == 1:
                server.expire("client")
                await expired.wait()

        await within_one_session(tree, register)
        assert attempts == 2
        stat = await tree.exists(PATH)
        assert stat is not None
        assert stat.ephemeral_owner == tree.session_id

    simulate(story)
