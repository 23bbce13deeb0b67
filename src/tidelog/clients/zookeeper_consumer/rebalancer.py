"""The rebalances of a consumer: whenever the group, the brokers or the topics change, claim partitions anew.

Every member computes the assignment by itself, from what it sees in the tree. Members that see different
trees may claim the same partition: one of them fails, waits and tries again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from tidelog.clients.zookeeper_consumer.errors import ConsumerRebalanceFailedException
from tidelog.clients.zookeeper_consumer.fetcher_manager import FetcherManager
from tidelog.clients.zookeeper_consumer.group_nodes import GroupNodes
from tidelog.clients.zookeeper_consumer.range_assignment import assign_ranges
from tidelog.clients.zookeeper_consumer.settings import ZooKeeperConsumerSettings
from tidelog.clients.zookeeper_consumer.streams import PartitionTopicInfo, StreamQueue
from tidelog.clients.zookeeper_consumer.topic_count import (
    ConsumerThreadId,
    StaticTopicCount,
    TopicCount,
    topic_count_of,
)
from tidelog.errors import KafkaError
from tidelog.metadata import paths
from tidelog.metadata.async_tree import SessionEvent
from tidelog.metadata.cluster_store import ClusterStore
from tidelog.metadata.nodes import ConsumerNode
from tidelog.metadata.tree import TreeError, WatchEvent
from tidelog.partitions import TopicPartition

log = logging.getLogger("tidelog.clients")

FAILURES = (TreeError, ValueError, KafkaError)
"""What an attempt may meet while the tree changes under it. The next attempt may succeed.

