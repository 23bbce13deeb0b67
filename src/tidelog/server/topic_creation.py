"""AutoTopicCreation: creates missing topics of metadata requests (Kafka's AutoTopicCreationManager).

The partitions count for the controller mutation quota of the first requesting client. As in Kafka 3.9, the
quota is permissive: the topics are created, and later topic changes of the client are refused or throttled.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from tidelog.controller.interface import MutationQuota, NewTopic
from tidelog.metadata.state import INTERNAL_TOPICS
from tidelog.server.membership import ControllerRequests

log = logging.getLogger("tidelog.server")

MAX_CREATIONS = 100
"""The limit of topics that are created at a time: one request can have very many."""


class AutoTopicCreation:
    """Creates each topic once, for all concurrent requests."""

    def __init__(self, controller: ControllerRequests, num_partitions: int) -> None:
        """`num_partitions` of a topic that is created automatically."""
        self._controller = controller
        self._num_partitions = num_partitions
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def create(
        self, name: str, quota: MutationQuota | None = None, created: Callable[[], None] = lambda: None
    ) -> None:
        """Begin to create a topic. With too many running creations this does nothing, and the client retries.

        `quota` is permissive. Its tokens are taken at once, and given back if the topic cannot be created.
        `created` is called when this client has created the topic.
        """
        if name in self._tasks or name in INTERNAL_TOPICS or len(self._tasks) >= MAX_CREATIONS:
            return
        if quota is not None:
            quota.record(self._num_partitions)
        task = self._tasks[name] = asyncio.get_running_loop().create_task(self._create(name, quota, created))
        task.add_done_callback(lambda _: self._tasks.pop(name, None))

    async def _create(self, name: str, quota: MutationQuota | None, created: Callable[[], None]) -> None:
        (result,) = await self._controller.create_topics([NewTopic(name)])
        if result.error is None:
            created()
        if result.error is not None:
            log.warning("topic %s could not be created for a client: %s", name, result.error)
            if quota is not None:
                quota.record(-self._num_partitions)

    async def drain(self) -> None:
        """Wait for the creations that have begun."""
        while self._tasks:
            await asyncio.wait(list(self._tasks.values()))
