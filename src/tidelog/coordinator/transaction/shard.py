"""The transactional ids of one partition of `__transaction_state`."""

from __future__ import annotations

import logging
from collections.abc import Callable

from tidelog.coordinator.transaction.records import decode_key, decode_value
from tidelog.coordinator.transaction.state import Metadata, State, Transaction

log = logging.getLogger("tidelog.coordinator.transaction")


class TransactionShard:
    """Implements runtime.Shard. `on_loaded` is called when the partition is loaded."""

    __slots__ = ("_on_loaded", "coordinator_epoch", "is_unloaded", "ongoing", "partition", "transactions")

    def __init__(
        self, partition: int, coordinator_epoch: int, on_loaded: Callable[[TransactionShard], None]
    ) -> None:
        self.partition = partition
        # Part of every marker, so that markers of a replaced coordinator are refused.
        self.coordinator_epoch = coordinator_epoch
        self.transactions: dict[str, Transaction] = {}
        # Transactions that may time out.
        self.ongoing: dict[str, Transaction] = {}
        self.is_unloaded = False
        self._on_loaded = on_loaded

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
            self.transactions.pop(transactional_id, None)
            self.ongoing.pop(transactional_id, None)
            return
        self.take(transactional_id, decode_value(value))

    def take(self, transactional_id: str, metadata: Metadata) -> None:
        """Set the state of an id from its last record."""
        transaction = self.transactions.get(transactional_id)
        if transaction is None:
            transaction = self.transactions[transactional_id] = Transaction(transactional_id, metadata)
        else:
            transaction.metadata = metadata
        if metadata.state is State.ONGOING:
            self.ongoing[transactional_id] = transaction
        else:
            self.ongoing.pop(transactional_id, None)

    def end_transaction(self, producer_id: int, producer_epoch: int, *, commit: bool) -> None:
        """No records of this topic are part of a transaction."""

    def loaded(self) -> None:
        self._on_loaded(self)

    def unload(self) -> None:
        self.is_unloaded = True
