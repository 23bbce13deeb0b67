"""Transactions, their producers and their readers, as a history tells them: what was asked, and what is known
of the outcome.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from tidelog.simulation.checks.transaction_history import FAIL, INFO, INVOKE, OK, Entry, Line, Partition

NEVER = 1 << 62


class Verdict(Enum):
    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "of unknown outcome"


@dataclass(slots=True)
class Instance:
    """One producer; `kept` where it took over an open transaction instead of having it aborted."""

    name: str
    transactional_id: str
    invoked: int
    done: int = NEVER
    kept: str = ""
    superseded: int = NEVER  # the line from which on a later producer of its id is known to have the id


@dataclass(slots=True)
class Attempt:
    """Somebody asks for the end of a transaction. `kind` stays INFO while no outcome is known."""

    who: str
    commit: bool
    invoked: int
    done: int = NEVER
    kind: str = INFO


@dataclass(slots=True)
class Write:
    entry: Entry  # with its offset where the producer was told
    invoked: int
    kind: str = INFO


@dataclass(slots=True)
class Read:
    line: int
    who: str
    txn: str
    isolation: str
    entry: Entry


@dataclass(slots=True)
class OffsetRead:
    invoked: int
    done: int
    entry: Entry


@dataclass(slots=True)
class Transaction:
    name: str
    who: str
    begun: int
    mark: str = ""  # transactional id, producer id and epoch: a later producer keeps it by these
    writes: dict[str, Write] = field(default_factory=dict)
    offsets: list[Entry] = field(default_factory=list)
    attempts: list[Attempt] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)
    prepared: int = NEVER
    verdict: Verdict = Verdict.UNKNOWN

    @property
    def commit_asked(self) -> int:
        """The line where a commit was first asked for."""
        return min((attempt.invoked for attempt in self.attempts if attempt.commit), default=NEVER)

    @property
    def taken_over(self) -> int:
        """The line from which on a later producer of the id is known to have ended the transaction."""
        return min((a.done for a in self.attempts if a.who != self.who and a.kind == OK), default=NEVER)

    @property
    def commit_known(self) -> int:
        """The line from which on somebody knew that it is committed."""
        return min((a.done for a in self.attempts if a.commit and a.kind == OK), default=NEVER)

    def __str__(self) -> str:
        told = [
            f"{attempt.who} {'commits' if attempt.commit else 'aborts'} in line {attempt.invoked + 1}"
            + (f", {attempt.kind} in line {attempt.done + 1}" if attempt.done != NEVER else ", no answer")
            for attempt in self.attempts
        ]
        if self.prepared != NEVER:
            told.insert(0, f"prepared in line {self.prepared + 1}")
        return f"{self.name} ({self.verdict.value}; {'; '.join(told) or 'nobody asked for its end'})"


class Model:
    """Everything that a history says, put in order."""

    def __init__(self, lines: Sequence[Line]) -> None:
        self.problems: list[str] = []
        self.instances: dict[str, Instance] = {}
        self.transactions: dict[str, Transaction] = {}
        self.writer_of: dict[str, Transaction] = {}  # by value
        self.reads: defaultdict[tuple[str, str, Partition], list[Read]] = defaultdict(list)
        self.offset_reads: list[OffsetRead] = []
        self._asked_offsets: dict[str, int] = {}
        for at, line in enumerate(lines):
            self._take(at, line)
        self._find_successors()
        for transaction in self.transactions.values():
            transaction.verdict = self._verdict(transaction)

    # -- lines -------------------------------------------------------------------------------------

    def _take(self, at: int, line: Line) -> None:
        if line.what == "init":
            self._init(at, line)
        elif line.what == "begin":
            self.transactions[line.txn] = Transaction(line.txn, line.who, at, line.detail)
        elif line.what == "write":
            self._write(at, line)
        elif line.what == "offsets" and line.kind == INVOKE:
            self.transactions[line.txn].offsets += line.entries
        elif line.what == "prepare":
            self.transactions[line.txn].prepared = at
        elif line.what in ("commit", "abort"):
            self._end(at, line)
        elif line.what == "read":
            self._read(at, line)
        elif line.what == "offsets?":
            self._read_offsets(at, line)
        elif line.what == "failed":
            self.problems.append(f"line {at + 1}: {line.who} failed: {line.detail}")

    def _init(self, at: int, line: Line) -> None:
        if line.kind == INVOKE:
            self.instances[line.who] = Instance(line.who, line.detail, at)
        elif line.kind == OK:
            self.instances[line.who].done = at
            self.instances[line.who].kept = line.detail

    def _write(self, at: int, line: Line) -> None:
        transaction = self.transactions[line.txn]
        for entry in line.entries:
            if line.kind == INVOKE:
                transaction.writes[entry.value] = Write(entry, at)
                self.writer_of[entry.value] = transaction
            else:
                write = transaction.writes[entry.value]
                write.kind = line.kind
                if entry.offset >= 0:
                    write.entry = entry

    def _end(self, at: int, line: Line) -> None:
        attempts = self.transactions[line.txn].attempts
        if line.kind == INVOKE:
            attempts.append(Attempt(line.who, line.what == "commit", at))
            return
        mine = [a for a in attempts if a.who == line.who and a.commit == (line.what == "commit")]
        mine[-1].kind, mine[-1].done = line.kind, at

    def _read(self, at: int, line: Line) -> None:
        for entry in line.entries:
            read = Read(at, line.who, line.txn, line.detail, entry)
            self.reads[line.who, line.detail, entry.place].append(read)
            if line.txn:
                self.transactions[line.txn].reads.append(read)

    def _read_offsets(self, at: int, line: Line) -> None:
        if line.kind == INVOKE:
            self._asked_offsets[line.who] = at
        elif line.kind == OK:
            asked = self._asked_offsets[line.who]
            self.offset_reads += [OffsetRead(asked, at, entry) for entry in line.entries]

    # -- what follows from them --------------------------------------------------------------------

    def _find_successors(self) -> None:
        by_id: defaultdict[str, list[Instance]] = defaultdict(list)
        for instance in self.instances.values():
            by_id[instance.transactional_id].append(instance)
        for instances in by_id.values():
            for instance in instances:
                instance.superseded = min(
                    (other.done for other in instances if other.invoked > instance.done), default=NEVER
                )

    def is_fenced(self, who: str, at: int) -> bool:
        return at > self.instances[who].superseded

    def is_kept(self, transaction: Transaction) -> bool:
        """Whether a later producer of the id took the transaction over while it was open."""
        kept = (f"{i.transactional_id}:{i.kept}" for i in self.instances.values() if i.kept)
        return transaction.mark in kept

    def _verdict(self, transaction: Transaction) -> Verdict:
        attempts = [a for a in transaction.attempts if not self.is_fenced(a.who, a.invoked)]
        if any(attempt.commit and attempt.kind == OK for attempt in attempts):
            return Verdict.COMMITTED
        if any(not attempt.commit and attempt.kind == OK for attempt in attempts):
            return Verdict.ABORTED
        if any(attempt.commit and attempt.kind != FAIL for attempt in attempts):
            # Nobody but those who own a prepared transaction ends it, so that it ends as they decided.
            decided = transaction.prepared != NEVER and all(a.commit for a in transaction.attempts)
            return Verdict.COMMITTED if decided else Verdict.UNKNOWN
        return Verdict.ABORTED

    def transactions_of_id(self, transactional_id: str) -> list[Transaction]:
        """In the order in which the coordinator decided on them."""
        mine = [
            found
            for found in self.transactions.values()
            if self.instances[found.who].transactional_id == transactional_id
        ]
        return sorted(mine, key=lambda found: (self.instances[found.who].done, found.begun))
