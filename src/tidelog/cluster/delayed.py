"""DelayedProduce and DelayedDeleteRecords: requests that wait for their replicas."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tidelog.cluster.partition import Partition
from tidelog.cluster.purgatory import DelayedOperation, OnFailure
from tidelog.errors import KafkaError, NotEnoughReplicasAfterAppend, NotLeaderOrFollower, RequestTimedOut

if TYPE_CHECKING:
    from tidelog.cluster.append_request import AppendOutcome
    from tidelog.partitions import PartitionKey


class DelayedProduce(DelayedOperation):
    """acks=all: completes when the high watermark of each partition is above its appended batch."""

    __slots__ = ("_done", "_outcomes", "_wanted")

    def __init__(
        self,
        outcomes: list[AppendOutcome],
        done: Callable[[list[AppendOutcome]], None],
        on_failure: OnFailure | None,
    ) -> None:
        super().__init__(on_failure)
        self._outcomes = outcomes
        self._done = done
        self._wanted: list[tuple[AppendOutcome, Partition, int]] = []

    def want(self, outcome: AppendOutcome, partition: Partition, offset: int) -> None:
        self._wanted.append((outcome, partition, offset))

    def try_complete(self) -> bool:
        still: list[tuple[AppendOutcome, Partition, int]] = []
        for outcome, partition, offset in self._wanted:
            try:
                if partition.leader_log().high_watermark < offset:
                    still.append((outcome, partition, offset))
                elif len(partition.isr) < partition.min_isr:
                    outcome.error = NotEnoughReplicasAfterAppend(
                        f"{partition.name} has {len(partition.isr)} replicas in sync by now, "
                        f"min.insync.replicas asks for {partition.min_isr}"
                    )
            except KafkaError as error:
                outcome.error = error
        self._wanted = still
        return not still and self.force_complete()

    def on_expiration(self) -> None:
        for outcome, partition, offset in self._wanted:
            outcome.error = RequestTimedOut(
                f"the replicas in sync of {partition.name} did not reach offset {offset} in time"
            )
        self._wanted = []

    def on_complete(self) -> None:
        # Ended by the shutdown: these batches may not be committed, and the producer has to retry.
        for outcome, partition, _ in self._wanted:
            outcome.error = _stopping(partition)
        self._done(self._outcomes)


class DelayedDeleteRecords(DelayedOperation):
    """Completes when the low watermark of each partition has reached the requested offset."""

    __slots__ = ("_done", "_results", "_wanted")

    def __init__(
        self,
        done: Callable[[dict[PartitionKey, tuple[int, KafkaError | None]]], None],
        on_failure: OnFailure | None,
    ) -> None:
        super().__init__(on_failure)
        self._done = done
        self._wanted: dict[PartitionKey, tuple[Partition, int]] = {}
        self._results: dict[PartitionKey, tuple[int, KafkaError | None]] = {}

    def want(self, key: PartitionKey, partition: Partition, offset: int) -> None:
        self._wanted[key] = (partition, offset)

    def failed(self, key: PartitionKey, error: KafkaError) -> None:
        self._results[key] = (-1, error)

    def try_complete(self) -> bool:
        for key, (partition, offset) in list(self._wanted.items()):
            try:
                partition.leader_log()
            except KafkaError as error:
                self.failed(key, error)
            else:
                low_watermark = partition.low_watermark()
                if low_watermark < offset:
                    continue
                self._results[key] = (low_watermark, None)
            del self._wanted[key]
        return not self._wanted and self.force_complete()

    def on_expiration(self) -> None:
        for key, (partition, offset) in self._wanted.items():
            self.failed(
                key, RequestTimedOut(f"the replicas of {partition.name} did not delete up to {offset}")
            )
        self._wanted = {}

    def on_complete(self) -> None:
        for key, (partition, _) in self._wanted.items():
            self.failed(key, _stopping(partition))
        self._done(self._results)


def _stopping(partition: Partition) -> NotLeaderOrFollower:
    return NotLeaderOrFollower(f"this broker stops leading {partition.name}")
