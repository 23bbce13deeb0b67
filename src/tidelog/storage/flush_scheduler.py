"""FlushScheduler: flushes logs off the loop, when flush.ms has passed or a segment is complete."""

from __future__ import annotations

from collections.abc import Callable

from tidelog.clock import Clock, Scheduler
from tidelog.partitions import PartitionKey
from tidelog.storage.current_logs import CurrentLogs
from tidelog.storage.log import Log


class FlushScheduler:
    """Runs one flush of a log at a time. Without a scheduler nothing is flushed.

    `on_error` is called with a log and the error of its disk.
    """

    __slots__ = ("_clock", "_closed", "_flushing", "_logs", "_on_error", "_rolled", "_scheduler")

    def __init__(
        self,
        logs: CurrentLogs,
        clock: Clock,
        scheduler: Scheduler | None,
        on_error: Callable[[Log, OSError], None],
    ) -> None:
        self._logs = logs
        self._clock = clock
        self._scheduler = scheduler
        self._on_error = on_error
        self._flushing: set[PartitionKey] = set()
        self._rolled: set[PartitionKey] = set()  # logs that rolled during their flush
        self._closed = False

    def close(self) -> None:
        self._closed = True

    def is_flushing(self, key: PartitionKey) -> bool:
        return key in self._flushing

    def flush_due(self) -> None:
        """Flush the logs whose flush.ms has passed since their last flush."""
        now_ms = self._clock.ms()
        for log in list(self._logs.values()):
            if log.recovery_point < log.log_end_offset and now_ms - log.last_flush_ms >= log.config.flush_ms:
                self.flush(log)

    def flush_completed(self, log: Log) -> None:
        """Flush everything before the active segment. Rolls during a flush share the next one."""
        key = (log.topic, log.partition)
        if key in self._flushing:
            self._rolled.add(key)
        else:
            self.flush(log, log.active_segment.base_offset)

    def flush(self, log: Log, up_to: int | None = None) -> None:
        """Begin to flush a log up to an offset, or all of it."""
        key = (log.topic, log.partition)
        if self._scheduler is None or key in self._flushing or log.closed:
            return
        try:
            job = log.begin_flush(up_to)
        except OSError as error:
            self._on_error(log, error)
            return
        if job is None:
            return
        self._flushing.add(key)

        def done(_: None, error: BaseException | None) -> None:
            self._flushing.discard(key)
            has_rolled = key in self._rolled
            self._rolled.discard(key)
            if isinstance(error, OSError):
                self._on_error(log, error)
            elif error is not None:
                raise error
            else:
                log.end_flush(job, self._clock.ms())
                current = self._logs.get(key)
                if has_rolled and current is not None and not self._closed:
                    self.flush_completed(current)

        self._scheduler.run_blocking(job.run, done)