A ValueError: another member has a node or a filter that this one does not understand. Java has regular
expressions that Python does not have.
"""


@dataclass(slots=True, frozen=True)
class Member:
    """This consumer in its group. `queue_of` returns the queue of a topic and a thread."""

    consumer: str
    topics: TopicCount
    node: ConsumerNode
    queues: Sequence[StreamQueue]
    queue_of: Callable[[str, int], StreamQueue]


class Rebalancer:
    """`await rebalance()` for the first time, then `run` follows the watches."""

    def __init__(
        self,
        cluster: ClusterStore,
        nodes: GroupNodes,
        fetchers: FetcherManager,
        settings: ZooKeeperConsumerSettings,
        member: Member,
    ) -> None:
        self.owned: dict[TopicPartition, PartitionTopicInfo] = {}
        """The partitions of this consumer, from the last rebalance that succeeded."""
        self._cluster = cluster
        self._tree = cluster.tree
        self._nodes = nodes
        self._fetchers = fetchers
        self._settings = settings
        self._member = member
        self._triggered = asyncio.Event()
        self._committing = asyncio.Lock()
        self._is_registered = False
        self._topics: frozenset[str] = frozenset()
        """The topics that the last attempt found for this consumer."""
        self._only_topics_changed = False
        self._tree.listen(self._on_session_event)

    # --- triggers

    def _on_change(self, _event: WatchEvent) -> None:
        """A member, a broker or a topic of this consumer came, changed or went."""
        self._only_topics_changed = False
        self._triggered.set()

    def _on_topics(self, _event: WatchEvent) -> None:
        """A topic was created or deleted. Whether the filter selects it is not known yet."""
        if not self._triggered.is_set():
            self._only_topics_changed = True
            self._triggered.set()

    def _on_session_event(self, event: SessionEvent) -> None:
        if event is SessionEvent.EXPIRED:
            # The registration and the claims are gone. Others may own the partitions: do not commit.
            self._is_registered = False
            self._nodes.forget_session()
            self._drop_owned()
            self._only_topics_changed = False
            self._triggered.set()

    async def run(self) -> None:
        """Rebalance after each trigger. After a rebalance that failed, the consumer waits for the next."""
        while True:
            await self._triggered.wait()
            try:
                if await self._is_needed():
                    await self.rebalance()
            except ConsumerRebalanceFailedException as error:
                log.error("%s; it reads nothing until the group changes again", error)
            except FAILURES as error:
                log.warning("consumer %s cannot read the tree: %s", self._member.consumer, error)
                await self._back_off()
                self._triggered.set()

    async def _is_needed(self) -> bool:
        """Whether more has changed than topics that this consumer does not read."""
        only_topics, self._only_topics_changed = self._only_topics_changed, False
        if not only_topics:
            return True
        self._triggered.clear()
        return await self._find_topics() != self._topics

    # --- rebalances

    async def rebalance(self) -> None:
        """Claim this consumer's share of the partitions, and fetch them.

        Raises ConsumerRebalanceFailedException after rebalance.max.retries attempts.
        """
        consumer, retries = self._member.consumer, self._settings.rebalance_max_retries
        for attempt in range(retries):
            self._triggered.clear()
            log.info("consumer %s begins rebalance attempt %d", consumer, attempt)
            try:
                if await self._attempt():
                    return
            except FAILURES as error:
                log.info("consumer %s: rebalance attempt %d failed: %s", consumer, attempt, error)
            await self._stop_fetching()  # others may get the partitions meanwhile
            await self._back_off()
        raise ConsumerRebalanceFailedException(f"{consumer} can't rebalance after {retries} retries")

    async def _back_off(self) -> None:
        await asyncio.sleep(self._settings.rebalance_backoff_ms / 1000)

    async def _attempt(self) -> bool:
        """One rebalance: False if another member still owns a partition of this consumer."""
        if not self._is_registered:
            await self._register()
        brokers = await self._cluster.read_brokers(self._on_change)
        if not brokers:
            return True  # the first broker that registers triggers the next rebalance
        await self._stop_fetching()
        if self._settings.auto_commit_enable:
            await self.commit_offsets()
        await self._release()
        assignment = await self._assignment()
        if assignment is None:
            return False
        if not await self._nodes.claim(assignment):
            log.info("consumer %s waits for partitions that others still own", self._member.consumer)
            return False
        try:
            # Only now: the owner before commits until it releases a partition.
            offsets = await self._nodes.offsets(assignment)
        except FAILURES:
            await self._nodes.release(assignment)
            raise
        self.owned = {
            partition: PartitionTopicInfo(
                partition, self._member.queue_of(partition.topic, thread.thread), offsets.get(partition)
            )
            for partition, thread in assignment.items()
        }
        await self._fetchers.start_connections(brokers.values(), list(self.owned.values()))
        return True

    async def _register(self) -> None:
        member = self._member
        wait = 2 * self._settings.zookeeper_session_timeout_ms / 1000
        await self._nodes.register(member.consumer, member.node, wait_seconds=wait)
        self._is_registered = True

    async def _assignment(self) -> dict[TopicPartition, ConsumerThreadId] | None:
        """The partitions of this consumer with their threads; None if the tree does not have it yet."""
        members = await self._nodes.members(self._on_change)
        if self._member.consumer not in members:
            return None
        self._topics = await self._find_topics()
        partitions = await self._partitions(self._topics)
        threads: dict[str, list[ConsumerThreadId]] = {}
        for consumer, node in members.items():
            exclude = self._settings.exclude_internal_topics
            found = topic_count_of(node, exclude_internal=exclude).threads(consumer, self._topics)
            for topic, own in found.items():
                threads.setdefault(topic, []).extend(own)
        return {
            partition: thread
            for partition, thread in assign_ranges(threads, partitions).items()
            if thread.consumer == self._member.consumer
        }

    async def _find_topics(self) -> frozenset[str]:
        """The topics of this consumer. A filter selects from all topics, which are watched."""
        topics = self._member.topics
        if isinstance(topics, StaticTopicCount):
            return frozenset(topics.counts)
        names = await self._cluster.read_topic_names(self._on_topics)
        return frozenset(topics.threads(self._member.consumer, names))

    async def _partitions(self, topics: Collection[str]) -> Mapping[str, Sequence[int]]:
        """The partitions of topics. A change of a topic, and the creation of a missing one, are watched."""
        while True:
            found = await self._cluster.read_assignments(topics, self._on_change)
            missing = [paths.topic(topic) for topic in topics if topic not in found]
            stats = [await self._tree.exists(path, self._on_change) for path in missing]
            if not any(stats):
                return {topic: list(node.partitions) for topic, node in found.items()}

    # --- giving up partitions

    async def _stop_fetching(self) -> None:
        """Stop before others may own the partitions: otherwise two members would return the same records."""
        await self._fetchers.stop_connections()
        for info in self.owned.values():
            info.released = True
        for queue in self._member.queues:
            queue.clear()

    async def _release(self) -> None:
        owned, self.owned = self.owned, {}
        await self._nodes.release(owned)

    def _drop_owned(self) -> None:
        """The partitions belong to others: records of them that wait in the queues are not returned."""
        for info in self.owned.values():
            info.released = True
        self.owned = {}

    async def commit_offsets(self) -> None:
        """Write the offsets of the owned partitions that changed since they were written."""
        async with self._committing:  # no release may pass a commit
            infos = {
                info: info.consumed
                for info in self.owned.values()
                if info.consumed is not None and info.consumed != info.committed
            }
            if infos:
                await self._nodes.commit({info.partition: offset for info, offset in infos.items()})
            for info, offset in infos.items():
                info.committed = offset

    async def close(self) -> None:
        """Stop fetching, and commit if auto.commit.enable is set."""
        await self._stop_fetching()
        if self._settings.auto_commit_enable:
            await self.commit_offsets()
