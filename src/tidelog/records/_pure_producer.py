"""The state of one producer in a log, in plain Python; `_speed` has the same compiled."""

from __future__ import annotations

import marshal
from typing import NamedTuple

from tidelog.records._pure_check import CheckedBatch

NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1
REMEMBERED_BATCHES = 5  # a producer may have five requests in flight, so a retry is never older than that
LAST_SEQUENCE = (1 << 31) - 1  # 0 follows it
TRANSACTIONAL_FLAG = 0x10
CONTROL_FLAG = 0x20


class BatchMetadata(NamedTuple):
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def first_offset(self) -> int:
        return self.last_offset - self.offset_delta


class ProducerEntry:
    """The epoch of a producer, its last batches, and its open transaction."""

    __slots__ = (
        "_batches",
        "coordinator_epoch",
        "epoch",
        "last_timestamp",
        "producer_id",
        "transaction_start",
    )

    def __init__(self, producer_id: int, epoch: int = NO_PRODUCER_EPOCH) -> None:
        self.producer_id = producer_id
        self.epoch = epoch
        self.coordinator_epoch = -1
        self.last_timestamp = -1
        self.transaction_start: int | None = None
        self._batches: tuple[BatchMetadata, ...] = ()

    @property
    def batches(self) -> tuple[BatchMetadata, ...]:
        """The last five batches, the newest at the end."""
        return self._batches

    @property
    def last_sequence(self) -> int:
        return self._batches[-1].last_sequence if self._batches else NO_SEQUENCE

    @property
    def last_offset(self) -> int:
        return self._batches[-1].last_offset if self._batches else -1

    def take_epoch(self, epoch: int) -> None:
        """Begin an epoch. Batches of older epochs do not count as duplicates any more."""
        if epoch != self.epoch:
            self.epoch = epoch
            self._batches = ()

    def copy(self) -> ProducerEntry:
        other = ProducerEntry(self.producer_id)
        other.coordinator_epoch = self.coordinator_epoch
        other.restore(self.state())
        return other

    def end_transaction(self, epoch: int, coordinator_epoch: int, timestamp: int) -> int | None:
        """Apply a marker; returns the first offset of the transaction that it ends, None if none was open."""
        self.take_epoch(epoch)
        start, self.transaction_start = self.transaction_start, None
        self.coordinator_epoch = coordinator_epoch
        self.last_timestamp = timestamp
        return start

    def awaits(self, batch: CheckedBatch) -> bool:
        """Whether a batch is the expected next one of its producer.

        It has the next sequence in the same epoch, and neither begins a transaction nor leaves the open one.
        """
        return (
            len(self._batches) > 0
            and self.epoch == batch.producer_epoch
            and (self.last_sequence + 1) & LAST_SEQUENCE == batch.base_sequence
            and (self.transaction_start is not None) is (batch.attributes & TRANSACTIONAL_FLAG != 0)
        )

    def awaits_first(self, batch: CheckedBatch) -> bool:
        """Whether a batch has the next sequence in the same epoch, and begins a transaction."""
        return (
            self.epoch == batch.producer_epoch
            and (self.last_sequence + 1) & LAST_SEQUENCE == batch.base_sequence
            and self.transaction_start is None
            and batch.attributes & (TRANSACTIONAL_FLAG | CONTROL_FLAG) == TRANSACTIONAL_FLAG
        )

    def append(self, batch: CheckedBatch, last_offset: int) -> bytes:
        """Record a batch; returns the state before it."""
        before = self.state()
        self.take_epoch(batch.producer_epoch)
        first, delta = batch.base_sequence, batch.last_offset_delta
        last_sequence = (first + delta) & LAST_SEQUENCE if first >= 0 else NO_SEQUENCE
        self.note(last_sequence, last_offset, delta, batch.max_timestamp)
        return before

    def note(self, last_sequence: int, last_offset: int, offset_delta: int, timestamp: int) -> None:
        """Record a batch by its fields."""
        noted = BatchMetadata(last_sequence, last_offset, offset_delta, timestamp)
        self._batches = (*self._batches[1 - REMEMBERED_BATCHES :], noted)
        self.last_timestamp = timestamp

    def state(self) -> bytes:
        """All fields that an append can change, for `restore`."""
        batches = tuple(tuple(batch) for batch in self._batches)
        return marshal.dumps((self.epoch, batches, self.last_timestamp, self.transaction_start))

    def restore(self, state: bytes) -> None:
        """Undo the appends since `state`."""
        if not state:
            raise ValueError("a state of 0 bytes is not one of a producer")
        self.epoch, batches, self.last_timestamp, self.transaction_start = marshal.loads(state)
        self._batches = tuple(map(BatchMetadata._make, batches))

    def find_duplicate(self, epoch: int, first_sequence: int, offset_delta: int) -> BatchMetadata | None:
        """The batch with the same epoch and sequences, if it is among the last five."""
        if epoch != self.epoch:
            return None
        last_sequence = (first_sequence + offset_delta) & LAST_SEQUENCE
        for batch in reversed(self._batches):
            if batch.offset_delta == offset_delta and batch.last_sequence == last_sequence:
                return batch
        return None
