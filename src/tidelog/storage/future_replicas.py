"""FutureReplicas: the partitions that move to another log folder, each with its future replica."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from tidelog.errors import KafkaStorageError
from tidelog.partitions import PartitionKey
from tidelog.storage.current_logs import CurrentLogs
from tidelog.storage.disk import Disk, DiskFile
from tidelog.storage.future_replica import FutureReplica
from tidelog.storage.log_deletions import LogDeletions
from tidelog.storage.log_dir import LogDir
from tidelog.storage.log_dirs import LogDirs
from tidelog.storage.partition_folders import future_name

logger = logging.getLogger("tidelog.storage")


class FutureReplicas:
    def __init__(self, disk: Disk, log_dirs: LogDirs, logs: CurrentLogs, deletions: LogDeletions) -> None:
        self._disk = disk
        self._log_dirs = log_dirs
        self._logs = logs
        self._deletions = deletions
        self._futures: dict[PartitionKey, FutureReplica] = {}

    def get(self, key: PartitionKey) -> FutureReplica | None:
        return self._futures.get(key)

    def all(self) -> list[FutureReplica]:
        return list(self._futures.values())

    def found(self, futures: Iterable[FutureReplica]) -> None:
        """Add the unfinished copies that the start of the broker has found."""
        self._futures.update((future.key, future) for future in futures)

    def begin(self, key: PartitionKey, log_dir: LogDir) -> FutureReplica:
        """Create an empty folder for the copy."""
        path = f"{log_dir.path}/{future_name(key)}"
        try:
            self._disk.make_dir(path)
        except OSError as error:
            self._log_dirs.failed(log_dir, error)
            raise KafkaStorageError(f"{path} cannot be created: {error}") from error
        future = self._futures[key] = FutureReplica(key, log_dir, path)
        return future

    def cancel(self, future: FutureReplica) -> None:
        """Delete a copy, unless it is promoted or not in this map any more."""
        if self._futures.get(future.key) is future and not future.is_promoted:
            del self._futures[future.key]
            try:
                self._deletions.delete_folder(future.log_dir, future.path)
            except KafkaStorageError as error:
                logger.error("a future replica is not deleted: %s", error)

    def promote(self, future: FutureReplica) -> list[DiskFile]:
        """Rename the copy to the partition's name, and let the log continue there.

        Returns the open files of the replaced log, for the caller to close off the loop. If the rename fails,
        raises OSError and changes nothing.
        """
        key = future.key
        log, log_dir = self._logs[key], self._logs.log_dir_of(key)
        path = f"{future.log_dir.path}/{key[0]}-{key[1]}"
        self._disk.rename(future.path, path)
        future.replaced = log_dir, log.dir
        future.path = path
        future.is_arriving = False
        self._logs.move(key, future.log_dir)
        return log.moved_to(path)

    def delete_replaced(self, future: FutureReplica) -> None:
        """Delete the log that a promoted copy replaced, once the copy's new name is durable."""
        self._deletions.delete_folder(*future.obsolete(), self._logs[future.key].config.file_delete_delay_ms)

    def forget(self, key: PartitionKey) -> FutureReplica | None:
        """Remove a future replica from this map: its move is complete, or its partition was deleted."""
        return self._futures.pop(key, None)

    def forget_log_dir(self, log_dir: LogDir) -> None:
        """Remove the future replicas in a log folder that went offline."""
        for future in self.all():
            if future.log_dir is log_dir:
                del self._futures[future.key]
