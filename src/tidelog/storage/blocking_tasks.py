"""BlockingTasks: runs work that waits for the disk off the loop."""

from __future__ import annotations

from collections.abc import Callable

from tidelog.clock import Scheduler

Done = Callable[[None, BaseException | None], None]


def run_here(work: Callable[[], None], done: Done) -> None:
    """Call `work`, then `done(None, error)`, without a scheduler."""
    try:
        work()
    except OSError as error:
        done(None, error)
    else:
        done(None, None)


class BlockingTasks:
    """Runs work through the scheduler. Without a scheduler, or after `close`, it runs at once."""

    __slots__ = ("_closed", "_scheduler")

    def __init__(self, scheduler: Scheduler | None) -> None:
        self._scheduler = scheduler
        self._closed = False

    def run(self, work: Callable[[], None], done: Done) -> None:
        """Call `work`, then `done(None, error)` on the loop."""
        if self._scheduler is not None and not self._closed:
            self._scheduler.run_blocking(work, done)
        else:
            run_here(work, done)

    def close(self) -> None:
        self._closed = True
