"""LogManager: all logs of a broker, from start to shutdown.

It owns the log folders, the current logs and the services beside them: creation, deletion, flushes,
retention, checkpoints. Slow work (fsync, unlink) runs off the loop through the scheduler; without a scheduler
it runs at once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tidelog.clock import Clock, Scheduler
from tidelog.errors import InconsistentTopicId, KafkaStorageError
from tidelog.partitions import PartitionKey
from tidelog.storage.blocking_tasks import BlockingTasks
from tidelog.storage.config import LogConfig
from tidelog.storage.current_logs import CurrentLogs
from tidelog.storage.disk import Disk
from tidelog.storage.file_cache import FileCache
from tidelog.storage.file_remover import FileRemover
from tidelog.storage.flush_job import FlushJob
from tidelog.storage.flush_scheduler import FlushScheduler
from tidelog.storage.future_replicas import FutureReplicas
from tidelog.storage.log import Log
from tidelog.storage.log_creation import WantedLog
from tidelog.storage.log_creator import LogCreator
from tidelog.storage.log_deletions import LogDeletions
from tidelog.storage.log_dir import LogDir
from tidelog.storage.log_dir_description import LogDirDescription, describe_log_dir
from tidelog.storage.log_dirs import LogDirs
from tidelog.storage.log_listener import LogListener
from tidelog.storage.log_loader import ConfigOf, LoadResult, LogLoader, OnProgress
from tidelog.storage.log_manager_listener import LogManagerListener
from tidelog.storage.log_retention import LogRetention
from tidelog.storage.offset_checkpoints import OffsetCheckpoints
from tidelog.storage.periodic_tasks import PeriodicTasks
from tidelog.storage.recovery_threads import RecoveryThreads

logger = logging.getLogger("tidelog.storage")


@dataclass(slots=True)
class Intervals:
    """The intervals of the periodic tasks in milliseconds, named as the broker's settings are."""

    log_retention_check_interval_ms: int = 300_000
    log_flush_scheduler_interval_ms: int = (1 << 63) - 1
    log_flush_offset_checkpoint_interval_ms: int = 60_000
    log_flush_start_offset_checkpoint_interval_ms: int = 60_000
    replica_high_watermark_checkpoint_interval_ms: int = 5_000
    producer_id_expiration_check_interval_ms: int = 600_000


