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

    def begin(self) -> list[FlushWaiter]:
        """The appends that a flush beginning now includes."""
        self.running, self.next = self.next, []
        return self.running

    def end(self) -> None:
        self.running = None

    def flushed_up_to(self, log_end_offset: int) -> int:
        """The offset where readers stop: of the first append that waits for its flush, or the log end."""
        for waiters in (self.running, self.next):
            if waiters:
                return min(log_end_offset, waiters[0][0])
        return log_end_offset
