"""Reads of log files that may wait for the disk, and reads that must not.

The loop reads with `CachedReads`. A range outside of the page cache raises NotCached, because a wait for the
disk would delay every client. `bring_in` reads the range on another thread, and the loop tries again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Protocol

from tidelog.clock import Scheduler
from tidelog.storage.disk import DiskFile

AHEAD_BYTES: Final = 128 * 1024
"""The least that is read from the disk at a time: a search or a fetch needs the bytes that follow, too."""

Range = tuple[str, int, int]
"""The path of a file, how many bytes of it, and where they begin."""


class NotCached(Exception):
    """Ranges of files that have to be read from the disk before the loop can use them."""

    def __init__(self, *missing: tuple[DiskFile, int, int]) -> None:
        super().__init__(", ".join(f"{file.path}: {size} bytes at {at}" for file, size, at in missing))
        self.missing = missing

    def bring_in(self) -> dict[Range, OSError | None]:
        """Read the ranges, waiting for the disk; returns the error of each, None if it was read."""
        brought: dict[Range, OSError | None] = {}
        for file, size, position in self.missing:
            brought[file.path, size, position] = None
            try:
                file.bring_in(size, position)
            except OSError as error:
                brought[file.path, size, position] = error
        return brought


class Reads(Protocol):
    def pread(self, file: DiskFile, size: int, position: int, whole: int = 0) -> bytes | bytearray:
        """Read up to `size` bytes, like DiskFile.pread.

        `whole`, if not 0, is the size of a file that should be read as a whole.
        """


class WaitingReads:
    """For other threads than the loop: waits for the disk."""

    __slots__ = ()

    def pread(self, file: DiskFile, size: int, position: int, whole: int = 0) -> bytes | bytearray:
        return file.pread(size, position)


class CachedReads:
    """For the loop: raises NotCached if the read would wait for the disk.

    `brought` has the ranges that `bring_in` has read, each with its error or None. Such a range is read in
    any case, even if it was evicted again; after an error, the read raises the same error.
    """

    __slots__ = ("brought",)

    def __init__(self, brought: Mapping[Range, OSError | None] | None = None) -> None:
        self.brought: Mapping[Range, OSError | None] = brought or {}

    def pread(self, file: DiskFile, size: int, position: int, whole: int = 0) -> bytes | bytearray:
        data = file.pread_cached(size, position)
        if data is not None:
            return data
        missing = (file, whole, 0) if whole else (file, max(size, AHEAD_BYTES), position)
        wanted = (file.path, *missing[1:])
        if wanted not in self.brought:
            raise NotCached(missing)
        error = self.brought[wanted]
        if error is not None:
            raise error
        return file.pread(size, position)


WAITING: Final = WaitingReads()
CACHED: Final = CachedReads()


def bring_in(
    scheduler: Scheduler, cold: NotCached, reads: CachedReads, then: Callable[[CachedReads], object]
) -> None:
    """Read the missing ranges on another thread, then call `then` with reads that include them."""

    def done(brought: dict[Range, OSError | None] | None, error: BaseException | None) -> None:
        if brought is None:
            failed = OSError(f"{cold} could not be read: {error}")
            brought = {(file.path, size, position): failed for file, size, position in cold.missing}
        then(CachedReads({**reads.brought, **brought}))

    scheduler.run_reading(cold.bring_in, done)
