"""A disk in memory that forgets what was not synced, and stops the world at an operation of your choice.

What a crash leaves is drawn from a seed: of the writes to a file since its last fsync none, some or all, the
last one torn; of the changes to directories since their last fsync the first few. Real ones may be kinder.
"""

from __future__ import annotations

import errno
import os
import posixpath
import random
from collections.abc import Callable, Sequence

from tidelog.simulation.disk_faults import Fault, Faults
from tidelog.storage.disk import Bytes


class Crash(BaseException):
    """The power is gone; nothing may be caught and nothing goes on."""


class Inode:
    __slots__ = ("changes", "data", "durable", "modified_ms")

    def __init__(self, data: bytes = b"") -> None:
        self.data = bytearray(data)  # what the running process sees
        self.durable = bytes(data)
        self.modified_ms = 0
        self.changes: list[
            tuple[int, bytes | None]
        ] = []  # (position, bytes) or (size, None) for a truncation

    def write(self, position: int, data: bytes) -> None:
        _apply(self.data, position, data)
        self.changes.append((position, data))

    def truncate(self, size: int) -> None:
        _apply(self.data, size, None)
        self.changes.append((size, None))

    def sync(self) -> None:
        self.durable = bytes(self.data)
        self.changes.clear()

    def after_crash(self, rng: random.Random) -> bytes:
        data = bytearray(self.durable)
        fate = rng.random()
        if fate < 0.2:
            return bytes(data)
        kept = self.changes[: rng.randint(0, len(self.changes))] if fate < 0.8 else self.changes
        for at, (position, piece) in enumerate(kept):
            if fate > 0.9 and rng.random() < 0.3:
                continue  # pages reach the disk in any order
            if piece is not None and at == len(kept) - 1 and rng.random() < 0.5:
                piece = piece[: rng.randint(0, len(piece))]
            _apply(data, position, piece)
        return bytes(data)


def _apply(data: bytearray, position: int, piece: bytes | None) -> None:
    if piece is None:
        del data[position:]
    if len(data) < position:
        data.extend(bytes(position - len(data)))
    if piece is not None:
        data[position : position + len(piece)] = piece


class SimulatedFile:
    def __init__(self, disk: SimulatedDisk, path: str, inode: Inode) -> None:
        self.path = path
        self._disk = disk
        self._inode = inode

    def fileno(self) -> int:
        raise OSError(errno.EBADF, "a simulated file has no descriptor", self.path)

    def pread(self, size: int, position: int) -> bytes:
        self._disk.check("read", self.path)
        return bytes(self._inode.data[position : position + size])

    def pread_into(self, buffer: memoryview, position: int) -> int:
        data = self.pread(len(buffer), position)
        buffer[: len(data)] = data
        return len(data)

    pread_cached = pread

    def is_cached(self, size: int, position: int) -> bool:
        return True

    def bring_in(self, size: int, position: int, ahead: int = 0) -> None:
        self._disk.check("read", self.path)

    def pwrite(self, data: Bytes, position: int) -> None:
        self._disk.step()
        written = self._disk.room_for(bytes(data), self.path)
        self._inode.write(position, written)
        if len(written) < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self.path)

    def pwritev(self, parts: Sequence[Bytes], position: int) -> None:
        self.pwrite(b"".join(bytes(part) for part in parts), position)

    def size(self) -> int:
        return len(self._inode.data)

    def truncate(self, size: int) -> None:
        self._disk.step()
        self._inode.truncate(size)

    def fsync(self) -> None:
        self._disk.sync_begins(self.path)
        if not self._disk.lies:
            self._inode.sync()


class SimulatedLock:
    def __init__(self, disk: SimulatedDisk, path: str) -> None:
        self._disk = disk
        self._path = path

    def close(self) -> None:
        self._disk.locks.discard(self._path)


Change = tuple[str, str, str]  # what, path, other path


