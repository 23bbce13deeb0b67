"""A record of a partition with all that its batch says of it, and the same record decoded for a person."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from tidelog.console.records.decoder import Decoded
from tidelog.records.batch import Record


class TransactionState(StrEnum):
    """The transaction of a record. UNDECIDED: its end may follow behind the records that were read."""

    NONE = "none"
    COMMITTED = "committed"
    ABORTED = "aborted"
    OPEN = "open"
    UNDECIDED = "undecided"


@dataclass(slots=True, frozen=True)
class LogRecord:
    """A record as it stands in the log. A control record has the name of its marker in `control`."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    log_append_time: bool = False
    leader_epoch: int = -1
    producer_id: int = -1
    producer_epoch: int = -1
    sequence: int = -1
    codec: str = "none"
    transaction: TransactionState = TransactionState.NONE
    control: str | None = None

    @property
    def key_size(self) -> int:
        return -1 if self.key is None else len(self.key)

    @property
    def value_size(self) -> int:
        return -1 if self.value is None else len(self.value)


@dataclass(slots=True, frozen=True)
class BatchFacts:
    """What the batch of a record tells a filter."""

    topic: str
    partition: int
    producer_id: int
    transaction: TransactionState


class Sieve(Protocol):
    """Knows records that cannot match a search, by their bytes."""

    def rejects(self, record: Record, batch: BatchFacts) -> bool:
        """Whether the record cannot match. False for a record that may match, or not."""


@dataclass(slots=True)
class Head:
    """The next record of a partition in a search. `passed` counts it and the rejected ones beside it.

    A record that cannot match is a head, too, from time to time: it says how far the search has come.
    """

    record: LogRecord
    passed: int = 1
    may_match: bool = True


@dataclass(slots=True, frozen=True)
class ShownRecord:
    """A record with its key, value and headers decoded and masked: nothing else may leave the console."""

    record: LogRecord
    key: Decoded
    value: Decoded
    headers: tuple[tuple[str, Decoded], ...]
    masked: bool = False
