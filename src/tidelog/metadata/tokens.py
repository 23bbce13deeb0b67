"""The nodes of delegation tokens, in the embedded tree of a broker alone, and in a live ZooKeeper.

Kafka notifies brokers of a changed token by a node below /delegation_token/token_changes with the id of the
token.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from tidelog.metadata import paths
from tidelog.metadata.async_tree import AsyncTree, ConnectionLost
from tidelog.metadata.async_tree import ensure_path as ensure_path_async
from tidelog.metadata.nodes import BadNode
from tidelog.metadata.operations import CHANGE_EXPIRY_MS, decode, unread
from tidelog.metadata.security_nodes import TokenNode
from tidelog.metadata.tree import NodeExists, NoNode, Tree, Watch, child_of, ensure_path

_log = logging.getLogger("tidelog.metadata")

TOKEN_CHANGES = paths.TOKEN_CHANGE_PREFIX.rpartition("/")[0]


def read_tokens(tree: Tree) -> list[TokenNode]:
    try:
        names = tree.children(paths.TOKENS)
    except NoNode:
        return []
    return _understood((path := child_of(paths.TOKENS, name), tree.get(path)[0]) for name in names)


def _understood(found: Iterable[tuple[str, bytes]]) -> list[TokenNode]:
    """The tokens of nodes. A malformed node is logged and skipped."""
    tokens = []
    for path, data in found:
        try:
            tokens.append(decode(path, TokenNode.decode, data))
        except BadNode as error:
            _log.error("a delegation token is ignored: %s", error)
    return tokens


def write_token(tree: Tree, node: TokenNode) -> None:
    path = child_of(paths.TOKENS, node.token_id)
    if tree.exists(path) is None:
        ensure_path(tree, paths.TOKENS)
        tree.create(path, node.encode())
    else:
        tree.set(path, node.encode())


def remove_token(tree: Tree, token_id: str) -> None:
    path = child_of(paths.TOKENS, token_id)
    if tree.exists(path) is not None:
        tree.delete(path)


class ZooKeeperTokens:
    """The tokens of a cluster.

    A write whose answer was lost is repeated, because a second one changes nothing.
    """

    def __init__(self, tree: AsyncTree) -> None:
        self.tree = tree

    async def prepare(self) -> None:
        await ensure_path_async(self.tree, paths.TOKENS)
        await ensure_path_async(self.tree, TOKEN_CHANGES)

    async def read_tokens(self) -> list[TokenNode]:
        names = await self.tree.children(paths.TOKENS)
        found = await self.tree.get_all([child_of(paths.TOKENS, name) for name in names])
        return _understood((path, data) for path, (data, _) in found.items())

    async def read_token(self, token_id: str) -> TokenNode | None:
        path = child_of(paths.TOKENS, token_id)
        try:
            return decode(path, TokenNode.decode, (await self.tree.get(path))[0])
        except NoNode:
            return None

    async def write_token(self, node: TokenNode) -> None:
        path = child_of(paths.TOKENS, node.token_id)
        while True:
            try:
                await self.tree.set(path, node.encode())
                break
            except NoNode:
                pass
            except ConnectionLost:
                continue
            try:
                await self.tree.create(path, node.encode())
                break
            except (NodeExists, ConnectionLost):
                continue
        await self._notify(node.token_id)

    async def remove_token(self, token_id: str) -> None:
        while True:
            try:
                await self.tree.delete(child_of(paths.TOKENS, token_id))
                break
            except NoNode:
                break
            except ConnectionLost:
                continue
        await self._notify(token_id)

    async def _notify(self, token_id: str) -> None:
        while True:
            try:
                await self.tree.create(paths.TOKEN_CHANGE_PREFIX, token_id.encode(), sequential=True)
                return
            except ConnectionLost:
                continue  # the same notification can be read twice

    async def read_changes(self, after: int, watch: Watch) -> tuple[int, list[str]]:
        """The newest number, and the ids of tokens in notifications above `after`. Old ones are deleted."""
        names = await self.tree.children(TOKEN_CHANGES, watch)
        by_path = {child_of(TOKEN_CHANGES, name): int(name.rpartition("_")[2]) for name in names}
        found = await self.tree.get_all(unread(by_path, after))
        limit = max((stat.ctime for _, stat in found.values()), default=0) - CHANGE_EXPIRY_MS
        for path, (_, stat) in found.items():
            if stat.ctime < limit:
                try:
                    await self.tree.delete(path)
                except (NoNode, ConnectionLost):
                    continue  # another broker deleted it, or will
        new = sorted((by_path[path], data.decode(errors="replace")) for path, (data, _) in found.items())
        ids = [token_id for number, token_id in new if number > after]
        return max([after, *by_path.values()]), list(dict.fromkeys(ids))
