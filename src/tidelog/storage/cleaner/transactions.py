"""CleanedTransactions: finds the aborted batches and the obsolete markers of a cleaning pass.

Kafka's counterpart is CleanedTransactionMetadata.

A marker is obsolete when no batch of its transaction is left. It stays until delete.retention.ms has passed,
so that a consumer in the middle of the transaction finds its end.
"""

from __future__ import annotations

from collections.abc import Iterable

from tidelog.records.batch import CONTROL_ABORT, CONTROL_COMMIT, BatchHeader
from tidelog.storage.transaction_index import AbortedTransaction


class CleanedTransactions:
    __slots__ = ("_aborted", "_committed", "_next", "_ongoing", "_seen", "still_aborted")

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        self._aborted = sorted(set(aborted), key=lambda transaction: transaction.first_offset)
        self._next = 0
        self._ongoing: dict[int, AbortedTransaction] = {}
        self._seen: set[int] = set()  # producers of aborted transactions that still have a batch
        self._committed: set[int] = set()
        self.still_aborted: list[AbortedTransaction] = []
        """Aborted transactions with a batch in the group: its transaction index has to include them."""

    def _advance(self, header: BatchHeader) -> None:
        aborted = self._aborted
        while self._next < len(aborted) and aborted[self._next].first_offset <= header.last_offset:
            transaction = aborted[self._next]
            if (
                transaction.last_offset >= header.base_offset
            ):  # the others ended before the first batch of the pass
                self._ongoing.setdefault(transaction.producer_id, transaction)
            self._next += 1

    def batch(self, header: BatchHeader) -> bool:
        """Note the next batch of records; returns whether its transaction was aborted."""
        self._advance(header)
        if not header.is_transactional:
            return False
        if header.producer_id in self._ongoing:
            self._seen.add(header.producer_id)
            return True
        self._committed.add(header.producer_id)
        return False

    def control(self, header: BatchHeader, kind: int | None) -> bool:
        """Note the next control batch (an empty one has the `kind` None); returns whether it is obsolete."""
        self._advance(header)
        producer_id = header.producer_id
        if kind is None:
            return True
        if kind == CONTROL_ABORT:
            transaction = self._ongoing.pop(producer_id, None)
            if transaction is None or producer_id not in self._seen:
                return True
            self._seen.discard(producer_id)
            self.still_aborted.append(transaction)
            return False
        if kind == CONTROL_COMMIT:
            if producer_id not in self._committed:
                return True
            self._committed.discard(producer_id)
        return False
