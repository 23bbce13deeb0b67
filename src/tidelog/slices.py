"""Runs long work in slices of a fraction of a millisecond, between other requests.

Work is a generator that yields wherever a slice may end. The first slice runs at once, and is often the last.
The rest runs in order of arrival, one piece of work at a time, which limits the memory of large requests.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator
from itertools import islice
from time import perf_counter_ns
from typing import Final, TypeVar, cast

T = TypeVar("T")
R = TypeVar("R")

Slices = Generator[None, None, R]

SLICE_NS: Final = 200_000
"""A produce that comes meanwhile waits for a slice: one takes about as long as the produce itself."""

ITEMS_PER_TURN: Final = 50
"""About a millisecond of work. A count, not a time, so that a simulation replays the same turns."""


REST_SECONDS: Final = 0.0005
"""A change of thousands of partitions rests so long after each slice. All brokers make it at the same time.
Where they share cores, requests of clients would wait until each broker has used up its share of a core."""


def mapped(function: Callable[[T], R], items: Iterable[T]) -> Slices[list[R]]:
    """The results of a function for each item, in slices."""
    results: list[R] = []
    for item in items:
        results.append(function(item))
        yield
    return results


def _items_per_slice() -> int | None:
    """How many items end a slice. None on a real loop, where time ends it."""
    return getattr(asyncio.get_running_loop(), "items_per_slice", None)


async def finished(work: Slices[R], slice_ns: int = SLICE_NS) -> R:
    """Do the work in a coroutine; other tasks run between its slices."""
    items = _items_per_slice()
    while True:
        end = perf_counter_ns() + slice_ns
        try:
            if items is None:
                while perf_counter_ns() < end:
                    next(work)
            else:
                for _ in range(items):
                    next(work)
        except StopIteration as done:
            return cast("R", done.value)
        await asyncio.sleep(0)


class TaskSlices:
    """The slices of a coroutine that awaits other things between its items.

    `await slices.item()` after each item lets other tasks run, and the loop rest, when the slice is over.
    """

    __slots__ = ("_end", "_left", "_slice_ns")

    def __init__(self, slice_ns: int = SLICE_NS) -> None:
        self._slice_ns = slice_ns
        self._begin()

    def _begin(self) -> None:
        self._left = _items_per_slice()
        self._end = perf_counter_ns() + self._slice_ns

    async def item(self) -> None:
        """Note that an item is done. The next one may come in a later turn of the loop."""
        if self._left is None:
            is_over = perf_counter_ns() >= self._end
        else:
            self._left -= 1
            is_over = self._left <= 0
        if is_over:
            await asyncio.sleep(REST_SECONDS)
            self._begin()


async def in_slices(items: Iterable[T]) -> AsyncIterator[list[T]]:
    """The items in lists of limited length; the loop rests after each list of that length."""
    rest: Iterator[T] = iter(items)
    while some := list(islice(rest, ITEMS_PER_TURN)):
        yield some
        if len(some) == ITEMS_PER_TURN:
            await asyncio.sleep(REST_SECONDS)


async def in_turns(work: Slices[R]) -> R:
    """`finished` by a count of slices instead of by time; the loop rests after each count."""
    while True:
        try:
            for _ in range(ITEMS_PER_TURN):
                next(work)
        except StopIteration as done:
            return cast("R", done.value)
        await asyncio.sleep(REST_SECONDS)


class SliceRunner:
    def __init__(self) -> None:
        self._waiting: deque[Slices[None]] = deque()
        self._idle = asyncio.Event()
        self._idle.set()

    def start(self, work: Slices[None]) -> None:
        """Do the first slice now and the rest in later turns of the loop."""
        if _is_done(work):
            return
        self._waiting.append(work)
        if len(self._waiting) == 1:
            self._idle.clear()
            # Requests are handled before the callbacks of the same turn: the next slice comes a turn later.
            loop = asyncio.get_running_loop()
            loop.call_soon(loop.call_soon, self._go_on)

    def _go_on(self) -> None:
        if _is_done(self._waiting[0]):
            self._waiting.popleft()
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._go_on)
        else:
            self._idle.set()

    async def drain(self) -> None:
        """Wait until all work is done."""
        await self._idle.wait()


def _is_done(work: Slices[None]) -> bool:
    """Do one slice of the work, which raises nothing. True if the work is done."""
    items = _items_per_slice()
    if items is not None:
        return sum(1 for _ in islice(work, items)) < items
    end = perf_counter_ns() + SLICE_NS
    return all(perf_counter_ns() < end for _ in work)
