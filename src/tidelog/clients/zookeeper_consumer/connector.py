"""The asynchronous consumer of Kafka 0.8: streams of records, and a group that ZooKeeper coordinates.

>>> async def main():
...     settings = {"zookeeper.connect": zookeeper, "group.id": "loggers", "auto.offset.reset": "smallest"}
...     async with AsyncConsumerConnector(settings) as connector:
...         streams = await connector.create_message_streams({"letters": 1})
...         async for record in streams["letters"][0]:
...             return record.offset, record.value
"""

from __future__ import annotations

import asyncio
import logging
import random
import socket
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from tidelog.clients.errors import ClientClosedException, IllegalStateException
from tidelog.clients.zookeeper_consumer.errors import MessageStreamsExistException
from tidelog.clients.zookeeper_consumer.fetcher_manager import ConsumerFetcherManager, FetcherManager
from tidelog.clients.zookeeper_consumer.group_nodes import GroupNodes
from tidelog.clients.zookeeper_consumer.rebalancer import Member, Rebalancer
from tidelog.clients.zookeeper_consumer.settings import ZooKeeperConsumerSettings, zookeeper_consumer_settings
from tidelog.clients.zookeeper_consumer.streams import AsyncKafkaStream, StreamQueue
from tidelog.clients.zookeeper_consumer.topic_count import (
    StaticTopicCount,
    TopicCount,
    TopicFilter,
    WildcardTopicCount,
)
from tidelog.clock import Clock, SystemClock
from tidelog.metadata.async_tree import AsyncTree
from tidelog.metadata.cluster_store import ClusterStore
from tidelog.metadata.nodes import ConsumerNode
from tidelog.metadata.tree import TreeError
from tidelog.metadata.zookeeper import ZooKeeperSettings, ZooKeeperTree
from tidelog.partitions import TopicPartition

log = logging.getLogger("tidelog.clients")


async def _open_tree(settings: ZooKeeperConsumerSettings, rng: random.Random) -> AsyncTree:
    sessions = ZooKeeperSettings(
        session_timeout=settings.zookeeper_session_timeout_ms / 1000,
        connect_timeout=settings.zookeeper_connection_timeout_ms / 1000,
    )
    return await ZooKeeperTree.connect(settings.zookeeper_connect, sessions, rng=rng)


@dataclass(slots=True)
class Environment:
    """What a connector takes from outside: a simulation passes others."""

    clock: Clock = field(default_factory=SystemClock)
    rng: random.Random = field(default_factory=random.Random)
    host: str = field(default_factory=socket.gethostname)
    open_tree: Callable[[ZooKeeperConsumerSettings, random.Random], Awaitable[AsyncTree]] = _open_tree
    fetcher_manager: Callable[[Mapping[str, object]], FetcherManager] = ConsumerFetcherManager


