"""Clocks and schedulers, real and simulated.

Code that waits (retention, purgatories, sessions, idle connections) takes a Scheduler. So a test can simulate
days of a broker in milliseconds, and a seed replays the same order.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable
from typing import Protocol, TypeVar

T = TypeVar("T")


class Clock(Protocol):
    def ms(self) -> int:
        """Milliseconds since 1970 by the wall clock, as in timestamps of records."""

    def monotonic(self) -> float:
        """Seconds of a clock that never goes backwards, for durations."""


class SystemClock:
    __slots__ = ()

    def ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()


class ManualClock:
    """A clock that stands still until a test moves it."""

    __slots__ = ("_monotonic", "_ms")

    def __init__(self, ms: int = 1_700_000_000_000) -> None:
        self._ms = ms
        self._monotonic = 0.0

    def ms(self) -> int:
        return self._ms

    def monotonic(self) -> float:
        return self._monotonic

    def advance(self, seconds: float) -> None:
        self._monotonic += seconds
        self._ms += round(seconds * 1000)

    def jump_to(self, ms: int) -> None:
        """Set the wall clock alone, as an operator or NTP does."""
        self._ms = ms


class TimerHandle(Protocol):
    def cancel(self) -> None: ...


class Scheduler(Protocol):
    """Runs callbacks later and work on other threads. All callbacks run on the thread of the broker."""

    @property
    def clock(self) -> Clock: ...

    def call_soon_in_turn(self, callback: Callable[[], None]) -> None:
        """Run the callback in this turn of the loop, after the current callback."""

    def schedule(self, delay_seconds: float, callback: Callable[[], None]) -> TimerHandle: ...

    def run_blocking(
        self,
        work: Callable[[], T],
        done: Callable[[T | None, BaseException | None], None],
    ) -> None:
        """Run blocking `work` on another thread, then `done(result, error)` on the broker's thread."""

    def run_reading(
        self,
        work: Callable[[], T],
        done: Callable[[T | None, BaseException | None], None],
    ) -> None:
        """`run_blocking` for reads from the disk, on separate threads: no write or flush waits for a read."""

    def run_in_background(
        self,
        work: Callable[[], T],
        done: Callable[[T | None, BaseException | None], None],
    ) -> None:
        """`run_blocking` for work without a waiting client: one at a time, after all other work."""


class _SimulatedTimer:
    __slots__ = ("callback", "due", "order")

    def __init__(self, due: float, order: int, callback: Callable[[], None] | None) -> None:
        self.due = due
        self.order = order
        self.callback = callback

    def __lt__(self, other: _SimulatedTimer) -> bool:
        return (self.due, self.order) < (other.due, other.order)

    def cancel(self) -> None:
        self.callback = None


class SimulatedScheduler:
    """A scheduler whose time passes only in `advance`; blocking work runs at once, in order."""

    def __init__(self, clock: ManualClock | None = None) -> None:
        self._clock = clock or ManualClock()
        self._timers: list[_SimulatedTimer] = []
        self._order = 0

    @property
    def clock(self) -> ManualClock:
        return self._clock

    def schedule(self, delay_seconds: float, callback: Callable[[], None]) -> TimerHandle:
        self._order += 1
        timer = _SimulatedTimer(self._clock.monotonic() + max(0.0, delay_seconds), self._order, callback)
        heapq.heappush(self._timers, timer)
        return timer

    def call_soon_in_turn(self, callback: Callable[[], None]) -> None:
        self.schedule(0.0, callback)

    def run_blocking(
        self,
        work: Callable[[], T],
        done: Callable[[T | None, BaseException | None], None],
    ) -> None:
        def run() -> None:
            try:
                result = work()
            except Exception as error:
                done(None, error)
            else:
                done(result, None)

        self.schedule(0.0, run)

    run_reading = run_in_background = run_blocking

    def advance(self, seconds: float) -> None:
        """Let `seconds` pass, and run the due callbacks in the order of their times."""
        until = self._clock.monotonic() + seconds
        while self._timers and self._timers[0].due <= until:
            timer = heapq.heappop(self._timers)
            if timer.callback is None:
                continue
            self._clock.advance(max(0.0, timer.due - self._clock.monotonic()))
            timer.callback()
        self._clock.advance(max(0.0, until - self._clock.monotonic()))

    def run_pending(self) -> None:
        self.advance(0.0)
