"""Reads of log files that may wait for the disk, and reads that must not.

The loop reads with `CachedReads`: what is outside the page cache raises NotCached instead of stalling every
client. `bring_in` then reads it on a thread beside the loop, and the loop tries again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Protocol

from tidelog.clock import Scheduler
from tidelog.storage.disk import DiskFile

AHEAD_BYTES: Final = 128 * 1024
"""Brought in at least: a search that goes on finds more of what it needs, and a fetch sends it."""

Range = tuple[str, int, int]
"""The path of a file, how many bytes of it, and where they begin."""


class NotCached(Exception):
    """Ranges of files have to come from the disk before the loop reads them."""

    def __init__(self, *missing: tuple[DiskFile, int, int]) -> None:
        super().__init__(", ".join(f"{file.path}: {size} bytes at {at}" for file, size, at in missing))
        self.missing = missing

    def bring_in(self) -> dict[Range, OSError | None]:
        """Wait for the disk; gives the error of each range that could not be read."""
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
        """Up to `size` bytes, as DiskFile.pread gives them.

        `whole` is the size of a file that is best brought in as a whole.
        """


class WaitingReads:
    """For threads beside the loop."""

    __slots__ = ()

    def pread(self, file: DiskFile, size: int, position: int, whole: int = 0) -> bytes | bytearray:
        return file.pread(size, position)


class CachedReads:
    """For the loop: NotCached where the disk would have to be waited for.

    A range that was brought in before is read in any case, even if it has been evicted again. Where bringing
    it in failed, the read fails with the same error.
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
    """Read what is missing beside the loop, then call `then` with reads that know of it."""

    def done(brought: dict[Range, OSError | None] | None, error: BaseException | None) -> None:
        if brought is None:
            failed = OSError(f"{cold} could not be read: {error}")
            brought = {(file.path, size, position): failed for file, size, position in cold.missing}
        then(CachedReads({**reads.brought, **brought}))

    scheduler.run_reading(cold.bring_in, done)