class SimulatedDisk:
    def __init__(self) -> None:
        self.files: dict[str, Inode] = {}
        self.dirs: set[str] = {"/"}
        self.locks: set[str] = set()
        self.operations = 0
        self.crash_at: int | None = None
        self.free_bytes: int | None = None
        self.broken: str | None = None  # a path prefix below which every operation fails
        self.faults = Faults()
        self.lies = False  # whether a sync of a file returns before it is durable
        self.on_step: Callable[[], None] | None = None
        self.on_sync: Callable[[str], None] | None = None
        """Called before each change."""
        self._durable_files: dict[str, Inode] = {}
        self._durable_dirs: set[str] = {"/"}
        self._changes: list[tuple[Change, Inode | None]] = []

    # -- faults

    def sync_begins(self, path: str) -> None:
        self.step()
        if self.on_sync is not None:
            self.on_sync(path)
        self.check("sync", path)

    def step(self) -> None:
        self.operations += 1
        if self.on_step is not None:
            self.on_step()
        if self.crash_at is not None and self.operations >= self.crash_at:
            raise Crash

    def room_for(self, data: bytes, path: str) -> bytes:
        self.check("write", path)
        if self.free_bytes is None:
            return data
        fitting = data[: self.free_bytes]
        self.free_bytes -= len(fitting)
        return fitting

    def fail(self, suffix: str, number: int, *operations: str, times: int | None = None) -> None:
        """`times` operations on files whose names end so fail, or all until `heal`."""
        self.faults.add(Fault(number, operations, suffix, left=times))

    def heal(self) -> None:
        self.faults.clear()

    def check(self, operation: str, path: str) -> None:
        if self.broken is not None and path.startswith(self.broken):
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        self.faults.check(operation, path)

    def after_crash(self, rng: random.Random) -> SimulatedDisk:
        """The disk as the next start finds it."""
        disk = SimulatedDisk()
        files, dirs = dict(self._durable_files), set(self._durable_dirs)
        for change, inode in self._changes[: rng.randint(0, len(self._changes))]:
            _change(files, dirs, change, inode)
        disk.dirs = set(dirs)
        disk._durable_dirs = set(dirs)
        for path, inode in files.items():
            disk.files[path] = disk._durable_files[path] = Inode(inode.after_crash(rng))
        return disk

    # -- the namespace

    def _note(self, what: str, path: str, other: str = "", inode: Inode | None = None) -> None:
        change = (what, path, other)
        _change(self.files, self.dirs, change, inode)
        self._changes.append((change, inode))

    def fsync_dir(self, path: str) -> None:
        self.sync_begins(path)
        rest: list[tuple[Change, Inode | None]] = []
        for change, inode in self._changes:
            if path in (posixpath.dirname(change[1]), posixpath.dirname(change[2])):
                if change[0] == "rename" and change[1] in self._durable_dirs:
                    rest = [(_below(other, change[1], change[2]), inode) for other, inode in rest]
                _change(self._durable_files, self._durable_dirs, change, inode)
            else:
                rest.append((change, inode))
        self._changes = rest

    def _inode(self, path: str) -> Inode:
        self.check("read", path)
        try:
            return self.files[path]
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from None

    def open(self, path: str, *, create: bool = False) -> SimulatedFile:
        self.check("open", path)
        if create and path not in self.files:
            self.check("create", path)
            self.step()
            self._require_dir(posixpath.dirname(path))
            self._note("link", path, inode=Inode())
        return SimulatedFile(self, path, self._inode(path))

    def _require_dir(self, path: str) -> None:
        if path not in self.dirs:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)

    def map(self, path: str) -> bytes:
        return self.read(path)

    def read(self, path: str) -> bytes:
        return bytes(self._inode(path).data)

    def write(self, path: str, data: bytes) -> None:
        file = self.open(path, create=True)
        file.truncate(0)
        if data:
            file.pwrite(data, 0)

    def atomic_write(self, path: str, data: bytes) -> None:
        self.write(path + ".tmp", data)
        self.fsync(path + ".tmp")
        self.rename(path + ".tmp", path)
        self.fsync_dir(posixpath.dirname(path))

    def fsync(self, path: str) -> None:
        self.sync_begins(path)
        inode = self._inode(path)
        if not self.lies:
            inode.sync()

    def rename(self, source: str, target: str) -> None:
        self.step()
        self.check("rename", source)
        if source not in self.files and source not in self.dirs:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), source)
        self._note("rename", source, target)

    def unlink(self, path: str) -> None:
        self.step()
        self.check("unlink", path)
        if path in self.files:
            self._note("unlink", path)

    def remove_tree(self, path: str) -> None:
        self.step()
        self._require_dir(path)
        for name in [name for name in self.files if name.startswith(path + "/")]:
            self._note("unlink", name)
        self._note("rmdir", path)

    def make_dir(self, path: str) -> None:
        self.step()
        self.check("create", path)
        missing = []
        while path not in self.dirs:
            missing.append(path)
            path = posixpath.dirname(path)
        for name in reversed(missing):
            self._note("mkdir", name)

    def exists(self, path: str) -> bool:
        return path in self.files or path in self.dirs

    def is_dir(self, path: str) -> bool:
        return path in self.dirs

    def size(self, path: str) -> int:
        return len(self._inode(path).data)

    def modified_ms(self, path: str) -> int:
        return self._inode(path).modified_ms

    def set_modified_ms(self, path: str, ms: int) -> None:
        self.step()
        self._inode(path).modified_ms = ms

    def listdir(self, path: str) -> list[str]:
        self.check("read", path)
        self._require_dir(path)
        prefix = path.rstrip("/") + "/"
        return sorted(
            name[len(prefix) :]
            for name in [*self.files, *self.dirs]
            if name.startswith(prefix) and name != prefix and "/" not in name[len(prefix) :]
        )

    def lock(self, path: str) -> SimulatedLock | None:
        if path in self.locks:
            return None
        self.locks.add(path)
        return SimulatedLock(self, path)

    def usage(self, path: str) -> tuple[int, int]:
        return 1 << 40, 1 << 40


def _change(files: dict[str, Inode], dirs: set[str], change: Change, inode: Inode | None) -> None:
    what, path, other = change
    if what == "link" and inode is not None:
        files[path] = inode
    elif what == "unlink":
        files.pop(path, None)
    elif what == "mkdir":
        dirs.add(path)
    elif what == "rmdir":
        dirs.discard(path)
    elif what == "rename":
        if path in files:
            files[other] = files.pop(path)
        if path in dirs:
            _move_tree(files, dirs, path, other)


def _below(change: Change, path: str, other: str) -> Change:
    """A change within a directory that has another name now: it waits there for that directory's sync."""
    what, *paths = change
    moved = [other + name[len(path) :] if name.startswith(path + "/") else name for name in paths]
    return what, moved[0], moved[1]


def _move_tree(files: dict[str, Inode], dirs: set[str], path: str, other: str) -> None:
    for name in [name for name in dirs if name == path or name.startswith(path + "/")]:
        dirs.discard(name)
        dirs.add(other + name[len(path) :])
    for name in [name for name in files if name.startswith(path + "/")]:
        files[other + name[len(path) :]] = files.pop(name)
