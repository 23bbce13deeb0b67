"""Memory for frames that do not fit the loop's own buffer: bounded, fair, and used again.

A buffer is handed out again only when nobody holds a view of it any more, so a late reader can at
worst keep memory from being reused; it never sees another request's bytes.
"""

from __future__ import annotations

import mmap
from collections import deque
from typing import Final

STEP: Final = 64 * 1024
"""Buffers worth keeping come in multiples of this, so that frames of nearly one size share them."""

LARGEST_KEPT: Final = 2 * 1024 * 1024
"""Above this a buffer is mapped: its pages come one by one as bytes arrive, whatever length was announced."""

KEPT_BYTES: Final = 8 * 1024 * 1024

FrameBuffer = bytearray | mmap.mmap


class MemoryPool:
    """`queued.max.request.bytes`: while bytes are left a frame gets its buffer, even one larger than that.

    Granting the last one in full, as Kafka does, lets a frame larger than the whole pool pass.
    """

    __slots__ = ("_free", "_kept", "limit", "used")

    def __init__(self, limit: int = -1) -> None:
        self.limit = limit
        self.used = 0
        self._free: dict[int, deque[bytearray]] = {}
        self._kept = 0

    @property
    def exhausted(self) -> bool:
        return 0 < self.limit <= self.used

    @property
    def available(self) -> int:
        return max(0, self.limit - self.used) if self.limit > 0 else -1

    def take(self, size: int) -> FrameBuffer:
        """A buffer of at least `size` bytes. What is in it is left from earlier use."""
        buffer = self._make(size)
        self.used += size
        return buffer

    def give_back(self, buffer: FrameBuffer, size: int) -> None:
        self.used -= size
        kept = len(buffer)
        if isinstance(buffer, bytearray) and kept % STEP == 0 and kept and self._kept + kept <= KEPT_BYTES:
            self._kept += kept
            self._free.setdefault(kept, deque()).append(buffer)

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
