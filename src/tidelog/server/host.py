"""The broker's side of the controller: partitions are led, deleted and configured as it says."""

from __future__ import annotations

from collections.abc import Callable

from tidelog.cluster.metadata_cache import MetadataCache
from tidelog.cluster.replica_manager import ReplicaManager
from tidelog.metadata.state import INTERNAL_TOPICS, ClusterState, PartitionState
from tidelog.server.config.topic import TopicConfigs


class BrokerHost:
    """Implements controller.interface.PartitionHost."""

    def __init__(
        self,
        replicas: ReplicaManager,
        metadata: MetadataCache,
        topic_configs: TopicConfigs,
        overrides_of: Callable[[str], dict[str, str]],
    ) -> None:
        self._replicas = replicas
        self._metadata = metadata
        self._topic_configs = topic_configs
        self._overrides_of = overrides_of
        # Whether the partitions that were there before the start are led: those from now on are new.
        self.takes_new_partitions = False

    def become_leader(self, topic: str, topic_id: bytes, partition: int, state: PartitionState) -> None:
        self._replicas.become_leader(
            topic,
            topic_id,
            partition,
            state,
            self._topic_configs.log_config(self._overrides_of(topic)),
            is_internal=topic in INTERNAL_TOPICS,
            is_new=self.takes_new_partitions,
        )

    def delete_partition(self, topic: str, partition: int) -> None:
        self._replicas.delete_partition(topic, partition)

    def update_topic_config(self, topic: str, overrides: dict[str, str]) -> None:
        self._replicas.update_config(topic, self._topic_configs.log_config(overrides))

    def metadata_changed(self, state: ClusterState) -> None:
        self._metadata.update(state)

    def broker_settings_changed(self) -> None:
        """Topics without a setting of their own follow the broker's."""
        for topic in list(self._replicas.topics):
            self.update_topic_config(topic, self._overrides_of(topic))
