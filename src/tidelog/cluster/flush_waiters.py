"""FlushWaiters: the appends of one partition that are answered after a flush (flush.messages)."""

from __future__ import annotations

from collections.abc import Callable

FlushWaiter = tuple[int, Callable[[BaseException | None], None]]  # the append's base offset, the callback


class FlushWaiters:
    __slots__ = ("next", "running")

    def __init__(self) -> None:
        # Appends that wait for the running flush (None if there is none), and for the next one.
        self.running: list[FlushWaiter] | None = None
        self.next: list[FlushWaiter] = []

    def add(self, base_offset: int, done: Callable[[BaseException | None], None]) -> None:
        self.next.append((base_offset, done))

    def hold_back(self, offset: int) -> None:
        """Let readers stop at `offset`, or before it, until the next flush has ended."""
        self.next.insert(0, (offset, _nobody_waits))

    def begin(self) -> list[FlushWaiter]:
        """Begin a flush; returns the appends that it includes."""
        self.running, self.next = self.next, []
        return self.running

    def end(self) -> None:
        self.running = None

    def flushed_up_to(self, log_end_offset: int) -> int:
        """The offset where readers stop: the first append that waits for a flush, or the log end offset."""
        for waiters in (self.running, self.next):
            if waiters:
                log_end_offset = min(log_end_offset, waiters[0][0])
        return log_end_offset


def _nobody_waits(_: BaseException | None) -> None:
    """The callback of `hold_back`."""
