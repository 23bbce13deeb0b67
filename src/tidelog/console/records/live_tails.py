"""LiveTails: browsers that follow the same records share one reading, decoding and rendering of them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Hashable
from dataclasses import dataclass, field

from tidelog.console.records.browser import TailEvent
from tidelog.console.records.log_record import ShownRecord

MOST_WAITING = 5
"""Events that wait for a slow browser, about a second. It misses the oldest of more."""

Render = Callable[[list[ShownRecord]], bytes]


@dataclass(slots=True)
class _Rendering:
    text: bytes | None = None


@dataclass(slots=True, frozen=True)
class LiveEvent:
    """New records for all followers of a tail, rendered when the first of them asks."""

    found: TailEvent
    rendering: _Rendering = field(default_factory=_Rendering)

    def rendered(self, render: Render) -> bytes:
        """What the first caller's `render` makes of the records."""
        if self.rendering.text is None:
            self.rendering.text = render(self.found.records)
        return self.rendering.text


@dataclass(slots=True)
class _Follower:
    waiting: deque[LiveEvent] = field(default_factory=deque)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)

    def offer(self, event: LiveEvent) -> None:
        self.waiting.append(event)
        if len(self.waiting) > MOST_WAITING:
            self._miss(self.waiting.popleft().found)
        self.arrived.set()

    def _miss(self, missed: TailEvent) -> None:
        """Leave an event out. The next one counts its records as skipped."""
        after = self.waiting[0]
        skipped = missed.skipped + len(missed.records) + after.found.skipped
        found = TailEvent(after.found.records, missed.read + after.found.read, skipped)
        self.waiting[0] = LiveEvent(found, after.rendering)


class _SharedTail:
    """One tail, read by a task while it has followers."""

    def __init__(self, events: AsyncIterator[TailEvent]) -> None:
        self.followers: list[_Follower] = []
        self.task = asyncio.create_task(self._read(events))
        self.task.add_done_callback(_take_error)

    async def _read(self, events: AsyncIterator[TailEvent]) -> None:
        try:
            async for found in events:
                event = LiveEvent(found)
                for follower in self.followers:
                    follower.offer(event)
        finally:
            for follower in self.followers:
                follower.arrived.set()


class LiveTails:
    """The tails of one cluster as one principal sees it, by what they show."""

    def __init__(self) -> None:
        self._tails: dict[Hashable, _SharedTail] = {}

    async def follow(
        self, key: Hashable, begin: Callable[[], AsyncIterator[TailEvent]]
    ) -> AsyncIterator[LiveEvent]:
        """The events of the tail with this key from now on. `begin` makes it if nobody follows it yet.

        Raises what reading the tail raised.
        """
        tail = self._tails.get(key)
        if tail is None or tail.task.done():
            tail = self._tails[key] = _SharedTail(begin())
        follower = _Follower()
        tail.followers.append(follower)
        try:
            while True:
                await follower.arrived.wait()
                follower.arrived.clear()
                while follower.waiting:
                    yield follower.waiting.popleft()
                if tail.task.done():
                    if not tail.task.cancelled():
                        tail.task.result()
                    return
        finally:
            self._leave(key, tail, follower)

    def _leave(self, key: Hashable, tail: _SharedTail, follower: _Follower) -> None:
        """Take a follower away; the last one ends the tail."""
        tail.followers.remove(follower)
        if not tail.followers:
            tail.task.cancel()
            if self._tails.get(key) is tail:
                del self._tails[key]

    @property
    def count(self) -> int:
        """How many tails are read."""
        return len(self._tails)

    async def close(self) -> None:
        """End all tails; their followers get no more events."""
        tasks = [tail.task for tail in self._tails.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _take_error(task: asyncio.Task[None]) -> None:
    """Take the error of a tail whose followers left before they saw it."""
    if not task.cancelled():
        task.exception()
