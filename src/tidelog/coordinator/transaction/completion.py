"""Completion: completes a prepared transaction. It writes a marker to each partition, then the last record.

Markers are written when the prepared state is committed. A failed marker is retried until it is written,
another broker becomes the coordinator, or the partition is deleted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from tidelog.coordinator.transaction.markers import Marker
from tidelog.coordinator.transaction.shard import TransactionShard
from tidelog.coordinator.transaction.state import State, Transaction
from tidelog.errors import (
    InvalidProducerEpoch,
    KafkaError,
    NotCoordinator,
    TransactionCoordinatorFenced,
)
from tidelog.partitions import PartitionKey

if TYPE_CHECKING:
    from tidelog.clock import TimerHandle
    from tidelog.coordinator.transaction.coordinator import TransactionCoordinator

log = logging.getLogger("tidelog.coordinator.transaction")

# The wait before the marker of a partition is tried again.
RETRY_SECONDS = 0.1


class Completion:
    __slots__ = ("_coordinator", "_is_over", "_left", "_sent", "_timer", "_transaction", "shard")

    def __init__(
        self, coordinator: TransactionCoordinator, shard: TransactionShard, transaction: Transaction
    ) -> None:
        self._coordinator = coordinator
        self.shard = shard
        self._transaction = transaction
        # Sorted, so that a simulation repeats itself.
        self._left = dict.fromkeys(sorted(transaction.metadata.partitions))
        self._sent = 0  # markers that are being written
        self._timer: TimerHandle | None = None
        self._is_over = False

    def start(self, *, is_committed: bool) -> None:
        """Write the markers at once if the prepared state `is_committed`, else after its commit."""
        if is_committed:
            self._send()
        else:
            self._await_commit()

    def _await_commit(self) -> None:
        if not self._is_stale():
            self._coordinator.runtime.when_committed(self.shard.partition, self._committed)

    def _committed(self, error: KafkaError | None) -> None:
        if isinstance(error, NotCoordinator):
            self.cancel()
        elif error is not None:
            log.info("the end of the transaction of %s is not replicated yet: %s", self._name, error)
            self._schedule(self._await_commit)
        else:
            self._send()

    def cancel(self) -> None:
        """Stop. The transaction is complete, or another broker is its coordinator."""
        self._is_over = True
        if self._sent:
            self._coordinator.markers.cancel(self._marker_done)
        if self._timer is not None:
            self._timer.cancel()
        completions = self._coordinator.completions
        if completions.get(self._transaction.transactional_id) is self:
            del completions[self._transaction.transactional_id]

    def _schedule(self, what: Callable[[], None]) -> None:
        self._timer = self._coordinator.scheduler.schedule(RETRY_SECONDS, what)

    # -- markers -----------------------------------------------------------------------------------

    def _send(self) -> None:
        self._timer = None
        if self._is_stale():
            return
        self._drop_deleted()
        if not self._left:
            self._write_completion()
            return
        metadata = self._transaction.metadata
        marker = Marker(
            metadata.producer_id,
            metadata.producer_epoch,
            self.shard.coordinator_epoch,
            metadata.state is State.PREPARE_COMMIT,
            metadata.client_version,
        )
        self._sent = len(self._left)
        self._coordinator.markers.write(marker, list(self._left), self._marker_done)

    def _is_stale(self) -> bool:
        if self._is_over or self.shard.is_unloaded:
            self.cancel()
            return True
        return False

    def _drop_deleted(self) -> None:
        """Remove the partitions of deleted topics, which need no marker.

        Without any metadata of the controller, a missing topic does not count as deleted.
        """
        if not self._coordinator.metadata.is_initialized:
            return
        topics = self._coordinator.metadata.snapshot.topics
        for topic, index in list(self._left):
            known = topics.get(topic)
            if known is None or index not in known.partitions:
                log.info("%s-%d is gone and gets no marker", topic, index)
                del self._left[topic, index]

    def _marker_done(self, key: PartitionKey, error: KafkaError | None) -> None:
        self._sent -= 1
        if error is None:
            self._left.pop(key, None)
        elif isinstance(error, InvalidProducerEpoch):
            # The partition has a marker with a later epoch, so the transaction has ended in it.
            log.warning("the marker of %s for %s-%d is not needed: %s", self._name, *key, error)
            self._left.pop(key, None)
        elif isinstance(error, TransactionCoordinatorFenced):
            log.warning("another coordinator completes the transaction of %s: %s", self._name, error)
            self.cancel()
        if self._sent or self._is_stale():
            return
        if self._left:
            log.info("%d markers of %s are tried again: %s", len(self._left), self._name, error)
            self._schedule(self._send)
        else:
            self._write_completion()

    @property
    def _name(self) -> str:
        return self._transaction.transactional_id

    # -- the end -----------------------------------------------------------------------------------

    def _write_completion(self) -> None:
        if self._is_stale():
            return
        self._coordinator.write_completion(self.shard, self._transaction, self.cancel, self._not_written)

    def _not_written(self, error: KafkaError) -> None:
        if isinstance(error, NotCoordinator) or self._is_stale():
            self.cancel()
        elif self._transaction.metadata.state in (State.COMPLETE_COMMIT, State.COMPLETE_ABORT):
            self.cancel()  # it is in the log, and will be committed with the records after it
        else:
            log.info("the end of the transaction of %s is written again: %s", self._name, error)
            self._schedule(self._write_completion)
