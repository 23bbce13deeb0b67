"""LogCleaner: repeatedly compacts the log with the greatest dirty ratio.

A pass runs in short steps on the scheduler's threads; the loop swaps the cleaned segments in. The long parts
of a step release the GIL, and the throttle uses a timer instead of a waiting thread. A log that cannot be
cleaned is marked as uncleanable. If a log changes during its pass, the pass is aborted, and a later one
cleans the log.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from tidelog.clock import Scheduler, TimerHandle
from tidelog.errors import KafkaError, KafkaStorageError
from tidelog.partitions import PartitionKey
from tidelog.storage.checkpoints import CLEANER_OFFSETS
from tidelog.storage.cleaner.policy import CleanableRange, cleanable_range, dirtiest
from tidelog.storage.flush_job import FlushJob
from tidelog.storage.log import Log
from tidelog.storage.log_dir import LogDir
from tidelog.storage.log_manager import LogManager
from tidelog.storage.log_manager_listener import LogManagerListener
from tidelog.storage.reads import CACHED, WAITING, CachedReads, NotCached, Reads, bring_in

if TYPE_CHECKING:
    from tidelog.storage.cleaner.cleaning import CleanedGroup, CleanerStats, Cleaning, Event

logger = logging.getLogger("tidelog.storage.cleaner")

STEP_BYTES = 4 << 20
"""Bytes read and written in one step, which takes some tens of milliseconds."""
TURN_SECONDS = 0.002
"""How long the check of the logs may keep the loop from requests at a time."""


@dataclass(slots=True)
class CleanerSettings:
    """The broker's settings `log.cleaner.*`. LogConfig has those that topics can override."""

    enable: bool = True
    threads: int = 1
    dedupe_buffer_size: int = 134_217_728
    io_buffer_size: int = 524_288
    io_buffer_load_factor: float = 0.9
    io_max_bytes_per_second: float = 1.7976931348623157e308
    backoff_ms: int = 15_000


class Throttle:
    """Limits the bytes a second of all passes together."""

    __slots__ = ("_free_at", "rate")

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self._free_at = 0.0

    def delay(self, count: int, now: float) -> float:
        """The seconds to wait after `count` bytes. A wait too short for a timer is added to the next one."""
        if self.rate <= 0:
            return 0.0
        self._free_at = max(now, self._free_at) + count / self.rate
        wait = self._free_at - now
        return wait if wait >= 0.001 else 0.0


class _Pass:
    """A running pass."""

    __slots__ = ("aborted", "cleaning", "key", "log", "log_dir", "started", "steps", "working")

    def __init__(
        self, key: PartitionKey, log: Log, log_dir: LogDir, cleaning: Cleaning, started: float
    ) -> None:
        self.key = key
        self.log = log
        self.log_dir = log_dir
        self.cleaning = cleaning
        self.working = False  # a step is running
        self.steps = cleaning.work()
        self.started = started
        self.aborted: str | None = None

    def step(self, limit: int) -> tuple[int, Event, bool]:
        """Run a step, off the loop; returns the bytes, an event for the loop, and whether the pass is
        complete.
        """
        done = 0
        for event in self.steps:
            if not isinstance(event, int):
                return done, event, False
            done += event
            if done >= limit:
                return done, 0, False
        return done, 0, True

    def stop(self) -> None:
        """Remove the cleaned files that were not swapped in. Runs off the loop."""
        self.steps.close()

    @property
    def is_stale(self) -> bool:
        """Whether the log was closed or truncated since the pass began."""
        return self.log.closed or self.log.generation != self.cleaning.plan.generation


@dataclass(slots=True)
class CleanerFigures:
    """Numbers for the metrics, of the last pass and the last check of the logs."""

    max_dirty_percent: int = 0
    max_compaction_delay_secs: int = 0
    recopy_percent: int = 0
    max_buffer_utilization_percent: int = 0
    max_clean_time_secs: int = 0
    last_run: float = 0.0
    passes: int = 0


