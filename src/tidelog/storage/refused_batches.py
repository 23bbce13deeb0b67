"""RefusedBatches: the batches of idempotent producers that a log refused with a retriable error.

A producer has up to five batches in flight. If the first one is refused because the disk is full or too few
replicas are in sync, the others have a gap before them. OUT_OF_ORDER_SEQUENCE_NUMBER would be the wrong
answer: librdkafka then raises the epoch of the producer and sends all unanswered batches again, even if other
leaders have written them. With the error of the first batch instead, the producer sends all of them again in
order.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from tidelog.errors import RetriableError
from tidelog.records.check import CheckedBatch
from tidelog.records.loops import LAST_SEQUENCE, ProducerEntry

IN_FLIGHT = 5
"""The most batches that an idempotent producer has in flight: it sent a sixth after the first answer."""

REMEMBERED_PRODUCERS = 1_000
"""The most producers that a log remembers: a client may send batches with any producer id."""

HALF = (LAST_SEQUENCE + 1) // 2
_LAST_OFFSET_DELTA = struct.Struct(">i")
_PRODUCER = struct.Struct(">qhi")  # its id, its epoch, the first sequence
_AT_LAST_OFFSET_DELTA, _AT_PRODUCER = 23, 43


class Sequences(NamedTuple):
    """The sequences of a batch of an idempotent producer."""

    producer_id: int
    epoch: int
    first: int
    last: int

    @classmethod
    def of(cls, batch: CheckedBatch) -> Sequences | None:
        """None if the batch has no producer or no sequences."""
        return cls._of(batch.producer_id, batch.producer_epoch, batch.base_sequence, batch.last_offset_delta)

    @classmethod
    def read(cls, data: memoryview) -> Sequences | None:
        """The same for the bytes of a batch that nobody has checked."""
        if len(data) < _AT_PRODUCER + _PRODUCER.size:
            return None
        (delta,) = _LAST_OFFSET_DELTA.unpack_from(data, _AT_LAST_OFFSET_DELTA)
        producer_id, epoch, first = _PRODUCER.unpack_from(data, _AT_PRODUCER)
        return cls._of(producer_id, epoch, first, delta)

    @classmethod
    def _of(cls, producer_id: int, epoch: int, first: int, delta: int) -> Sequences | None:
        if producer_id < 0 or first < 0:
            return None
        return cls(producer_id, epoch, first, (first + delta) & LAST_SEQUENCE)


class _Run:
    """Batches of one producer that follow each other. The first was refused with `error`."""

    __slots__ = ("_first", "count", "epoch", "error", "message", "next_sequence")

    def __init__(self, first: Sequences, error: RetriableError) -> None:
        self.epoch = first.epoch
        self._first = first.first
        self.next_sequence = (first.last + 1) & LAST_SEQUENCE
        self.count = 1
        # Not the error itself, which may refer to its request and to the bytes of the batch.
        self.error = type(error)
        self.message = f"the batch before it was refused: {error}"

    def is_over(self, entry: ProducerEntry | None) -> bool:
        """Whether the log has the first batch by now, or a newer epoch of the producer."""
        if entry is None or entry.epoch < self.epoch:
            return False
        # Sequences begin anew behind the largest: half of them count as before the first.
        return entry.epoch > self.epoch or (
            entry.last_sequence >= 0 and (entry.last_sequence - self._first) & LAST_SEQUENCE < HALF
        )


class RefusedBatches:
    """Kept in memory only: a restart ends the connections, and so the batches in flight."""

    __slots__ = ("_runs",)

    def __init__(self) -> None:
        self._runs: dict[int, _Run] = {}

    def __len__(self) -> int:
        return len(self._runs)

    def clear(self) -> None:
        self._runs.clear()

    def add(self, batch: Sequences, entry: ProducerEntry | None, error: RetriableError) -> None:
        """Add a refused batch. `entry` is the producer's state in the log."""
        if self._continued_by(batch, entry) is not None:
            return
        self._runs.pop(batch.producer_id, None)
        self._runs[batch.producer_id] = _Run(batch, error)
        if len(self._runs) > REMEMBERED_PRODUCERS:
            del self._runs[next(iter(self._runs))]

    def check(self, batch: Sequences, entry: ProducerEntry | None) -> None:
        """Refuse a batch that directly follows a refused one, with the same error."""
        run = self._continued_by(batch, entry)
        if run is not None:
            raise run.error(run.message)

    def _continued_by(self, batch: Sequences, entry: ProducerEntry | None) -> _Run | None:
        """The run that the batch continues, if it may have been in flight with the first batch of the run."""
        run = self._runs.get(batch.producer_id)
        if run is None:
            return None
        if run.epoch != batch.epoch or run.is_over(entry) or run.count >= IN_FLIGHT:
            del self._runs[batch.producer_id]
            return None
        if run.next_sequence != batch.first:
            return None
        run.next_sequence = (batch.last + 1) & LAST_SEQUENCE
        run.count += 1
        return run
