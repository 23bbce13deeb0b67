"""FollowerQuota: limits the bytes that this broker fetches of throttled replicas."""

from __future__ import annotations

from tidelog.cluster.partition import Partition
from tidelog.cluster.replication_quota import ReplicationQuota, names_replica


class FollowerQuota:
    """`measured` has the limit and the rate of the last windows."""

    def __init__(self, measured: ReplicationQuota) -> None:
        self._measured = measured

    def is_throttled(self, partition: Partition) -> bool:
        """Whether follower.replication.throttled.replicas names the replica of this broker."""
        if self._measured.limit is None or partition.log is None:
            return False
        return names_replica(partition.log.config.follower_replication_throttled_replicas, partition)

    def is_exceeded(self, partition: Partition) -> bool:
        """Whether the partition is throttled and the rate is above the limit."""
        limit = self._measured.limit
        return limit is not None and self.is_throttled(partition) and self._measured.rate() > limit

    def record(self, partition: Partition, count: int) -> None:
        """Bytes of the partition were fetched."""
        if self._measured.limit is not None and self.is_throttled(partition):
            self._measured.record(count)
