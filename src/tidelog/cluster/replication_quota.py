"""ReplicationQuota: the bytes a second of throttled replicas for followers that are not in sync."""

from __future__ import annotations

from collections import deque
from collections.abc import Container

from tidelog.clock import Clock
from tidelog.cluster.partition import Partition

ALL_REPLICAS = "*"


def names_replica(replicas: Container[str], partition: Partition) -> bool:
    """Whether a list of throttled replicas names the replica of this broker."""
    return ALL_REPLICAS in replicas or f"{partition.index}:{partition.broker_id}" in replicas


class ReplicationQuota:
    """A rate over the last `windows` windows of `window_seconds`. Without a limit nothing is throttled."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._windows = 11
        self._window_seconds = 1.0
        self._sent: deque[tuple[float, int]] = deque()  # the begin of a window, and its bytes
        self.limit: int | None = None

    def configure(self, limit: int | None, windows: int, window_seconds: float) -> None:
        self.limit = limit
        self._windows = windows
        self._window_seconds = window_seconds

    def is_throttled(self, partition: Partition) -> bool:
        """Whether leader.replication.throttled.replicas names the replica of this broker."""
        log = partition.log
        if self.limit is None or log is None:
            return False
        return names_replica(log.config.leader_replication_throttled_replicas, partition)

    def holds_back(self, partition: Partition, follower_id: int) -> bool:
        """Whether the quota holds the records of a partition back from a follower.

        Members of the ISR are exempt.
        """
        return (
            self.limit is not None
            and follower_id not in partition.followers.isr
            and self.is_throttled(partition)
            and self.rate() > self.limit
        )

    def record(self, size: int) -> None:
        now = self._clock.monotonic()
        if self._sent and now - self._sent[-1][0] < self._window_seconds:
            begin, sent = self._sent[-1]
            self._sent[-1] = (begin, sent + size)
        else:
            self._sent.append((now, size))

    def rate(self) -> float:
        """Bytes per second over all windows, since the begin of the first one; at least one window long."""
        now = self._clock.monotonic()
        while self._sent and now - self._sent[0][0] >= self._windows * self._window_seconds:
            self._sent.popleft()
        if not self._sent:
            return 0.0
        elapsed = max(now - self._sent[0][0], self._window_seconds)
        return sum(size for _, size in self._sent) / elapsed