class LogManager(LogListener):
    """Call `log_dirs.lock`, `log_dirs.claim`, `load` and `start`, in this order; `shutdown` at the end."""

    def __init__(
        self,
        dirs: Iterable[str],
        defaults: LogConfig,
        *,
        disk: Disk,
        clock: Clock,
        scheduler: Scheduler | None = None,
        files: FileCache | None = None,
        recovery_threads_per_dir: int = 2,
    ) -> None:
        files = files if files is not None else FileCache()
        self.defaults = defaults
        self.disk = disk
        self._clock = clock
        self._listeners: tuple[LogManagerListener, ...] = ()
        self._closed = False
        self._tasks = BlockingTasks(scheduler)
        self._periodic = PeriodicTasks(scheduler)
        self._remover = FileRemover(disk, scheduler)
        self.log_dirs = LogDirs(disk, dirs, self._log_dir_offline)
        self.logs = CurrentLogs(self._remover, self)
        self.failed: dict[PartitionKey, str] = {}
        """Partitions whose log could not be opened or created, and why."""
        self.deletions = LogDeletions(
            disk, self.log_dirs, self._remover, self._tasks, defaults.file_delete_delay_ms
        )
        self.futures = FutureReplicas(disk, self.log_dirs, self.logs, self.deletions)
        self.checkpoints = OffsetCheckpoints(self.log_dirs, self.logs, self.futures, self._tasks)
        self.creator = LogCreator(
            self.log_dirs,
            self.logs,
            self.futures,
            self.failed,
            disk=disk,
            files=files,
            clock=clock,
            tasks=self._tasks,
        )
        self.retention = LogRetention(self.logs, self.futures, clock, scheduler, self.storage_failed)
        self.flushes = FlushScheduler(self.logs, clock, scheduler, self.storage_failed)
        self.recovery_threads = RecoveryThreads(recovery_threads_per_dir, self.log_dirs, files)
        self._loader = LogLoader(
            self.log_dirs, disk=disk, files=files, clock=clock, threads=self.recovery_threads
        )
        self._marked_for_deletion: list[str] = []

    def listen(self, listener: LogManagerListener) -> None:
        """Add a listener for the events of all logs."""
        if listener not in self._listeners:
            self._listeners = (*self._listeners, listener)

    # -- start

    def load(self, config_of: ConfigOf | None = None, progress: OnProgress | None = None) -> None:
        """Open every log in the log folders. `config_of` gives the settings of a topic."""
        result = self._loader.load(config_of or (lambda _: self.defaults), progress)
        self.failed.update(result.failed)
        for log, log_dir in result.logs:
            if log_dir.offline is None:
                self.logs.add(log, log_dir)
            else:
                log.release()
                self.failed[log.topic, log.partition] = _offline_reason(log_dir)
        self.futures.found(future for future in result.futures.values() if future.log_dir.offline is None)
        self._marked_for_deletion += result.marked_for_deletion
        self._sync_changed_recovery_points(result)

    def _sync_changed_recovery_points(self, result: LoadResult) -> None:
        """Write the changed recovery points to disk before the first append after a crash.

        Logs with gaps were flushed. Another log may be rolled at its old recovery point: with that in the
        checkpoint, the next recovery would begin after the segment, and miss the indexes rebuilt by this one.
        """
        for log_dir in result.changed_recovery_points.values():
            if log_dir.offline is None:
                try:
                    self.checkpoints.sync_recovery_points(log_dir)
                except KafkaStorageError as error:
                    logger.error("%s", error)

    def recovered(self) -> list[PartitionKey]:
        """The logs that were recovered after a crash. Each of them may have lost records at its end."""
        return [key for key in self.logs if not self.logs.log_dir_of(key).had_clean_shutdown]

    def start(self, intervals: Intervals) -> None:
        """Start the periodic tasks, and remove the folders that an earlier run has renamed for deletion."""
        while self._marked_for_deletion:
            self.deletions.remove_renamed(self._marked_for_deletion.pop())
        every = self._periodic.every
        every(intervals.log_retention_check_interval_ms, "retention", self.retention.run_in_turns)
        every(intervals.log_flush_scheduler_interval_ms, "flush", self.flushes.flush_due)
        every(
            intervals.log_flush_offset_checkpoint_interval_ms,
            "recovery point checkpoint",
            self.checkpoints.write_recovery_points,
        )
        every(
            intervals.log_flush_start_offset_checkpoint_interval_ms,
            "log start offset checkpoint",
            self.checkpoints.write_log_start_offsets,
        )
        every(
            intervals.replica_high_watermark_checkpoint_interval_ms,
            "high watermark checkpoint",
            self.checkpoints.write_high_watermarks,
        )
        every(
            intervals.producer_id_expiration_check_interval_ms,
            "producer id expiration",
            self.remove_expired_producers,
        )

    # -- logs

    def get(self, topic: str, partition: int) -> Log | None:
        return self.logs.get((topic, partition))

    def log_dir_of(self, key: PartitionKey) -> LogDir | None:
        return self.logs.find_log_dir(key)

    def get_or_create(
        self,
        topic: str,
        partition: int,
        topic_id: bytes | None,
        config: LogConfig | None = None,
        *,
        is_new: bool = True,
    ) -> Log:
        """The log of a partition. A missing log is created in the log folder with the fewest logs.

        While a log folder is offline, no log is created for a partition that is not new: the folder may have
        it.
        """
        key = (topic, partition)
        log = self.logs.get(key)
        if log is None:
            if key in self.failed:
                raise KafkaStorageError(f"{topic}-{partition} could not be loaded: {self.failed[key]}")
            if not is_new and self.may_be_offline(key):
                raise KafkaStorageError(self.why_offline(key))
            return self.creator.create(WantedLog(topic, partition, topic_id, config or self.defaults))
        if topic_id is not None and log.topic_id != topic_id:
            if log.topic_id is not None:
                raise InconsistentTopicId(
                    f"{log.dir} belongs to the topic id {log.topic_id.hex()}, not to {topic_id.hex()}"
                )
            log.set_topic_id(topic_id)
        if config is not None:
            log.update_config(config)
        return log

    def may_be_offline(self, key: PartitionKey) -> bool:
        """Whether the log of a partition that is not new may be in an offline log folder."""
        return bool(self.log_dirs.offline) and key not in self.logs and key not in self.creator.lacking_room

    def why_offline(self, key: PartitionKey) -> str:
        """The message of the error for a log that `may_be_offline`."""
        if key in self.failed:
            return self.failed[key]
        offline = ", ".join(log_dir.path for log_dir in self.log_dirs.offline)
        return (
            f"the log of {key[0]}-{key[1]} is in no online log folder; it may be in an offline one: {offline}"
        )

    def delete(self, topic: str, partition: int) -> None:
        """Delete a partition's log at once, and its files after file.delete.delay.ms.

        The partition may reappear after a crash until `deletions.sync` is done.
        """
        key = (topic, partition)
        self.failed.pop(key, None)
        self.creator.forget(key)
        current = self.logs.remove(key) if key in self.logs else None
        future = self.futures.forget(key)
        if future is not None:
            try:
                self.deletions.delete_folder(*future.obsolete())
            except KafkaStorageError as error:
                logger.error("%s-%d is deleted, but not all of it: %s", topic, partition, error)
        if current is None:
            self.deletions.delete_folders(f"{topic}-{partition}")
            return
        log, log_dir = current
        for listener in self._listeners:
            listener.log_deleted(key, log_dir)
        self.deletions.delete_log(log, log_dir)

    def remove_expired_producers(self) -> None:
        now_ms = self._clock.ms()
        for log in self.logs.values():
            log.remove_expired_producers(now_ms)

    def describe_log_dirs(self) -> list[LogDirDescription]:
        return [describe_log_dir(log_dir, self.disk, self.logs, self.futures) for log_dir in self.log_dirs]

    # -- events of the logs

    def segment_rolled(self, log: Log) -> None:
        self.flushes.flush_completed(log)

    def log_flushed(self, job: FlushJob) -> None:
        for listener in self._listeners:
            listener.log_flushed(job)

    def log_truncated(self, log: Log) -> Callable[[], None]:
        for listener in self._listeners:
            listener.log_truncated(log)
        return self.checkpoints.writer_before_truncation((log.topic, log.partition))

    def storage_failed(self, log: Log, error: OSError) -> None:
        """Handle an error of a log's disk: take the log folder offline unless the error is transient."""
        key = (log.topic, log.partition)
        if self.logs.get(key) is log:  # files of a deleted log may be missing
            self.log_dirs.failed(self.logs.log_dir_of(key), error)

    def _log_dir_offline(self, log_dir: LogDir, error: OSError) -> None:
        lost = self.logs.in_log_dir(log_dir)
        logger.error("log folder %s is offline with %d partitions: %s", log_dir.path, len(lost), error)
        reason = _offline_reason(log_dir)
        self.creator.forget_log_dir(log_dir, reason)
        self.futures.forget_log_dir(log_dir)
        for key, log in lost:
            self.failed[key] = reason
            self.logs.remove(key)
            log.release()
        for listener in self._listeners:
            listener.log_dir_offline(log_dir.path, [key for key, _ in lost])

    # -- shutdown

    def shutdown(self, broker_epoch: int = -1) -> None:
        """Close every log and write the checkpoints.

        A log folder whose logs are all closed without an error gets the marker of a clean shutdown.
        """
        if self._closed:
            return
        self._closed = True
        self._remover.close()
        self._periodic.close()
        self._tasks.close()
        self.retention.close()
        self.flushes.close()
        now_ms = self._clock.ms()
        unclean: set[str] = set()

        def close(closing: tuple[Log, LogDir]) -> None:
            log, log_dir = closing
            try:
                log.close(now_ms)
            except (KafkaStorageError, OSError) as error:
                unclean.add(log_dir.path)
                logger.error("%s-%d is not closed cleanly: %s", log.topic, log.partition, error)

        self.recovery_threads.run(close, [(log, self.logs.log_dir_of(key)) for key, log in self.logs.items()])
        self.checkpoints.write_recovery_points()
        self.checkpoints.write_log_start_offsets()
        self.checkpoints.write_high_watermarks()
        for log_dir in self.log_dirs.online:
            if log_dir.path not in unclean:
                try:
                    log_dir.write_clean_shutdown_marker(broker_epoch)
                except OSError as error:
                    logger.error("log folder %s has no marker of a clean shutdown: %s", log_dir.path, error)
        self.log_dirs.unlock()


def _offline_reason(log_dir: LogDir) -> str:
    return f"its folder {log_dir.path} is offline: {log_dir.offline}"
