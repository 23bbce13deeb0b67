"""A client's view of a cluster: brokers, topics, partitions and their leaders.

A view only moves forward: it ignores an answer about a partition with an older leader epoch.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tidelog.protocol.messages.metadata import MetadataResponse
from tidelog.protocol.wire import ZERO_UUID

NO_LEADER = -1


@dataclass(slots=True, frozen=True)
class BrokerNode:
    """A broker and its address. Bootstrap servers have negative ids."""

    id: int
    host: str
    port: int
    rack: str | None = None

    @property
    def address(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(slots=True)
class PartitionView:
    index: int
    leader: int
    leader_epoch: int
    replicas: list[int]
    isr: list[int]
    offline: list[int] = field(default_factory=list)
    error_code: int = 0


@dataclass(slots=True)
class TopicView:
    name: str
    topic_id: bytes
    is_internal: bool
    partitions: dict[int, PartitionView]


class ClusterView:
    """`version` rises with every answer, so that callers can wait for a change."""

    __slots__ = ("cluster_id", "controller_id", "errors", "nodes", "topic_names", "topics", "version")

    def __init__(self) -> None:
        self.version = 0
        self.cluster_id: str | None = None
        self.controller_id = -1
        self.nodes: dict[int, BrokerNode] = {}
        self.topics: dict[str, TopicView] = {}
        self.topic_names: dict[bytes, str] = {}
        self.errors: dict[str, int] = {}
        """The error codes of requested topics that cannot be used."""

    def leader(self, topic: str, partition: int) -> int | None:
        """The leader of a partition, or None while it is unknown."""
        found = self.topics.get(topic)
        entry = None if found is None else found.partitions.get(partition)
        if entry is None or entry.leader == NO_LEADER or entry.leader not in self.nodes:
            return None
        return entry.leader

    def leader_epoch(self, topic: str, partition: int) -> int:
        """The epoch of the known leader, or -1."""
        found = self.topics.get(topic)
        entry = None if found is None else found.partitions.get(partition)
        return -1 if entry is None else entry.leader_epoch

    def partition_count(self, topic: str) -> int | None:
        found = self.topics.get(topic)
        return None if found is None else len(found.partitions)

    def topic_id(self, topic: str) -> bytes:
        """The id of a topic; all zeros if the topic has none."""
        found = self.topics.get(topic)
        return ZERO_UUID if found is None else found.topic_id

    def update(self, answer: MetadataResponse, *, asked: Iterable[str] | None) -> None:
        """Apply an answer. `asked` has the topics of the request, None for all."""
        self.version += 1
        if answer.brokers:
            self.nodes = {
                broker.node_id: BrokerNode(broker.node_id, broker.host, broker.port, broker.rack)
                for broker in answer.brokers
            }
        self.cluster_id = answer.cluster_id
        self.controller_id = answer.controller_id
        known = self.topics
        if asked is None:
            self.topics, self.errors, self.topic_names = {}, {}, {}
        else:
            for name in asked:
                self.errors.pop(name, None)
        for topic in answer.topics:
            self._take_topic(topic, known)

    def take_nodes(self, nodes: Iterable[BrokerNode], controller_id: int, cluster_id: str | None) -> None:
        """Apply a list of nodes that comes without topics."""
        self.version += 1
        self.nodes = {node.id: node for node in nodes}
        self.controller_id = controller_id
        self.cluster_id = cluster_id

    def _take_topic(self, topic: MetadataResponse.MetadataResponseTopic, known: dict[str, TopicView]) -> None:
        name = topic.name
        if name is None:
            return
        before = known.get(name)
        if before is not None and before.topic_id != topic.topic_id:
            self.topic_names.pop(before.topic_id, None)
        if topic.error_code:
            self.errors[name] = topic.error_code
            self.topics.pop(name, None)
            return
        partitions: dict[int, PartitionView] = {}
        for found in sorted(topic.partitions, key=lambda entry: entry.partition_index):
            view = PartitionView(
                found.partition_index,
                found.leader_id,
                found.leader_epoch,
                found.replica_nodes,
                found.isr_nodes,
                found.offline_replicas,
                found.error_code,
            )
            old = before.partitions.get(view.index) if before is not None else None
            if (
                old is not None
                and before is not None
                and before.topic_id == topic.topic_id
                and view.leader_epoch < old.leader_epoch
            ):
                view = old
            partitions[view.index] = view
        self.topics[name] = TopicView(name, topic.topic_id, topic.is_internal, partitions)
        if topic.topic_id != ZERO_UUID:
            self.topic_names[topic.topic_id] = name

    def update_leader(self, topic: str, partition: int, leader: int, epoch: int) -> bool:
        """Apply a leader that came with the answer to another request; whether it was new."""
        found = self.topics.get(topic)
        entry = None if found is None else found.partitions.get(partition)
        if entry is None or epoch <= entry.leader_epoch or leader not in self.nodes:
            return False
        entry.leader, entry.leader_epoch = leader, epoch
        return True

    def add_nodes(self, nodes: Iterable[BrokerNode]) -> None:
        """Add brokers that came with the answer to another request."""
        for node in nodes:
            self.nodes.setdefault(node.id, node)

    def forget_topics(self, names: Iterable[str]) -> None:
        for name in names:
            self.errors.pop(name, None)
            gone = self.topics.pop(name, None)
            if gone is not None:
                self.topic_names.pop(gone.topic_id, None)
