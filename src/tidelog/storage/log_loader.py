"""LogLoader: finds and opens the logs in the log folders when a broker starts."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from tidelog.clock import Clock
from tidelog.errors import KafkaError
from tidelog.partitions import PartitionKey
from tidelog.storage.checkpoints import HIGH_WATERMARKS, LOG_START_OFFSETS, RECOVERY_POINTS
from tidelog.storage.config import LogConfig
from tidelog.storage.disk import Disk
from tidelog.storage.file_cache import FileCache
from tidelog.storage.future_replica import FutureReplica, resolve_duplicates
from tidelog.storage.log import Log
from tidelog.storage.log_dir import LogDir
from tidelog.storage.log_dirs import LogDirs
from tidelog.storage.partition_folders import is_marked_for_deletion, parse_future, parse_partition
from tidelog.storage.recovery_threads import RecoveryThreads

logger = logging.getLogger("tidelog.storage")

ConfigOf = Callable[[str], LogConfig]  # the settings of a topic
OnProgress = Callable[[int, int, PartitionKey], None]  # logs opened, logs in total, the last one opened


@dataclass(slots=True)
class _FoundLog:
    """A partition's folder, with the offsets of its log in the checkpoints of the log folder."""

    log_dir: LogDir
    name: str
    key: PartitionKey
    recovery_point: int | None  # None: the log folder has no checkpoint of recovery points
    log_start_offset: int
    high_watermark: int


@dataclass(slots=True)
class LoadResult:
    """The logs in the log folders. Includes logs of a folder that went offline meanwhile."""

    logs: list[tuple[Log, LogDir]] = field(default_factory=list)
    failed: dict[PartitionKey, str] = field(default_factory=dict)
    """Partitions whose log cannot be opened, and why."""
    futures: dict[PartitionKey, FutureReplica] = field(default_factory=dict)
    marked_for_deletion: list[str] = field(default_factory=list)
    """Folders that the last broker renamed and did not remove."""
    changed_recovery_points: dict[str, LogDir] = field(default_factory=dict)
    """Log folders, by their path, with recovery points that differ from their checkpoint."""


class LogLoader:
    def __init__(
        self, log_dirs: LogDirs, *, disk: Disk, files: FileCache, clock: Clock, threads: RecoveryThreads
    ) -> None:
        self._log_dirs = log_dirs
        self._disk = disk
        self._files = files
        self._clock = clock
        self._threads = threads

    def load(self, config_of: ConfigOf, progress: OnProgress | None = None) -> LoadResult:
        """Open every log. After an unclean shutdown, the logs of a folder are recovered, several at a time.

        Raises LogDirRefused if a partition is in two log folders and none of them is a complete copy.
        """
        result = LoadResult()
        found: list[_FoundLog] = []
        for log_dir in self._log_dirs.online:
            try:
                found += self._find(log_dir, result)
            except OSError as error:
                self._log_dirs.take_offline(log_dir, error)
        logs, replaced = resolve_duplicates(self._disk, found, all_online=not self._log_dirs.offline)
        result.marked_for_deletion += replaced
        opened = 0

        def open_log(folder: _FoundLog) -> None:
            nonlocal opened
            self._open(folder, config_of(folder.key[0]), result)
            opened += 1
            if progress is not None:
                progress(opened, len(logs), folder.key)

        for folder in logs:
            if folder.log_dir.had_clean_shutdown:
                open_log(folder)
        self._threads.run(open_log, [folder for folder in logs if not folder.log_dir.had_clean_shutdown])
        return result

    def _find(self, log_dir: LogDir, result: LoadResult) -> list[_FoundLog]:
        log_dir.take_clean_shutdown_marker()
        recovery_points = log_dir.checkpoint(RECOVERY_POINTS).read()
        log_start_offsets = log_dir.checkpoint(LOG_START_OFFSETS).read() or {}
        high_watermarks = log_dir.checkpoint(HIGH_WATERMARKS).read() or {}
        found = []
        for name in self._disk.listdir(log_dir.path):
            path = f"{log_dir.path}/{name}"
            key = parse_partition(name)
            future_key = parse_future(name)
            if is_marked_for_deletion(name):
                result.marked_for_deletion.append(path)
            elif future_key is not None:
                if future_key in result.futures:
                    result.marked_for_deletion.append(path)
                else:
                    result.futures[future_key] = FutureReplica(future_key, log_dir, path)
            elif key is not None and self._disk.is_dir(path):
                found.append(
                    _FoundLog(
                        log_dir,
                        name,
                        key,
                        None if recovery_points is None else recovery_points.get(key, 0),
                        log_start_offsets.get(key, 0),
                        high_watermarks.get(key, 0),
                    )
                )
        return found

    def _open(self, folder: _FoundLog, config: LogConfig, result: LoadResult) -> None:
        topic, partition = folder.key
        clean = folder.log_dir.had_clean_shutdown
        try:
            log = Log.open(
                topic,
                partition,
                f"{folder.log_dir.path}/{folder.name}",
                config,
                disk=self._disk,
                files=self._files,
                now_ms=self._clock.ms(),
                clean=clean,
                recovery_point=folder.recovery_point,
                log_start_offset=folder.log_start_offset,
                high_watermark=folder.high_watermark,
            )
        except OSError as error:
            # Also on a full disk: nothing opens the log again before the next start.
            result.failed[folder.key] = str(error)
            self._log_dirs.take_offline(folder.log_dir, error)
        except KafkaError as error:
            result.failed[folder.key] = str(error)
            logger.error("partition %s is not served: %s", folder.name, error)
        else:
            result.logs.append((log, folder.log_dir))
            if not clean and log.recovery_point_to_keep != (folder.recovery_point or 0):
                result.changed_recovery_points[folder.log_dir.path] = folder.log_dir
