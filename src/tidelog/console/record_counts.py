"""RecordCounts: exact numbers of records in logs, by the headers of their batches.

Offsets alone do not tell: compaction removes records, and each transaction ends with a marker. The counter
reads the segment files of a broker on this host. It reads the header of each batch once.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from struct import Struct
from time import perf_counter
from typing import Final

from tidelog.partitions import PartitionKey

HEADER: Final = Struct(">qiibIhi8xq14xi")
"""Base offset, length, leader epoch, magic, CRC, attributes, last offset delta, max timestamp, records."""
LENGTH_BYTES: Final = 12
CONTROL: Final = 0x20
MAGIC: Final = 2
CHUNK: Final = 128 * 1024
SMALL_CHUNK: Final = 4096


class Uncountable(Exception):
    """Batches of a format that has no number of records in its header."""


@dataclass(frozen=True, slots=True)
class LogExtent:
    """What a log consisted of at one moment: base offset and size of each segment, first and last offset."""

    directory: str
    generation: int
    start: int
    end: int
    segments: tuple[tuple[int, int], ...]


@dataclass(slots=True)
class _Segment:
    """The counted part of a segment file: up to `position`, `records` of them; `below` the log start."""

    inode: int = 0
    position: int = 0
    records: int = 0
    start: int = -1
    below: int = 0
    newest_ms: int = -1


@dataclass(slots=True)
class _CountedLog:
    extent: LogExtent
    total: int
    segments: dict[int, _Segment]


class RecordCounts:
    """The counts of logs, kept between readings. Not for several threads at once."""

    def __init__(self) -> None:
        self._logs: dict[PartitionKey, _CountedLog] = {}

    def count(
        self, extents: Mapping[PartitionKey, LogExtent], seconds: float
    ) -> dict[PartitionKey, int | None]:
        """The records of each log; None where they are not counted within the time, or cannot be counted."""
        deadline = perf_counter() + seconds
        for key in [key for key in self._logs if key not in extents]:
            del self._logs[key]
        counts: dict[PartitionKey, int | None] = {}
        for key, extent in extents.items():
            known = self._logs.get(key)
            if extent.end == extent.start:
                counts[key] = 0
            elif known is not None and known.extent == extent:
                counts[key] = known.total
            else:
                counts[key] = self._count_log(key, extent, deadline)
        return counts

    def newest_ms(self, key: PartitionKey) -> int | None:
        """The largest timestamp of the counted records of a log; None if there is none."""
        known = self._logs.get(key)
        newest = -1 if known is None else max((s.newest_ms for s in known.segments.values()), default=-1)
        return None if newest < 0 else newest

    def _count_log(self, key: PartitionKey, extent: LogExtent, deadline: float) -> int | None:
        known = self._logs.get(key)
        segments = {} if known is None or known.extent.generation != extent.generation else known.segments
        kept: dict[int, _Segment] = {}
        total: int | None = 0
        for base, size in extent.segments:
            kept[base] = segment = segments.get(base) or _Segment()
            try:
                counted = _count_segment(extent, base, size, segment, deadline)
            except (OSError, Uncountable):  # retention or the cleaner took the file
                counted = None
            total = None if total is None or counted is None else total + counted
            if total is None and perf_counter() >= deadline:
                break
        kept |= {base: found for base, found in segments.items() if base not in kept} if total is None else {}
        done = extent if total is not None else LogExtent("", extent.generation, 0, 0, ())
        self._logs[key] = _CountedLog(done, total or 0, kept)
        return total


def _count_segment(extent: LogExtent, base: int, size: int, segment: _Segment, deadline: float) -> int | None:
    """The records of a segment from the log start on; None if the time is over."""
    if segment.inode and segment.position == size and (base >= extent.start or segment.start == extent.start):
        return segment.records - (segment.below if base < extent.start else 0)
    file = os.open(f"{extent.directory}/{base:020d}.log", os.O_RDONLY)
    try:
        inode = os.fstat(file).st_ino
        if inode != segment.inode or segment.position > size:
            segment.inode, segment.position, segment.records, segment.start = inode, 0, 0, -1
            segment.newest_ms = -1
        segment.position, added, newest, done = _walk(file, segment.position, size, extent.end, deadline)
        segment.newest_ms = max(segment.newest_ms, newest)
        segment.records += added
        if not done:
            return None
        if base >= extent.start:
            return segment.records
        if segment.start != extent.start:
            _, below, _, done = _walk(file, 0, size, extent.start, deadline)
            if not done:
                return None
            segment.start, segment.below = extent.start, below
        return segment.records - segment.below
    finally:
        os.close(file)


def _walk(file: int, position: int, size: int, end: int, deadline: float) -> tuple[int, int, int, bool]:
    """Count from a position up to `end`, an offset.

    Returns the new position, the records, their largest timestamp and whether it is done.
    """
    records, newest = 0, -1
    chunk = CHUNK
    while position + HEADER.size <= size:
        if perf_counter() >= deadline:
            return position, records, newest, False
        data = os.pread(file, min(chunk, size - position), position)
        at = 0
        while at + HEADER.size <= len(data):
            base, length, _, magic, _, attributes, last_delta, max_ms, count = HEADER.unpack_from(data, at)
            if magic != MAGIC:
                raise Uncountable
            if base >= end:
                return position + at, records, newest, True
            if not attributes & CONTROL:
                newest = max(newest, max_ms)
                # The log start may lie within a batch: its records from there on remain.
                records += count if base + last_delta < end else min(count, end - base)
            if base + last_delta >= end:
                return position + at + LENGTH_BYTES + length, records, newest, True
            at += LENGTH_BYTES + length
        chunk = SMALL_CHUNK if at > len(data) else CHUNK  # large batches: their bodies are not read
        position += at
    return position, records, newest, True
