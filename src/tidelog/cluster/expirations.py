"""Expirations: the time-outs of the delayed operations of a purgatory (Kafka's timing wheel).

There is one queue and one timer for each length of a wait: operations that wait equally long time out in the
order in which they came. Nearly all operations complete before their time-out, so a wait costs a place in a
queue instead of a timer of the loop.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from tidelog.clock import Scheduler, TimerHandle

if TYPE_CHECKING:
    from tidelog.cluster.purgatory import DelayedOperation

EARLY_SECONDS: Final = 1e-6
"""A timer of the loop may run so much before its time."""

FEW: Final = 128


class Expiration:
    """The time-out of one operation."""

    __slots__ = ("_at", "operation")

    def __init__(self, operation: DelayedOperation, at: float) -> None:
        self.operation: DelayedOperation | None = operation
        self._at = at

    def cancel(self) -> None:
        self.operation = None  # its request must not stay in memory

    def remaining(self, now: float) -> float:
        return self._at - now


class _Queue:
    __slots__ = ("entries", "limit", "timer")

    def __init__(self, timer: TimerHandle) -> None:
        self.entries: deque[Expiration] = deque()
        self.limit = FEW  # with so many entries, those of completed operations are removed
        self.timer = timer

    def remove_completed(self) -> None:
        self.entries = deque(entry for entry in self.entries if entry.operation is not None)
        self.limit = max(FEW, 2 * len(self.entries))


class Expirations:
    def __init__(self, scheduler: Scheduler, expire: Callable[[DelayedOperation], None]) -> None:
        """`expire` is called with each operation whose time is over."""
        self._scheduler = scheduler
        self._clock = scheduler.clock
        self._expire = expire
        self._queues: dict[int, _Queue] = {}  # by the length of the wait; each has a timer of the loop
        self._limit = FEW  # with so many queues, the ones without a waiting operation are removed

    def add(self, operation: DelayedOperation, wait_ms: int) -> Expiration:
        seconds = wait_ms / 1000
        expiration = Expiration(operation, self._clock.monotonic() + seconds)
        queue = self._queues.get(wait_ms)
        if queue is None:
            if len(self._queues) >= self._limit:
                self._remove_completed()
            queue = self._queues[wait_ms] = _Queue(self._schedule(wait_ms, seconds))
        else:
            entries = queue.entries
            while entries and entries[0].operation is None:
                entries.popleft()
            if len(entries) >= queue.limit:
                queue.remove_completed()
        queue.entries.append(expiration)
        return expiration

    def _schedule(self, wait_ms: int, seconds: float) -> TimerHandle:
        return self._scheduler.schedule(seconds, partial(self._due, wait_ms))

    def _remove_completed(self) -> None:
        """Remove the queues of completed operations: a client may choose another wait for each request."""
        for wait_ms, queue in list(self._queues.items()):
            queue.remove_completed()
            if not queue.entries:
                queue.timer.cancel()
                del self._queues[wait_ms]
        self._limit = max(FEW, 2 * len(self._queues))

    def _due(self, wait_ms: int) -> None:
        """The first operation of a queue may be over."""
        queue = self._queues[wait_ms]
        entries, now = queue.entries, self._clock.monotonic()
        over: list[Expiration] = []
        while entries and (entries[0].operation is None or entries[0].remaining(now) <= EARLY_SECONDS):
            over.append(entries.popleft())
        if entries:
            queue.timer = self._schedule(wait_ms, entries[0].remaining(now))
        else:
            del self._queues[wait_ms]
        for expiration in over:  # one that ends may complete others, and add some
            if expiration.operation is not None:
                self._expire(expiration.operation)
