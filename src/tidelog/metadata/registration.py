"""Creates the ephemeral node of this session, in spite of nodes that earlier sessions left."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from functools import partial

from tidelog.metadata.async_tree import AsyncTree, ConnectionLost
from tidelog.metadata.tree import BadVersion, Create, Delete, NodeExists, NoNode, Stat, WatchEvent


async def create_ephemeral(
    tree: AsyncTree, path: str, data: bytes, *, wait_seconds: float, earlier_sessions: Collection[int] = ()
) -> Stat:
    """Create an ephemeral node and return its Stat.

    A node of this session counts as created: the answer to its creation was lost. A node of
    `earlier_sessions` is replaced: they are over, but ZooKeeper may not know yet. The end of any other
    session is awaited for `wait_seconds`, then NodeExists is raised.
    """
    loop = asyncio.get_running_loop()
    give_up = loop.time() + wait_seconds
    while True:
        await _try_to_create(tree, path, data)
        changed = asyncio.Event()
        stat = await tree.exists(path, partial(_set, changed))
        if stat is None:
            continue
        if stat.ephemeral_owner == tree.session_id:
            return await _with_data(tree, path, data)
        if stat.ephemeral_owner in earlier_sessions:
            await _replace(tree, path, data, stat)
            continue
        try:
            await asyncio.wait_for(changed.wait(), give_up - loop.time())
        except TimeoutError:
            owner = f"session {stat.ephemeral_owner:#x}"
            raise NodeExists(path, f"{path} exists already: it belongs to {owner}, which is alive") from None


def _set(changed: asyncio.Event, _event: WatchEvent) -> None:
    changed.set()


async def _try_to_create(tree: AsyncTree, path: str, data: bytes) -> None:
    try:
        await tree.create(path, data, ephemeral=True)
    except (NodeExists, ConnectionLost):
        pass  # the owner of the node, if there is one, shows the outcome


async def _with_data(tree: AsyncTree, path: str, data: bytes) -> Stat:
    """The Stat of a node of this session, after its data is as given."""
    while True:
        present, stat = await tree.get(path)
        if present == data:
            return stat
        try:
            return await tree.set(path, data, stat.version)
        except (BadVersion, ConnectionLost):
            continue


async def _replace(tree: AsyncTree, path: str, data: bytes, stat: Stat) -> None:
    try:
        await tree.multi([Delete(path, stat.version), Create(path, data, ephemeral=True)])
    except (NoNode, BadVersion, ConnectionLost):
        pass  # the caller looks again
