"""LogManagerListener: the events of a LogManager, for the broker, its metrics and the cleaner."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.partitions import PartitionKey

if TYPE_CHECKING:
    from tidelog.storage.flush_job import FlushJob
    from tidelog.storage.log import Log
    from tidelog.storage.log_dir import LogDir


class LogManagerListener:
    """Each method is called on the thread that owns the logs. The defaults do nothing."""

    __slots__ = ()

    def log_dir_offline(self, path: str, lost: list[PartitionKey]) -> None:
        """A log folder failed, and the partitions `lost` with it.

        While logs are loaded this is called on the thread that loads them.
        """

    def log_flushed(self, job: FlushJob) -> None:
        """A flush succeeded."""

    def log_truncated(self, log: Log) -> None:
        """The log was truncated below its recovery point, and the new recovery point is durable."""

    def log_deleted(self, key: PartitionKey, log_dir: LogDir) -> None:
        """A partition is deleted from this log folder."""
