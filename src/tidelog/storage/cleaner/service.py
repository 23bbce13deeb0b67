"""The cleaner of a broker: takes up the dirtiest log, cleans it beside the loop, and swaps on the loop.

Cleaning goes in short steps through the scheduler's threads. What takes long in a step lets go of the GIL, so
that the loop goes on; waiting for the throttle is a timer and holds no thread. A log that cannot be cleaned
is set aside and named; one that changes under a pass is left for a later one.
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
from tidelog.storage.checkpoints import CLEANER_OFFSETS, encode_offsets
from tidelog.storage.cleaner.policy import CleanableRange, cleanable_range, dirtiest
from tidelog.storage.flush import FlushJob
from tidelog.storage.folders import LogFolder
from tidelog.storage.log import Log
from tidelog.storage.manager import LogManager
from tidelog.storage.reads import CACHED, WAITING, CachedReads, NotCached, Reads, bring_in
from tidelog.storage.segmented import SegmentedLog

if TYPE_CHECKING:
    from tidelog.storage.cleaner.clean import CleanedGroup, CleanerStats, Cleaning, Event

logger = logging.getLogger("tidelog.storage.cleaner")

STEP_BYTES = 4 << 20
"""Read and written before a thread is given back: a few tens of milliseconds."""
LOOK_SECONDS = 0.002
"""How long the logs are looked at before the loop has its turn."""


@dataclass(slots=True)
class CleanerSettings:
    """The broker's settings `log.cleaner.*`; those that topics can change are in their LogConfig."""

    enable: bool = True
    threads: int = 1
    dedupe_buffer_size: int = 134_217_728
    io_buffer_size: int = 524_288
    io_buffer_load_factor: float = 0.9
    io_max_bytes_per_second: float = 1.7976931348623157e308
    backoff_ms: int = 15_000


class Throttle:
    """Bytes a second, over all passes together."""

    __slots__ = ("_free_at", "rate")

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self._free_at = 0.0

    def delay(self, count: int, now: float) -> float:
        """How long to wait after `count` bytes; what is too short for a timer is added to the next wait."""
        if self.rate <= 0:
            return 0.0
        self._free_at = max(now, self._free_at) + count / self.rate
        wait = self._free_at - now
        return wait if wait >= 0.001 else 0.0


class _Pass:
    """A cleaning on its way."""

    __slots__ = ("aborted", "cleaning", "folder", "key", "log", "started", "steps", "working")

    def __init__(
        self, key: PartitionKey, log: Log, folder: LogFolder, cleaning: Cleaning, started: float
    ) -> None:
        self.key = key
        self.log = log
        self.folder = folder
        self.cleaning = cleaning
        self.working = False  # a step is under way
        self.steps = cleaning.work()
        self.started = started
        self.aborted: str | None = None

    def step(self, limit: int) -> tuple[int, Event, bool]:
        """Off the loop: some work; bytes, what the loop has to do with it, and whether that was all."""
        done = 0
        for event in self.steps:
            if not isinstance(event, int):
                return done, event, False
            done += event
            if done >= limit:
                return done, 0, False
        return done, 0, True

    def stop(self) -> None:
        """Off the loop: throw away what was not swapped."""
        self.steps.close()

    @property
    def is_stale(self) -> bool:
        """The log is gone, or its end moved back behind what was read."""
        return self.log.closed or self.log.generation != self.cleaning.plan.generation


@dataclass(slots=True)
class CleanerFigures:
    """What the metrics show, of the last pass and the last look over the logs."""

    max_dirty_percent: int = 0
    max_compaction_delay_secs: int = 0
    recopy_percent: int = 0
    max_buffer_utilization_percent: int = 0
    max_clean_time_secs: int = 0
    last_look: float = 0.0
    passes: int = 0


