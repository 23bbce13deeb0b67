"""The values of transactions: their states, a prepared one's handle, and offsets with whom they are for."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class State(Enum):
    UNINITIALIZED = "not initialized"
    INITIALIZING = "being initialized"
    READY = "ready"
    IN_TRANSACTION = "in a transaction"
    PREPARED = "prepared"
    COMMITTING = "committing"
    ABORTING = "aborting"
    ABORTABLE = "to be aborted"
    FATAL = "failed"


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
