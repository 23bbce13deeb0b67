"""Transactions as a pass over the log meets them: which batches were aborted, which markers nobody needs.

A marker may go once no batch of its transaction is left; until the pass after that one it stays, so that
readers in the middle of the transaction still find its end.
"""

from __future__ import annotations

from collections.abc import Iterable

from tidelog.records.batch import CONTROL_ABORT, CONTROL_COMMIT, BatchHeader
from tidelog.storage.txnindex import AbortedTransaction


class CleanedTransactions:
    __slots__ = ("_aborted", "_committed", "_next", "_ongoing", "_seen", "still_aborted")

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        self._aborted = sorted(set(aborted), key=lambda transaction: transaction.first_offset)
        self._next = 0
        self._ongoing: dict[int, AbortedTransaction] = {}
        self._seen: set[int] = set()  # producers of aborted transactions of which a batch is still there
        self._committed: set[int] = set()
        self.still_aborted: list[AbortedTransaction] = []
        """Those of which batches were met: the transaction index still has to name them."""

    def _advance(self, header: BatchHeader) -> None:
        aborted = self._aborted
        while self._next < len(aborted) and aborted[self._next].first_offset <= header.last_offset:
            transaction = aborted[self._next]
            if transaction.last_offset >= header.base_offset:  # the others ended before the pass began
                self._ongoing.setdefault(transaction.producer_id, transaction)
            self._next += 1

    def batch(self, header: BatchHeader) -> bool:
        """A batch of records is met: whether its transaction was aborted."""
        self._advance(header)
        if not header.is_transactional:
            return False
        if header.producer_id in self._ongoing:
            self._seen.add(header.producer_id)
            return True
        self._committed.add(header.producer_id)
        return False

    def control(self, header: BatchHeader, kind: int | None) -> bool:
        """A control batch is met, of a kind or empty: whether nothing needs it any more."""
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
