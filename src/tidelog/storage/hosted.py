"""The logs of a broker and the folders that hold them: locked, signed, and taken offline when a disk fails.

A folder whose disk fails goes offline with its logs; the broker and the other folders go on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from tidelog.clock import Clock, Scheduler, TimerHandle
from tidelog.partitions import PartitionKey
from tidelog.storage.checkpoints import MetaProperties
from tidelog.storage.config import LogConfig
from tidelog.storage.disk import Disk
from tidelog.storage.files import FileCache
from tidelog.storage.flush import FlushJob
from tidelog.storage.folders import FolderRefused, LogFolder, is_passing
from tidelog.storage.future_replica import FutureReplica
from tidelog.storage.log import Log
from tidelog.storage.log_listener import LogListener
from tidelog.storage.removal import FileRemover
from tidelog.storage.segmented import SegmentedLog

logger = logging.getLogger("tidelog.storage")

T = TypeVar("T")


@dataclass(slots=True)
class FolderUse:
    path: str
    offline: str | None
    total_bytes: int
    usable_bytes: int
    sizes: dict[PartitionKey, int]
    futures: dict[PartitionKey, tuple[int, int]]  # size and offset lag of those on their way into it


class HostedLogs(LogListener):
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
        self.folders = [LogFolder(disk, path) for path in dirs]
        self.defaults = defaults
        self.logs: dict[PartitionKey, Log] = {}
        self.failed: dict[PartitionKey, str] = {}  # logs that could not be loaded or made, and why
        self.unmade: dict[PartitionKey, LogFolder] = {}  # new logs that can be tried again, and where
        self.futures: dict[PartitionKey, FutureReplica] = {}  # logs on their way into another folder
        self.wished: dict[PartitionKey, LogFolder] = {}  # where logs that do not exist yet are to be made
        self.on_folder_offline: Callable[[str, list[PartitionKey]], None] | None = None
        self.on_flush: Callable[[FlushJob], None] | None = None
        self.on_truncated: Callable[[SegmentedLog], None] | None = None  # below its recovery point
        self.on_deleted: Callable[[PartitionKey, LogFolder], None] | None = None
        self._disk = disk
        self._clock = clock
        self._scheduler = scheduler
        self._files = files if files is not None else FileCache()
        self._remover = FileRemover(disk, scheduler)
        self.recovery_threads_per_dir = recovery_threads_per_dir
        self._folder_of: dict[PartitionKey, LogFolder] = {}
        self._unsynced: dict[str, LogFolder] = {}  # folders whose deletions are not on the disk yet
        self._timers: dict[str, TimerHandle] = {}
        self._leftovers: list[str] = []  # folders that were being deleted when the last broker stopped
        self._settled: set[PartitionKey] = set()  # logs whose recovery point has changed
        self._flushing: set[PartitionKey] = set()
        self._rolled: set[PartitionKey] = set()  # logs that rolled while a flush was under way
        self._retaining = False  # another turn of it is due
        self._closed = False

    # -- start

    def lock(self) -> list[MetaProperties | None]:
        """Take the folders for this process and read whose each is; one that cannot be used is offline."""
        identities: list[MetaProperties | None] = []
        try:
            for folder in self.folders:
                try:
                    folder.lock()
                    identities.append(folder.read_identity())
                except OSError as error:
                    self._take_offline(folder, error)
                    identities.append(None)
                    if all(other.offline is not None for other in self.folders):
                        raise
        except BaseException:
            self.unlock()
            raise
        known = {meta.cluster_id for meta in identities if meta is not None and meta.cluster_id is not None}
        if len(known) > 1:
            self.unlock()
            raise FolderRefused(
                f"the folders of log.dirs belong to different clusters: {', '.join(sorted(known))}"
            )
        return identities

    def claim(self, cluster_id: str, broker_id: int) -> None:
        """Refuse folders of another cluster or broker, sign new ones."""
        for folder in self.folders:
            if folder.offline is None:
                folder.claim(cluster_id, broker_id)

    def unlock(self) -> None:
        for folder in self.folders:
            folder.unlock()

    @property
    def disk(self) -> Disk:
        return self._disk

    @property
    def had_clean_shutdown(self) -> bool:
        return all(folder.had_clean_shutdown for folder in self.folders)

    def recovered(self) -> list[PartitionKey]:
        """The logs in folders that were not left cleanly: each may have lost its end."""
        return [key for key, folder in self._folder_of.items() if not folder.had_clean_shutdown]

    def get(self, topic: str, partition: int) -> Log | None:
        return self.logs.get((topic, partition))

    def is_flushing(self, key: PartitionKey) -> bool:
        return key in self._flushing

    def folder_of(self, key: PartitionKey) -> LogFolder | None:
        return self._folder_of.get(key)

    def folder_use(self) -> list[FolderUse]:
        uses = []
        for folder in self.folders:
            total = usable = -1
            if folder.offline is None:
                total, usable = self._disk.usage(folder.path)
            sizes = {key: self.logs[key].size for key, owner in self._folder_of.items() if owner is folder}
            futures = {
                key: (future.size, max(0, self.logs[key].log_end_offset - future.next_offset))
                for key, future in self.futures.items()
                if future.folder is folder and not future.is_promoted and key in self.logs
            }
            uses.append(FolderUse(folder.path, folder.offline, total, usable, sizes, futures))
        return uses

    # -- failures

    def storage_failed(self, log: SegmentedLog, error: OSError) -> None:
        """A log's files failed: a broken disk takes its folder offline, a full one does not."""
        key = (log.topic, log.partition)
        if self.logs.get(key) is log:  # the files of a deleted log may well be missing
            self._failed(self._folder_of[key], error)

    def folder_failed(self, folder: LogFolder, error: OSError) -> None:
        self._failed(folder, error)

    def _failed(self, folder: LogFolder, error: OSError) -> None:
        if is_passing(error):
            logger.error("log folder %s: %s", folder.path, error)
        else:
            self._take_offline(folder, error)

    def _take_offline(self, folder: LogFolder, error: OSError) -> None:
        if folder.offline is not None:
            return
        folder.offline = str(error)
        lost = [key for key, owner in self._folder_of.items() if owner is folder]
        logger.error("log folder %s is offline with %d partitions: %s", folder.path, len(lost), error)
        for key in [key for key, owner in self.unmade.items() if owner is folder]:
            self.failed[key] = f"its folder {folder.path} is offline: {error}"
            del self.unmade[key]
        for key in [key for key, future in self.futures.items() if future.folder is folder]:
            del self.futures[key]
        for key in lost:
            self.failed[key] = f"its folder {folder.path} is offline: {error}"
            del self._folder_of[key]
            self.logs.pop(key).release()
        if self.on_folder_offline is not None:
            self.on_folder_offline(folder.path, lost)

    # -- work off the loop

    def _in_threads(self, work: Callable[[T], None], items: list[T]) -> None:
        workers = min(len(items), self.recovery_threads_per_dir * len(self.folders))
        if workers <= 1:
            for item in items:
                work(item)
            return
        self._files.evicting = False
        try:
            with ThreadPoolExecutor(workers, thread_name_prefix="log") as pool:
                for _ in pool.map(work, items):
                    pass
        finally:
            self._files.evicting = True

    def _run(self, work: Callable[[], None], done: Callable[[None, BaseException | None], None]) -> None:
        if self._scheduler is not None and not self._closed:
            self._scheduler.run_blocking(work, done)
            return
        try:
            work()
        except OSError as error:
            done(None, error)
        else:
            done(None, None)
