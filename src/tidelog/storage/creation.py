"""New logs on their way: the loop chooses where they go, any thread may make them, the loop takes them in.

However many they are, each log folder is synced once. The tree knows a topic before its logs are made, so the
next start uses what a crash leaves of them, and makes the rest.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass

from tidelog.errors import InconsistentTopicId, KafkaError, KafkaStorageError
from tidelog.partitions import PartitionKey
from tidelog.storage.config import LogConfig
from tidelog.storage.disk import Disk
from tidelog.storage.files import FileCache
from tidelog.storage.folders import LogFolder, is_passing
from tidelog.storage.log import Log

logger = logging.getLogger("tidelog.storage")


@dataclass(slots=True)
class WantedLog:
    """A partition that is to have a log."""

    topic: str
    partition: int
    topic_id: bytes | None
    config: LogConfig

    @property
    def key(self) -> PartitionKey:
        return self.topic, self.partition


@dataclass(slots=True)
class NewLog:
    """A log that is being made, or one that is there and does not know its topic yet."""

    wanted: WantedLog
    folder: LogFolder
    present: Log | None = None  # the one that is there
    log: Log | None = None  # the one that was made
    error: OSError | KafkaError | None = None

    @property
    def path(self) -> str:
        return f"{self.folder.path}/{self.wanted.topic}-{self.wanted.partition}"

    @property
    def may_be_tried_again(self) -> bool:
        return isinstance(self.error, OSError) and is_passing(self.error)

    def kafka_error(self) -> KafkaError:
        if isinstance(self.error, KafkaError):
            return self.error
        return KafkaStorageError(f"{self.path} cannot be made: {self.error}")


class EmptiestFolder:
    """Gives each new log to the folder that has the fewest by then."""

    __slots__ = ("_counts", "_folders")

    def __init__(self, folders: Iterable[LogFolder], in_use: Iterable[LogFolder]) -> None:
        self._folders = [folder for folder in folders if folder.offline is None]
        self._counts = {id(folder): 0 for folder in self._folders}
        if len(self._folders) > 1:
            for folder in in_use:
                if id(folder) in self._counts:
                    self._counts[id(folder)] += 1

    @property
    def any(self) -> bool:
        return bool(self._folders)

    def take(self) -> LogFolder:
        if not self._folders:
            raise KafkaStorageError("every folder of log.dirs is offline")
        chosen = min(self._folders, key=lambda folder: self._counts[id(folder)])
        self._counts[id(chosen)] += 1
        return chosen


class LogCreation:
    """What was chosen; once `run` has returned each log is made, durably, or has its error."""

    __slots__ = ("_disk", "_files", "_now_ms", "logs")

    def __init__(self, disk: Disk, files: FileCache, now_ms: int) -> None:
        self._disk = disk
        self._files = files
        self._now_ms = now_ms
        self.logs: list[NewLog] = []

    def run(self) -> None:
        broken: dict[str, OSError] = {}
        folders: set[str] = set()
        for new in self.logs:
            folder = new.folder.path
            new.error = broken.get(folder)
            if new.error is not None:
                continue
            try:
                if new.present is not None:
                    self._name(new.present, new.wanted)
                else:
                    folders.add(folder)
                    new.log = self._make(new)
            except OSError as error:
                new.error = error
                if not new.may_be_tried_again:
                    broken[folder] = error
            except KafkaError as error:
                new.error = error
        self._sync(folders - broken.keys())

    def failed(self, error: BaseException) -> None:
        """`run` ended in a way that it should not: nothing of it counts."""
        logger.error("new logs could not be made", exc_info=error)
        for new in self.logs:
            new.error = new.error or KafkaStorageError(f"{new.path} could not be made: {error!r}")

    def _name(self, log: Log, wanted: WantedLog) -> None:
        if wanted.topic_id is not None:
            log.set_topic_id(wanted.topic_id)

    def _make(self, new: NewLog) -> Log:
        wanted, path = new.wanted, new.path
        self._disk.make_dir(path)
        log = Log.open(
            wanted.topic,
            wanted.partition,
            path,
            wanted.config,
            disk=self._disk,
            files=self._files,
            now_ms=self._now_ms,
        )
        if wanted.topic_id is not None and log.topic_id != wanted.topic_id:
            if log.topic_id is not None:
                log.release()
                raise InconsistentTopicId(
                    f"{path} belongs to the topic id {log.topic_id.hex()}, not to {wanted.topic_id.hex()}"
                )
            log.set_topic_id(wanted.topic_id, durably=False)
        if self._files.is_full:
            log.release_files()
        return log

    def _sync(self, folders: Iterable[str]) -> None:
        for folder in folders:
            try:
                self._disk.fsync_dir(folder)
            except OSError as error:
                for new in self.logs:
                    if new.folder.path == folder and new.log is not None:
                        new.error = error
