"""Follower: a copy of some nodes that is kept by watches alone, as a broker keeps its metadata."""

from __future__ import annotations

import asyncio

from tidelog.metadata.async_tree import AsyncTree, SessionEvent
from tidelog.metadata.tree import NoNode, TreeUnavailable, WatchEvent


class Follower:
    """Keeps a copy of the children of /q and their data, by watches alone."""

    def __init__(self, tree: AsyncTree) -> None:
        self._tree = tree
        self.copy: dict[str, bytes] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        tree.listen(lambda event: self.look() if event is SessionEvent.EXPIRED else None)

    def look(self, event: WatchEvent | None = None) -> None:
        task = asyncio.ensure_future(self._look())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _look(self) -> None:
        try:
            names = await self._tree.children("/q", self.look)
            copy = {}
            for name in names:
                try:
                    copy[name] = (await self._tree.get(f"/q/{name}", self.look))[0]
                except NoNode:
                    continue  # the watch of the children tells of it
            self.copy = copy
        except TreeUnavailable:
            pass  # the session has expired, or the story is over
