"""LogDirDescription: the state, the space and the logs of a log folder, as DescribeLogDirs answers them."""

from __future__ import annotations

from dataclasses import dataclass

from tidelog.partitions import PartitionKey
from tidelog.storage.current_logs import CurrentLogs
from tidelog.storage.disk import Disk
from tidelog.storage.future_replicas import FutureReplicas
from tidelog.storage.log_dir import LogDir


@dataclass(slots=True)
class LogDirDescription:
    path: str
    offline: str | None
    total_bytes: int
    usable_bytes: int
    sizes: dict[PartitionKey, int]
    futures: dict[PartitionKey, tuple[int, int]]
    """Size and offset lag of the future replicas in it."""


def describe_log_dir(
    log_dir: LogDir, disk: Disk, logs: CurrentLogs, futures: FutureReplicas
) -> LogDirDescription:
    total = usable = -1
    if log_dir.offline is None:
        total, usable = disk.usage(log_dir.path)
    sizes = {key: log.size for key, log in logs.in_log_dir(log_dir)}
    copies = {
        future.key: (future.size, max(0, logs[future.key].log_end_offset - future.next_offset))
        for future in futures.all()
        if future.log_dir is log_dir and not future.is_promoted and future.key in logs
    }
    return LogDirDescription(log_dir.path, log_dir.offline, total, usable, sizes, copies)