class LogCleaner(LogManagerListener):
    def __init__(
        self,
        manager: LogManager,
        scheduler: Scheduler,
        settings: CleanerSettings | None = None,
        *,
        step_bytes: int = STEP_BYTES,
        hash_key: bytes | None = None,
    ) -> None:
        self.settings = settings or CleanerSettings()
        self.figures = CleanerFigures()
        self.uncleanable: dict[PartitionKey, str] = {}
        """Partitions that cannot be cleaned until the next start, and why."""
        self.checkpoints: dict[PartitionKey, int] = {}
        self._manager = manager
        self._scheduler = scheduler
        self._step_bytes = step_bytes
        self._hash_key = os.urandom(16) if hash_key is None else hash_key
        self._throttle = Throttle(self.settings.io_max_bytes_per_second)
        self._passes: dict[PartitionKey, _Pass] = {}
        self._paused: dict[PartitionKey, int] = {}
        self._timer: TimerHandle | None = None
        self._checking = False
        self._closed = False

    # -- life

    def start(self) -> None:
        """Read the cleaner checkpoints, and begin to clean after log.cleaner.backoff.ms.

        A log folder whose checkpoint cannot be read is taken offline.
        """
        log_dirs = self._manager.log_dirs
        for log_dir in list(log_dirs.online):
            try:
                self.checkpoints.update(log_dir.checkpoint(CLEANER_OFFSETS).read() or {})
            except OSError as error:
                log_dirs.take_offline(log_dir, error)
        self._manager.listen(self)
        self._later(self.settings.backoff_ms)

    def close(self) -> None:
        """Begin no more passes, and abort the running ones. The next start begins them again."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for key, running in list(self._passes.items()):
            self._abort(key, "the broker stops")
            if not running.working:
                self._give_up(running, "the broker stops")

    def update_settings(self, settings: CleanerSettings) -> None:
        """The throttle changes at once, other settings with the next pass."""
        self.settings = settings
        self._throttle.rate = settings.io_max_bytes_per_second
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._later(settings.backoff_ms)

    def _later(self, ms: int) -> None:
        if self._timer is None and not self._closed:
            self._timer = self._scheduler.schedule(ms / 1000, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self.clean_dirtiest()

    # -- partitions that must not be cleaned now

    def pause(self, key: PartitionKey) -> None:
        """Abort the pass over a partition, and begin no other until as many calls of `resume`."""
        self._paused[key] = self._paused.get(key, 0) + 1
        self._abort(key, "it is paused")

    def resume(self, key: PartitionKey) -> None:
        count = self._paused.pop(key, 0) - 1
        if count > 0:
            self._paused[key] = count

    def is_cleaning(self, key: PartitionKey) -> bool:
        return key in self._passes

    @property
    def is_busy(self) -> bool:
        return bool(self._passes) or self._checking

    def _abort(self, key: PartitionKey, reason: str) -> None:
        running = self._passes.get(key)
        if running is not None and running.aborted is None:
            running.aborted = reason

    def log_truncated(self, log: Log) -> None:
        """Lower the cleaner checkpoint to the log end: new records will have the offsets above it."""
        key = (log.topic, log.partition)
        if self.checkpoints.get(key, -1) > log.recovery_point:
            self.checkpoints[key] = log.recovery_point
            log_dir = self._manager.log_dir_of(key)
            if log_dir is not None:
                self._write_checkpoint(log_dir, lambda: None)

    def log_deleted(self, key: PartitionKey, log_dir: LogDir) -> None:
        self._abort(key, "it is deleted")
        self.uncleanable.pop(key, None)
        self._paused.pop(key, None)
        if self.checkpoints.pop(key, None) is not None and not self._closed:
            self._write_checkpoint(log_dir, lambda: None)

    def moved(self, key: PartitionKey, source: LogDir, target: LogDir) -> None:
        """Move the cleaner checkpoint of a partition to its new log folder."""
        if key in self.checkpoints and not self._closed:
            self._write_checkpoint(target, lambda: self._write_checkpoint(source, lambda: None))

    # -- choosing

    def range_of(self, log: Log, reads: Reads = WAITING) -> CleanableRange:
        return cleanable_range(
            log.segments,
            log.config,
            checkpoint=self.checkpoints.get((log.topic, log.partition)),
            log_start_offset=log.log_start_offset,
            log_end_offset=log.log_end_offset,
            last_stable_offset=log.last_stable_offset,
            now_ms=self._scheduler.clock.ms(),
            reads=reads,
        )

    def clean_dirtiest(self) -> None:
        """Check all compacted logs, then begin a pass over the dirtiest of the logs that are due."""
        if self._closed or self._checking or not self.settings.enable:
            return
        if len(self._passes) >= self.settings.threads:
            return
        self._checking = True
        logs = [(key, log) for key, log in self._manager.logs.items() if log.config.compacted]
        self._check_logs(iter(logs), [], 0.0, 0)

    def _check_logs(
        self,
        logs: Iterator[tuple[PartitionKey, Log]],
        due: list[tuple[PartitionKey, CleanableRange]],
        greatest_ratio: float,
        delay_ms: int,
        reads: CachedReads = CACHED,
    ) -> None:
        """Check the remaining logs in turns of the loop. `reads` has the ranges that the first log lacked."""
        clock = self._scheduler.clock
        end_of_turn = clock.monotonic() + TURN_SECONDS
        for key, log in logs:
            if log.closed or key in self._passes or key in self._paused or key in self.uncleanable:
                continue
            try:
                cleanable = self.range_of(log, reads)
            except NotCached as cold:
                remaining = chain([(key, log)], logs)
                check_remaining = partial(self._check_logs, remaining, due, greatest_ratio, delay_ms)
                bring_in(self._scheduler, cold, reads, check_remaining)
                return
            except (KafkaError, OSError) as error:
                self._failed(key, log, error)
                continue
            reads = CACHED
            greatest_ratio = max(greatest_ratio, cleanable.dirty_ratio)
            delay_ms = max(delay_ms, cleanable.overdue_ms)
            if cleanable.is_due(log.config):
                due.append((key, cleanable))
            if clock.monotonic() > end_of_turn:
                self._scheduler.schedule(0.0, partial(self._check_logs, logs, due, greatest_ratio, delay_ms))
                return
        self._checking = False
        self.figures.max_dirty_percent = int(100 * greatest_ratio)
        self.figures.max_compaction_delay_secs = delay_ms // 1000
        self.figures.last_run = clock.monotonic()
        self._choose(due)

    def _choose(self, due: list[tuple[PartitionKey, CleanableRange]]) -> None:
        if self._closed:
            return
        while len(self._passes) < self.settings.threads:
            key = dirtiest(due)
            if key is None:
                break
            range_ = dict(due)[key]
            due = [other for other in due if other[0] != key]
            log, log_dir = self._manager.get(*key), self._manager.log_dir_of(key)
            if log is not None and log_dir is not None and not log.closed and key not in self._paused:
                self._begin(key, log, log_dir, range_)
        if not self._passes:
            self._later(self.settings.backoff_ms)

    # -- cleaning

    def _begin(self, key: PartitionKey, log: Log, log_dir: LogDir, range_: CleanableRange) -> None:
        # Imported when needed, which keeps the start short.
        from tidelog.storage.cleaner.cleaning import Cleaning, begin
        from tidelog.storage.cleaner.offset_map import OffsetMap

        settings, clock = self.settings, self._scheduler.clock
        if range_.checkpoint_is_wrong and "delete" not in log.config.cleanup_policy:
            logger.warning(
                "%s-%d: the cleaner checkpoint %d is outside of the log, %d to %d; the whole log is cleaned",
                *key, self.checkpoints.get(key, -1), log.log_start_offset, log.log_end_offset,
            )  # fmt: skip
        threads = max(1, settings.threads)
        offsets = OffsetMap(
            settings.dedupe_buffer_size // threads,
            settings.io_buffer_load_factor,
            expected=range_.end - range_.first_dirty_offset,
            hash_key=self._hash_key,
        )
        plan = begin(log, range_, clock.ms())
        if plan.flush is None:
            plan.before_first_swap = self._manager.checkpoints.writer_before_cleaning(key)
        cleaning = Cleaning(plan, offsets, settings.io_buffer_size // threads)
        running = self._passes[key] = _Pass(key, log, log_dir, cleaning, clock.monotonic())
        self._step(running)

    def _step(self, running: _Pass) -> None:
        if self._passes.get(running.key) is not running:
            return
        if running.aborted is not None or running.is_stale:
            self._give_up(running, running.aborted or "the log has changed")
            return

        def done(result: tuple[int, Event, bool] | None, error: BaseException | None) -> None:
            running.working = False
            if result is None:
                self._broken(running, error)
            else:
                self._stepped(running, *result)

        running.working = True
        self._scheduler.run_blocking(lambda: running.step(self._step_bytes), done)

    def _stepped(self, running: _Pass, count: int, event: Event, is_last: bool) -> None:
        if self._closed or running.aborted is not None or running.is_stale:
            self._give_up(running, running.aborted or "the log has changed")
            return
        hindrance = None
        if isinstance(event, FlushJob):
            hindrance = self._flushed(running, event)
        elif not isinstance(event, int):
            hindrance = self._swap(running, event)
        if hindrance is not None:
            self._give_up(running, hindrance)
            return
        if is_last:
            self._complete(running)
            return
        delay = self._throttle.delay(count, self._scheduler.clock.monotonic())
        if delay > 0:
            self._scheduler.schedule(delay, lambda: self._step(running))
        else:
            self._step(running)

    def _flushed(self, running: _Pass, job: FlushJob) -> str | None:
        log, plan = running.log, running.cleaning.plan
        log.end_flush(job, self._scheduler.clock.ms())
        if log.recovery_point < plan.range.end:
            return "not all of it is on disk yet"
        # Recovery begins at the recovery point, which must not be in a segment that cleaning changed. With a
        # log start offset from before a crash, consumers would read the cleaned records below it.
        plan.before_first_swap = self._manager.checkpoints.writer_before_cleaning(running.key)
        return None

    def _swap(self, running: _Pass, group: CleanedGroup) -> str | None:
        try:
            swapped = running.log.replace_segments(group.old, group.files)
        except KafkaStorageError as error:
            return str(error)
        return None if swapped else "its segments have changed"

    def _complete(self, running: _Pass) -> None:
        has_progressed = running.cleaning.end_offset > running.cleaning.plan.range.first_dirty_offset
        self.checkpoints[running.key] = running.cleaning.end_offset
        self._note(running)

        def continue_cleaning() -> None:
            self._passes.pop(running.key, None)
            if has_progressed:
                self.clean_dirtiest()
            else:
                self._later(self.settings.backoff_ms)

        self._write_checkpoint(running.log_dir, continue_cleaning)

    def _write_checkpoint(self, log_dir: LogDir, on_written: Callable[[], None]) -> None:
        log_dir_of = self._manager.log_dir_of
        file = log_dir.checkpoint(CLEANER_OFFSETS)
        if not file.prepare(
            {key: offset for key, offset in self.checkpoints.items() if log_dir_of(key) is log_dir}
        ):
            on_written()
            return

        def done(_: None, error: BaseException | None) -> None:
            if isinstance(error, OSError):
                self._manager.log_dirs.failed(log_dir, error)
            on_written()

        self._scheduler.run_blocking(file.write, done)

    def _give_up(self, running: _Pass, reason: str) -> None:
        logger.info("cleaning of %s-%d is given up: %s", *running.key, reason)

        def done(_: None, error: BaseException | None) -> None:
            self._passes.pop(running.key, None)
            if isinstance(error, OSError) and not running.is_stale:
                self._manager.storage_failed(running.log, error)
            self._later(self.settings.backoff_ms)

        if self._closed:
            self._passes.pop(running.key, None)
            running.stop()
            return
        self._scheduler.run_blocking(running.stop, done)

    def _broken(self, running: _Pass, error: BaseException | None) -> None:
        self._passes.pop(running.key, None)
        if not (self._closed or running.aborted is not None or running.is_stale):
            changed = isinstance(error, FileNotFoundError) and self._has_changed(running)
            if not changed:
                self._failed(running.key, running.log, error)
        if running.key in self.uncleanable:
            self.clean_dirtiest()
        else:
            self._later(self.settings.backoff_ms)

    def _has_changed(self, running: _Pass) -> bool:
        """Whether retention deleted segments while they were read."""
        known = {id(segment) for segment in running.log.segments}
        return any(id(source.segment) not in known for source in running.cleaning.plan.sources)

    def _failed(self, key: PartitionKey, log: Log, error: BaseException | None) -> None:
        if isinstance(error, OSError):
            self._manager.storage_failed(log, error)
            return
        self.uncleanable[key] = str(error)
        logger.error(
            "%s-%d cannot be cleaned and is left as it is until the next start: %s",
            *key,
            error,
            exc_info=None if isinstance(error, KafkaError) else error,
        )

    # -- figures

    def _note(self, running: _Pass) -> None:
        stats, figures = running.cleaning.stats, self.figures
        seconds = self._scheduler.clock.monotonic() - running.started
        figures.passes += 1
        figures.recopy_percent = _percent(stats.bytes_written, stats.bytes_read)
        figures.max_buffer_utilization_percent = int(100 * stats.map_utilization)
        figures.max_clean_time_secs = int(seconds)
        logger.info(
            "%s-%d is cleaned up to offset %d in %.1f s: %s",
            *running.key, running.cleaning.end_offset, seconds, describe(stats),
        )  # fmt: skip

    def uncleanable_count(self, log_dir: LogDir) -> int:
        return sum(1 for key in self.uncleanable if self._manager.log_dir_of(key) is log_dir)

    def uncleanable_bytes(self, log_dir: LogDir) -> int:
        """Bytes in the complete segments of the uncleanable partitions."""
        total = 0
        for key in self.uncleanable:
            log = self._manager.get(*key)
            if log is not None and self._manager.log_dir_of(key) is log_dir:
                total += sum(segment.size for segment in log.segments) - log.active_segment.size
        return total

    def ms_since_last_run(self) -> int:
        return int(1000 * (self._scheduler.clock.monotonic() - self.figures.last_run))


def _percent(part: int, whole: int) -> int:
    return int(100 * part / whole) if whole else 0


def describe(stats: CleanerStats) -> str:
    return (
        f"{stats.segments} segments of {stats.bytes_read} bytes with {stats.records_read} records became "
        f"{stats.groups} of {stats.bytes_written} bytes with {stats.records_kept} records"
    )
