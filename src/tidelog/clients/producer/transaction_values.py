"""The values of transactions: the states of a producer, and the handle of a prepared transaction."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class State(Enum):
    """The state of a transactional producer. The values describe it in messages."""

    UNINITIALIZED = "the producer has no id yet, init_transactions gets one"
    INITIALIZING = "init_transactions has not ended, call it again"
    READY = "no transaction is open, begin_transaction opens one"
    IN_TRANSACTION = "a transaction is open, commit_transaction or abort_transaction ends it"
    PREPARED = "the transaction is prepared, commit_transaction or abort_transaction ends it"
    COMMITTING = "the transaction is being committed, only commit_transaction may follow"
    ABORTING = "the transaction is being aborted, only abort_transaction may follow"
    ABORTABLE = "the transaction has failed, only abort_transaction may follow"
    FATAL = "the producer has failed, only close may follow"


@dataclass(slots=True, frozen=True)
class PreparedTxnState:
    """A prepared transaction, which any process can end with it. It can be pickled and stored."""

    transactional_id: str
    producer_id: int
    epoch: int
