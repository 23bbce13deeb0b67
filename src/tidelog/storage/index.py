"""The sparse indexes of a segment: offset to file position, and timestamp to offset.

The indexes of the active segment grow in memory and reach their files when the segment is rolled or the
log is closed: after a crash the active segment is read again anyway, and its indexes are made from that.
Those of older segments never change and are searched where they lie, memory mapped.
"""

from __future__ import annotations

import mmap
import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from typing import Protocol

OFFSET_ENTRY_SIZE = 8
TIME_ENTRY_SIZE = 12
MAX_RELATIVE_OFFSET = (1 << 31) - 1

_OFFSET_ENTRY = struct.Struct(">ii")
_TIME_ENTRY = struct.Struct(">qi")
_INT = struct.Struct(">i")
_LONG = struct.Struct(">q")

Mapped = mmap.mmap | bytes


class CorruptIndex(ValueError):
    """An index file whose size or last entry cannot be right; it is made anew from the log."""


class OffsetLookup(Protocol):
    def lookup(self, relative_offset: int) -> int:
        """The position of the last entry at or before an offset, 0 where there is none."""

    def offset_after(self, position: int) -> int | None:
        """The relative offset of the first entry at or behind a file position."""


class TimeLookup(Protocol):
    def lookup(self, timestamp: int) -> int:
        """The relative offset of the last entry at or before a timestamp, 0 where there is none."""

    def last(self) -> tuple[int, int] | None:
        """Greatest timestamp and its relative offset."""


def _columns(data: bytes, code: str) -> array[int]:
    column = array(code)
    column.frombytes(data)
    if sys.byteorder == "little":
        column.byteswap()
    return column


def _big_endian(column: array[int]) -> bytes:
    if sys.byteorder == "little":
        column = column[:]
        column.byteswap()
    return column.tobytes()


