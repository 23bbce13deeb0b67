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


def resolve_duplicates(disk: Disk, folders: Sequence[F], *, all_online: bool) -> tuple[list[F], list[str]]:
    """Keep one folder of each partition: the complete copy if there are two.

    Returns the folders to load, and the paths of the others, which are renamed for deletion. Raises
    LogDirRefused if a partition has two folders and both or neither are marked as a complete copy.
    """
    marked = {id(folder) for folder in folders if disk.exists(_marker(folder))}
    kept_folders: dict[PartitionKey, F] = {}
    removed: list[str] = []
    for folder in folders:
        other = kept_folders.setdefault(folder.key, folder)
        if other is folder:
            continue
        if (id(folder) in marked) == (id(other) in marked):
            raise LogDirRefused(
                f"partition {folder.name} is in {other.log_dir.path} and in {folder.log_dir.path}; "
                "one of the two has to be moved away"
            )
        newer, older = (folder, other) if id(folder) in marked else (other, folder)
        kept_folders[folder.key] = newer
        try:
            removed.append(_rename_for_deletion(disk, older))
        except OSError as error:
            raise LogDirRefused(
                f"partition {folder.name} was moved to {newer.log_dir.path}, "
                f"but what is left of it in {older.log_dir.path} cannot be renamed: {error}"
            ) from error
    if all_online:  # else the replaced log may be in a log folder that comes back
        for folder in kept_folders.values():
            if id(folder) in marked:
                disk.unlink(_marker(folder))
                disk.fsync_dir(f"{folder.log_dir.path}/{folder.name}")
    return list(kept_folders.values()), removed


def _rename_for_deletion(disk: Disk, folder: PartitionFolder) -> str:
    path = f"{folder.log_dir.path}/{folder.name}"
    target = path_for_deletion(path)
    disk.rename(path, target)
    disk.fsync_dir(folder.log_dir.path)
    return target


def _marker(folder: PartitionFolder) -> str:
    return f"{folder.log_dir.path}/{folder.name}/{MOVE_COMPLETE}"
