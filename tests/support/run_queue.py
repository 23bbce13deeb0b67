"""Limits of time that do not depend on how busy the machine is.

A process that is ready to run and has no core waits in the run queue; Linux counts that time for each thread
(`/proc/PID/task/TID/schedstat`). A limit that grows by it is one of the processes, not of the machine.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path

LARGEST_SHARE = 0.75
"""Processes may wait at the same time: at most this part of the time counts as time in the run queue."""


class RunQueue:
    """The seconds that the threads of some processes have waited for a core, from its making on."""

    def __init__(self, pids: Iterable[int]) -> None:
        self._pids = list(pids)
        self._waited: dict[Path, int] = {}  # ns, also of threads that have ended
        self._before = self._total()

    def _total(self) -> int:
        for pid in self._pids:
            for task in Path(f"/proc/{pid}/task").glob("*/schedstat"):
                try:
                    self._waited[task] = int(task.read_text().split()[1])
                except (OSError, IndexError):
                    continue  # the thread has just ended
        return sum(self._waited.values())

    def seconds(self) -> float:
        return (self._total() - self._before) / 1e9


def within_own_time(
    probe: Callable[[], object], what: str, seconds: float, pids: Iterable[int], interval: float = 0.02
) -> float:
    """Wait until `probe` is true; returns the seconds that it took without those in the run queue.

    Raises an AssertionError that names `what` if that is longer than `seconds`. The run queue is that of
    the processes `pids` and of this one.
    """
    queue = RunQueue([os.getpid(), *pids])
    began = time.monotonic()
    while True:
        value = probe()
        elapsed = time.monotonic() - began
        taken = elapsed - min(queue.seconds(), LARGEST_SHARE * elapsed)
        if value:
            return taken
        if taken >= seconds:
            raise AssertionError(
                f"{what}: not within {seconds} s and {elapsed - taken:.1f} s in the run queue "
                f"(last seen: {value!r})"
            )
        time.sleep(interval)
