"""InternalTopics: creates the internal topics of the coordinators, when a client first looks for a
coordinator.
"""

from __future__ import annotations

import asyncio

from tidelog.cluster.metadata_cache import MetadataCache
from tidelog.controller.interface import MutationQuota, NewTopic
from tidelog.errors import CoordinatorNotAvailable, TopicAlreadyExists
from tidelog.server.membership import ControllerRequests


class InternalTopics:
    """Creates each topic once, for all concurrent requests."""

    def __init__(self, controller: ControllerRequests, metadata: MetadataCache) -> None:
        self._controller = controller
        self._metadata = metadata
        self._making: dict[str, asyncio.Task[None]] = {}

    async def ensure(self, topic: NewTopic, quota: MutationQuota | None = None) -> None:
        """Create the topic unless it exists. Raises CoordinatorNotAvailable if it cannot be created.

        `quota` is the permissive quota of the requesting client. A topic that is not created takes no tokens.
        """
        if topic.name in self._metadata.snapshot.topics:
            return
        task = self._making.get(topic.name)
        if task is None:
            task = self._making[topic.name] = asyncio.get_running_loop().create_task(self._make(topic, quota))
            task.add_done_callback(lambda _: self._making.pop(topic.name, None))
        # A cancelled request does not cancel the creation for the others.
        await asyncio.shield(task)

    async def _make(self, topic: NewTopic, quota: MutationQuota | None) -> None:
        (result,) = await self._controller.create_topics([topic])
        if result.error is None and quota is not None:
            quota.record(topic.num_partitions)
        if result.error is not None and not isinstance(result.error, TopicAlreadyExists):
            raise CoordinatorNotAvailable(f"{topic.name} cannot be created: {result.error}")
