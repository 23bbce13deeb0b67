"""What is done to logs regularly, by the scheduler: retention, flushes, checkpoints, producers that expire.

Nothing of it keeps the loop for more than a few milliseconds at a time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tidelog.errors import KafkaError, KafkaStorageError
from tidelog.partitions import PartitionKey
from tidelog.storage.checkpointing import CheckpointedLogs
from tidelog.storage.flush import FlushJob
from tidelog.storage.folders import LogFolder
from tidelog.storage.log import Log
from tidelog.storage.reads import CACHED, WAITING, CachedReads, NotCached, Reads, bring_in
from tidelog.storage.segmented import SegmentedLog

logger = logging.getLogger("tidelog.storage")

RETENTION_TURN_SECONDS = 0.003
"""What one turn of retention may keep the loop from its requests."""


@dataclass(slots=True)
class Intervals:
    """How often the regular work is done, in milliseconds; the names are those of the broker's settings."""

    log_retention_check_interval_ms: int = 300_000
    log_flush_scheduler_interval_ms: int = (1 << 63) - 1
    log_flush_offset_checkpoint_interval_ms: int = 60_000
    log_flush_start_offset_checkpoint_interval_ms: int = 60_000
    replica_high_watermark_checkpoint_interval_ms: int = 5_000
    producer_id_expiration_check_interval_ms: int = 600_000


class KeptLogs(CheckpointedLogs):
    def _add(self, log: Log, folder: LogFolder) -> None:
        key = (log.topic, log.partition)
        log.remover = self._remover
        log.listen(self)
        self.logs[key] = log
        self._folder_of[key] = folder

    def log_flushed(self, job: FlushJob) -> None:
        if self.on_flush is not None:
            self.on_flush(job)

    # -- regular work

    def start(self, intervals: Intervals) -> None:
        """Do the regular work from now on, by the scheduler."""
        while self._leftovers:
            self._remover.remove_tree_later(self._leftovers.pop(), self.defaults.file_delete_delay_ms)
        self._every("retention", intervals.log_retention_check_interval_ms, self._retain_in_turns)
        self._every("flush", intervals.log_flush_scheduler_interval_ms, self.run_flush)
        self._every(
            "recovery points",
            intervals.log_flush_offset_checkpoint_interval_ms,
            self.checkpoint_recovery_points,
        )
        self._every(
            "log starts",
            intervals.log_flush_start_offset_checkpoint_interval_ms,
            self.checkpoint_log_start_offsets,
        )
        self._every(
            "high watermarks",
            intervals.replica_high_watermark_checkpoint_interval_ms,
            self.checkpoint_high_watermarks,
        )
        self._every("producers", intervals.producer_id_expiration_check_interval_ms, self.expire_producers)

    def _every(self, name: str, interval_ms: int, work: Callable[[], object]) -> None:
        scheduler = self._scheduler
        if scheduler is None or self._closed or interval_ms > 1 << 40:
            return

        def turn() -> None:
            if not self._closed:
                try:
                    work()
                except KafkaError as error:
                    logger.error("%s: %s", name, error)
                except Exception:
                    logger.exception("%s could not be looked after this time", name)
                self._every(name, interval_ms, work)

        self._timers[name] = scheduler.schedule(interval_ms / 1000, turn)

    def run_retention(self) -> int:
        """Drop what retention no longer wants; how many segments went."""
        return sum(self._retain(key, log, WAITING) for key, log in list(self.logs.items()))

    def _retain_in_turns(self) -> None:
        """The same, a few milliseconds at a time: when segments go from every log, their renames add up."""
        if not self._retaining:
            self._retain_on(iter(list(self.logs.items())))

    def _retain_on(self, logs: Iterator[tuple[PartitionKey, Log]]) -> None:
        assert self._scheduler is not None
        self._retaining = False
        until = self._clock.monotonic() + RETENTION_TURN_SECONDS
        for key, log in logs:
            if self._closed:
                return
            if self.logs.get(key) is log:
                self._retain(key, log, CACHED)
            if self._clock.monotonic() > until:
                self._retaining = True
                self._scheduler.schedule(0.0, lambda: self._retain_on(logs))
                return

    def _retain_again(self, key: PartitionKey, log: Log, reads: CachedReads) -> None:
        if not self._closed and self.logs.get(key) is log:
            self._retain(key, log, reads)

    def _retain(self, key: PartitionKey, log: Log, reads: Reads) -> int:
        future = self.futures.get(key)
        if future is not None and future.arriving:
            return 0  # its last bytes are being copied: next time
        try:
            return log.delete_old_segments(self._clock.ms(), reads)
        except NotCached as cold:
            assert self._scheduler is not None
            assert isinstance(reads, CachedReads)
            bring_in(self._scheduler, cold, reads, lambda reads: self._retain_again(key, log, reads))
        except KafkaStorageError as error:
            logger.error("retention of %s-%d: %s", log.topic, log.partition, error)
        except OSError as error:
            self.storage_failed(log, error)
        return 0

    def run_flush(self) -> None:
        """Flush logs whose flush.ms has passed since their last flush."""
        now_ms = self._clock.ms()
        for log in list(self.logs.values()):
            if log.recovery_point < log.log_end_offset and now_ms - log.last_flush_ms >= log.config.flush_ms:
                self.flush_later(log)

    def expire_producers(self) -> None:
        now_ms = self._clock.ms()
        for log in self.logs.values():
            log.remove_expired_producers(now_ms)

    def segment_rolled(self, log: SegmentedLog) -> None:
        """Flush what the active segment follows. Rolls that come while a flush runs share the next one."""
        key = (log.topic, log.partition)
        if key in self._flushing:
            self._rolled.add(key)
        else:
            self.flush_later(log, log.active_segment.base_offset)

    def flush_later(self, log: SegmentedLog, up_to: int | None = None) -> None:
        """Sync what the log has now, off the loop; one flush a log at a time."""
        key = (log.topic, log.partition)
        if self._scheduler is None or key in self._flushing or log.closed:
            return
        try:
            job = log.begin_flush(up_to)
        except OSError as error:
            self.storage_failed(log, error)
            return
        if job is None:
            return
        self._flushing.add(key)

        def done(_: None, error: BaseException | None) -> None:
            self._flushing.discard(key)
            has_rolled = key in self._rolled
            self._rolled.discard(key)
            if isinstance(error, OSError):
                self.storage_failed(log, error)
            elif error is not None:
                raise error
            else:
                log.end_flush(job, self._clock.ms())
                current = self.logs.get(key)
                if has_rolled and current is not None and not self._closed:
                    self.segment_rolled(current)

        self._scheduler.run_blocking(job.run, done)
