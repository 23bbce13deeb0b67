"""AutoTopicCreation: creates topics that clients asked for in metadata requests."""

from __future__ import annotations

import asyncio
import logging

from tidelog.controller.interface import NewTopic
from tidelog.metadata.state import INTERNAL_TOPICS
from tidelog.server.membership import ControllerRequests

log = logging.getLogger("tidelog.server")

MAX_CREATIONS = 100
"""The limit of topics that are created at a time: one request can have very many."""


class AutoTopicCreation:
    """Creates each topic once, for all concurrent requests."""

    def __init__(self, controller: ControllerRequests) -> None:
        self._controller = controller
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def create(self, name: str) -> None:
        """Begin to create a topic. At the limit this does nothing: the client asks again."""
        if name in self._tasks or name in INTERNAL_TOPICS or len(self._tasks) >= MAX_CREATIONS:
            return
        task = self._tasks[name] = asyncio.get_running_loop().create_task(self._create(name))
        task.add_done_callback(lambda _: self._tasks.pop(name, None))

    async def _create(self, name: str) -> None:
        (result,) = await self._controller.create_topics([NewTopic(name)])
        if result.error is not None:
            log.warning("topic %s could not be created for a client: %s", name, result.error)

    async def drain(self) -> None:
        """Wait for the creations that have begun."""
        while self._tasks:
            await asyncio.wait(list(self._tasks.values()))
