"""LogDeletions: renames partition folders at once, and removes their files after file.delete.delay.ms."""

from __future__ import annotations

from collections.abc import Callable

from tidelog.errors import KafkaStorageError
from tidelog.storage.blocking_tasks import BlockingTasks
from tidelog.storage.disk import Disk
from tidelog.storage.file_remover import FileRemover
from tidelog.storage.log import Log
from tidelog.storage.log_dir import LogDir
from tidelog.storage.log_dirs import LogDirs
from tidelog.storage.partition_folders import path_for_deletion


class LogDeletions:
    """After a crash, a deleted partition may reappear unless `sync` was done before."""

    __slots__ = ("_delay_ms", "_disk", "_log_dirs", "_remover", "_tasks", "_unsynced")

    def __init__(
        self, disk: Disk, log_dirs: LogDirs, remover: FileRemover, tasks: BlockingTasks, delay_ms: int
    ) -> None:
        self._disk = disk
        self._log_dirs = log_dirs
        self._remover = remover
        self._tasks = tasks
        self._delay_ms = delay_ms  # for folders whose log, with its settings, is not open
        self._unsynced: dict[str, LogDir] = {}  # log folders whose renames are not durable yet

    def delete_log(self, log: Log, log_dir: LogDir) -> None:
        self._unsynced[log_dir.path] = log_dir
        self._remover.remove_tree_later(log.delete(), log.config.file_delete_delay_ms)

    def delete_folder(self, log_dir: LogDir, path: str, delay_ms: int | None = None) -> None:
        """Delete a partition's folder without opening its log. A folder in an offline log folder stays."""
        if log_dir.offline is not None:
            return
        target = path_for_deletion(path)
        try:
            self._disk.rename(path, target)
        except OSError as error:
            raise KafkaStorageError(f"{path} cannot be renamed for deletion: {error}") from error
        self._unsynced[log_dir.path] = log_dir
        self.remove_renamed(target, delay_ms)

    def delete_folders(self, name: str) -> None:
        """Delete the remains of a log that could not be opened or created, so that a new log begins empty."""
        for log_dir in self._log_dirs.online:
            path = f"{log_dir.path}/{name}"
            if self._disk.is_dir(path):
                self.delete_folder(log_dir, path)

    def remove_renamed(self, path: str, delay_ms: int | None = None) -> None:
        """Remove a folder that is renamed for deletion already."""
        self._remover.remove_tree_later(path, self._delay_ms if delay_ms is None else delay_ms)

    def sync(self, done: Callable[[KafkaStorageError | None], None]) -> None:
        """Make the deletions so far durable, off the loop, then call `done` with the error or None."""
        log_dirs = [log_dir for log_dir in self._unsynced.values() if log_dir.offline is None]
        self._unsynced.clear()
        if not log_dirs:
            done(None)
            return
        syncing: LogDir = log_dirs[0]

        def sync() -> None:
            nonlocal syncing
            for syncing in log_dirs:
                self._disk.fsync_dir(syncing.path)

        def synced(_: None, error: BaseException | None) -> None:
            if error is None:
                done(None)
                return
            self._unsynced.update((log_dir.path, log_dir) for log_dir in log_dirs)
            if isinstance(error, OSError):
                self._log_dirs.failed(syncing, error)
            done(KafkaStorageError(f"{syncing.path} cannot be synced: {error}"))

        self._tasks.run(sync, synced)
