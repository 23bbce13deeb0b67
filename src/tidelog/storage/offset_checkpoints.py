"""OffsetCheckpoints: writes the recovery points, log start offsets and high watermarks of all logs to disk.

Each log folder has a file of each kind, with an offset for each of its partitions.
"""

from __future__ import annotations

from collections.abc import Callable

from tidelog.errors import KafkaStorageError
from tidelog.partitions import PartitionKey
from tidelog.storage.blocking_tasks import BlockingTasks
from tidelog.storage.checkpoints import HIGH_WATERMARKS, LOG_START_OFFSETS, RECOVERY_POINTS
from tidelog.storage.current_logs import CurrentLogs
from tidelog.storage.future_replica import FutureReplica
from tidelog.storage.future_replicas import FutureReplicas
from tidelog.storage.log import Log
from tidelog.storage.log_dir import LogDir
from tidelog.storage.log_dirs import LogDirs


def _log_start_offset(log: Log) -> int | None:
    """The log start offset, or None if it is the base offset of the first segment, which is in its name."""
    return None if log.starts_with_its_files else log.log_start_offset


_OFFSETS: dict[str, Callable[[Log], int | None]] = {
    RECOVERY_POINTS: lambda log: log.recovery_point_to_keep,
    LOG_START_OFFSETS: _log_start_offset,
    HIGH_WATERMARKS: lambda log: log.high_watermark,
}


class OffsetCheckpoints:
    __slots__ = ("_futures", "_log_dirs", "_logs", "_tasks")

    def __init__(
        self, log_dirs: LogDirs, logs: CurrentLogs, futures: FutureReplicas, tasks: BlockingTasks
    ) -> None:
        self._log_dirs = log_dirs
        self._logs = logs
        self._futures = futures
        self._tasks = tasks

    # -- periodic writes, off the loop

    def write_recovery_points(self) -> None:
        self._write_later(RECOVERY_POINTS)

    def write_log_start_offsets(self) -> None:
        self._write_later(LOG_START_OFFSETS)

    def write_high_watermarks(self) -> None:
        self._write_later(HIGH_WATERMARKS)

    def _write_later(self, name: str) -> None:
        for log_dir in self._log_dirs.online:
            file = log_dir.checkpoint(name)
            if file.prepare(self._offsets(log_dir, name)):
                self._tasks.run(file.write, self._written(log_dir))

    def _written(self, log_dir: LogDir) -> Callable[[None, BaseException | None], None]:
        def done(_: None, error: BaseException | None) -> None:
            if isinstance(error, OSError):
                self._log_dirs.failed(log_dir, error)

        return done

    # -- writes that another step waits for

    def sync_recovery_points(self, log_dir: LogDir) -> None:
        """Write the recovery points of a log folder now. Raises KafkaStorageError."""
        file = log_dir.checkpoint(RECOVERY_POINTS)
        file.prepare(self._offsets(log_dir, RECOVERY_POINTS))
        try:
            file.write()
        except OSError as error:
            self._log_dirs.failed(log_dir, error)
            raise KafkaStorageError(f"{log_dir.path}/{RECOVERY_POINTS} cannot be written: {error}") from error

    def writer_before_truncation(self, key: PartitionKey) -> Callable[[], None]:
        """A function that writes the present recovery points of a partition's log folder.

        Call this method on the loop, and the returned function in any thread.
        """
        return self._writer(self._logs.log_dir_of(key), RECOVERY_POINTS)

    def writer_before_cleaning(self, key: PartitionKey) -> Callable[[], None]:
        """A function that writes the present recovery points and log start offsets of the log folder."""
        return self._writer(self._logs.log_dir_of(key), RECOVERY_POINTS, LOG_START_OFFSETS)

    def writer_before_promotion(self, future: FutureReplica, *, again: bool = False) -> Callable[[], None]:
        """A function that writes the checkpoints of a move's target folder, which include the partition from
        now on.

        Without its recovery point, the next start would check the whole log. `again` marks the second call,
        while appends wait: it leaves the high watermarks, which change all the time, to the periodic task.
        """
        future.is_arriving = True
        names = (RECOVERY_POINTS, LOG_START_OFFSETS) if again else tuple(_OFFSETS)
        return self._writer(future.log_dir, *names)

    def _writer(self, log_dir: LogDir, *names: str) -> Callable[[], None]:
        files = [log_dir.checkpoint(name) for name in names]
        for name, file in zip(names, files, strict=True):
            file.prepare(self._offsets(log_dir, name))

        def write() -> None:
            for file in files:
                file.write()

        return write

    def _offsets(self, log_dir: LogDir, name: str) -> dict[PartitionKey, int]:
        offset_of = _OFFSETS[name]
        logs = dict(self._logs.in_log_dir(log_dir))
        for future in self._futures.all():
            # Until the replaced log is renamed, a start may load the partition from either log folder.
            is_source = future.replaced is not None and future.replaced[0] is log_dir
            is_target = future.is_arriving and future.log_dir is log_dir
            if (is_source or is_target) and future.key in self._logs:
                logs[future.key] = self._logs[future.key]
        offsets = ((key, offset_of(log)) for key, log in logs.items())
        return {key: offset for key, offset in offsets if offset is not None}
