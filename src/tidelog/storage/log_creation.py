"""LogCreation: creates the logs of new partitions, in any thread.

Each log folder is synced once for all its new logs. The metadata tree knows a topic before its logs exist, so
after a crash the next start uses the logs that were created and creates the rest.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass

from tidelog.errors import InconsistentTopicId, KafkaError, KafkaStorageError
from tidelog.partitions import PartitionKey
from tidelog.storage.config import LogConfig
from tidelog.storage.disk import Disk
from tidelog.storage.file_cache import FileCache
from tidelog.storage.log import Log
from tidelog.storage.log_dir import LogDir, is_transient

logger = logging.getLogger("tidelog.storage")


@dataclass(slots=True)
class WantedLog:
    """A partition that needs a log."""

    topic: str
    partition: int
    topic_id: bytes | None
    config: LogConfig

    @property
    def key(self) -> PartitionKey:
        return self.topic, self.partition


@dataclass(slots=True)
class NewLog:
    """A log to create, or an existing log that has no topic id yet."""

    wanted: WantedLog
    log_dir: LogDir
    existing: Log | None = None
    log: Log | None = None  # the created one
    error: OSError | KafkaError | None = None

    @property
    def path(self) -> str:
        return f"{self.log_dir.path}/{self.wanted.topic}-{self.wanted.partition}"

    @property
    def can_be_retried(self) -> bool:
        return isinstance(self.error, OSError) and is_transient(self.error)

    def kafka_error(self) -> KafkaError:
        if isinstance(self.error, KafkaError):
            return self.error
        return KafkaStorageError(f"{self.path} cannot be created: {self.error}")


class LogCreation:
    """The logs to create. After `run` each of them is durable or has an error."""

    __slots__ = ("_disk", "_files", "_now_ms", "logs")

    def __init__(self, disk: Disk, files: FileCache, now_ms: int) -> None:
        self._disk = disk
        self._files = files
        self._now_ms = now_ms
        self.logs: list[NewLog] = []

    def run(self) -> None:
        broken: dict[str, OSError] = {}
        unsynced: set[str] = set()
        for new in self.logs:
            log_dir = new.log_dir.path
            new.error = broken.get(log_dir)
            if new.error is not None:
                continue
            try:
                if new.existing is not None:
                    self._set_topic_id(new.existing, new.wanted)
                else:
                    unsynced.add(log_dir)
                    new.log = self._create(new)
            except OSError as error:
                new.error = error
                if not new.can_be_retried:
                    broken[log_dir] = error
            except KafkaError as error:
                new.error = error
        self._sync(unsynced - broken.keys())

    def failed(self, error: BaseException) -> None:
        """Give all logs up after an unexpected error of `run`."""
        logger.error("new logs could not be created", exc_info=error)
        for new in self.logs:
            new.error = new.error or KafkaStorageError(f"{new.path} could not be created: {error!r}")

    def _set_topic_id(self, log: Log, wanted: WantedLog) -> None:
        if wanted.topic_id is not None:
            log.set_topic_id(wanted.topic_id)

    def _create(self, new: NewLog) -> Log:
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

    def _sync(self, log_dirs: Iterable[str]) -> None:
        for log_dir in log_dirs:
            try:
                self._disk.fsync_dir(log_dir)
            except OSError as error:
                for new in self.logs:
                    if new.log_dir.path == log_dir and new.log is not None:
                        new.error = error
