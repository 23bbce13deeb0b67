"""The sparse indexes of a segment: offset to file position, and timestamp to offset.

The indexes of the active segment grow in memory. They are written when the segment is rolled or the log is
closed; after a crash, recovery reads the active segment and rebuilds them. Indexes of older segments never
change. A small one is read into memory. A search in a large one reads the blocks that it needs, and caches
the first entry of each.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from typing import Protocol

from tidelog.storage.disk import DiskFile
from tidelog.storage.reads import WAITING, Reads

OFFSET_ENTRY_SIZE = 8
TIME_ENTRY_SIZE = 12
MAX_RELATIVE_OFFSET = (1 << 31) - 1

_OFFSET_ENTRY = struct.Struct(">ii")
_TIME_ENTRY = struct.Struct(">qi")

HELD_BYTES = 1 << 16
"""Indexes up to this size are held in memory, which costs less than an open file and reads."""

BLOCK_BYTES = 4096


class CorruptIndex(ValueError):
    """An index file whose size or last entry cannot be right; recovery rebuilds it from the log."""


class OffsetIndex(Protocol):
    def lookup(self, relative_offset: int, reads: Reads = WAITING) -> int:
        """The position of the last entry at or before an offset, 0 if there is none."""

    def around(self, relative_offset: int, reads: Reads = WAITING) -> tuple[int, int]:
        """The position of `lookup`, and that of the first entry at or after the offset, -1 if none."""

    def offset_after(self, position: int, reads: Reads = WAITING) -> int | None:
        """The relative offset of the first entry at or after a file position."""


class TimeIndex(Protocol):
    def lookup(self, timestamp: int, reads: Reads = WAITING) -> int:
        """The relative offset of the last entry at or before a timestamp, 0 if there is none."""

    def last(self, reads: Reads = WAITING) -> tuple[int, int] | None:
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

    def lookup(self, relative_offset: int, reads: Reads = WAITING) -> int:
        at = bisect_right(self.offsets, relative_offset)
        return self.positions[at - 1] if at else 0

    def around(self, relative_offset: int, reads: Reads = WAITING) -> tuple[int, int]:
        at = bisect_left(self.offsets, relative_offset)
        if at == len(self.offsets):
            return self.positions[-1] if at else 0, -1
        behind = self.positions[at]
        if self.offsets[at] == relative_offset:
            return behind, behind
        return self.positions[at - 1] if at else 0, behind

    def offset_after(self, position: int, reads: Reads = WAITING) -> int | None:
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
        # One entry is left for the last timestamp, which is added when the segment is complete.
        return len(self.offsets) >= self.max_entries - 1

    def maybe_append(self, timestamp: int, relative_offset: int) -> None:
        """Add an entry if its timestamp is greater than that of the last entry."""
        last = self.timestamps[-1] if self.timestamps else -1
        if timestamp > last:
            self.timestamps.append(timestamp)
            self.offsets.append(relative_offset)

    def lookup(self, timestamp: int, reads: Reads = WAITING) -> int:
        at = bisect_right(self.timestamps, timestamp)
        return self.offsets[at - 1] if at else 0

    def last(self, reads: Reads = WAITING) -> tuple[int, int] | None:
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


class IndexFile:
    """An index file that does not change any more. Both columns of its entries rise."""

    __slots__ = ("_block", "_block_number", "_entry", "_file", "_firsts", "_per_block", "_size", "count")

    def __init__(self, entry: struct.Struct, file: DiskFile | None, reads: Reads) -> None:
        """Open an index; `file` is None for a missing one, which counts as empty.

        Raises CorruptIndex if the size is not a multiple of the entry size.
        """
        self._entry = entry
        self._size = size = 0 if file is None else file.size()
        _check_size(size, entry.size)
        self.count = size // entry.size
        self._per_block = BLOCK_BYTES // entry.size
        self._block: bytes | bytearray = b""
        self._block_number = -1
        self._file: DiskFile | None = file
        self._firsts: dict[int, tuple[int, int]] = {}
        if file is not None and size <= HELD_BYTES:
            self._block = reads.pread(file, size, 0)
            self._block_number = 0
            self._per_block = max(1, self.count)
            self._file = None

    def entry(self, at: int, reads: Reads) -> tuple[int, int]:
        number, place = divmod(at, self._per_block)
        return self._unpack(self._load(number, reads), place)

    def count_up_to(self, column: int, value: int, reads: Reads) -> int:
        """The number of entries with at most `value` in a column."""
        low, high = 0, -(-self.count // self._per_block)
        while low < high:
            middle = (low + high) // 2
            if self._first_of(middle, reads)[column] <= value:
                low = middle + 1
            else:
                high = middle
        if low == 0:
            return 0
        block = self._load(low - 1, reads)
        entry_size, unpack = self._entry.size, self._entry.unpack_from
        places = range(0, len(block), entry_size)
        found = bisect_right(places, value, key=lambda place: unpack(block, place)[column])
        return (low - 1) * self._per_block + found

    def _first_of(self, number: int, reads: Reads) -> tuple[int, int]:
        first = self._firsts.get(number)
        if first is None:
            first = self._firsts[number] = self._unpack(self._load(number, reads), 0)
        return first

    def _load(self, number: int, reads: Reads) -> bytes | bytearray:
        if number != self._block_number:
            assert self._file is not None
            length = self._per_block * self._entry.size
            start = number * length
            self._block = reads.pread(self._file, min(length, self._size - start), start, whole=self._size)
            self._block_number = number
        return self._block

    def _unpack(self, block: bytes | bytearray, place: int) -> tuple[int, int]:
        first, second = self._entry.unpack_from(block, place * self._entry.size)
        return first, second


class StoredOffsetIndex:
    __slots__ = ("_entries",)

    def __init__(self, file: DiskFile | None, log_size: int, reads: Reads = WAITING) -> None:
        """CorruptIndex if the last entry is not inside a log of that size."""
        self._entries = entries = IndexFile(_OFFSET_ENTRY, file, reads)
        if entries.count:
            _check_last_offset(entries.entry(entries.count - 1, reads), entries.count, log_size)

    def lookup(self, relative_offset: int, reads: Reads = WAITING) -> int:
        at = self._entries.count_up_to(0, relative_offset, reads)
        return self._entries.entry(at - 1, reads)[1] if at else 0

    def around(self, relative_offset: int, reads: Reads = WAITING) -> tuple[int, int]:
        entries = self._entries
        at = entries.count_up_to(0, relative_offset - 1, reads)
        offset, behind = entries.entry(at, reads) if at < entries.count else (-1, -1)
        if offset == relative_offset:
            return behind, behind
        return entries.entry(at - 1, reads)[1] if at else 0, behind

    def offset_after(self, position: int, reads: Reads = WAITING) -> int | None:
        at = self._entries.count_up_to(1, position - 1, reads)
        return self._entries.entry(at, reads)[0] if at < self._entries.count else None


class StoredTimeIndex:
    __slots__ = ("_entries",)

    def __init__(self, file: DiskFile | None, reads: Reads = WAITING) -> None:
        self._entries = entries = IndexFile(_TIME_ENTRY, file, reads)
        if entries.count:
            _check_times(entries.entry(0, reads), entries.entry(entries.count - 1, reads))

    def lookup(self, timestamp: int, reads: Reads = WAITING) -> int:
        at = self._entries.count_up_to(0, timestamp, reads)
        return self._entries.entry(at - 1, reads)[1] if at else 0

    def last(self, reads: Reads = WAITING) -> tuple[int, int] | None:
        count = self._entries.count
        return self._entries.entry(count - 1, reads) if count else None


def check_offset_index(data: bytes, log_size: int) -> None:
    """CorruptIndex unless the last entry is inside a log of that size."""
    _check_size(len(data), OFFSET_ENTRY_SIZE)
    if data:
        last = _OFFSET_ENTRY.unpack_from(data, len(data) - OFFSET_ENTRY_SIZE)
        _check_last_offset(last, len(data) // OFFSET_ENTRY_SIZE, log_size)


def check_time_index(data: bytes) -> None:
    _check_size(len(data), TIME_ENTRY_SIZE)
    if data:
        _check_times(
            _TIME_ENTRY.unpack_from(data, 0), _TIME_ENTRY.unpack_from(data, len(data) - TIME_ENTRY_SIZE)
        )


def _check_size(size: int, entry_size: int) -> None:
    if size % entry_size:
        raise CorruptIndex(f"{size} bytes are not whole entries of {entry_size}")


def _check_last_offset(last: tuple[int, ...], count: int, log_size: int) -> None:
    offset, position = last
    if offset < 0 or not 0 <= position < max(1, log_size) or (count > 1 and offset == 0):
        raise CorruptIndex(f"its last entry ({offset}, {position}) is outside a log of {log_size} bytes")


def _check_times(first: tuple[int, ...], last: tuple[int, ...]) -> None:
    timestamp, offset = last
    if offset < 0 or timestamp < first[0]:
        raise CorruptIndex(f"its last entry ({timestamp}, {offset}) is before its first")
