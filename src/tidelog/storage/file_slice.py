"""FileSlice: a range of a segment file, sent to a socket without copying it."""

from __future__ import annotations

from tidelog.storage.disk import DiskFile


class FileSlice:
    """A slice keeps its file open and stays readable when the segment is deleted."""

    __slots__ = ("_read", "handle", "position", "size")

    def __init__(self, handle: DiskFile, position: int, size: int) -> None:
        self.handle = handle
        self.position = position
        self.size = size
        self._read: bytes | bytearray | None = None

    def fileno(self) -> int:
        return self.handle.fileno()

    def read(self) -> bytes:
        return self.handle.pread(self.size, self.position)

    def read_range(self, size: int, position: int) -> bytes:
        return self.handle.pread(size, position)

    def read_into(self, buffer: memoryview, position: int) -> int:
        return self.handle.pread_into(buffer, position)

    def read_cached(self) -> bytes | bytearray | None:
        """The bytes, or None if the read would have to wait for the disk.

        Followers share the result of one read.
        """
        if self._read is None:
            self._read = self.handle.pread_cached(self.size, self.position)
        return self._read

    def is_cached(self, size: int, position: int) -> bool:
        return self.handle.is_cached(size, position)

    def bring_in(self, size: int, position: int, ahead: int = 0) -> None:
        self.handle.bring_in(size, position, ahead)

    def __len__(self) -> int:
        return self.size

    def __repr__(self) -> str:
        return f"FileSlice({self.handle.path!r}, position={self.position}, size={self.size})"