class LogCleaner:
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
        """Partitions that are set aside, and why; they stay so until the broker starts again."""
        self.checkpoints: dict[PartitionKey, int] = {}
        self._manager = manager
        self._scheduler = scheduler
        self._step_bytes = step_bytes
        self._hash_key = os.urandom(16) if hash_key is None else hash_key
        self._throttle = Throttle(self.settings.io_max_bytes_per_second)
        self._passes: dict[PartitionKey, _Pass] = {}
        self._paused: dict[PartitionKey, int] = {}
        self._timer: TimerHandle | None = None
        self._looking = False
        self._closed = False

    # -- life

    def start(self) -> None:
        """Read where the last broker's cleaner came to, and look at the logs from now on."""
        for folder in self._manager.folders:
            if folder.offline is None:
                self.checkpoints.update(folder.read_offsets(CLEANER_OFFSETS) or {})
        self._manager.on_truncated = self._truncated
        self._manager.on_deleted = self._deleted
        self._later(self.settings.backoff_ms)

    def close(self) -> None:
        """Take up nothing more, and give up what is on its way: the next start takes it up again."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for key, running in list(self._passes.items()):
            self._abort(key, "the broker stops")
            if not running.working:
                self._give_up(running, "the broker stops")

    def update_settings(self, settings: CleanerSettings) -> None:
        """For the passes that begin from now on; the throttle at once."""
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
        self.look()

    # -- partitions that others work on

    def pause(self, key: PartitionKey) -> None:
        """Leave a partition alone until `resume`, as often as it was paused; a pass over it is given up."""
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
        return bool(self._passes) or self._looking

    def _abort(self, key: PartitionKey, reason: str) -> None:
        running = self._passes.get(key)
        if running is not None and running.aborted is None:
            running.aborted = reason

    def _truncated(self, log: SegmentedLog) -> None:
        """Offsets behind the end will be others' records: nothing there is cleaned."""
        key = (log.topic, log.partition)
        if self.checkpoints.get(key, -1) > log.recovery_point:
            self.checkpoints[key] = log.recovery_point
            folder = self._manager.folder_of(key)
            if folder is not None:
                self._write_checkpoint(folder, lambda: None)

    def _deleted(self, key: PartitionKey, folder: LogFolder) -> None:
        self._abort(key, "it is deleted")
        self.uncleanable.pop(key, None)
        self._paused.pop(key, None)
        if self.checkpoints.pop(key, None) is not None and not self._closed:
            self._write_checkpoint(folder, lambda: None)

    def moved(self, key: PartitionKey, source: LogFolder, target: LogFolder) -> None:
        """A partition lies in another folder now, which says from here on how far it is cleaned."""
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

    def look(self) -> None:
        """Look at every log, and begin with the dirtiest of those that are due."""
        if self._closed or self._looking or not self.settings.enable:
            return
        if len(self._passes) >= self.settings.threads:
            return
        self._looking = True
        logs = [(key, log) for key, log in self._manager.logs.items() if log.config.compacted]
        self._look_on(iter(logs), [], 0.0, 0)

    def _look_on(
        self,
        logs: Iterator[tuple[PartitionKey, Log]],
        due: list[tuple[PartitionKey, CleanableRange]],
        most: float,
        delay_ms: int,
        reads: CachedReads = CACHED,
    ) -> None:
        """Go on with a look; `reads` is for the first of the logs."""
        clock = self._scheduler.clock
        until = clock.monotonic() + LOOK_SECONDS
        for key, log in logs:
            if log.closed or key in self._passes or key in self._paused or key in self.uncleanable:
                continue
            try:
                found = self.range_of(log, reads)
            except NotCached as cold:
                here = chain([(key, log)], logs)
                go_on = partial(self._look_on, here, due, most, delay_ms)
                bring_in(self._scheduler, cold, reads, go_on)
                return
            except (KafkaError, OSError) as error:
                self._failed(key, log, error)
                continue
            reads = CACHED
            most = max(most, found.dirty_ratio)
            delay_ms = max(delay_ms, found.overdue_ms)
            if found.is_due(log.config):
                due.append((key, found))
            if clock.monotonic() > until:
                self._scheduler.schedule(0.0, partial(self._look_on, logs, due, most, delay_ms))
                return
        self._looking = False
        self.figures.max_dirty_percent = int(100 * most)
        self.figures.max_compaction_delay_secs = delay_ms // 1000
        self.figures.last_look = clock.monotonic()
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
            log, folder = self._manager.get(*key), self._manager.folder_of(key)
            if log is not None and folder is not None and not log.closed and key not in self._paused:
                self._begin(key, log, folder, range_)
        if not self._passes:
            self._later(self.settings.backoff_ms)

    # -- cleaning

    def _begin(self, key: PartitionKey, log: Log, folder: LogFolder, range_: CleanableRange) -> None:
        # A broker starts without these: importing them takes longer than looking for work.
        from tidelog.storage.cleaner.clean import Cleaning, begin
        from tidelog.storage.cleaner.offset_map import OffsetMap

        settings, clock = self.settings, self._scheduler.clock
        if range_.checkpoint_is_wrong and "delete" not in log.config.cleanup_policy:
            logger.warning(
                "%s-%d: the cleaner's checkpoint %d is not within %d to %d; the whole log is cleaned",
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
            plan.before_first_swap = self._manager.checkpoint_writer(log)
        cleaning = Cleaning(plan, offsets, settings.io_buffer_size // threads)
        running = self._passes[key] = _Pass(key, log, folder, cleaning, clock.monotonic())
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
        # Recovery reads from the recovery point on, and must not begin in a segment that cleaning changed. A
        # log start that a crash took back would show what was cleaned as if it were nobody's to see.
        plan.before_first_swap = self._manager.checkpoint_writer(log)
        return None

    def _swap(self, running: _Pass, group: CleanedGroup) -> str | None:
        try:
            swapped = running.log.replace_segments(group.old, group.files)
        except KafkaStorageError as error:
            return str(error)
        return None if swapped else "its segments have changed"

    def _complete(self, running: _Pass) -> None:
        came_on = running.cleaning.end_offset > running.cleaning.plan.range.first_dirty_offset
        self.checkpoints[running.key] = running.cleaning.end_offset
        self._note(running)

        def then() -> None:
            self._passes.pop(running.key, None)
            if came_on:
                self.look()
            else:
                self._later(self.settings.backoff_ms)

        self._write_checkpoint(running.folder, then)

    def _write_checkpoint(self, folder: LogFolder, then: Callable[[], None]) -> None:
        owner = self._manager.folder_of
        offsets = {key: offset for key, offset in self.checkpoints.items() if owner(key) is folder}
        writer = folder.writer(CLEANER_OFFSETS)
        if not writer.prepare(encode_offsets(offsets)):
            then()
            return

        def done(_: None, error: BaseException | None) -> None:
            if isinstance(error, OSError):
                self._manager.folder_failed(folder, error)
            then()

        self._scheduler.run_blocking(writer.write, done)

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
            self.look()
        else:
            self._later(self.settings.backoff_ms)

    def _has_changed(self, running: _Pass) -> bool:
        """Retention may have taken segments away while they were read."""
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

    def uncleanable_count(self, folder: LogFolder) -> int:
        return sum(1 for key in self.uncleanable if self._manager.folder_of(key) is folder)

    def uncleanable_bytes(self, folder: LogFolder) -> int:
        """What of the partitions that are set aside would be cleaned, if they could be."""
        total = 0
        for key in self.uncleanable:
            log = self._manager.get(*key)
            if log is not None and self._manager.folder_of(key) is folder:
                total += sum(segment.size for segment in log.segments) - log.active_segment.size
        return total

    def ms_since_last_look(self) -> int:
        return int(1000 * (self._scheduler.clock.monotonic() - self.figures.last_look))


def _percent(part: int, whole: int) -> int:
    return int(100 * part / whole) if whole else 0


def describe(stats: CleanerStats) -> str:
    return (
        f"{stats.segments} segments of {stats.bytes_read} bytes with {stats.records_read} records became "
        f"{stats.groups} of {stats.bytes_written} bytes with {stats.records_kept} records"
    )
