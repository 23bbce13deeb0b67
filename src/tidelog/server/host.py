"""BrokerHost: creates, leads, deletes and configures partitions for the controller."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from tidelog.cluster.leadership import Leadership
from tidelog.cluster.metadata_cache import MetadataCache
from tidelog.cluster.replica_manager import ReplicaManager
from tidelog.controller.interface import LogsOfTopic
from tidelog.errors import KafkaStorageError
from tidelog.metadata.state import INTERNAL_TOPICS, ClusterState, PartitionState
from tidelog.server.config.topic import TopicConfigs
from tidelog.storage.log_creation import WantedLog


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
        # False until this broker leads the partitions from before its start; later partitions are new.
        self.takes_new_partitions = False
        # The coordinators by their internal topics.
        self.coordinators: dict[str, Leadership] = {}

    async def make_logs(self, topics: Sequence[LogsOfTopic]) -> set[tuple[str, int]]:
        wanted: list[WantedLog] = []
        for topic, topic_id, partitions in topics:
            config = self._topic_configs.log_config(self._overrides_of(topic))
            wanted += [WantedLog(topic, partition, topic_id, config) for partition in partitions]
        made: asyncio.Future[set[tuple[str, int]]] = asyncio.get_running_loop().create_future()

        def done(unmade: set[tuple[str, int]]) -> None:
            if not made.done():
                made.set_result(unmade)

        self._replicas.logs.creator.create_later(wanted, done, is_new=self.takes_new_partitions)
        return await made

    def become_leader(self, topic: str, topic_id: bytes, partition: int, state: PartitionState) -> None:
        led = self._replicas.become_leader(
            topic,
            topic_id,
            partition,
            state,
            self._topic_configs.log_config(self._overrides_of(topic)),
            is_internal=topic in INTERNAL_TOPICS,
            is_new=self.takes_new_partitions,
        )
        coordinator = self.coordinators.get(topic)
        if coordinator is not None:
            coordinator.elected(led)

    def partitions_offline(self, lost: Sequence[tuple[str, int]]) -> None:
        """Take the partitions of a failed folder offline; their coordinators resign."""
        self._replicas.partitions_offline(lost)
        for topic, partition in lost:
            if topic in self.coordinators:
                self.coordinators[topic].resigned(partition)

    def delete_partition(self, topic: str, partition: int) -> None:
        if topic in self.coordinators:
            self.coordinators[topic].resigned(partition)
        self._replicas.delete_partition(topic, partition)

    async def sync_deletions(self) -> None:
        synced: asyncio.Future[KafkaStorageError | None] = asyncio.get_running_loop().create_future()

        def done(error: KafkaStorageError | None) -> None:
            if not synced.done():
                synced.set_result(error)

        self._replicas.logs.deletions.sync(done)
        error = await synced
        if error is not None:
            raise error

    def update_topic_config(self, topic: str, overrides: dict[str, str]) -> None:
        self._replicas.update_config(topic, self._topic_configs.log_config(overrides))

    def metadata_changed(self, state: ClusterState) -> None:
        self._metadata.update(state)

    def broker_settings_changed(self) -> None:
        """Update the settings of all topics: the broker's settings are their defaults."""
        for topic in list(self._replicas.topics):
            self.update_topic_config(topic, self._overrides_of(topic))
