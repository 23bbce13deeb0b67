"""MetadataCache: the state of the cluster as a snapshot, which each change replaces as a whole.

A reader that takes `cache.snapshot` once sees one consistent state. The controller of a single broker
publishes snapshots; in a cluster the UpdateMetadata requests of the elected controller make them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Set
from contextlib import suppress
from typing import TYPE_CHECKING

from tidelog.metadata.state import ClusterState, PartitionState
from tidelog.slices import finished

if TYPE_CHECKING:
    from tidelog.protocol.messages.update_metadata import UpdateMetadataRequest

log = logging.getLogger("tidelog.cluster")

TopicsDeleted = Callable[[list[tuple[str, bytes]]], None]
"""Called with the names and ids of deleted topics."""


class MetadataCache:
    """Has the current snapshot and the finalized features of the cluster."""

    def __init__(self, cluster_id: str) -> None:
        self.snapshot = ClusterState(cluster_id)
        # Whether the snapshot has the topics of the cluster. Before that, a missing topic may well exist:
        # nobody may act on its absence.
        self.is_initialized = False
        self._has_brokers = asyncio.Event()
        self.features: dict[str, int] = {}
        # Rises with every change of the finalized features; clients keep those with the highest epoch.
        self.features_epoch = 0
        self.topics_deleted: TopicsDeleted | None = None
        # Called after an update of the controller with other live brokers.
        self.brokers_changed: Callable[[], None] | None = None
        # Called with every snapshot.
        self.on_update: Callable[[ClusterState], None] | None = None
        # The live brokers that are no leaders for clients, because this broker lost its connection to them.
        self.hidden_leaders: Callable[[], Set[int]] = frozenset

    def update(self, state: ClusterState) -> None:
        """Publish a snapshot of the whole cluster."""
        before = self.snapshot
        gone = before.names_by_id.keys() - state.names_by_id.keys()
        self.is_initialized = True
        self._publish(state, [(before.names_by_id[topic_id], topic_id) for topic_id in gone])

    async def apply(self, request: UpdateMetadataRequest) -> None:
        """Publish the snapshot after an update of the controller; other tasks run while it is made."""
        from tidelog.cluster.metadata_update import FULL_UPDATE, listeners_differ, updated

        before = self.snapshot
        update = await finished(updated(before, request))
        state = update.state
        # Settings may have changed in the other tasks.
        state.entity_configs = self.snapshot.entity_configs
        if state.brokers is not before.brokers and (listeners := listeners_differ(state.brokers)):
            log.error("the brokers have different listeners: %s", listeners)
        # A controller of Kafka that was just elected begins with an update about the brokers alone.
        if request.type == FULL_UPDATE or request.topic_states:
            self.is_initialized = True
        self._publish(state, update.deleted)
        if state.brokers is not before.brokers and self.brokers_changed is not None:
            self.brokers_changed()

    def set_entity_configs(self, entity_path: str, configs: dict[str, str]) -> None:
        """Replace the settings of an entity other than a topic (ClusterState.entity_configs)."""
        self.snapshot = self.snapshot.with_entity_configs(entity_path, configs)

    def find_partition(self, topic: str | bytes, index: int) -> PartitionState | None:
        """The state of a partition by the name or the id of its topic, or None."""
        state = self.snapshot
        found = state.topics.get(topic) if isinstance(topic, str) else state.topic_by_id(topic)
        return None if found is None else found.partitions.get(index)

    async def wait_for_brokers(self, seconds: float) -> bool:
        """Wait until the snapshot has brokers; returns whether it has. It has none when a broker starts."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._has_brokers.wait()
        return self._has_brokers.is_set()

    def _publish(self, state: ClusterState, deleted: list[tuple[str, bytes]]) -> None:
        self.snapshot = state
        if state.brokers:
            self._has_brokers.set()
        if deleted and self.topics_deleted is not None:
            self.topics_deleted(deleted)
        if self.on_update is not None:
            self.on_update(state)
