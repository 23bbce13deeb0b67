"""TransactionsInTurn: the usual steps of a transaction, written and committed in one turn of the loop.

Each method returns False and changes nothing if the step is refused, or has to wait for another append, for
replicas, for a flush or for a producer id. `TransactionCoordinator` then waits or returns the error.
"""

from __future__ import annotations

from collections.abc import Callable

from tidelog.coordinator.transaction.coordinator import TransactionCoordinator
from tidelog.coordinator.transaction.shard import TransactionShard
from tidelog.coordinator.transaction.state import NeedsProducerId, ProducerIdAndEpoch, Transaction
from tidelog.errors import KafkaError
from tidelog.partitions import PartitionKey


class TransactionsInTurn:
    __slots__ = ("_coordinator",)

    def __init__(self, coordinator: TransactionCoordinator) -> None:
        self._coordinator = coordinator

    def add_partitions(
        self,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        partitions: frozenset[PartitionKey],
        client_version: int,
    ) -> bool:
        """Make partitions part of a transaction."""
        coordinator = self._coordinator
        found = self._find(transactional_id)
        if found is None:
            return False
        shard, transaction = found
        try:
            transition = transaction.add_partitions(
                producer_id, epoch, partitions, client_version, coordinator.scheduler.clock.ms()
            )
        except KafkaError:
            return False
        return transition is None or coordinator.write_now(shard, transaction, transition)

    def end_transaction(
        self,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        *,
        commit: bool,
        client_version: int,
        done: Callable[[ProducerIdAndEpoch], None],
    ) -> bool:
        """Prepare the end of a transaction, call `done` with the next producer, and complete it."""
        coordinator = self._coordinator
        found = self._find(transactional_id)
        if found is None:
            return False
        shard, transaction = found
        try:
            transition = transaction.end(
                producer_id,
                epoch,
                commit=commit,
                client_version=client_version,
                now_ms=coordinator.scheduler.clock.ms(),
            )
        except (KafkaError, NeedsProducerId):
            return False
        if transition is None or not coordinator.write_now(shard, transaction, transition):
            return False
        done(transition.metadata.following)
        coordinator.complete(shard, transaction)
        return True

    def _find(self, transactional_id: str) -> tuple[TransactionShard, Transaction] | None:
        """The state of an id, if steps of it are committed in this turn."""
        runtime = self._coordinator.runtime
        try:
            partition = runtime.partition_for(transactional_id)
        except KafkaError:
            return None
        if not runtime.commits_now(partition):
            return None
        shard = runtime.shard(partition)
        transaction = shard.transactions.get(transactional_id)
        return None if transaction is None else (shard, transaction)
