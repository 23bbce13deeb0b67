"""TransactionShard: the transactional ids of one partition of `__transaction_state`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

from tidelog.coordinator.journal import CommittedValues, Journal
from tidelog.coordinator.transaction.records import decode_key, decode_value
from tidelog.coordinator.transaction.state import NO_EPOCH, Metadata, State, Transaction

log = logging.getLogger("tidelog.coordinator.transaction")


class TransactionShard:
    """Implements coordinator.shard.Shard. `on_loaded` and `on_unload` are called with the shard."""

    __slots__ = (
        "_committed",
        "_on_loaded",
        "_on_unload",
        "coordinator_epoch",
        "is_unloaded",
        "journal",
        "ongoing",
        "partition",
        "transactions",
    )

    def __init__(
        self,
        partition: int,
        coordinator_epoch: int,
        on_loaded: Callable[[TransactionShard], None],
        on_unload: Callable[[TransactionShard], None] = lambda _: None,
    ) -> None:
        self.partition = partition
        # In every marker, so that markers of a replaced coordinator are refused.
        self.coordinator_epoch = coordinator_epoch
        self.transactions: dict[str, Transaction] = {}
        # Transactions that may time out.
        self.ongoing: dict[str, Transaction] = {}
        self.is_unloaded = False
        self.journal = Journal()
        # The committed state of ids whose last record is not committed; None if there was no record.
        self._committed: CommittedValues[str, Metadata | None] = CommittedValues(self.journal)
        self._on_loaded = on_loaded
        self._on_unload = on_unload

    def replay(
        self,
        key: bytes,
        value: bytes | None,
        *,
        offset: int,
        timestamp: int,
        producer_id: int,
        producer_epoch: int,
    ) -> None:
        transactional_id = decode_key(key)
        if transactional_id is None:
            log.warning("the record at offset %d of partition %d is passed over", offset, self.partition)
            return
        if value is None:
            if self.journal.end:
                self._committed.note(transactional_id, self._written(transactional_id))
            self.transactions.pop(transactional_id, None)
            self.ongoing.pop(transactional_id, None)
            return
        try:
            metadata = decode_value(value)
        except Exception:
            # The earlier state may be outdated: a transaction that hangs is safe, a wrong outcome is not.
            self.transactions.pop(transactional_id, None)
            self.ongoing.pop(transactional_id, None)
            raise
        self.take(transactional_id, metadata)

    def take(self, transactional_id: str, metadata: Metadata) -> None:
        """Set the state of an id from its last record."""
        if self.journal.end:
            self._committed.note(transactional_id, self._written(transactional_id))
        transaction = self.transactions.get(transactional_id)
        if transaction is None:
            transaction = self.transactions[transactional_id] = Transaction(transactional_id, metadata)
        else:
            transaction.metadata = metadata
        if metadata.state is State.ONGOING:
            self.ongoing[transactional_id] = transaction
        else:
            self.ongoing.pop(transactional_id, None)

    # -- committed state ---------------------------------------------------------------------------

    def _written(self, transactional_id: str) -> Metadata | None:
        """The last record of an id; None for a new id, which has no epoch yet."""
        transaction = self.transactions.get(transactional_id)
        if transaction is None or transaction.metadata.producer_epoch == NO_EPOCH:
            return None
        return transaction.metadata

    def committed(self, transactional_id: str) -> Metadata | None:
        """The last committed record of an id, as of the last `Journal.settle`."""
        return self._committed.get(transactional_id, self._written(transactional_id))

    def all_committed(self) -> Iterator[tuple[str, Metadata]]:
        """The ids that are there now. Ids may come and go while the caller rests between two."""
        deleted = (one for one, _ in self._committed.items() if one not in self.transactions)
        for transactional_id in (*self.transactions, *deleted):
            metadata = self.committed(transactional_id)
            if metadata is not None:
                yield transactional_id, metadata

    def end_transaction(self, producer_id: int, producer_epoch: int, *, commit: bool) -> None:
        """Do nothing: no records of this topic are part of a transaction."""

    def loaded(self) -> None:
        self._on_loaded(self)

    def unload(self) -> None:
        self.is_unloaded = True
        self._on_unload(self)
