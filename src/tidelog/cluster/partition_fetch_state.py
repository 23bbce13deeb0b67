"""PartitionFetchState: the state of one partition that a replica fetcher follows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.clock import Clock
from tidelog.partitions import PartitionKey
from tidelog.storage.config import LONG_MAX

if TYPE_CHECKING:
    from tidelog.cluster.partition import Partition

NO_EPOCH = -1


class AnswerParts:
    """Counts the partitions of one answer that are still appended or truncated."""

    __slots__ = ("unfinished",)

    def __init__(self) -> None:
        self.unfinished = 1  # ends when all partitions have been looked at


class PartitionFetchState:
    """The fetch offset, the epochs and the delay of a followed partition.

    Before the first fetch, a log without leader epochs is truncated to its high watermark, as in Kafka. A log
    with a gap is truncated to the gap: a crash may have lost records there that the leader has. A log with
    flush.messages is synced. Any other log is fetched from its end at once, and the leader finds out where
    the logs diverge.
    """

    __slots__ = (
        "delayed_until",
        "fetch_offset",
        "in_session",
        "is_flushing",
        "is_truncating",
        "key",
        "lag",
        "last_fetched_epoch",
        "leader_epoch",
        "log_start_offset",
        "partition",
        "refusals",
        "session_offset",
        "topic_id",
    )

    def __init__(self, partition: Partition) -> None:
        log = partition.log
        assert log is not None
        self.partition = partition
        self.key: PartitionKey = (partition.topic, partition.index)
        self.topic_id = partition.topic_id
        self.leader_epoch = partition.leader_epoch
        self.last_fetched_epoch = log.leader_epochs.latest
        has_epochs = self.last_fetched_epoch != NO_EPOCH
        self.fetch_offset = log.log_end_offset if has_epochs else log.high_watermark
        self.is_truncating = not has_epochs
        if log.gap is not None:
            self.fetch_offset = min(self.fetch_offset, log.gap)
            self.is_truncating = True
        self.is_flushing = log.config.flush_messages != LONG_MAX
        self.log_start_offset = log.log_start_offset
        self.delayed_until = 0.0  # by the monotonic clock
        self.refusals = 0  # by a leader that has not heard of its leadership yet
        self.lag: int | None = None  # None before the first answer
        self.in_session = False
        self.session_offset = -1  # the offset that the session fetches from

    @property
    def is_settling(self) -> bool:
        """Whether the log is truncated or synced before the next fetch."""
        return self.is_truncating or self.is_flushing

    def is_ready(self, now: float) -> bool:
        return not self.is_settling and self.delayed_until <= now

    def is_in_session_at(self, clock: Clock) -> bool:
        """Whether the next request may name the partition without a change of the session."""
        if not self.in_session or self.is_settling:
            return False
        return not self.delayed_until or self.delayed_until <= clock.monotonic()

    def take_log_start(self) -> bool:
        """Update the log start offset from the log; returns whether it moved."""
        log = self.partition.log
        if log is None or log.log_start_offset == self.log_start_offset:
            return False
        self.log_start_offset = log.log_start_offset
        return True

    def moved_to(self, offset: int, *, is_flushed: bool = False) -> None:
        """Fetch from `offset`, the new log end offset; `is_flushed` says that the log is on disk."""
        log = self.partition.log
        assert log is not None
        self.fetch_offset = offset
        self.last_fetched_epoch = log.leader_epochs.latest
        self.log_start_offset = log.log_start_offset
        self.is_truncating = False
        if is_flushed:
            self.is_flushing = False

    def append_failed(self) -> None:
        """Fetch from the new log end: some batches were appended before the failure."""
        log = self.partition.log
        if log is not None and log.log_end_offset > self.fetch_offset:
            self.moved_to(log.log_end_offset)
            self.is_flushing = log.config.flush_messages != LONG_MAX

    def has_caught_up(self) -> bool:
        return self.lag is not None and self.lag <= 0
