"""Pages of records of a topic, merged over its partitions by time, forwards and backwards.

Each page does bounded work: after so many records, bytes or seconds it ends where it is, and its cursor
continues. Within a partition records stay in the order of offsets; a record is on one page only.
"""

from __future__ import annotations

import asyncio
import math
import sys
from collections import deque
from collections.abc import AsyncIterator, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tidelog.console.records.cursors import (
    Cursor,
    CursorError,
    Direction,
    Order,
    Positions,
    Start,
    StartKind,
    clamped,
)
from tidelog.console.records.filters import RecordFilter
from tidelog.console.records.log_record import Head, LogRecord, ShownRecord, Sieve
from tidelog.console.records.pace import Pace
from tidelog.console.records.rules import RecordView
from tidelog.console.records.topic_reader import REQUEST_BYTES, Chunk, OffsetRange, TopicReader
from tidelog.errors import OffsetOutOfRange, UnknownTopicOrPartition

MAX_PAGE = 500
LEAST_BYTES = 4 << 10
FIRST_BYTES = 64 << 10
MORE_BYTES = 256 << 10
FIRST_WINDOW = 16
MAX_WINDOW = 1 << 20
WINDOW_BYTES = 2 << 20
TAIL_WAIT_MS = 500
TAIL_RECORDS = 100
"""Records of one event, the newest: with five events a second all 500 rows of a page are new."""

TAIL_BEHIND = 2000
STRIDES = 50
"""A search whose records are all rejected looks so often whether its limits are reached."""

MOST_STRIDE = 1000
TAIL_SECONDS = 0.2
"""The time between two events: nobody reads faster, and a busy topic would be asked for after each record."""


@dataclass(slots=True, frozen=True)
class Limits:
    """The most that one page reads before it ends with a cursor; `least` records take any time."""

    records: int = 50_000
    bytes: int = 32 << 20
    seconds: float = 2.0
    least: int = 0


WITHOUT_LIMITS = Limits(records=sys.maxsize, bytes=sys.maxsize, seconds=math.inf)


class Budget:
    """What is left of the limits of one page."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._deadline = self._loop.time() + limits.seconds
        self.records = 0
        self.bytes = 0

    @property
    def stride(self) -> int:
        """How many rejected records may go by before the limits are looked at."""
        return max(1, min(self._limits.records // STRIDES, MOST_STRIDE))

    @property
    def is_spent(self) -> bool:
        limits = self._limits
        return (
            self.records + self.stride > limits.records
            or self.bytes >= limits.bytes
            or (self.records >= limits.least and self._loop.time() >= self._deadline)
        )


@dataclass(slots=True, frozen=True)
class RecordPage:
    """Records in the order to show, and the cursors of the pages before and after.

    `is_complete` is false if the limits ended the page before it was full: the cursor continues the search.
    """

    records: list[ShownRecord]
    older: Cursor | None
    newer: Cursor | None
    following: Cursor | None
    scanned: int
    bytes: int
    is_complete: bool
    ranges: Mapping[int, OffsetRange]
    low: Positions
    high: Positions
    filter_errors: int = 0
    filter_error: str = ""

    @property
    def progress(self) -> float:
        """The part of the topic's offsets that lies before the end of this page in its direction: 0 to 1."""
        total = sum(found.end - found.start for found in self.ranges.values())
        if total <= 0 or self.following is None:
            return 1.0
        if self.following.direction is Direction.OLDER:
            left = sum(self.low[i] - found.start for i, found in self.ranges.items() if i in self.low)
        else:
            left = sum(found.end - self.high[i] for i, found in self.ranges.items() if i in self.high)
        return max(0.0, min(1.0, 1 - left / total))


