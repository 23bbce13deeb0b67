"""ProducerSnapshots: the snapshot files of a log. `<offset>.snapshot` has the producers at that offset."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable

from tidelog.storage.disk import Disk
from tidelog.storage.log_segment import SNAPSHOT
from tidelog.storage.producer_state_manager import CorruptSnapshot, ProducerEntry, decode_snapshot

logger = logging.getLogger("tidelog.storage")


class ProducerSnapshots:
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
        """Write a snapshot without a sync.

        A torn one has a wrong CRC, and the one before it is used instead.
        """
        self._disk.write(self.path(offset), data)
        self.note(offset)

    def note(self, offset: int) -> None:
        """Add a snapshot that a flush is about to write."""
        self._offsets.add(offset)

    def delete(self, offset: int) -> None:
        self._disk.unlink(self.path(offset))
        self._offsets.discard(offset)

    def let_go(self, offset: int) -> str | None:
        """Forget a snapshot; returns its path, to be removed with its segment, or None if it is not known."""
        if offset not in self._offsets:
            return None
        self._offsets.discard(offset)
        return self.path(offset)

    def delete_outside(self, first: int, last: int) -> None:
        """Delete the snapshots below the log start and above the log end."""
        outside = [offset for offset in self._offsets if not first <= offset <= last]
        for offset in outside:
            self.delete(offset)
        if outside:  # a crash must not bring them back when new batches have these offsets
            self._disk.fsync_dir(self._directory)

    def delete_strays(self, bases: Collection[int]) -> None:
        """Delete the snapshots at which no segment starts, except the newest of all."""
        known = set(bases)
        strays = [offset for offset in self._offsets if offset not in known]
        newest = max(self._offsets, default=-1)
        for offset in strays:
            if offset != newest:
                self.delete(offset)

    def load_latest(self, at_most: int) -> tuple[int, list[ProducerEntry]] | None:
        """The newest valid snapshot at or below an offset; corrupt ones are deleted."""
        for offset in sorted((known for known in self._offsets if known <= at_most), reverse=True):
            try:
                return offset, decode_snapshot(self._disk.read(self.path(offset)))
            except (CorruptSnapshot, FileNotFoundError) as error:
                logger.warning("producer snapshot %s is not used: %s", self.path(offset), error)
                self.delete(offset)
        return None
