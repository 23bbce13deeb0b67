"""LogRetention: deletes the segments that are too old, too many or below the log start offset.

On the loop it yields to other work every few milliseconds: the work for many logs adds up.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

from tidelog.clock import Clock, Scheduler
from tidelog.errors import KafkaStorageError
from tidelog.partitions import PartitionKey
from tidelog.storage.current_logs import CurrentLogs
from tidelog.storage.future_replicas import FutureReplicas
from tidelog.storage.log import Log
from tidelog.storage.reads import CACHED, WAITING, CachedReads, NotCached, Reads, bring_in

logger = logging.getLogger("tidelog.storage")

TURN_SECONDS = 0.003
"""How long retention may keep the loop from requests at a time."""


class LogRetention:
    """`on_error` is called when the disk refuses to delete segments of a log."""

    __slots__ = ("_clock", "_closed", "_futures", "_is_running", "_logs", "_on_error", "_scheduler")

    def __init__(
        self,
        logs: CurrentLogs,
        futures: FutureReplicas,
        clock: Clock,
        scheduler: Scheduler | None,
        on_error: Callable[[Log, OSError], None],
    ) -> None:
        self._logs = logs
        self._futures = futures
        self._clock = clock
        self._scheduler = scheduler
        self._on_error = on_error
        self._is_running = False  # a run in turns has logs left
        self._closed = False

    def close(self) -> None:
        self._closed = True

    def run(self) -> int:
        """Check all logs at once, waiting for the disk; returns the number of deleted segments."""
        return sum(self._delete_old_segments(key, log, WAITING) for key, log in list(self._logs.items()))

    def run_in_turns(self) -> None:
        """Check all logs in turns of the loop. Does nothing while an earlier run goes on."""
        if not self._is_running:
            self._continue(iter(list(self._logs.items())))

    def _continue(self, logs: Iterator[tuple[PartitionKey, Log]]) -> None:
        assert self._scheduler is not None
        self._is_running = False
        until = self._clock.monotonic() + TURN_SECONDS
        for key, log in logs:
            if self._closed:
                return
            self._delete_if_current(key, log, CACHED)
            if self._clock.monotonic() > until:
                self._is_running = True
                self._scheduler.schedule(0.0, lambda: self._continue(logs))
                return

    def _delete_if_current(self, key: PartitionKey, log: Log, reads: CachedReads) -> None:
        if not self._closed and self._logs.get(key) is log:
            self._delete_old_segments(key, log, reads)

    def _delete_old_segments(self, key: PartitionKey, log: Log, reads: Reads) -> int:
        future = self._futures.get(key)
        if future is not None and future.is_arriving:
            return 0  # its last bytes are being copied: the next run takes it
        try:
            return log.delete_old_segments(self._clock.ms(), reads)
        except NotCached as cold:
            assert self._scheduler is not None
            assert isinstance(reads, CachedReads)
            bring_in(self._scheduler, cold, reads, lambda reads: self._delete_if_current(key, log, reads))
        except KafkaStorageError as error:
            logger.error("retention of %s-%d: %s", log.topic, log.partition, error)
        except OSError as error:
            self._on_error(log, error)
        return 0
