"""The values of transactions: their states, a prepared one's handle, and offsets with whom they are for."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class State(Enum):
    """Where a transactional producer stands; the values say it to people, with what may follow."""

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
class PreparedTransaction:
    """A prepared transaction: enough to end it in any process. It can be pickled, and kept in a database."""

    transactional_id: str
    producer_id: int
    epoch: int


@dataclass(slots=True, frozen=True)
class OffsetToCommit:
    """The next offset to read, as a consumer commits it."""

    offset: int
    metadata: str = ""
    leader_epoch: int = -1


def checked_offset(partition: tuple[str, int], entry: OffsetToCommit | int) -> OffsetToCommit:
    """An offset of a partition as it was given; brokers would take a negative one and keep it."""
    made = OffsetToCommit(entry) if isinstance(entry, int) else entry
    if made.offset < 0:
        raise ValueError(f"offset {made.offset} of {partition[0]}-{partition[1]}: expected 0 or more")
    return made


@dataclass(slots=True, frozen=True)
class GroupMember:
    """The consumer that offsets are committed for: a member of its group, or nobody in particular."""

    group_id: str
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None
