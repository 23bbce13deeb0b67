"""Time as an argument: clocks and schedulers, real and simulated.

Everything that waits (retention, purgatories, sessions, idle connections) takes a Scheduler,
so that a test can run days of a broker's life in milliseconds, in an order that a seed replays.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable
from typing import Protocol, TypeVar

T = TypeVar("T")


class Clock(Protocol):
    def ms(self) -> int:
        """Wall-clock milliseconds since 1970, as record timestamps count them."""

    def monotonic(self) -> float:
        """Seconds that never run backwards, for measuring how long something took."""


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
        """Move the wall clock alone, as an operator or NTP does."""
        self._ms = ms


class TimerHandle(Protocol):
    def cancel(self) -> None: ...


class Scheduler(Protocol):
    """Where work that is not done now is put. All callbacks run on the thread that owns the broker."""

    @property
    def clock(self) -> Clock: ...

    def call_soon_in_turn(self, callback: Callable[[], None]) -> None:
        """Run after the present callback, before anything is waited for."""

    def schedule(self, delay_seconds: float, callback: Callable[[], None]) -> TimerHandle: ...

    def run_blocking(
        self,
        work: Callable[[], T],
        done: Callable[[T | None, BaseException | None], None],
    ) -> None:
        """Run `work` off the loop (it blocks or releases the GIL), then `done(result, error)` on it."""

    def run_reading(
        self,
        work: Callable[[], T],
        done: Callable[[T | None, BaseException | None], None],
    ) -> None:
        """The same for reads from the disk, on threads of their own: no write or sync waits behind them."""

    def run_in_background(
        self,
        work: Callable[[], T],
        done: Callable[[T | None, BaseException | None], None],
    ) -> None:
        """The same for work that nobody waits for: one at a time, and behind everything else."""


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
        """Let `seconds` pass, running what falls due on the way in the order of its time."""
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
