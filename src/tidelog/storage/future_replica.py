"""Future logs: the folder in which a partition is copied to another of `log.dirs`, until it takes its place.

A copy that is whole is marked before it is renamed to the partition's name. Where a crash leaves two folders
of that name, the marked one is the newer: nothing was appended to the other since.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Sequence
from typing import Protocol, TypeVar

from tidelog.partitions import PartitionKey
from tidelog.storage.disk import Disk
from tidelog.storage.folders import FolderRefused, LogFolder, path_for_deletion

MOVE_COMPLETE = "move.complete"
"""The file that marks a whole copy; it goes when the folder that was copied is out of the way."""

_FUTURE = re.compile(r"([A-Za-z0-9._-]{1,249})-(\d{1,10})\.[0-9a-f]{32}-future")


def future_name(key: PartitionKey) -> str:
    return f"{key[0]}-{key[1]}.{uuid.uuid4().hex}-future"


def parse_future(name: str) -> PartitionKey | None:
    """Topic and partition of a future log's folder, None when it is not one."""
    match = _FUTURE.fullmatch(name)
    return None if match is None else (match[1], int(match[2]))


class FutureReplica:
    """A partition on its way into another folder."""

    __slots__ = ("arriving", "folder", "key", "leaves", "next_offset", "path", "size")

    def __init__(self, key: PartitionKey, folder: LogFolder, path: str) -> None:
        self.key = key
        self.folder = folder
        self.path = path
        self.arriving = False  # the last bytes are copied: checkpoints of its folder speak of it already
        self.leaves: tuple[LogFolder, str] | None = None  # once it has the partition's name: what it replaced
        self.size = 0  # how much is there, and up to which offset
        self.next_offset = 0

    @property
    def is_promoted(self) -> bool:
        return self.leaves is not None

    def leftover(self) -> tuple[LogFolder, str]:
        """The folder that nobody needs if the partition goes away now, beside the partition's own."""
        return self.leaves if self.leaves is not None else (self.folder, self.path)


class Found(Protocol):
    """A partition's folder, as a start finds it."""

    @property
    def folder(self) -> LogFolder: ...

    @property
    def name(self) -> str: ...

    @property
    def key(self) -> PartitionKey: ...


F = TypeVar("F", bound=Found)


def settle_twins(disk: Disk, found: Sequence[F], *, all_online: bool) -> tuple[list[F], list[str]]:
    """Of folders with the same partition the marked one stays; gives those that stay and those to be removed.

    FolderRefused where two folders hold a partition and nothing says which of them is right.
    """
    marked = {id(one) for one in found if disk.exists(_marker(one))}
    kept: dict[PartitionKey, F] = {}
    removed: list[str] = []
    for one in found:
        other = kept.setdefault(one.key, one)
        if other is one:
            continue
        if (id(one) in marked) == (id(other) in marked):
            raise FolderRefused(
                f"partition {one.name} is in {other.folder.path} and in {one.folder.path}; "
                "one of the two has to be moved away"
            )
        newer, older = (one, other) if id(one) in marked else (other, one)
        kept[one.key] = newer
        try:
            removed.append(_put_away(disk, older))
        except OSError as error:
            raise FolderRefused(
                f"partition {one.name} was moved to {newer.folder.path}, "
                f"but what is left of it in {older.folder.path} cannot be renamed: {error}"
            ) from error
    if all_online:  # else what was replaced may lie in a folder that comes back
        for one in kept.values():
            if id(one) in marked:
                disk.unlink(_marker(one))
                disk.fsync_dir(f"{one.folder.path}/{one.name}")
    return list(kept.values()), removed


def _put_away(disk: Disk, one: Found) -> str:
    path = f"{one.folder.path}/{one.name}"
    target = path_for_deletion(path)
    disk.rename(path, target)
    disk.fsync_dir(one.folder.path)
    return target


def _marker(one: Found) -> str:
    return f"{one.folder.path}/{one.name}/{MOVE_COMPLETE}"
