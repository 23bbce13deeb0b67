"""The file system as the log uses it, small enough to be replaced by a simulated one.

A `DiskFile` closes its descriptor with the last reference to it: a slow consumer can read a slice to its end
although the segment is deleted.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from collections.abc import Callable, Sequence
from time import perf_counter_ns
from typing import Protocol

from tidelog.storage.page_cache import NOWAIT, is_cached
from tidelog.storage.reservation import WORTHWHILE, reserve

Bytes = bytes | bytearray | memoryview
READ_BYTES = 1 << 17
# Consumers read in order: one check of this many bytes of the page cache replaces a check for each range.
LOOK_AHEAD_BYTES = 8 << 20
CACHED_NS = 100_000_000  # how long the result of a check ahead is used
SMALL_FILE = 1 << 16  # up to this size a copy is cheaper than a mapping, which also keeps a descriptor


class SyncFailed(OSError):
    """A sync failed, and the kernel may have dropped the data.

    The kernel reports the failure only once: a second sync may succeed although data is lost. Whatever the
    errno is, the files have to be read again.
    """


class DiskFile(Protocol):
    path: str

    def fileno(self) -> int: ...

    def pread(self, size: int, position: int) -> bytes:
        """Up to `size` bytes; fewer only at the end of the file."""

    def pread_into(self, buffer: memoryview, position: int) -> int:
        """Fill `buffer`; returns the number of bytes, which is smaller only at the end of the file."""

    def pread_cached(self, size: int, position: int) -> bytes | bytearray | None:
        """Like `pread`, but returns None if the read would have to wait for the disk."""

    def is_cached(self, size: int, position: int) -> bool:
        """Whether a range can be read, or sent to a socket, without waiting for the disk."""

    def bring_in(self, size: int, position: int, ahead: int = 0) -> None:
        """Read a range into the page cache, waiting for the disk. Not for the loop.

        If `ahead` is larger than `size`, the kernel is asked to read that much ahead.
        """

    def pwrite(self, data: Bytes, position: int) -> None:
        """Write all of `data`, or raise OSError."""

    def pwritev(self, parts: Sequence[Bytes], position: int) -> None: ...

    def size(self) -> int: ...

    def truncate(self, size: int) -> None: ...

    def fsync(self) -> None:
        """SyncFailed if the disk refuses."""


class DiskLock(Protocol):
    def close(self) -> None: ...


class Disk(Protocol):
    def open(self, path: str, *, create: bool = False) -> DiskFile: ...

    def map(self, path: str) -> mmap.mmap | bytes:
        """The contents of a file that does not change any more."""

    def read(self, path: str) -> bytes: ...

    def write(self, path: str, data: bytes) -> None:
        """Create or replace a file. After a crash it may be torn."""

    def atomic_write(self, path: str, data: bytes) -> None:
        """Create or replace a file, durable on return. A crash leaves the old contents or the new ones."""

    def fsync(self, path: str) -> None:
        """SyncFailed if the disk refuses; another OSError if the file cannot be opened."""

    def fsync_dir(self, path: str) -> None: ...

    def rename(self, source: str, target: str) -> None: ...

    def unlink(self, path: str) -> None:
        """Remove a file; a missing one is no error."""

    def remove_tree(self, path: str) -> None: ...

    def make_dir(self, path: str) -> None: ...

    def exists(self, path: str) -> bool: ...

    def is_dir(self, path: str) -> bool: ...

    def size(self, path: str) -> int: ...

    def modified_ms(self, path: str) -> int: ...

    def set_modified_ms(self, path: str, ms: int) -> None:
        """Give a rewritten file the age of its contents: retention uses it for records without timestamps."""

    def listdir(self, path: str) -> list[str]: ...

    def lock(self, path: str) -> DiskLock | None:
        """An exclusive lock that ends with the process; None if another process has it."""

    def usage(self, path: str) -> tuple[int, int]:
        """Total and usable bytes of the volume."""


class RealFile:
    __slots__ = ("_cached_from", "_cached_to", "_cached_until", "_look_ahead_at", "fd", "path")

    def __init__(self, path: str, fd: int) -> None:
        self.path = path
        self.fd = fd
        # The range that was found in the page cache, until when that is used, when to check ahead again.
        self._cached_from = self._cached_to = self._cached_until = self._look_ahead_at = 0

    def fileno(self) -> int:
        return self.fd

    def pread(self, size: int, position: int) -> bytes:
        data = os.pread(self.fd, size, position)
        if len(data) == size or not data:
            return data
        parts = [data]
        missing = size - len(data)
        while missing and data:
            data = os.pread(self.fd, missing, position + size - missing)
            parts.append(data)
            missing -= len(data)
        return b"".join(parts)

    def pread_into(self, buffer: memoryview, position: int) -> int:
        filled = os.preadv(self.fd, (buffer,), position)
        while 0 < filled < len(buffer):
            count = os.preadv(self.fd, (buffer[filled:],), position + filled)
            if not count:
                break
            filled += count
        return filled

    def pread_cached(self, size: int, position: int) -> bytes | bytearray | None:
        data = bytearray(size)
        try:
            count = os.preadv(self.fd, (data,), position, NOWAIT) if NOWAIT else -1
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP:
                raise
            count = -1
        if count == size:
            return data
        if count < 0:
            return self.pread(size, position) if is_cached(self.fd, size, position) else None
        if position + count < self.size():
            return None
        del data[count:]
        return data

    def is_cached(self, size: int, position: int) -> bool:
        now = perf_counter_ns()
        if self._cached_from <= position and position + size <= self._cached_to and now < self._cached_until:
            return True
        if now >= self._look_ahead_at:
            if is_cached(self.fd, LOOK_AHEAD_BYTES, position):
                self._cached_from = position
                self._cached_to = position + LOOK_AHEAD_BYTES
                self._cached_until = now + CACHED_NS
                return True
            self._look_ahead_at = now + CACHED_NS
        return is_cached(self.fd, size, position)

    def bring_in(self, size: int, position: int, ahead: int = 0) -> None:
        os.posix_fadvise(self.fd, position, max(size, ahead), os.POSIX_FADV_WILLNEED)
        end = position + size
        while position < end:
            read = len(os.pread(self.fd, min(READ_BYTES, end - position), position))
            if not read:
                return
            position += read

    def pwrite(self, data: Bytes, position: int) -> None:
        size = len(data)
        if size >= WORTHWHILE:
            reserve(self.fd, size, position)
        written = os.pwrite(self.fd, data, position)
        if written != size:
            self._write_rest(memoryview(data), written, position)

    def pwritev(self, parts: Sequence[Bytes], position: int) -> None:
        written = os.pwritev(self.fd, parts, position)
        for part in parts:
            if written < len(part):
                self._write_rest(memoryview(part), written, position)
            position += len(part)
            written = max(0, written - len(part))

    def _write_rest(self, data: memoryview, written: int, position: int) -> None:
        while written < len(data):
            written += os.pwrite(self.fd, data[written:], position + written)

    def size(self) -> int:
        return os.fstat(self.fd).st_size

    def truncate(self, size: int) -> None:
        os.ftruncate(self.fd, size)

    def fsync(self) -> None:
        _sync(os.fdatasync, self.fd, self.path)

    def __del__(self) -> None:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)


class RealLock:
    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            fcntl.flock(fd, fcntl.LOCK_UN)  # a process forked from this one may keep the file open
            os.close(fd)


class RealDisk:
    __slots__ = ()

    def open(self, path: str, *, create: bool = False) -> RealFile:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        return RealFile(path, os.open(path, flags, 0o644))

    def map(self, path: str) -> mmap.mmap | bytes:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            data = os.read(fd, SMALL_FILE + 1)
            if len(data) <= SMALL_FILE:
                return data
            return mmap.mmap(fd, 0, prot=mmap.PROT_READ)
        finally:
            os.close(fd)

    def read(self, path: str) -> bytes:
        with open(path, "rb", buffering=0) as file:
            return file.read()

    def write(self, path: str, data: bytes) -> None:
        with open(path, "wb", buffering=0) as file:
            _write_fully(file.fileno(), data)

    def atomic_write(self, path: str, data: bytes) -> None:
        temporary = path + ".tmp"
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            _write_fully(fd, data)
            _sync(os.fsync, fd, temporary)
        finally:
            os.close(fd)
        os.replace(temporary, path)
        self.fsync_dir(os.path.dirname(path))

    def fsync(self, path: str) -> None:
        _fsync_path(path, os.O_RDWR)

    def fsync_dir(self, path: str) -> None:
        _fsync_path(path or ".", os.O_RDONLY | os.O_DIRECTORY)

    def rename(self, source: str, target: str) -> None:
        os.replace(source, target)

    def unlink(self, path: str) -> None:
        try:
            os.unlink(path)
        except FileNotFoundError:
            pass

    def remove_tree(self, path: str) -> None:
        import shutil  # it loads every archive format, which would delay each start

        shutil.rmtree(path)

    def make_dir(self, path: str) -> None:
        os.makedirs(path, exist_ok=True)

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def is_dir(self, path: str) -> bool:
        return os.path.isdir(path)

    def size(self, path: str) -> int:
        return os.stat(path).st_size

    def modified_ms(self, path: str) -> int:
        return os.stat(path).st_mtime_ns // 1_000_000

    def set_modified_ms(self, path: str, ms: int) -> None:
        os.utime(path, ns=(ms * 1_000_000, ms * 1_000_000))

    def listdir(self, path: str) -> list[str]:
        return os.listdir(path)

    def lock(self, path: str) -> DiskLock | None:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the kind of lock that Kafka takes
        except OSError as error:
            os.close(fd)
            if error.errno in (errno.EACCES, errno.EAGAIN):
                return None
            raise
        return RealLock(fd)

    def usage(self, path: str) -> tuple[int, int]:
        stat = os.statvfs(path)
        return stat.f_blocks * stat.f_frsize, stat.f_bavail * stat.f_frsize


def _write_fully(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _fsync_path(path: str, flags: int) -> None:
    fd = os.open(path, flags | os.O_CLOEXEC)
    try:
        _sync(os.fsync, fd, path)
    finally:
        os.close(fd)


def _sync(sync: Callable[[int], None], fd: int, path: str) -> None:
    try:
        sync(fd)
    except OSError as error:
        raise SyncFailed(error.errno, error.strerror, path) from error
