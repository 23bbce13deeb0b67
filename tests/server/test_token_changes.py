"""ClusterTokenStore: delegation tokens in the tree of a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from tests.metadata.test_simulated import open_tree, simulate
from tidelog.metadata import paths
from tidelog.metadata.embedded_tree import FILE_NAME, EmbeddedTree
from tidelog.metadata.security_nodes import TokenNode
from tidelog.metadata.simulated import SimulatedZooKeeper
from tidelog.metadata.tokens import ZooKeeperTokens, read_tokens, write_token
from tidelog.metadata.tree import child_of
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


def test_a_node_that_cannot_be_understood_keeps_no_broker_from_the_other_tokens() -> None:
    async def story(server: SimulatedZooKeeper) -> None:
        tree = await open_tree(server)
        nodes = ZooKeeperTokens(tree)
        await nodes.prepare()
        token = TokenNode("t1", "User:alice", "User:alice", [], 1, 2, 3)
        await nodes.write_token(token)
        await tree.create(child_of(paths.TOKENS, "t2"), b"{")
        assert await nodes.read_tokens() == [token]

    simulate(story)


def test_a_broker_alone_starts_with_a_node_that_cannot_be_understood(tmp_path: Path) -> None:
    token = TokenNode("t1", "User:alice", "User:alice", [], 1, 2, 3)
    with EmbeddedTree(tmp_path / FILE_NAME) as tree:
        write_token(tree, token)
        tree.create(child_of(paths.TOKENS, "t2"), b"{")
        assert read_tokens(tree) == [token]
