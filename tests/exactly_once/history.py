"""What producers, readers and faults did, one line each, in one file that all of them append to.

A line that invokes stands in the file before its request is sent, a line that tells an outcome comes after
the answer: so an outcome that stands before another's invocation came before it in time.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tests.support.wait import eventually

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


Wanted = Callable[[Line], bool]


class Diary:
    """Appends lines; each call is one write, so that lines of several processes do not mix."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def write(self, *lines: Line) -> None:
        os.write(self._fd, "".join(line.text() for line in lines).encode())

    def close(self) -> None:
        os.close(self._fd)


class History:
    """The growing file, read as far as it is written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines: list[Line] = []
        self._position = 0
        path.touch()

    def read(self) -> list[Line]:
        with self.path.open("rb") as file:
            file.seek(self._position)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._position += len(whole)
        self.lines += [Line.parse(text) for text in whole.decode().splitlines()]
        return self.lines

    def count(self, wanted: Wanted, after: int = 0) -> int:
        return sum(1 for line in self.read()[after:] if wanted(line))

    def wait_for(
        self, wanted: Wanted, what: str, *, after: int = 0, count: int = 1, timeout: float = 60.0
    ) -> None:
        """Until there are so many such lines behind the first `after` lines."""
        eventually(lambda: self.count(wanted, after) >= count, what, timeout, 0.02)

    def tail(self, count: int = 40) -> str:
        lines = self.read()
        first = max(0, len(lines) - count)
        return "\n".join(f"{at + 1:6} {line}" for at, line in enumerate(lines[first:], first))


def by_place(entries: Iterable[Entry]) -> dict[Partition, list[Entry]]:
    found: dict[Partition, list[Entry]] = {}
    for entry in entries:
        found.setdefault(entry.place, []).append(entry)
    return found
