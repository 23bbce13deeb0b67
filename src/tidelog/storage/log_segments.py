"""LogSegments: the segments of a log in the order of their base offsets, with binary search."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

from tidelog.storage.log_segment import LogSegment


class LogSegments:
    __slots__ = ("_bases", "_segments", "active")

    active: LogSegment
    """The last one, into which batches are appended. A log is never without it."""

    def __init__(self, segments: Iterable[LogSegment] = ()) -> None:
        self._segments = sorted(segments, key=lambda segment: segment.base_offset)
        self._bases = [segment.base_offset for segment in self._segments]
        if self._segments:
            self.active = self._segments[-1]

    def __len__(self) -> int:
        return len(self._segments)

    def __iter__(self) -> Iterator[LogSegment]:
        return iter(self._segments)

    def __getitem__(self, at: int) -> LogSegment:
        return self._segments[at]

    def find(self, offset: int) -> int:
        """The index of the segment with `offset`: the last one with a base offset up to it, or 0."""
        return max(0, bisect_right(self._bases, offset) - 1)

    def next_base(self, at: int) -> int | None:
        return self._bases[at + 1] if at + 1 < len(self._bases) else None

    def base_after(self, segment: LogSegment) -> int | None:
        """The base offset of the segment after `segment`, None for the last one."""
        return self.next_base(self.find(segment.base_offset))

    def contains_base(self, base_offset: int) -> bool:
        at = bisect_left(self._bases, base_offset)
        return at < len(self._bases) and self._bases[at] == base_offset

    def bases(self) -> list[int]:
        return list(self._bases)

    def starting_from(self, offset: int) -> list[LogSegment]:
        """The segments from the one with `offset` on."""
        return self._segments[self.find(offset) :]

    def append(self, segment: LogSegment) -> None:
        self._segments.append(segment)
        self._bases.append(segment.base_offset)
        self.active = segment

    def replace(self, at: int, count: int, segment: LogSegment) -> None:
        """Replace `count` consecutive segments by one."""
        self._segments[at : at + count] = [segment]
        self._bases[at : at + count] = [segment.base_offset]

    def remove_first(self, count: int) -> list[LogSegment]:
        removed = self._segments[:count]
        del self._segments[:count], self._bases[:count]
        return removed

    def remove_from(self, at: int) -> list[LogSegment]:
        removed = self._segments[at:]
        del self._segments[at:], self._bases[at:]
        if at:
            self.active = self._segments[-1]
        return removed
