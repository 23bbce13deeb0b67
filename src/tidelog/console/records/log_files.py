"""LogFiles: reads batches from the segment files of a broker on this host.

Only committed batches are read, which the broker never changes. It may delete or compact files meanwhile:
then a read raises LogMoved, and the caller asks the broker again.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from struct import Struct
from threading import Lock
from typing import Final, Protocol

from tidelog.records.batch import HEADER_SIZE, LENGTH_OVERHEAD, MAGIC

HEADER: Final = Struct(">qi4xb6xi")
"""Base offset, length, magic and last offset delta of a batch."""

WALK_BYTES: Final = 64 << 10
SMALL_WALK_BYTES: Final = 4 << 10
REMEMBER_BYTES: Final = 256 << 10
"""A position is remembered each time a walk has passed so many bytes."""

REMEMBERED_SEGMENTS: Final = 500
INDEX_ENTRY: Final = Struct(">ii")


class LogMoved(Exception):
    """The files are not as the broker said they were, or have batches of an old format."""


@dataclass(frozen=True, slots=True)
class LeaderLog:
    """The log of a partition that the broker leads, as it was at one moment.

    `segments` has the base offset and size of each segment, `aborted` the producer id, first and last offset
    of each aborted transaction, `index` some offsets of the active segment with their positions.
    """

    directory: str
    generation: int
    start: int
    high_watermark: int
    last_stable_offset: int
    segments: tuple[tuple[int, int], ...]
    aborted: tuple[tuple[int, int, int], ...] = ()
    index: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class TopicLogs:
    """The partitions of a topic, and the logs that can be read from files."""

    partitions: tuple[int, ...]
    logs: dict[int, LeaderLog]
    topic_id: str = ""


class LocalLogs(Protocol):
    """Reads the logs of a broker on this host."""

    async def logs(self, topic: str, max_age: float = 0.0) -> TopicLogs | None:
        """The logs of a topic, at most so many seconds old. None if the broker does not know the topic."""

    async def read(self, log: LeaderLog, offset: int, limit: int, max_bytes: int) -> bytes:
        """`LogFiles.read`, on a thread."""


@dataclass(slots=True)
class _Positions:
    """Positions in one file at which a batch begins: no batch before it reaches the offset beside it."""

    inode: int
    offsets: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)

    def at(self, offset: int) -> int:
        found = bisect_right(self.offsets, offset)
        return self.positions[found - 1] if found else 0

    def add(self, offset: int, position: int) -> None:
        at = bisect_right(self.offsets, offset)
        if not at or self.offsets[at - 1] != offset:
            self.offsets.insert(at, offset)
            self.positions.insert(at, position)


class LogFiles:
    """Reads segment files, and remembers positions in them. Threads may share it."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._known: OrderedDict[tuple[str, int, int], _Positions] = OrderedDict()

    def read(self, log: LeaderLog, offset: int, limit: int, max_bytes: int) -> bytes:
        """Whole batches of one segment, from the one that holds `offset` on, below `limit`.

        Up to `max_bytes`, but one batch at least. Raises LogMoved.
        """
        bases = [base for base, _ in log.segments]
        with self._lock:
            for at in range(max(bisect_right(bases, offset) - 1, 0), len(bases)):
                if bases[at] >= limit:
                    break
                try:
                    with _opened(f"{log.directory}/{bases[at]:020d}.log") as file:
                        is_active = at + 1 == len(bases)
                        data = self._read(file, log, log.segments[at], is_active, offset, limit, max_bytes)
                except OSError as error:
                    raise LogMoved(str(error)) from error
                if data:
                    return data
        raise LogMoved(f"{log.directory} has no batch from offset {offset} on")

    def _read(
        self,
        file: int,
        log: LeaderLog,
        segment: tuple[int, int],
        is_active: bool,
        offset: int,
        limit: int,
        max_bytes: int,
    ) -> bytes:
        base, size = segment
        known = self._positions(log, base, os.fstat(file).st_ino)
        start = max(known.at(offset), _indexed(file, log, segment, is_active, offset))
        found = _walk(file, start, size, offset, known)
        if found is None:
            return b""
        position, first_base, first_bytes = found
        if first_base >= limit:
            return b""
        data = os.pread(file, min(max(max_bytes, first_bytes), size - position), position)
        at, following = _whole_batches(data, limit)
        if at == 0:
            raise LogMoved("the first batch is cut")
        known.add(following, position + at)
        return data[:at]

    def _positions(self, log: LeaderLog, base: int, inode: int) -> _Positions:
        key = (log.directory, log.generation, base)
        found = self._known.get(key)
        if found is None or found.inode != inode:
            self._known[key] = found = _Positions(inode)
            if len(self._known) > REMEMBERED_SEGMENTS:
                self._known.popitem(last=False)
        self._known.move_to_end(key)
        return found


