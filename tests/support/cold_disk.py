"""A disk whose files can be evicted from the page cache: from then on what reads them waits until it may."""

from __future__ import annotations

import os
import threading

from tidelog.storage.disk import Bytes, RealDisk, RealFile

PAGE = 4096
WAIT_SECONDS = 30


class ColdDisk(RealDisk):
    """After `evict()` every page is cold until it is read or written; a cold read waits for `may_read`."""

    def __init__(self) -> None:
        self.may_read = threading.Event()
        self.may_read.set()
        self.error: OSError | None = None
        self.waiting = 0
        self.brought_in: list[tuple[str, int, int]] = []
        self._evicted = False
        self._warm: set[tuple[str, int]] = set()
        self._lock = threading.Lock()

    def evict(self) -> None:
        with self._lock:
            self._evicted = True
            self._warm.clear()

    def make_hot(self) -> None:
        """All is in the page cache again, as before `evict`."""
        self._evicted = False

    def open(self, path: str, *, create: bool = False) -> RealFile:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        file = ColdFile(path, os.open(path, flags, 0o644))
        file.disk = self
        return file

    def read(self, path: str) -> bytes:
        self.wait_for(path, 1, 0)
        return super().read(path)

    def is_cold(self, path: str, size: int, position: int) -> bool:
        with self._lock:
            return self._evicted and any((path, page) not in self._warm for page in _pages(size, position))

    def now_warm(self, path: str, size: int, position: int) -> None:
        with self._lock:
            self._warm.update((path, page) for page in _pages(size, position))

    def wait_for(self, path: str, size: int, position: int) -> None:
        if self.is_cold(path, size, position):
            self.waiting += 1
            assert self.may_read.wait(WAIT_SECONDS), f"nothing may be read of {path}"
            self.waiting -= 1
            if self.error is not None:
                raise self.error
            self.now_warm(path, size, position)


def _pages(size: int, position: int) -> range:
    return range(position // PAGE, (position + max(size, 1) - 1) // PAGE + 1)


class ColdFile(RealFile):
    __slots__ = ("disk",)

    disk: ColdDisk

    def fileno(self) -> int:
        self.disk.wait_for(self.path, 1, 0)  # whoever wants the descriptor reads the file without us
        return super().fileno()

    def pread(self, size: int, position: int) -> bytes:
        self.disk.wait_for(self.path, size, position)
        return super().pread(size, position)

    def pread_into(self, buffer: memoryview, position: int) -> int:
        self.disk.wait_for(self.path, len(buffer), position)
        return super().pread_into(buffer, position)

    def pread_cached(self, size: int, position: int) -> bytes | bytearray | None:
        return None if self.disk.is_cold(self.path, size, position) else super().pread(size, position)

    def is_cached(self, size: int, position: int) -> bool:
        return not self.disk.is_cold(self.path, size, position)

    def bring_in(self, size: int, position: int, ahead: int = 0) -> None:
        self.disk.brought_in.append((self.path, size, position))
        self.disk.wait_for(self.path, size, position)

    def pwrite(self, data: Bytes, position: int) -> None:
        super().pwrite(data, position)
        self.disk.now_warm(self.path, len(data), position)
