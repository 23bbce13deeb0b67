"""ClusterState: a snapshot of the cluster, from which requests are answered (Kafka's MetadataSnapshot).

A published ClusterState is never changed: a change makes a new one that shares the unchanged parts. It can be
read from any thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from tidelog.endpoints import Endpoint
from tidelog.partitions import TopicPartition

NO_LEADER = -1
"""The leader of a partition whose replicas are all offline."""

LEADER_DURING_DELETE = -2
"""The leader in LeaderAndIsr and UpdateMetadata while the partition's topic is deleted."""

NO_STATE_NODE = -1
"""The partition epoch of a partition whose leader was never written."""

DEFAULT_ENTITY = "<default>"
"""The name of the default entity, whose settings hold for all entities of its kind."""

NO_TOPIC_ID = bytes(16)
"""The id of a topic that has none: a broker before Kafka 2.8 created it."""

INTERNAL_TOPICS = frozenset(("__consumer_offsets", "__transaction_state", "__share_group_state"))


@dataclass(slots=True)
class PartitionState:
    """The replicas of a partition, its leader and in-sync replicas.

    `partition_epoch` counts the changes of leader and in-sync replicas (the node's version in the tree);
    `controller_epoch` is the epoch of the controller that made the last change. `adding` and `removing` are
    the replicas of a running reassignment. `leader_recovery_state` is 1 after an unclean election until the
    leader has recovered. `other_fields` are unknown fields of the node, which stay when it is written again.
    `offline_replicas`, on stopped brokers or in failed log folders, come from the controller and are not in
    the tree. `written_at` is the number of the change (mzxid) that wrote the node, when it was read.
    """

    replicas: list[int]
    leader: int
    leader_epoch: int
    isr: list[int]
    partition_epoch: int = 0
    controller_epoch: int = 0
    adding: list[int] = field(default_factory=list)
    removing: list[int] = field(default_factory=list)
    leader_recovery_state: int = 0
    other_fields: Mapping[str, object] | None = None
    offline_replicas: list[int] = field(default_factory=list)
    written_at: int = field(default=-1, compare=False)


class StateUpdates(NamedTuple):
    """The outcome of writing the states of several partitions.

    `updated` has the written states with their new partition epochs, `retriable` the partitions whose node
    has another version than the expected partition epoch, `failed` the errors of the others.
    """

    updated: dict[TopicPartition, PartitionState]
    retriable: list[TopicPartition]
    failed: dict[TopicPartition, Exception]


@dataclass(slots=True)
class TopicState:
    """A topic: its id (16 bytes), its partitions by number, and the settings it overrides."""

    name: str
    topic_id: bytes
    partitions: dict[int, PartitionState]
    configs: dict[str, str] = field(default_factory=dict)
    is_internal: bool = False

    @property
    def replication_factor(self) -> int:
        return len(self.partitions[0].replicas) if 0 in self.partitions else 0


@dataclass(slots=True)
class BrokerRegistration:
    """A live broker. `epoch` is different for each registration of an id.

    `features` has the lowest and highest version of each feature that the broker supports.
    """

    broker_id: int
    endpoints: list[Endpoint]
    rack: str | None = None
    epoch: int = -1
    features: dict[str, tuple[int, int]] = field(default_factory=dict)

    def endpoint(self, listener: str) -> Endpoint | None:
        for endpoint in self.endpoints:
            if endpoint.listener == listener:
                return endpoint
        return None


@dataclass(slots=True)
class ClusterState:
    """The state of the cluster at one moment.

    `entity_configs` holds the settings of everything but topics by their path below /config, names
    URL-encoded: "brokers/1", "brokers/<default>", "clients/app", "users/alice/clients/app".
    Topics' settings are in TopicState.configs.
    """

    cluster_id: str
    controller_id: int = -1
    controller_epoch: int = 0
    brokers: dict[int, BrokerRegistration] = field(default_factory=dict)
    topics: dict[str, TopicState] = field(default_factory=dict)
    names_by_id: dict[bytes, str] = field(default_factory=dict)
    entity_configs: dict[str, dict[str, str]] = field(default_factory=dict)

    def topic_by_id(self, topic_id: bytes) -> TopicState | None:
        name = self.names_by_id.get(topic_id)
        return None if name is None else self.topics.get(name)

    def partition(self, topic: str, partition: int) -> PartitionState | None:
        state = self.topics.get(topic)
        return None if state is None else state.partitions.get(partition)

    def broker_configs(self, broker_id: int | None) -> dict[str, str]:
        """The settings of one broker, or for None the defaults of all brokers."""
        name = DEFAULT_ENTITY if broker_id is None else str(broker_id)
        return self.entity_configs.get(f"brokers/{name}", {})

    def with_topics(self, changed: Iterable[TopicState] = (), removed: Iterable[str] = ()) -> ClusterState:
        """The next snapshot, with `changed` topics added or replaced and `removed` ones deleted."""
        topics = dict(self.topics)
        names = dict(self.names_by_id)
        for name in removed:
            former = topics.pop(name, None)
            if former is not None:
                names.pop(former.topic_id, None)
        for topic in changed:
            before = topics.get(topic.name)
            if before is not None and before.topic_id != topic.topic_id:
                names.pop(before.topic_id, None)
            topics[topic.name] = topic
            if topic.topic_id != NO_TOPIC_ID:
                names[topic.topic_id] = topic.name
        return self._with(topics=topics, names_by_id=names)

    def with_entity_configs(self, entity_path: str, configs: dict[str, str]) -> ClusterState:
        """The next snapshot, with new settings of an entity; without any the entity is removed."""
        entities = dict(self.entity_configs)
        if configs:
            entities[entity_path] = configs
        else:
            entities.pop(entity_path, None)
        return self._with(entity_configs=entities)

    def with_brokers(self, brokers: dict[int, BrokerRegistration]) -> ClusterState:
        return self._with(brokers=brokers)

    def with_controller(self, controller_id: int, controller_epoch: int) -> ClusterState:
        return self._with(controller_id=controller_id, controller_epoch=controller_epoch)

    def _with(
        self,
        *,
        controller_id: int | None = None,
        controller_epoch: int | None = None,
        brokers: dict[int, BrokerRegistration] | None = None,
        topics: dict[str, TopicState] | None = None,
        names_by_id: dict[bytes, str] | None = None,
        entity_configs: dict[str, dict[str, str]] | None = None,
    ) -> ClusterState:
        return ClusterState(
            cluster_id=self.cluster_id,
            controller_id=self.controller_id if controller_id is None else controller_id,
            controller_epoch=self.controller_epoch if controller_epoch is None else controller_epoch,
            brokers=self.brokers if brokers is None else brokers,
            topics=self.topics if topics is None else topics,
            names_by_id=self.names_by_id if names_by_id is None else names_by_id,
            entity_configs=self.entity_configs if entity_configs is None else entity_configs,
        )
