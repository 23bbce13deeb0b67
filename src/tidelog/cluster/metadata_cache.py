"""What this broker knows of the cluster, as one snapshot that is swapped as a whole.

Readers take `cache.snapshot` once and see one consistent state, however the cluster changes meanwhile.
"""

from __future__ import annotations

from tidelog.metadata.state import ClusterState


class MetadataCache:
    """Holder of the present snapshot and of the features that the cluster has finalized."""

    def __init__(self, cluster_id: str) -> None:
        self.snapshot = ClusterState(cluster_id)
        self.features: dict[str, int] = {}
        # Raised with every change of the finalized features; clients keep the newest they saw.
        self.features_epoch = 0

    def update(self, state: ClusterState) -> None:
        self.snapshot = state
