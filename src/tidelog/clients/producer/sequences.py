"""Sequences: the producer id and the sequence numbers, by which brokers recognise duplicates.

A batch gets its sequence number when it is first sent, and keeps it. If it is uncertain whether a batch was
written, the producer epoch is raised, and the partition starts at 0 before another batch is sent to it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from tidelog.clients.producer.accumulator import PartitionQueue
from tidelog.clients.producer.batch import ProducerBatch
from tidelog.errors import KafkaError, OutOfOrderSequenceNumber, UnknownProducerId
from tidelog.records.batch import NO_PRODUCER_EPOCH, NO_PRODUCER_ID

log = logging.getLogger("tidelog.clients")

LAST_EPOCH = 0x7FFF - 1
REMEMBERED_BATCHES = 5
"""A broker recognises a batch that is sent again among the last five of the producer, not before them."""
NEVER_ACKED = -1


class Sequences:
    """Runs on the loop. A transactional producer fails its transaction instead of raising the epoch."""

    def __init__(self, *, transactional: bool, abort: Callable[[KafkaError], None] | None = None) -> None:
        self.producer_id = NO_PRODUCER_ID
        self.epoch = NO_PRODUCER_EPOCH
        self._transactional = transactional
        self._abort = abort
        self._to_bump: set[PartitionQueue] = set()
        self._unresolved: set[PartitionQueue] = set()

    @property
    def has_id(self) -> bool:
        return self.producer_id != NO_PRODUCER_ID

    def take_id(self, producer_id: int, epoch: int) -> None:
        self.producer_id, self.epoch = producer_id, epoch

    # Sending

    def may_send(self, queue: PartitionQueue, batch: ProducerBatch) -> bool:
        """Whether the first batch of a queue may be sent while others are in flight."""
        if batch.has_sequence:
            # A retried batch waits for lower sequence numbers, or the broker would reject it again.
            return not queue.in_flight or queue.in_flight[0] is batch
        if not self.has_id or queue.unresolved_until is not None or queue in self._to_bump:
            return False
        if not queue.in_flight:
            return True
        if len(queue.in_flight) >= REMEMBERED_BATCHES:
            # The limit of a connection is not enough, because others may be in flight to a former leader.
            return False
        # A broker accepts any sequence number of an unknown producer. If the very first batch failed and the
        # second were written, the first could never be.
        return queue.last_acked_sequence != NEVER_ACKED and not self._is_stale(queue)

    def number(self, batch: ProducerBatch) -> None:
        """Assign the sequence number of a batch that is sent for the first time."""
        if batch.has_sequence:
            return
        queue = batch.queue
        if self._is_stale(queue):
            self._start_at_beginning(queue)
        batch.take_sequence(self.producer_id, self.epoch, queue.next_sequence)
        queue.next_sequence = (queue.next_sequence + batch.count) & 0x7FFFFFFF
        queue.in_flight.append(batch)

    def _is_stale(self, queue: PartitionQueue) -> bool:
        return queue.producer_id != self.producer_id or queue.epoch != self.epoch

    # Responses

    def written(self, batch: ProducerBatch, base_offset: int) -> None:
        queue = batch.queue
        self.remove(batch)
        if (batch.producer_id, batch.producer_epoch) == (queue.producer_id, queue.epoch):
            queue.last_acked_sequence = max(queue.last_acked_sequence, batch.last_sequence)
        if base_offset >= 0:
            queue.last_acked_offset = max(queue.last_acked_offset, base_offset + batch.count - 1)

    def remove(self, batch: ProducerBatch) -> None:
        """Remove a batch that is not in flight any more."""
        if batch in batch.queue.in_flight:
            batch.queue.in_flight.remove(batch)

    def failed(self, batch: ProducerBatch, error: BaseException, *, certain: bool) -> None:
        """Handle a failed batch. `certain` means that the broker rejected it, so it was not written."""
        queue = batch.queue
        known = batch in queue.in_flight
        self.remove(batch)
        if not batch.has_sequence or not known:
            return
        if isinstance(error, OutOfOrderSequenceNumber) and not self._transactional:
            self._to_bump.add(queue)
        elif isinstance(error, UnknownProducerId):
            self._start_at_beginning(queue)
        elif certain and self._transactional:
            self._close_gap(batch)
        elif certain:
            self._to_bump.add(queue)

    def expired(self, batch: ProducerBatch) -> None:
        """Handle a batch that was given up after it was sent. It may have been written."""
        queue = batch.queue
        after = batch.last_sequence + 1
        queue.unresolved_until = max(queue.unresolved_until or 0, after)
        self._unresolved.add(queue)

    def can_retry(self, batch: ProducerBatch, error: KafkaError, log_start_offset: int) -> bool:
        queue = batch.queue
        if isinstance(error, UnknownProducerId):
            if log_start_offset == -1 or batch.sequence_reset:
                return True
            if queue.last_acked_offset < log_start_offset and self._transactional:
                # Retention removed the last records of the producer, and with them its state on the broker.
                self._start_at_beginning(queue)
                return True
            if not self._transactional:
                self._to_bump.add(queue)
                return True
        elif isinstance(error, OutOfOrderSequenceNumber):
            following = batch.base_sequence == queue.last_acked_sequence + 1
            if queue.unresolved_until is None and (batch.sequence_reset or not following):
                return True
            if not self._transactional:
                if queue.unresolved_until is None or queue.unresolved_until == batch.base_sequence:
                    self._to_bump.add(queue)
                return True
        return error.retriable

    def split(self, batch: ProducerBatch, parts: list[ProducerBatch]) -> None:
        """Assign the sequence numbers of a split batch to its parts."""
        if not batch.has_sequence:
            return
        sequence = batch.base_sequence
        for part in parts:
            part.take_sequence(batch.producer_id, batch.producer_epoch, sequence, reset=batch.sequence_reset)
            sequence = (sequence + part.count) & 0x7FFFFFFF
        in_flight = batch.queue.in_flight
        if batch in in_flight:
            at = in_flight.index(batch)
            in_flight[at : at + 1] = parts

    # Between sending and responses

    def settle(self, queues: Iterable[PartitionQueue]) -> bool:
        """Resolve doubtful batches, or raise the epoch. Returns whether a new producer id is needed."""
        for queue in [queue for queue in self._unresolved if not queue.in_flight]:
            self._unresolved.discard(queue)
            queue.unresolved_until = None
            if queue.next_sequence == queue.last_acked_sequence + 1:
                continue  # later batches were written, so the doubtful one was, too
            if self._transactional:
                if self._abort is not None:
                    self._abort(
                        KafkaError(
                            f"{queue!r}: records were sent and never acknowledged, and can be sent no more; "
                            "abort the transaction and go on"
                        )
                    )
            else:
                self._to_bump.add(queue)
        if not self._to_bump:
            return False
        if self.epoch >= LAST_EPOCH:
            self.producer_id, self.epoch = NO_PRODUCER_ID, NO_PRODUCER_EPOCH
            self._to_bump.clear()
            return True
        self.epoch += 1
        log.info("the producer's epoch is raised to %d for %s", self.epoch, sorted(map(repr, self._to_bump)))
        for queue in self._to_bump:
            self._start_at_beginning(queue)
        self._to_bump.clear()
        return False

    def _start_at_beginning(self, queue: PartitionQueue) -> None:
        queue.producer_id, queue.epoch = self.producer_id, self.epoch
        queue.last_acked_sequence = NEVER_ACKED
        sequence = 0
        for batch in queue.in_flight:
            batch.take_sequence(self.producer_id, self.epoch, sequence, reset=True)
            sequence = (sequence + batch.count) & 0x7FFFFFFF
        queue.next_sequence = sequence

    def _close_gap(self, failed: ProducerBatch) -> None:
        """Move later batches to the sequence numbers of a failed one, in a transaction to be aborted."""
        queue = failed.queue
        queue.next_sequence = (queue.next_sequence - failed.count) & 0x7FFFFFFF
        for batch in queue.in_flight:
            if batch.base_sequence > failed.base_sequence:
                batch.take_sequence(
                    batch.producer_id, batch.producer_epoch, batch.base_sequence - failed.count, reset=True
                )
