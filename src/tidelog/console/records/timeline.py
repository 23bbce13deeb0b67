"""How many records a topic has in each span of time: a picture to jump on, made of a few offset look-ups."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from tidelog.console.records.topic_reader import OffsetRange, TopicReader
from tidelog.errors import UnsupportedVersion
from tidelog.protocol.offset_specs import MAX_TIMESTAMP

MAX_BUCKETS = 120
LEAST_BUCKETS = 12
MAX_LOOKUPS = 6000
"""Look-ups of an offset by its time, each of which reads an index of the log."""
MAX_PARTITIONS = 400
STEPS_MS = tuple(
    unit * count
    for unit, counts in (
        (1000, (1, 2, 5, 10, 15, 30)),
        (60_000, (1, 2, 5, 10, 15, 30)),
        (3_600_000, (1, 2, 3, 6, 12)),
        (86_400_000, (1, 2, 7, 14, 30, 90, 365)),
    )
    for count in counts
)


@dataclass(slots=True, frozen=True)
class Bucket:
    """A span of time from `start_ms` on, and the number of offsets that the topic wrote in it."""

    start_ms: int
    count: int


@dataclass(slots=True, frozen=True)
class Timeline:
    """Buckets of the same width. Empty if the topic has no records with timestamps."""

    step_ms: int
    buckets: list[Bucket]

    @property
    def highest(self) -> int:
        return max((bucket.count for bucket in self.buckets), default=0)


async def read_timeline(
    reader: TopicReader,
    ranges: dict[int, OffsetRange],
    *,
    buckets: int = 48,
    start_ms: int | None = None,
    end_ms: int | None = None,
) -> Timeline:
    """The timeline of partitions between two times, by default of all their records.

    It takes a request for each bucket and leader. Of a topic with more than 400 partitions it counts the
    first 400. Counts are differences of offsets: a compacted topic has fewer records.
    """
    buckets = max(1, min(buckets, MAX_BUCKETS))
    filled = [index for index, found in ranges.items() if found.end > found.start][:MAX_PARTITIONS]
    buckets = min(buckets, max(LEAST_BUCKETS, MAX_LOOKUPS // max(1, len(filled))))
    if not filled:
        return Timeline(STEPS_MS[0], [])
    first, last = await _bounds(reader, filled)
    first = first if start_ms is None else start_ms
    last = last if end_ms is None else end_ms
    if first < 0 or last < first:
        return Timeline(STEPS_MS[0], [])
    step = next(
        (step for step in STEPS_MS if (last - first) // step < buckets), (last - first) // buckets + 1
    )
    begin = first - first % step
    times = list(range(begin, last + 1, step)) or [begin]
    edges = await _edges(reader, filled, [*times, times[-1] + step])
    return Timeline(step, _counts(times, edges, ranges))


async def _edges(
    reader: TopicReader, partitions: Sequence[int], times: Sequence[int]
) -> list[dict[int, tuple[int, int]]]:
    """The offsets of each time. A broker on this host gets the requests one by one, not all in a turn."""
    if reader.reads_files:
        return [await reader.list_offsets(partitions, time) for time in times]
    return await asyncio.gather(*(reader.list_offsets(partitions, time) for time in times))


async def _bounds(reader: TopicReader, partitions: Sequence[int]) -> tuple[int, int]:
    """The timestamps of the first and of the newest record."""
    firsts = await reader.list_offsets(partitions, 0)
    first = min((time for _, time in firsts.values() if time >= 0), default=-1)
    try:
        lasts = await reader.list_offsets(partitions, MAX_TIMESTAMP)
    except UnsupportedVersion:
        return first, first
    return first, max(time for _, time in lasts.values())


def _counts(
    times: Sequence[int], edges: Sequence[dict[int, tuple[int, int]]], ranges: dict[int, OffsetRange]
) -> list[Bucket]:
    counts = [0] * len(times)
    for index in edges[0]:
        at = None
        for number, edge in enumerate(edges):
            offset = edge[index][0]
            offset = ranges[index].end if offset < 0 else offset
            if at is not None:
                offset = max(at, offset)  # timestamps may go back in a log
                counts[number - 1] += offset - at
            at = offset
    return [Bucket(time, count) for time, count in zip(times, counts, strict=True)]
