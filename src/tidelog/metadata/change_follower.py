"""ChangeFollower: reads the changes that other brokers and tools make in the tree, one read at a time.

A change creates a notification below a node that brokers watch. Notifications are deleted after a while, so
after a lost session some may be missed, and everything is read again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from tidelog.metadata.async_tree import AsyncTree, SessionEvent
from tidelog.metadata.tree import TreeUnavailable, WatchEvent

Read = Callable[[bool], Awaitable[None]]
"""Reads new notifications with `ChangeFollower.watch`; everything if the argument is true."""


class ChangeFollower:
    """`listen` before the first read of the tree, `start` when changes can be applied."""

    def __init__(self, what: str, log: logging.Logger) -> None:
        """`what` names the changed things in the log, such as "settings"."""
        self._what = what
        self._log = log
        self._changed = asyncio.Event()
        self._is_stale = self._is_listening = False
        self._task: asyncio.Task[None] | None = None

    def listen(self, tree: AsyncTree) -> None:
        """Learn of expired sessions. A second call changes nothing."""
        if not self._is_listening:
            self._is_listening = True
            tree.listen(self._session_event)

    def start(self, read: Read) -> None:
        self._task = asyncio.get_running_loop().create_task(self._follow(read))

    async def close(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    def watch(self, event: WatchEvent) -> None:
        """The watch of the nodes with notifications."""
        self._changed.set()

    def _session_event(self, event: SessionEvent) -> None:
        if event is SessionEvent.EXPIRED:
            self._is_stale = True
        elif event is SessionEvent.CONNECTED:
            self._changed.set()

    async def _follow(self, read: Read) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            is_stale, self._is_stale = self._is_stale, False
            try:
                await read(is_stale)
            except TreeUnavailable as error:
                # The session expired: its CONNECTED event wakes this task again.
                self._is_stale = True
                self._log.info("changed %s are read in the next session: %s", self._what, error)
            except Exception:
                self._is_stale = True
                self._log.exception("changed %s could not be applied: the last known ones stay", self._what)
