"""CurrentLogs: the logs that a broker serves, each with its log folder."""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, Mapping, ValuesView

from tidelog.partitions import PartitionKey
from tidelog.storage.file_remover import FileRemover
from tidelog.storage.log import Log
from tidelog.storage.log_dir import LogDir
from tidelog.storage.log_listener import LogListener


class CurrentLogs(Mapping[PartitionKey, Log]):
    """Logs by partition. A log that is added gets the `remover` of its files and the `listener`."""

    __slots__ = ("_listener", "_log_dirs", "_logs", "_remover")

    def __init__(self, remover: FileRemover, listener: LogListener) -> None:
        self._remover = remover
        self._listener = listener
        self._logs: dict[PartitionKey, Log] = {}
        self._log_dirs: dict[PartitionKey, LogDir] = {}  # has the same keys

    def __getitem__(self, key: PartitionKey) -> Log:
        return self._logs[key]

    def __iter__(self) -> Iterator[PartitionKey]:
        return iter(self._logs)

    def __len__(self) -> int:
        return len(self._logs)

    def items(self) -> ItemsView[PartitionKey, Log]:
        return self._logs.items()

    def values(self) -> ValuesView[Log]:
        return self._logs.values()

    def log_dir_of(self, key: PartitionKey) -> LogDir:
        """The log folder of a partition. Raises KeyError if the partition has no log."""
        return self._log_dirs[key]

    def find_log_dir(self, key: PartitionKey) -> LogDir | None:
        return self._log_dirs.get(key)

    def log_dirs(self) -> ValuesView[LogDir]:
        """The log folder of each log; a folder with two logs is in the result twice."""
        return self._log_dirs.values()

    def in_log_dir(self, log_dir: LogDir) -> list[tuple[PartitionKey, Log]]:
        return [(key, self._logs[key]) for key, owner in self._log_dirs.items() if owner is log_dir]

    def add(self, log: Log, log_dir: LogDir) -> None:
        key = (log.topic, log.partition)
        log.remover = self._remover
        log.listen(self._listener)
        self._logs[key] = log
        self._log_dirs[key] = log_dir

    def remove(self, key: PartitionKey) -> tuple[Log, LogDir]:
        return self._logs.pop(key), self._log_dirs.pop(key)

    def move(self, key: PartitionKey, log_dir: LogDir) -> None:
        """Set the new log folder of a log."""
        assert key in self._logs
        self._log_dirs[key] = log_dir
