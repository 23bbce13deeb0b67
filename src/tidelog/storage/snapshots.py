"""The producer snapshots of a log on disk: `<offset>.snapshot` holds the producers below that offset."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable

from tidelog.storage.disk import Disk
from tidelog.storage.producer_state import CorruptSnapshot, ProducerEntry, decode_snapshot
from tidelog.storage.segment import SNAPSHOT

logger = logging.getLogger("tidelog.storage")


class SnapshotFiles:
    __slots__ = ("_directory", "_disk", "_offsets")

    def __init__(self, disk: Disk, directory: str, offsets: Iterable[int] = ()) -> None:
        self._disk = disk
        self._directory = directory
        self._offsets = set(offsets)

    def path(self, offset: int) -> str:
        return f"{self._directory}/{offset:020d}{SNAPSHOT}"

    def __contains__(self, offset: int) -> bool:
        return offset in self._offsets

    def __bool__(self) -> bool:
        return bool(self._offsets)

    def moved(self, directory: str) -> None:
        self._directory = directory

    def offsets(self) -> list[int]:
        return sorted(self._offsets)

    def write(self, offset: int, data: bytes) -> None:
        """Not durable by itself: a torn snapshot is found out by its CRC, and the one before it serves."""
        self._disk.write(self.path(offset), data)
        self.note(offset)

    def note(self, offset: int) -> None:
        """A flush is about to write it."""
        self._offsets.add(offset)

    def delete(self, offset: int) -> None:
        self._disk.unlink(self.path(offset))
        self._offsets.discard(offset)

    def let_go(self, offset: int) -> str | None:
        """The path of a snapshot that is to leave with its segment, and is no longer known here."""
        if offset not in self._offsets:
            return None
        self._offsets.discard(offset)
        return self.path(offset)

    def delete_outside(self, first: int, last: int) -> None:
        """Snapshots below the log's start or above its end speak of batches that are not there."""
        outside = [offset for offset in self._offsets if not first <= offset <= last]
        for offset in outside:
            self.delete(offset)
        if outside:  # once other batches have their offsets they must not come back
            self._disk.fsync_dir(self._directory)

    def delete_strays(self, bases: Collection[int]) -> None:
        """Of snapshots that no segment starts at, only the newest is of use, and only if nothing is newer."""
        known = set(bases)
        strays = [offset for offset in self._offsets if offset not in known]
        newest = max(self._offsets, default=-1)
        for offset in strays:
            if offset != newest:
                self.delete(offset)

    def load_latest(self, at_most: int) -> tuple[int, list[ProducerEntry]] | None:
        """The newest snapshot that can be read and is not above an offset; unreadable ones are removed."""
        for offset in sorted((known for known in self._offsets if known <= at_most), reverse=True):
            try:
                return offset, decode_snapshot(self._disk.read(self.path(offset)))
            except (CorruptSnapshot, FileNotFoundError) as error:
                logger.warning("producer snapshot %s is not used: %s", self.path(offset), error)
                self.delete(offset)
        return None
