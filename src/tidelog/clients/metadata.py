"""What a client knows of a cluster: brokers, topics, partitions and who leads them.

A view only moves forward: what an answer says of a partition under an older leader epoch is passed over.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tidelog.protocol.messages.metadata import MetadataResponse
from tidelog.protocol.wire import ZERO_UUID

NO_LEADER = -1


@dataclass(slots=True, frozen=True)
class BrokerNode:
    """A broker and where it listens; bootstrap servers have ids below 0 until the cluster names them."""

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
    """`version` rises with every answer, so that a change can be waited for."""

    __slots__ = ("cluster_id", "controller_id", "errors", "nodes", "topic_names", "topics", "version")

    def __init__(self) -> None:
        self.version = 0
        self.cluster_id: str | None = None
        self.controller_id = -1
        self.nodes: dict[int, BrokerNode] = {}
        self.topics: dict[str, TopicView] = {}
        self.topic_names: dict[bytes, str] = {}
        self.errors: dict[str, int] = {}
        """Error codes of topics that were asked for and cannot be used."""

    def leader(self, topic: str, partition: int) -> int | None:
        """The broker that leads a partition, None while nobody is known to."""
        found = self.topics.get(topic)
        entry = None if found is None else found.partitions.get(partition)
        if entry is None or entry.leader == NO_LEADER or entry.leader not in self.nodes:
            return None
        return entry.leader

    def leader_epoch(self, topic: str, partition: int) -> int:
        """The epoch of the leader that is known, -1 for none."""
        found = self.topics.get(topic)
        entry = None if found is None else found.partitions.get(partition)
        return -1 if entry is None else entry.leader_epoch

    def partition_count(self, topic: str) -> int | None:
        found = self.topics.get(topic)
        return None if found is None else len(found.partitions)

    def topic_id(self, topic: str) -> bytes:
        """The id of a topic, all zeros where the cluster has none for it."""
        found = self.topics.get(topic)
        return ZERO_UUID if found is None else found.topic_id

    def update(self, answer: MetadataResponse, *, asked: Iterable[str] | None) -> None:
        """Take over an answer; `asked` are the topics that it was to be about, None for all."""
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
        """Take over who is there, where topics are not told of."""
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
        """Take over a leader that a broker named in passing; whether that was news."""
        found = self.topics.get(topic)
        entry = None if found is None else found.partitions.get(partition)
        if entry is None or epoch <= entry.leader_epoch or leader not in self.nodes:
            return False
        entry.leader, entry.leader_epoch = leader, epoch
        return True

    def add_nodes(self, nodes: Iterable[BrokerNode]) -> None:
        """Brokers that an answer named in passing."""
        for node in nodes:
            self.nodes.setdefault(node.id, node)

    def forget_topics(self, names: Iterable[str]) -> None:
        for name in names:
            self.errors.pop(name, None)
            gone = self.topics.pop(name, None)
            if gone is not None:
                self.topic_names.pop(gone.topic_id, None)
