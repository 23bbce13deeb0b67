"""LogCreator: chooses a log folder for each new log, creates the log and adds it to the current logs."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tidelog.clock import Clock
from tidelog.errors import KafkaStorageError
from tidelog.partitions import PartitionKey
from tidelog.storage.blocking_tasks import BlockingTasks
from tidelog.storage.current_logs import CurrentLogs
from tidelog.storage.disk import Disk
from tidelog.storage.file_cache import FileCache
from tidelog.storage.future_replicas import FutureReplicas
from tidelog.storage.log import Log
from tidelog.storage.log_creation import LogCreation, NewLog, WantedLog
from tidelog.storage.log_dir import LogDir
from tidelog.storage.log_dirs import LogDirs

MAX_PREFERRED = 10_000
"""Preferences of partitions that do not exist; any client may send them."""


class LeastUsedLogDir:
    """Chooses the log folder with the fewest logs. Its own choices count as logs."""

    __slots__ = ("_counts", "_log_dirs")

    def __init__(self, online: list[LogDir], in_use: Iterable[LogDir]) -> None:
        """`in_use` has the log folder of each log."""
        self._log_dirs = online
        self._counts = {id(log_dir): 0 for log_dir in online}
        if len(online) > 1:
            for log_dir in in_use:
                if id(log_dir) in self._counts:
                    self._counts[id(log_dir)] += 1

    def choose(self) -> LogDir:
        if not self._log_dirs:
            raise KafkaStorageError("every folder of log.dirs is offline")
        chosen = min(self._log_dirs, key=lambda log_dir: self._counts[id(log_dir)])
        self._counts[id(chosen)] += 1
        return chosen


class LogCreator:
    """A log that cannot be created is added to `failed`, with the reason.

    A log that lacked room on the disk is tried again, in the same log folder: the next start must not find
    parts of a log in two folders.
    """

    def __init__(
        self,
        log_dirs: LogDirs,
        logs: CurrentLogs,
        futures: FutureReplicas,
        failed: dict[PartitionKey, str],
        *,
        disk: Disk,
        files: FileCache,
        clock: Clock,
        tasks: BlockingTasks,
    ) -> None:
        self._log_dirs = log_dirs
        self._logs = logs
        self._futures = futures
        self._failed = failed
        self._disk = disk
        self._files = files
        self._clock = clock
        self._tasks = tasks
        self.preferred: dict[PartitionKey, LogDir] = {}
        """The log folder to create a partition's log in, if it is ever created."""
        self.lacking_room: dict[PartitionKey, LogDir] = {}
        """Partitions whose log was not created because of a full disk or another transient error."""

    def prefer(self, key: PartitionKey, log_dir: LogDir) -> None:
        """Choose the log folder for the log of a partition, before the log exists."""
        self.preferred.pop(key, None)
        while len(self.preferred) >= MAX_PREFERRED:
            del self.preferred[next(iter(self.preferred))]
        self.preferred[key] = log_dir

    def forget(self, key: PartitionKey) -> None:
        """Forget the preferences and failures of a deleted partition."""
        self.lacking_room.pop(key, None)
        self.preferred.pop(key, None)

    def forget_log_dir(self, log_dir: LogDir, reason: str) -> None:
        """Give the logs up that lacked room in a log folder which went offline."""
        for key in [key for key, chosen in self.lacking_room.items() if chosen is log_dir]:
            self._failed[key] = reason
            del self.lacking_room[key]

    def create(self, wanted: WantedLog) -> Log:
        """Create a log at once. Raises KafkaStorageError or InconsistentTopicId if that is impossible."""
        log_dir = self.lacking_room.get(wanted.key) or self._take_preferred(wanted.key)
        new = NewLog(wanted, log_dir if log_dir is not None else self._least_used().choose())
        creation = self._creation()
        creation.logs.append(new)
        creation.run()
        self._add_created(creation)
        if new.error is not None:
            raise new.kafka_error() from new.error
        return self._logs[wanted.key]

    def create_later(
        self,
        wanted: Iterable[WantedLog],
        done: Callable[[set[PartitionKey]], None],
        *,
        is_new: bool = True,
    ) -> None:
        """Create the missing logs off the loop, then call `done` with the partitions that lack room.

        `LogManager.get_or_create` then returns the created logs, and raises the errors of the others. If a
        log folder is offline, no log is created for a partition that is not new: the folder may have its log.
        """
        creation = self._plan(wanted, is_new)
        if not creation.logs:
            done(set())
            return

        def created(_: None, error: BaseException | None) -> None:
            self._files.evicting = True
            if error is not None:
                creation.failed(error)
            done(self._add_created(creation))

        self._files.evicting = False  # only the loop may close files of the logs that it uses
        self._tasks.run(creation.run, created)

    def _plan(self, wanted: Iterable[WantedLog], is_new: bool) -> LogCreation:
        creation = self._creation()
        least_used = self._least_used()
        may_choose = bool(self._log_dirs.online) if is_new else not self._log_dirs.offline
        for partition in wanted:
            log = self._logs.get(partition.key)
            if log is not None:
                if log.topic_id is None and partition.topic_id is not None:
                    creation.logs.append(
                        NewLog(partition, self._logs.log_dir_of(partition.key), existing=log)
                    )
            elif partition.key in self.lacking_room:
                creation.logs.append(NewLog(partition, self.lacking_room[partition.key]))
            elif partition.key not in self._failed and may_choose:
                creation.logs.append(
                    NewLog(partition, self._take_preferred(partition.key) or least_used.choose())
                )
        return creation

    def _creation(self) -> LogCreation:
        return LogCreation(self._disk, self._files, self._clock.ms())

    def _take_preferred(self, key: PartitionKey) -> LogDir | None:
        log_dir = self.preferred.pop(key, None)
        return log_dir if log_dir is not None and log_dir.offline is None else None

    def _least_used(self) -> LeastUsedLogDir:
        futures = [future.log_dir for future in self._futures.all() if not future.is_promoted]
        in_use = (*self._logs.log_dirs(), *self.lacking_room.values(), *futures)
        return LeastUsedLogDir(self._log_dirs.online, in_use)

    def _add_created(self, creation: LogCreation) -> set[PartitionKey]:
        """Serve the created logs; returns the partitions that lack room."""
        lacking_room: set[PartitionKey] = set()
        disk_errors: dict[str, tuple[LogDir, OSError]] = {}
        for new in creation.logs:
            key, error = new.wanted.key, new.error
            self.lacking_room.pop(key, None)
            if error is None and new.log is not None and new.log_dir.offline is not None:
                error = new.error = KafkaStorageError(f"its folder {new.log_dir.path} is offline")
            if error is None:
                if new.log is not None:
                    self._logs.add(new.log, new.log_dir)
                continue
            if new.log is not None:
                new.log.release()
            if isinstance(error, OSError):
                disk_errors.setdefault(new.log_dir.path, (new.log_dir, error))
            if new.can_be_retried:
                self.lacking_room[key] = new.log_dir
                lacking_room.add(key)
            elif new.existing is None:
                self._failed[key] = str(error)
        for log_dir, disk_error in disk_errors.values():
            self._log_dirs.failed(log_dir, disk_error)
        return lacking_room