class RecordBrowser:
    """Reads pages of one topic as a view shows them. `partitions` limits the pages to some partitions."""

    def __init__(
        self, reader: TopicReader, view: RecordView, *, partitions: Sequence[int] = (), control: bool = False
    ) -> None:
        self._reader = reader
        self._view = view
        self._partitions = tuple(partitions)
        self._control = control

    @property
    def seen(self) -> Hashable:
        """`TopicReader.seen` after the last call."""
        return self._reader.seen

    async def ranges(self) -> dict[int, OffsetRange]:
        """The offsets of the chosen partitions. Raises UnknownTopicOrPartition."""
        known = await self._reader.partitions()
        unknown = sorted(set(self._partitions) - set(known))
        if unknown:
            raise UnknownTopicOrPartition(
                f"partition {unknown[0]} of topic {self._reader.topic} does not exist; it has {len(known)}"
            )
        return await self._reader.ranges(self._partitions or known)

    async def start(self, start: Start, ranges: Mapping[int, OffsetRange]) -> Cursor:
        """The cursor of a start point."""
        if start.kind is StartKind.NEWEST:
            ends = {index: found.end for index, found in ranges.items()}
            return Cursor(Direction.OLDER, Order.DESCENDING, ends)
        positions = {index: found.start for index, found in ranges.items()}
        if start.kind is StartKind.OFFSET:
            positions = {i: max(found.start, min(found.end, start.at)) for i, found in ranges.items()}
        elif start.kind is StartKind.TIME:
            found_offsets = await self._reader.list_offsets(list(ranges), start.at)
            positions = {
                index: ranges[index].end if offset < 0 else offset
                for index, (offset, _) in found_offsets.items()
            }
        return Cursor(Direction.NEWER, Order.ASCENDING, positions)

    async def page(
        self,
        where: Start | Cursor,
        count: int = 50,
        *,
        wanted: RecordFilter | None = None,
        limits: Limits | None = None,
        ranges: Mapping[int, OffsetRange] | None = None,
    ) -> RecordPage:
        """The records from a start point or a cursor on. Raises CursorError, KafkaError.

        The caller passes `ranges` if it has just called `ranges()`.
        """
        if not 1 <= count <= MAX_PAGE:
            raise CursorError(f"{count} records on a page: expected 1 to {MAX_PAGE}")
        budget = Budget(limits or Limits())
        if ranges is None:
            ranges = await self.ranges()
        cursor = where if isinstance(where, Cursor) else await self.start(where, ranges)
        low = {index: found.start for index, found in ranges.items()}
        high = {index: found.end for index, found in ranges.items()}
        begin = clamped(cursor.positions, low, high)
        # A partition that is new since the cursor was made is read from where the others are going.
        begin = {**(high if cursor.direction is Direction.OLDER else low), **begin}
        wanted = wanted or RecordFilter()
        older = cursor.direction is Direction.OLDER
        merge: _Merge = (_BackwardMerge if older else _ForwardMerge)(
            self._reader,
            begin,
            low if older else high,
            budget,
            self._control,
            Pace(),
            is_search=not wanted.is_empty,
            sieve=wanted.sieve(self._view),
        )
        found = await self._collect(merge, count, wanted, budget)
        end = merge.positions
        bottom, top = (end, begin) if older else (begin, end)
        before = (
            Cursor(Direction.OLDER, cursor.order, bottom) if any(bottom[i] > low[i] for i in bottom) else None
        )
        after = Cursor(Direction.NEWER, cursor.order, top) if any(top[i] < high[i] for i in top) else None
        if older is (cursor.order is Order.ASCENDING):
            found.reverse()
        return RecordPage(
            found,
            before,
            after,
            before if older else after,
            budget.records,
            budget.bytes,
            merge.is_finished or len(found) >= count,
            ranges,
            bottom,
            top,
            wanted.errors,
            wanted.first_error,
        )

    async def _collect(
        self, merge: _Merge, count: int, wanted: RecordFilter, budget: Budget
    ) -> list[ShownRecord]:
        found: list[ShownRecord] = []
        while len(found) < count and (head := await merge.next()) is not None:
            budget.records += head.passed
            if head.may_match:
                shown = self._view.show(head.record)
                if wanted.matches(shown):
                    found.append(shown)
            await merge.pace.step(head.passed)
        return found

    async def newest(
        self, ranges: Mapping[int, OffsetRange], count: int, wanted: RecordFilter | None = None
    ) -> dict[int, OffsetRange]:
        """The ends of ranges that have the newest `count` records that match, or all of them.

        It reads backwards without decoding more than the filter needs.
        """
        wanted = wanted or RecordFilter()
        merge = _BackwardMerge(
            self._reader,
            {index: found.end for index, found in ranges.items()},
            {index: found.start for index, found in ranges.items()},
            Budget(WITHOUT_LIMITS),
            self._control,
            Pace(),
            is_search=True,
            sieve=wanted.sieve(self._view),
        )
        while count > 0 and (head := await merge.next()) is not None:
            if head.may_match and (wanted.is_empty or wanted.matches(self._view.show(head.record))):
                count -= 1
            await merge.pace.step(head.passed)
        return {index: OffsetRange(merge.positions[index], found.end) for index, found in ranges.items()}

    async def record(self, partition: int, offset: int) -> ShownRecord | None:
        """One record, or None if the log does not have it."""
        found = await self.raw_record(partition, offset)
        return None if found is None else self._view.show(found)

    async def raw_record(self, partition: int, offset: int) -> LogRecord | None:
        try:
            chunks = await self._reader.fetch({partition: offset}, FIRST_BYTES)
        except OffsetOutOfRange:
            return None
        record = next(chunks[partition].records(offset + 1, control=self._control), None)
        return record if record is not None and record.offset == offset else None

    async def tail(
        self, wanted: RecordFilter | None = None, begin: Positions | None = None
    ) -> AsyncIterator[TailEvent]:
        """New records as they come, from the end of the log on. Skips records if it falls behind."""
        ranges = await self.ranges()
        positions = begin or {index: found.end for index, found in ranges.items()}
        wanted = wanted or RecordFilter()
        while True:
            share = max(LEAST_BYTES, REQUEST_BYTES // max(1, len(positions)))
            try:
                chunks = await self._reader.fetch(positions, min(MORE_BYTES, share), wait_ms=TAIL_WAIT_MS)
            except OffsetOutOfRange:
                positions = {index: found.end for index, found in (await self.ranges()).items()}
                continue
            found: list[LogRecord] = []
            skipped = 0
            for index, chunk in chunks.items():
                found += chunk.records(control=self._control)
                positions[index] = max(positions[index], chunk.next_offset)
                behind = chunk.high_watermark - positions[index]
                if behind > TAIL_BEHIND:
                    skipped += behind
                    positions[index] = chunk.high_watermark
            found.sort(key=lambda record: (record.timestamp, record.partition, record.offset))
            read = len(found)
            if wanted.is_empty and read > TAIL_RECORDS:
                skipped += read - TAIL_RECORDS
                del found[:-TAIL_RECORDS]  # not shown, so there is no need to decode them
            shown: list[ShownRecord] = []
            pace = Pace()
            for record in map(self._view.show, found):
                if wanted.matches(record):
                    shown.append(record)
                await pace.step()
            skipped += max(0, len(shown) - TAIL_RECORDS)
            yield TailEvent(shown[-TAIL_RECORDS:], read, skipped)
            if found:
                await asyncio.sleep(TAIL_SECONDS)


@dataclass(slots=True, frozen=True)
class TailEvent:
    """Records that came since the last event; `read` counts all, also those that the filter left out."""

    records: list[ShownRecord]
    read: int
    skipped: int


class _Merge:
    """The next record over all partitions. `positions` has the offset after (or of) the last one taken."""

    def __init__(
        self,
        reader: TopicReader,
        begin: Mapping[int, int],
        bounds: Mapping[int, int],
        budget: Budget,
        control: bool,
        pace: Pace,
        *,
        is_search: bool,
        sieve: Sieve | None,
    ) -> None:
        self.positions: Positions = dict(begin)
        self.pace = pace
        self._sieve = sieve
        self._reader = reader
        self._bounds = bounds
        self._budget = budget
        self._control = control
        self._begin = dict(begin)
        self._most = MORE_BYTES if is_search else FIRST_BYTES
        self._heads: dict[int, Head] = {}
        self._open = {index for index in begin if self._is_open(index)}

    def _is_open(self, index: int) -> bool:
        raise NotImplementedError

    async def _fill(self, indexes: list[int]) -> None:
        """Read ahead, so that each of these partitions has a head or is closed. May do it in part."""
        raise NotImplementedError

    def _choose(self) -> int:
        raise NotImplementedError

    def _taken(self, record: LogRecord) -> None:
        raise NotImplementedError

    def _read_heads(self, chunk: Chunk, end: int) -> Iterator[Head]:
        return chunk.heads(end, self._sieve, control=self._control, stride=self._budget.stride)

    @property
    def is_finished(self) -> bool:
        return not self._open and not self._heads

    @property
    def _is_over(self) -> bool:
        """Whether the budget is spent. Each page gets on by a record at least, whatever it costs."""
        return self._budget.is_spent and self.positions != self._begin

    async def _fetch(self, offsets: Mapping[int, int]) -> dict[int, Chunk]:
        """Batches of partitions; many partitions share the bytes of one answer."""
        share = max(LEAST_BYTES, REQUEST_BYTES // max(1, len(offsets)))
        most, self._most = self._most, MORE_BYTES
        return await self._reader.fetch(offsets, min(most, share))

    async def next(self) -> Head | None:
        """The next head over all partitions; None at the end, or if the budget is spent."""
        while True:
            missing = [index for index in sorted(self._open) if index not in self._heads]
            if not missing:
                break
            if self._is_over:
                return None
            await self._fill(missing)
        if not self._heads or self._is_over:
            return None
        head = self._heads.pop(self._choose())
        self._taken(head.record)
        return head


class _ForwardMerge(_Merge):
    """From old to new."""

    def __init__(self, *arguments: object, **options: object) -> None:
        super().__init__(*arguments, **options)  # type: ignore[arg-type]
        self._read: dict[int, Iterator[Head]] = {}
        self._next = dict(self.positions)

    def _is_open(self, index: int) -> bool:
        return self.positions[index] < self._bounds[index]

    async def _fill(self, indexes: list[int]) -> None:
        empty = []
        for index in indexes:
            head = next(self._read.get(index, iter(())), None)
            if head is not None:
                self._heads[index] = head
                continue
            # Every record that was read is used: a search that ends here continues behind the last one.
            self.positions[index] = max(self.positions[index], min(self._next[index], self._bounds[index]))
            if self._next[index] >= self._bounds[index]:
                self._close(index)
            else:
                empty.append(index)
        if not empty:
            return
        chunks = await self._fetch({index: self._next[index] for index in empty})
        # A broker leaves partitions empty when the answer is full: the next request begins with them.
        stuck = all(chunk.next_offset <= chunk.fetched for chunk in chunks.values())
        for index, chunk in chunks.items():
            self._budget.bytes += chunk.size
            self._read[index] = self._read_heads(chunk, self._bounds[index])
            if stuck and chunk.next_offset <= self._next[index]:
                self._close(index)  # the rest of the log was truncated
            self._next[index] = max(self._next[index], chunk.next_offset)

    def _close(self, index: int) -> None:
        self._open.discard(index)
        self.positions[index] = max(self.positions[index], self._bounds[index])

    def _choose(self) -> int:
        return min(self._heads, key=lambda index: (self._heads[index].record.timestamp, index))

    def _taken(self, record: LogRecord) -> None:
        self.positions[record.partition] = record.offset + 1


class _BackwardMerge(_Merge):
    """From new to old: windows of offsets below the position are read forwards, and taken from their end."""

    def __init__(self, *arguments: object, **options: object) -> None:
        super().__init__(*arguments, **options)  # type: ignore[arg-type]
        self._windows: dict[int, deque[Head]] = {}
        self._below = dict(self.positions)
        self._width = dict.fromkeys(self.positions, FIRST_WINDOW)

    def _is_open(self, index: int) -> bool:
        return self.positions[index] > self._bounds[index]

    async def _fill(self, indexes: list[int]) -> None:
        empty = []
        for index in indexes:
            window = self._windows.get(index)
            if window:
                self._heads[index] = window.pop()
                continue
            self.positions[index] = min(self.positions[index], self._below[index])
            if self._below[index] <= self._bounds[index]:
                self._open.discard(index)
                self.positions[index] = self._bounds[index]
            else:
                empty.append(index)
        if empty:
            await self._read_windows(empty)

    async def _read_windows(self, indexes: list[int]) -> None:
        tops = {index: self._below[index] for index in indexes}
        lows = {index: max(self._bounds[index], top - self._width[index]) for index, top in tops.items()}
        found: dict[int, deque[Head]] = {index: deque() for index in indexes}
        sizes = dict.fromkeys(indexes, 0)
        at = dict(lows)
        while at:
            chunks = await self._fetch(at)
            stuck = all(chunk.next_offset <= chunk.fetched for chunk in chunks.values())
            for index, chunk in chunks.items():
                self._budget.bytes += chunk.size
                sizes[index] += chunk.size
                found[index].extend(self._read_heads(chunk, tops[index]))
                at[index] = chunk.next_offset
                if stuck or at[index] >= tops[index]:
                    del at[index]
                elif sizes[index] > WINDOW_BYTES and self._width[index] > FIRST_WINDOW:
                    # Large records: read the newest part of the window first.
                    self._width[index] = FIRST_WINDOW
                    lows[index] = max(self._bounds[index], tops[index] - FIRST_WINDOW)
                    at[index] = max(at[index], lows[index])
                    kept = [head for head in found[index] if head.record.offset >= lows[index]]
                    found[index] = deque(kept)
        for index in indexes:
            self._windows[index] = found[index]
            self._below[index] = lows[index]
            passed = sum(head.passed for head in found[index])
            self._width[index] = self._next_width(index, passed, sizes[index])

    def _next_width(self, index: int, records: int, size: int) -> int:
        width = self._width[index] * 4
        if records:
            width = min(width, max(FIRST_WINDOW, WINDOW_BYTES * records // max(size, 1)))
        return min(width, MAX_WINDOW)

    def _choose(self) -> int:
        return max(self._heads, key=lambda index: (self._heads[index].record.timestamp, -index))

    def _taken(self, record: LogRecord) -> None:
        self.positions[record.partition] = record.offset