class GrowingOffsetIndex:
    __slots__ = ("max_entries", "offsets", "positions")

    def __init__(self, max_bytes: int, data: bytes = b"") -> None:
        both = _columns(data[: len(data) // OFFSET_ENTRY_SIZE * OFFSET_ENTRY_SIZE], "i")
        self.offsets = both[::2]
        self.positions = both[1::2]
        self.max_entries = max_bytes // OFFSET_ENTRY_SIZE

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    def is_full(self) -> bool:
        return len(self.offsets) >= self.max_entries

    def append(self, relative_offset: int, position: int) -> None:
        self.offsets.append(relative_offset)
        self.positions.append(position)

    def lookup(self, relative_offset: int) -> int:
        at = bisect_right(self.offsets, relative_offset)
        return self.positions[at - 1] if at else 0

    def offset_after(self, position: int) -> int | None:
        at = bisect_left(self.positions, position)
        return self.offsets[at] if at < len(self.offsets) else None

    def truncate(self, relative_offset: int) -> None:
        """Keep the entries below an offset."""
        at = bisect_left(self.offsets, relative_offset)
        del self.offsets[at:], self.positions[at:]

    def encode(self) -> bytes:
        both = array("i", bytes(OFFSET_ENTRY_SIZE * len(self.offsets)))
        both[::2] = self.offsets
        both[1::2] = self.positions
        return _big_endian(both)


class GrowingTimeIndex:
    __slots__ = ("max_entries", "offsets", "timestamps")

    def __init__(self, max_bytes: int, data: bytes = b"") -> None:
        words = array("i", data[: len(data) // TIME_ENTRY_SIZE * TIME_ENTRY_SIZE])
        halves = array("i", bytes(8 * (len(words) // 3)))
        halves[::2] = words[::3]
        halves[1::2] = words[1::3]
        self.timestamps = _columns(halves.tobytes(), "q")
        self.offsets = _columns(words[2::3].tobytes(), "i")
        self.max_entries = max_bytes // TIME_ENTRY_SIZE

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    def is_full(self) -> bool:
        # One place is kept for the entry that closing the segment adds.
        return len(self.offsets) >= self.max_entries - 1

    def maybe_append(self, timestamp: int, relative_offset: int) -> None:
        """Add an entry unless it says no more than the last one: timestamps rise strictly."""
        last = self.timestamps[-1] if self.timestamps else -1
        if timestamp > last:
            self.timestamps.append(timestamp)
            self.offsets.append(relative_offset)

    def lookup(self, timestamp: int) -> int:
        at = bisect_right(self.timestamps, timestamp)
        return self.offsets[at - 1] if at else 0

    def last(self) -> tuple[int, int] | None:
        return (self.timestamps[-1], self.offsets[-1]) if self.timestamps else None

    def truncate(self, relative_offset: int) -> None:
        at = bisect_left(self.offsets, relative_offset)
        del self.offsets[at:], self.timestamps[at:]

    def encode(self) -> bytes:
        halves = array("i", _big_endian(self.timestamps))
        words = array("i", bytes(TIME_ENTRY_SIZE * len(self.offsets)))
        words[::3] = halves[::2]
        words[1::3] = halves[1::2]
        words[2::3] = array("i", _big_endian(self.offsets))
        return words.tobytes()


class MappedOffsetIndex:
    __slots__ = ("_data", "_entries")

    def __init__(self, data: Mapped) -> None:
        self._data = data
        self._entries = range(len(data) // OFFSET_ENTRY_SIZE)

    def __len__(self) -> int:
        return len(self._entries)

    def lookup(self, relative_offset: int) -> int:
        at = bisect_right(self._entries, relative_offset, key=self._offset)
        return self._position(at - 1) if at else 0

    def offset_after(self, position: int) -> int | None:
        at = bisect_left(self._entries, position, key=self._position)
        return self._offset(at) if at < len(self._entries) else None

    def _offset(self, entry: int) -> int:
        value: int = _INT.unpack_from(self._data, entry * OFFSET_ENTRY_SIZE)[0]
        return value

    def _position(self, entry: int) -> int:
        value: int = _INT.unpack_from(self._data, entry * OFFSET_ENTRY_SIZE + 4)[0]
        return value


class MappedTimeIndex:
    __slots__ = ("_data", "_entries")

    def __init__(self, data: Mapped) -> None:
        self._data = data
        self._entries = range(len(data) // TIME_ENTRY_SIZE)

    def __len__(self) -> int:
        return len(self._entries)

    def lookup(self, timestamp: int) -> int:
        at = bisect_right(self._entries, timestamp, key=self._timestamp)
        return self._offset(at - 1) if at else 0

    def last(self) -> tuple[int, int] | None:
        count = len(self._entries)
        return (self._timestamp(count - 1), self._offset(count - 1)) if count else None

    def _timestamp(self, entry: int) -> int:
        value: int = _LONG.unpack_from(self._data, entry * TIME_ENTRY_SIZE)[0]
        return value

    def _offset(self, entry: int) -> int:
        value: int = _INT.unpack_from(self._data, entry * TIME_ENTRY_SIZE + 8)[0]
        return value


def check_offset_index(data: Mapped, log_size: int) -> None:
    """Raise CorruptIndex unless the last entry can be a batch of a log of that size."""
    if len(data) % OFFSET_ENTRY_SIZE:
        raise CorruptIndex(f"{len(data)} bytes are not whole entries of {OFFSET_ENTRY_SIZE}")
    if data:
        offset, position = _OFFSET_ENTRY.unpack_from(data, len(data) - OFFSET_ENTRY_SIZE)
        if (
            offset < 0
            or not 0 <= position < max(1, log_size)
            or (len(data) > OFFSET_ENTRY_SIZE and offset == 0)
        ):
            raise CorruptIndex(f"its last entry ({offset}, {position}) is outside a log of {log_size} bytes")


def check_time_index(data: Mapped) -> None:
    if len(data) % TIME_ENTRY_SIZE:
        raise CorruptIndex(f"{len(data)} bytes are not whole entries of {TIME_ENTRY_SIZE}")
    if data:
        timestamp, offset = _TIME_ENTRY.unpack_from(data, len(data) - TIME_ENTRY_SIZE)
        if offset < 0 or timestamp < _LONG.unpack_from(data, 0)[0]:
            raise CorruptIndex(f"its last entry ({timestamp}, {offset}) is before its first")