@contextmanager
def _opened(path: str) -> Iterator[int]:
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield file
    finally:
        os.close(file)


def _walk(file: int, position: int, size: int, offset: int, known: _Positions) -> tuple[int, int, int] | None:
    """Position, base offset and size of the first batch that ends at or after an offset."""
    chunk, remembered = WALK_BYTES, position
    while position + HEADER_SIZE <= size:
        data = os.pread(file, min(chunk, size - position), position)
        at = 0
        while at + HEADER_SIZE <= len(data):
            base, length, magic, delta = HEADER.unpack_from(data, at)
            if magic != MAGIC or length < HEADER_SIZE - LENGTH_OVERHEAD:
                raise LogMoved("a batch of an old format, or none")
            if base + delta >= offset:
                return position + at, base, LENGTH_OVERHEAD + length
            if position + at - remembered >= REMEMBER_BYTES:
                remembered = position + at
                known.add(base, remembered)
            at += LENGTH_OVERHEAD + length
        if at == 0:
            raise LogMoved("a file is shorter than its segment")
        chunk = SMALL_WALK_BYTES if at > len(data) else WALK_BYTES  # large batches: bodies are not read
        position += at
    return None


def _whole_batches(data: bytes, limit: int) -> tuple[int, int]:
    """How many bytes the whole batches below `limit` take, and the offset after them."""
    at, following = 0, -1
    while at + HEADER_SIZE <= len(data):
        base, length, magic, delta = HEADER.unpack_from(data, at)
        if magic != MAGIC or length < HEADER_SIZE - LENGTH_OVERHEAD:
            raise LogMoved("a batch of an old format, or none")
        if base >= limit or at + LENGTH_OVERHEAD + length > len(data):
            break
        at += LENGTH_OVERHEAD + length
        following = base + delta + 1
    return at, following


def _indexed(file: int, log: LeaderLog, segment: tuple[int, int], is_active: bool, offset: int) -> int:
    """The position of a batch at or before an offset, by the offset index; 0 without an entry before it."""
    base, size = segment
    position = 0
    if is_active and log.index:
        found = bisect_right(log.index, (offset, size))
        position = log.index[found - 1][1] if found else 0
    else:
        try:
            with _opened(f"{log.directory}/{base:020d}.index") as index:
                position = _last_entry(index, offset - base)
        except FileNotFoundError:
            return 0
    if not 0 < position <= size - HEADER_SIZE:
        return 0
    # The index may be older than the segment: it must point to a batch that does not lie behind.
    first, length, magic, _ = HEADER.unpack(os.pread(file, HEADER.size, position))
    is_batch = magic == MAGIC and length >= HEADER_SIZE - LENGTH_OVERHEAD
    return position if is_batch and base <= first <= offset else 0


def _last_entry(index: int, relative: int) -> int:
    """The position of the last index entry at or before an offset; 0 if there is none."""
    low, high = 0, os.fstat(index).st_size // INDEX_ENTRY.size
    position = 0
    while low < high:
        middle = (low + high) // 2
        found, at = INDEX_ENTRY.unpack(os.pread(index, INDEX_ENTRY.size, middle * INDEX_ENTRY.size))
        if found <= relative:
            low, position = middle + 1, at
        else:
            high = middle
    return position
