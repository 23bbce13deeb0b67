"""PeriodicTasks: repeats tasks such as retention and checkpoints (Kafka's KafkaScheduler)."""

from __future__ import annotations

import logging
from collections.abc import Callable

from tidelog.clock import Scheduler, TimerHandle
from tidelog.errors import KafkaError

logger = logging.getLogger("tidelog.storage")

NEVER_MS = 1 << 40  # a longer interval means never, as the default of log.flush.scheduler.interval.ms does


class PeriodicTasks:
    """A task that fails is logged and runs again after its interval. Without a scheduler nothing runs."""

    __slots__ = ("_closed", "_scheduler", "_timers")

    def __init__(self, scheduler: Scheduler | None) -> None:
        self._scheduler = scheduler
        self._timers: dict[str, TimerHandle] = {}
        self._closed = False

    def every(self, interval_ms: int, name: str, task: Callable[[], object]) -> None:
        """Run `task` after each interval. `name` is unique, and appears in log lines."""
        scheduler = self._scheduler
        if scheduler is None or self._closed or interval_ms > NEVER_MS:
            return

        def run() -> None:
            if self._closed:
                return
            try:
                task()
            except KafkaError as error:
                logger.error("%s: %s", name, error)
            except Exception:
                logger.exception("%s failed and runs again in %d ms", name, interval_ms)
            self.every(interval_ms, name, task)

        self._timers[name] = scheduler.schedule(interval_ms / 1000, run)

    def close(self) -> None:
        self._closed = True
        for timer in self._timers.values():
            timer.cancel()
