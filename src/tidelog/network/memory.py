"""MemoryPool: the memory of frames that arrive in pieces, limited by `queued.max.request.bytes` and reused.

A buffer is reused only after its last view is released. A handler that keeps a view too long prevents the
reuse, and never sees the bytes of another request.
"""

from __future__ import annotations

import mmap
from collections import deque
from typing import Final

STEP: Final = 64 * 1024
"""Buffers that are kept have a multiple of this size, so that frames of nearly the same size share them."""

LARGEST_KEPT: Final = 2 * 1024 * 1024
"""A larger buffer is mapped: bytes take memory when they arrive, whatever size the peer announced."""

KEPT_BYTES: Final = 8 * 1024 * 1024

FrameBuffer = bytearray | mmap.mmap


class MemoryPool:
    """Kafka's SimpleMemoryPool: while a single byte is available, a frame of any size gets a buffer.

    So even a frame larger than the whole pool passes. `limit` is `queued.max.request.bytes`, -1 for none.
    """

    __slots__ = ("_free", "_kept", "limit", "used")

    def __init__(self, limit: int = -1) -> None:
        self.limit = limit
        self.used = 0
        self._free: dict[int, deque[bytearray]] = {}
        self._kept = 0

    @property
    def is_out_of_memory(self) -> bool:
        return 0 < self.limit <= self.used

    @property
    def available(self) -> int:
        return max(0, self.limit - self.used) if self.limit > 0 else -1

    def allocate(self, size: int) -> FrameBuffer:
        """A buffer of at least `size` bytes, not cleared. Raises MemoryError or OSError."""
        buffer = self._make(size)
        self.used += size
        return buffer

    def release(self, buffer: FrameBuffer, size: int) -> None:
        self.used -= size
        capacity = len(buffer)
        if (
            isinstance(buffer, bytearray)
            and capacity % STEP == 0
            and capacity
            and self._kept + capacity <= KEPT_BYTES
        ):
            self._kept += capacity
            self._free.setdefault(capacity, deque()).append(buffer)

    def _make(self, size: int) -> FrameBuffer:
        if size < STEP:
            return bytearray(size)
        if size > LARGEST_KEPT:
            return mmap.mmap(-1, size)
        rounded = -(-size // STEP) * STEP
        free = self._free.get(rounded)
        while free:
            buffer = free.popleft()
            self._kept -= rounded
            if not _is_viewed(buffer):
                return buffer
        return bytearray(rounded)


def _is_viewed(buffer: bytearray) -> bool:
    """Whether a memoryview of the buffer is alive: a bytearray refuses to change its size then."""
    try:
        last = buffer.pop()
    except BufferError:
        return True
    buffer.append(last)
    return False
