"""DelayedCommit: waits until the high watermark of a partition passes an offset."""

from __future__ import annotations

from collections.abc import Callable

from tidelog.cluster.partition import Partition
from tidelog.cluster.purgatory import DelayedOperation
from tidelog.errors import KafkaError, NotLeaderOrFollower, RequestTimedOut


class DelayedCommit(DelayedOperation):
    __slots__ = ("_done", "_error", "_offset", "_partition")

    def __init__(self, partition: Partition, offset: int, done: Callable[[KafkaError | None], None]) -> None:
        super().__init__()
        self._partition = partition
        self._offset = offset
        self._done = done
        # Completed by the shutdown of the broker.
        self._error: KafkaError | None = NotLeaderOrFollower(f"this broker stops leading {partition.name}")

    def try_complete(self) -> bool:
        try:
            if self._partition.leader_log().high_watermark < self._offset:
                return False
            self._error = None
        except KafkaError as error:
            self._error = error
        return self.force_complete()

    def on_expiration(self) -> None:
        self._error = RequestTimedOut(
            f"the replicas in sync of {self._partition.name} did not reach offset {self._offset} in time"
        )

    def on_complete(self) -> None:
        self._done(self._error)
