"""Future replicas: the copy of a partition in another log folder, until it replaces the partition's log.

A complete copy gets the file `move.complete` before it is renamed to the partition's name. If a crash leaves
two folders of that name, the folder with this file is the newer one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from tidelog.partitions import PartitionKey
from tidelog.storage.disk import Disk
from tidelog.storage.log_dir import LogDir, LogDirRefused
from tidelog.storage.partition_folders import path_for_deletion

MOVE_COMPLETE = "move.complete"
"""Marks a complete copy, until the folder that it replaced is renamed."""


class FutureReplica:
    """A partition on its way into another log folder."""

    __slots__ = ("is_arriving", "key", "log_dir", "next_offset", "path", "replaced", "size")

    def __init__(self, key: PartitionKey, log_dir: LogDir, path: str) -> None:
        self.key = key
        self.log_dir = log_dir
        self.path = path
        self.is_arriving = False  # the last bytes are being copied; its log folder's checkpoints include it
        self.replaced: tuple[LogDir, str] | None = None  # once promoted: log folder and path of the old log
        self.size = 0  # bytes copied so far
        self.next_offset = 0  # the end of the copy

    @property
    def is_promoted(self) -> bool:
        """Whether the copy has the partition's name, and is its log."""
        return self.replaced is not None

    def obsolete(self) -> tuple[LogDir, str]:
        """The folder to delete: of an unfinished copy, or of the log that a promoted copy replaced."""
        return self.replaced if self.replaced is not None else (self.log_dir, self.path)


class PartitionFolder(Protocol):
    """A folder of a partition in a log folder, found at the start."""

    @property
    def log_dir(self) -> LogDir: ...

    @property
    def name(self) -> str: ...

    @property
    def key(self) -> PartitionKey: ...


F = TypeVar("F", bound=PartitionFolder)


def resolve_duplicates(disk: Disk, found: Sequence[F], *, all_online: bool) -> tuple[list[F], list[str]]:
    """Keep one folder of each partition: the complete copy if there are two.

    Returns the folders to load, and the paths of the others, which are renamed for deletion. Raises
    LogDirRefused if a partition has two folders and both or neither are marked as a complete copy.
    """
    marked = {id(one) for one in found if disk.exists(_marker(one))}
    kept: dict[PartitionKey, F] = {}
    removed: list[str] = []
    for one in found:
        other = kept.setdefault(one.key, one)
        if other is one:
            continue
        if (id(one) in marked) == (id(other) in marked):
            raise LogDirRefused(
                f"partition {one.name} is in {other.log_dir.path} and in {one.log_dir.path}; "
                "one of the two has to be moved away"
            )
        newer, older = (one, other) if id(one) in marked else (other, one)
        kept[one.key] = newer
        try:
            removed.append(_rename_for_deletion(disk, older))
        except OSError as error:
            raise LogDirRefused(
                f"partition {one.name} was moved to {newer.log_dir.path}, "
                f"but what is left of it in {older.log_dir.path} cannot be renamed: {error}"
            ) from error
    if all_online:  # else the replaced log may be in a log folder that comes back
        for one in kept.values():
            if id(one) in marked:
                disk.unlink(_marker(one))
                disk.fsync_dir(f"{one.log_dir.path}/{one.name}")
    return list(kept.values()), removed


def _rename_for_deletion(disk: Disk, one: PartitionFolder) -> str:
    path = f"{one.log_dir.path}/{one.name}"
    target = path_for_deletion(path)
    disk.rename(path, target)
    disk.fsync_dir(one.log_dir.path)
    return target


def _marker(one: PartitionFolder) -> str:
    return f"{one.log_dir.path}/{one.name}/{MOVE_COMPLETE}"
