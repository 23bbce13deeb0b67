"""MetadataCache: the state of the cluster as a snapshot, which each change replaces as a whole.

A reader that takes `cache.snapshot` once sees one consistent state.
"""

from __future__ import annotations

from collections.abc import Callable

from tidelog.metadata.state import ClusterState

TopicsDeleted = Callable[[list[tuple[str, bytes]]], None]
"""Called with the names and ids of deleted topics."""


class MetadataCache:
    """Has the current snapshot and the finalized features of the cluster."""

    def __init__(self, cluster_id: str) -> None:
        self.snapshot = ClusterState(cluster_id)
        self.features: dict[str, int] = {}
        # Rises with every change of the finalized features; clients keep those with the highest epoch.
        self.features_epoch = 0

        self.topics_deleted: TopicsDeleted | None = None

    def update(self, state: ClusterState) -> None:
        before, self.snapshot = self.snapshot, state
        gone = before.names_by_id.keys() - state.names_by_id.keys()
        if gone and self.topics_deleted is not None:
            self.topics_deleted([(before.names_by_id[topic_id], topic_id) for topic_id in gone])
