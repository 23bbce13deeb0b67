"""LagClock: how many seconds a consumer group is behind, from a short history of log end offsets.

A group that has committed offset N is as far behind in time as it is ago that N was the log end offset. The
clock keeps (time, log end offset) points of each partition and interpolates between them.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Container, Hashable
from typing import Final, Generic, TypeVar

MAX_POINTS: Final = 64
"""The points of a partition, about 1 KB. Steady traffic needs two; the rest is for bursts and pauses."""

SPACING_SECONDS: Final = 1.0

P = TypeVar("P", bound=Hashable)


class LagClock(Generic[P]):
    """Answers when an offset was the log end offset. Takes the time as an argument and reads no clock.

    Times are seconds of any clock; a time before the last one counts as the last one. Old points become
    sparse, so that a history is never longer than MAX_POINTS and reaches back to the first observation.
    """

    __slots__ = ("_histories",)

    def __init__(self) -> None:
        self._histories: dict[P, _History] = {}

    def __len__(self) -> int:
        """The number of partitions with a history."""
        return len(self._histories)

    def observe(self, partition: P, end_offset: int, now: float) -> None:
        """Note the log end offset of a partition. A smaller one than before truncates the history."""
        history = self._histories.get(partition)
        if history is None:
            history = self._histories[partition] = _History()
        history.add(now, end_offset)

    def seconds(self, partition: P, committed: int, now: float) -> float | None:
        """How long ago `committed` was the log end offset: 0 for a group that has caught up.

        None for a partition without observations, and for an offset below the first observed one.
        """
        history = self._histories.get(partition)
        if history is None:
            return None
        at = history.time_of(committed)
        if at is None:
            return None
        return 0.0 if at == CAUGHT_UP else max(now - at, 0.0)

    def forget(self, partition: P) -> None:
        self._histories.pop(partition, None)

    def keep(self, partitions: Container[P]) -> None:
        """Forget every other partition."""
        for partition in [known for known in self._histories if known not in partitions]:
            del self._histories[partition]


CAUGHT_UP: Final = float("inf")


class _History:
    """Points in order. Both columns rise, except that a run of one offset has its first and last point."""

    __slots__ = ("offsets", "times")

    def __init__(self) -> None:
        self.times = array("d")
        self.offsets = array("q")

    def add(self, now: float, end_offset: int) -> None:
        times, offsets = self.times, self.offsets
        if offsets and end_offset < offsets[-1]:
            # The log was truncated, or the topic was made anew.
            at = bisect_right(offsets, end_offset)
            del times[at:], offsets[at:]
        if times and now < times[-1]:
            now = times[-1]
        if len(times) > 1 and (
            end_offset == offsets[-1] == offsets[-2] or now - times[-2] < SPACING_SECONDS
        ):
            times[-1], offsets[-1] = now, end_offset
            return
        times.append(now)
        offsets.append(end_offset)
        if len(times) > MAX_POINTS:
            self._thin()

    def _thin(self) -> None:
        """Remove a quarter of the points: those that interpolation between their neighbours replaces best."""
        times, offsets = self.times, self.offsets
        last = len(times) - 1

        def error(at: int) -> float:
            share = (offsets[at] - offsets[at - 1]) / max(offsets[at + 1] - offsets[at - 1], 1)
            told = times[at - 1] + share * (times[at + 1] - times[at - 1])
            return abs(told - times[at]) / (times[last] - times[at] + SPACING_SECONDS)

        removed: set[int] = set()
        for at in sorted(range(1, last), key=error):
            if len(removed) == MAX_POINTS // 4:
                break
            if at - 1 not in removed and at + 1 not in removed:
                removed.add(at)
        kept = [at for at in range(last + 1) if at not in removed]
        self.times = array("d", [times[at] for at in kept])
        self.offsets = array("q", [offsets[at] for at in kept])

    def time_of(self, offset: int) -> float | None:
        """The last time at which the log ended at `offset`; CAUGHT_UP if it still does."""
        times, offsets = self.times, self.offsets
        if offset >= offsets[-1]:
            return CAUGHT_UP
        after = bisect_right(offsets, offset)
        if after == 0:
            return None
        low, high = offsets[after - 1], offsets[after]
        share = (offset - low) / (high - low)
        return times[after - 1] + share * (times[after] - times[after - 1])
