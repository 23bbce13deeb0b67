"""ClusterTokenStore: delegation tokens in the tree of a cluster."""

from __future__ import annotations

from typing import cast

from tests.metadata.test_simulated import open_tree, simulate
from tidelog.metadata.simulated import SimulatedZooKeeper
from tidelog.metadata.tokens import ZooKeeperTokens
from tidelog.security.delegation_tokens import DelegationTokenManager
from tidelog.server.token_changes import ClusterTokenStore


def test_tokens_are_read_in_the_next_session_if_one_expires_during_the_start() -> None:
    async def story(server: SimulatedZooKeeper) -> None:
        store = ClusterTokenStore(ZooKeeperTokens(await open_tree(server)), timeout=10)

        class Manager:
            loads = 0

            async def load(self) -> None:
                self.loads += 1
                if self.loads == 1:
                    server.expire("client")
                await store.read_tokens()

        manager = Manager()
        await store.load(cast(DelegationTokenManager, manager))
        assert manager.loads == 2

    simulate(story)
