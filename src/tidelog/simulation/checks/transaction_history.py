"""Lines of a history of transactions: what producers, readers and faults did.

A line that invokes comes before its request is sent, a line with an outcome after the answer: an outcome that
stands before the invocation of another request came before it in time.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

Partition = tuple[str, int]

INVOKE, OK, FAIL, INFO = "invoke", "ok", "fail", "info"
COMMITTED, UNCOMMITTED = "read_committed", "read_uncommitted"
NEMESIS = "nemesis"


class Entry(NamedTuple):
    """A record; or a committed offset, whose value is the group it belongs to."""

    topic: str
    partition: int
    offset: int
    value: str

    @property
    def place(self) -> Partition:
        return self.topic, self.partition

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclass(slots=True, frozen=True)
class Line:
    """`ok` and `fail` are certain; `info` tells of an outcome that nobody knows, or of no operation at all.

    what      who        txn       entries, detail
    init      instance             its transactional id; in the outcome the transaction that it kept, if any
    begin     instance   its name
    write     instance   of it     the records; with their offsets where they were told
    offsets   instance   of it     group offsets
    prepare   instance   of it     the epoch that it was written with: whoever comes later may commit it
    commit    instance   of it
    abort     instance   of it
    read      reader     within    the records; the isolation level
    offsets?  reader               the stable offsets of a group
    fault     nemesis              what was done to whom
    """

    who: str
    kind: str
    what: str
    txn: str = ""
    entries: tuple[Entry, ...] = ()
    detail: str = ""

    def text(self) -> str:
        return json.dumps([self.who, self.kind, self.what, self.txn, self.entries, self.detail]) + "\n"

    @staticmethod
    def parse(text: str) -> Line:
        who, kind, what, txn, entries, detail = json.loads(text)
        return Line(who, kind, what, txn, tuple(Entry(*entry) for entry in entries), detail)

    def __str__(self) -> str:
        some = " ".join(f"{entry}:{entry.offset}={entry.value}" for entry in self.entries[:6])
        more = f" and {len(self.entries) - 6} more" if len(self.entries) > 6 else ""
        return f"{self.who:12} {self.kind:6} {self.what:8} {self.txn} {some}{more} {self.detail}".rstrip()


def by_place(entries: Iterable[Entry]) -> dict[Partition, list[Entry]]:
    found: dict[Partition, list[Entry]] = {}
    for entry in entries:
        found.setdefault(entry.place, []).append(entry)
    return found