class AsyncConsumerConnector:
    """A member of a group in ZooKeeper. Settings are Kafka 0.8's, as keywords with underscores or as a dict.

    It creates streams once. Each stream is for one task.
    """

    def __init__(
        self,
        config: Mapping[str, object] | None = None,
        /,
        *,
        environment: Environment | None = None,
        **settings: object,
    ) -> None:
        self.settings = zookeeper_consumer_settings(config, **settings)
        self._environment = environment or Environment()
        self._tree: AsyncTree | None = None
        self._rebalancer: Rebalancer | None = None
        self._fetchers: FetcherManager | None = None
        self._queues: list[StreamQueue] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._closed = False
        self.consumer_id = self._make_consumer_id()
        """The id of this member in the tree: group_host-timestamp-8hex, or group_consumer.id."""

    def _make_consumer_id(self) -> str:
        given, outside = self.settings.consumer_id, self._environment
        if given is None:
            given = f"{outside.host}-{outside.clock.ms()}-{outside.rng.getrandbits(32):08x}"
        return f"{self.settings.group_id}_{given}"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.shutdown()

    # --- streams

    async def create_message_streams(
        self, topic_count: Mapping[str, int]
    ) -> dict[str, list[AsyncKafkaStream]]:
        """Join the group; returns as many streams of each topic as asked for.

        Raises ConsumerRebalanceFailedException if others do not give up their partitions in time,
        TreeUnavailable if ZooKeeper cannot be reached.
        """
        _check_counts(topic_count)
        keys = [(topic, thread) for topic, count in topic_count.items() for thread in range(count)]
        queues = {key: self._queue() for key in keys}
        await self._consume(
            StaticTopicCount(dict(topic_count)), list(queues.values()), lambda *key: queues[key]
        )
        return {
            topic: [self._stream(queues[topic, thread]) for thread in range(count)]
            for topic, count in topic_count.items()
        }

    async def create_message_streams_by_filter(
        self, topic_filter: TopicFilter, num_streams: int = 1
    ) -> list[AsyncKafkaStream]:
        """Join the group; returns streams over all topics of a Whitelist or Blacklist, also of later ones."""
        _check_counts({topic_filter.regex: num_streams})
        queues = [self._queue() for _ in range(num_streams)]
        count = WildcardTopicCount(topic_filter, num_streams, self.settings.exclude_internal_topics)
        await self._consume(count, queues, lambda _topic, thread: queues[thread])
        return [self._stream(queue) for queue in queues]

    def _queue(self) -> StreamQueue:
        return StreamQueue(self.settings.queued_max_message_chunks)

    def _stream(self, queue: StreamQueue) -> AsyncKafkaStream:
        limit = self.settings.consumer_timeout_ms
        return AsyncKafkaStream(queue, None if limit < 0 else limit / 1000)

    async def _consume(
        self, topics: TopicCount, queues: list[StreamQueue], queue_of: Callable[[str, int], StreamQueue]
    ) -> None:
        if self._closed:
            raise ClientClosedException("the connector is shut down")
        if self._queues:
            raise MessageStreamsExistException("a connector creates its streams once")
        self._queues = queues
        outside = self._environment
        node = ConsumerNode(topics.subscription, topics.pattern, outside.clock.ms())
        tree = self._tree = await outside.open_tree(self.settings, outside.rng)
        cluster = ClusterStore(tree, outside.clock, outside.rng)
        group = GroupNodes(tree, self.settings.group_id)
        self._fetchers = outside.fetcher_manager(self.settings.fetching)
        member = Member(self.consumer_id, topics, node, queues, queue_of)
        rebalancer = Rebalancer(cluster, group, self._fetchers, self.settings, member)
        self._rebalancer = rebalancer
        await rebalancer.rebalance()
        loop = asyncio.get_running_loop()
        self._tasks.append(loop.create_task(rebalancer.run(), name=f"rebalancer {self.consumer_id}"))
        if self.settings.auto_commit_enable:
            self._tasks.append(loop.create_task(self._auto_commit(rebalancer)))

    def owned_partitions(self) -> set[TopicPartition]:
        """The partitions that this consumer claimed in its last rebalance."""
        return set() if self._rebalancer is None else set(self._rebalancer.owned)

    # --- offsets

    async def commit_offsets(self) -> None:
        """Write the offsets of all records that the streams have returned to the tree."""
        if self._rebalancer is None:
            raise IllegalStateException("there is nothing to commit: the connector has no streams")
        await self._rebalancer.commit_offsets()

    async def _auto_commit(self, rebalancer: Rebalancer) -> None:
        while True:
            await asyncio.sleep(self.settings.auto_commit_interval_ms / 1000)
            try:
                await rebalancer.commit_offsets()
            except TreeError as error:
                log.warning("consumer %s did not commit its offsets: %s", self.consumer_id, error)

    # --- the end

    async def shutdown(self) -> None:
        """Commit if auto.commit.enable is set, end the streams and leave the group."""
        if self._closed:
            return
        self._closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        try:
            if self._rebalancer is not None:
                await self._rebalancer.close()
        except TreeError as error:
            log.warning("consumer %s did not commit its last offsets: %s", self.consumer_id, error)
        finally:
            for queue in self._queues:
                queue.close()
            if self._fetchers is not None:
                await self._fetchers.close()
            if self._tree is not None:
                await self._tree.close()  # the registration and the claims end with the session


def _check_counts(counts: Mapping[str, int]) -> None:
    if not counts:
        raise ValueError("no topic to read: expected the number of streams of at least one topic")
    for topic, count in counts.items():
        if count < 1:
            raise ValueError(f"{count} streams of {topic!r}: expected at least 1")
