"""Expirations: when the delayed operations of a purgatory time out, with one timer for each length.

Nearly all operations complete before their time-out, and a follower's fetches all wait equally long: they
are in the order of their ends already. So a wait costs a place in a queue, not a timer of the loop.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from tidelog.clock import Scheduler

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

    def left(self, now: float) -> float:
        return self._at - now


class _Queue:
    __slots__ = ("entries", "limit")

    def __init__(self) -> None:
        self.entries: deque[Expiration] = deque()
        self.limit = FEW  # with so many entries, those of completed operations are removed


class Expirations:
    def __init__(self, scheduler: Scheduler, expire: Callable[[DelayedOperation], None]) -> None:
        """`expire` is called with each operation whose time is over."""
        self._scheduler = scheduler
        self._clock = scheduler.clock
        self._expire = expire
        self._queues: dict[int, _Queue] = {}  # by the length of the wait; each has a timer of the loop

    def add(self, operation: DelayedOperation, wait_ms: int) -> Expiration:
        seconds = wait_ms / 1000
        expiration = Expiration(operation, self._clock.monotonic() + seconds)
        queue = self._queues.get(wait_ms)
        if queue is None:
            queue = self._queues[wait_ms] = _Queue()
            self._scheduler.schedule(seconds, partial(self._due, wait_ms))
        else:
            entries = queue.entries
            while entries and entries[0].operation is None:
                entries.popleft()
            if len(entries) >= queue.limit:
                queue.entries = deque(entry for entry in entries if entry.operation is not None)
                queue.limit = max(FEW, 2 * len(queue.entries))
        queue.entries.append(expiration)
        return expiration

    def _due(self, wait_ms: int) -> None:
        """The first operation of a queue may be over."""
        queue = self._queues[wait_ms]
        now = self._clock.monotonic()
        for _ in range(len(queue.entries)):  # an operation that ends may add another one
            first = queue.entries[0]
            if first.operation is not None and first.left(now) > EARLY_SECONDS:
                break
            queue.entries.popleft()
            if first.operation is not None:
                self._expire(first.operation)
        if queue.entries:
            self._scheduler.schedule(max(0.0, queue.entries[0].left(now)), partial(self._due, wait_ms))
        else:
            del self._queues[wait_ms]
