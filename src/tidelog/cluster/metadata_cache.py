"""What this broker knows of the cluster, as one snapshot that is swapped as a whole.

Readers take `cache.snapshot` once and see one consistent state, however the cluster changes meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable

from tidelog.metadata.state import ClusterState

TopicsDeleted = Callable[[list[tuple[str, bytes]]], None]
"""Called with names and ids of topics that are gone."""


class MetadataCache:
    """Holder of the present snapshot and of the features that the cluster has finalized."""

    def __init__(self, cluster_id: str) -> None:
        self.snapshot = ClusterState(cluster_id)
        self.features: dict[str, int] = {}
        # Raised with every change of the finalized features; clients keep the newest they saw.
        self.features_epoch = 0

        self.topics_deleted: TopicsDeleted | None = None

    def update(self, state: ClusterState) -> None:
        before, self.snapshot = self.snapshot, state
        gone = before.names_by_id.keys() - state.names_by_id.keys()
        if gone and self.topics_deleted is not None:
            self.topics_deleted([(before.names_by_id[topic_id], topic_id) for topic_id in gone])
