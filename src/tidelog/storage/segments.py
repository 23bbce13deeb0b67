"""The segments of a log in the order of their base offsets, found by binary search."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

from tidelog.storage.segment import Segment


class SegmentList:
    __slots__ = ("_bases", "_segments")

    def __init__(self, segments: Iterable[Segment] = ()) -> None:
        self._segments = sorted(segments, key=lambda segment: segment.base_offset)
        self._bases = [segment.base_offset for segment in self._segments]

    def __len__(self) -> int:
        return len(self._segments)

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._segments)

    def __getitem__(self, at: int) -> Segment:
        return self._segments[at]

    def find(self, offset: int) -> int:
        """The place of the segment that holds `offset`: the last one that starts at or before it, else 0."""
        return max(0, bisect_right(self._bases, offset) - 1)

    def next_base(self, at: int) -> int | None:
        return self._bases[at + 1] if at + 1 < len(self._bases) else None

    def contains_base(self, base_offset: int) -> bool:
        at = bisect_left(self._bases, base_offset)
        return at < len(self._bases) and self._bases[at] == base_offset

    def bases(self) -> list[int]:
        return list(self._bases)

    def starting_from(self, offset: int) -> list[Segment]:
        """From the segment that holds `offset` to the last."""
        return self._segments[self.find(offset) :]

    def append(self, segment: Segment) -> None:
        self._segments.append(segment)
        self._bases.append(segment.base_offset)

    def replace(self, at: int, count: int, segment: Segment) -> None:
        """One segment in the place of several that follow each other."""
        self._segments[at : at + count] = [segment]
        self._bases[at : at + count] = [segment.base_offset]

    def remove_first(self, count: int) -> list[Segment]:
        removed = self._segments[:count]
        del self._segments[:count], self._bases[:count]
        return removed

    def remove_from(self, at: int) -> list[Segment]:
        removed = self._segments[at:]
        del self._segments[at:], self._bases[at:]
        return removed
