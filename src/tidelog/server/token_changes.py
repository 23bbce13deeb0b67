"""The stores of delegation tokens, and the service that follows their changes by other brokers."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING

from tidelog.errors import KafkaError
from tidelog.metadata import tokens
from tidelog.metadata.async_tree import within_one_session
from tidelog.metadata.change_follower import ChangeFollower
from tidelog.metadata.nodes import BadNode
from tidelog.server.tree_timeout import in_time

if TYPE_CHECKING:
    from collections.abc import Callable

    from tidelog.controller.single import SingleController
    from tidelog.metadata.security_nodes import TokenNode
    from tidelog.metadata.tokens import ZooKeeperTokens
    from tidelog.security.delegation_tokens import DelegationTokenManager

log = logging.getLogger("tidelog.server.tokens")


class EmbeddedTokenStore:
    """The tokens of a broker alone, in its own tree. Implements TokenStore."""

    def __init__(self, controller: SingleController) -> None:
        self._controller = controller

    async def read_tokens(self) -> list[TokenNode]:
        return await self._controller.change_tree(tokens.read_tokens)

    async def write_token(self, node: TokenNode) -> None:
        await self._controller.change_tree(lambda tree: tokens.write_token(tree, node))

    async def remove_token(self, token_id: str) -> None:
        await self._controller.change_tree(lambda tree: tokens.remove_token(tree, token_id))


class ClusterTokenStore:
    """The tokens of a cluster. Implements TokenStore; `follow` keeps a manager up to date."""

    def __init__(self, nodes: ZooKeeperTokens, timeout: float) -> None:
        self._nodes = nodes
        self._timeout = timeout
        self._newest = -1
        self._follower = ChangeFollower("tokens", log)

    async def read_tokens(self) -> list[TokenNode]:
        return await self._nodes.read_tokens()

    async def write_token(self, node: TokenNode) -> None:
        await in_time(self._nodes.write_token(node), self._timeout)

    async def remove_token(self, token_id: str) -> None:
        await in_time(self._nodes.remove_token(token_id), self._timeout)

    async def load(self, manager: DelegationTokenManager) -> None:
        """Read all tokens, and watch for later changes."""
        self._follower.listen(self._nodes.tree)

        async def load() -> None:
            await self._nodes.prepare()
            self._newest, _ = await self._nodes.read_changes(self._newest, self._follower.watch)
            await manager.load()

        await within_one_session(self._nodes.tree, load)

    def follow(self, manager: DelegationTokenManager) -> None:
        self._follower.start(partial(self._read, manager))

    async def close(self) -> None:
        await self._follower.close()

    async def _read(self, manager: DelegationTokenManager, everything: bool) -> None:
        self._newest, changed = await self._nodes.read_changes(self._newest, self._follower.watch)
        if everything:
            await manager.load()
        for token_id in changed:
            try:
                node = await self._nodes.read_token(token_id)
            except BadNode as error:
                log.error("a delegation token is ignored: %s", error)
                continue
            if node is None:
                manager.forget(token_id)
            else:
                manager.learn(node)


class TokenService:
    """The tokens of a running broker. The controller removes expired ones at intervals."""

    def __init__(
        self,
        manager: DelegationTokenManager,
        store: EmbeddedTokenStore | ClusterTokenStore,
        is_controller: Callable[[], bool],
        interval_seconds: float,
    ) -> None:
        self.manager = manager
        self._store = store
        self._is_controller = is_controller
        self._interval = interval_seconds
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Read the tokens, and follow their changes. Raises TreeError, TreeUnavailable or KafkaError."""
        if isinstance(self._store, ClusterTokenStore):
            await self._store.load(self.manager)
            self._store.follow(self.manager)
        else:
            await self.manager.load()
        self._task = asyncio.get_running_loop().create_task(self._expire())

    async def close(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        if isinstance(self._store, ClusterTokenStore):
            await self._store.close()

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(self._interval)
            if not self._is_controller():
                continue
            try:
                await self.manager.remove_expired()
            except KafkaError as error:
                log.warning("expired tokens are removed later: %s", error)
