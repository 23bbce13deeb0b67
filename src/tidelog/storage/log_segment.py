"""LogSegment: a file of batches from a base offset on, with its indexes and aborted transactions.

`size` counts the batches that are part of the log, `write_position` also those that are being written. The
active segment has its indexes and aborted transactions in memory, until a flush has written their files.
Files and indexes of older segments are opened when they are needed, and can be closed at any time.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterator
from typing import NamedTuple

from tidelog.errors import CorruptMessage
from tidelog.records.batch import HEADER_SIZE, LENGTH_OVERHEAD, BatchHeader, read_header
from tidelog.storage.config import LogConfig
from tidelog.storage.disk import Disk, DiskFile
from tidelog.storage.file_cache import FileCache
from tidelog.storage.index import (
    MAX_RELATIVE_OFFSET,
    CorruptIndex,
    GrowingOffsetIndex,
    GrowingTimeIndex,
    OffsetIndex,
    StoredOffsetIndex,
    StoredTimeIndex,
    TimeIndex,
)
from tidelog.storage.reads import WAITING, Reads
from tidelog.storage.transaction_index import (
    AbortedTransaction,
    CorruptTransactionIndex,
    decode_transaction_index,
    encode_transaction_index,
)

LOG = ".log"
OFFSET_INDEX = ".index"
TIME_INDEX = ".timeindex"
TRANSACTION_INDEX = ".txnindex"
SNAPSHOT = ".snapshot"
DELETED = ".deleted"
CLEANED = ".cleaned"
SWAP = ".swap"
INDEX_SUFFIXES = (OFFSET_INDEX, TIME_INDEX, TRANSACTION_INDEX)
SEGMENT_SUFFIXES = (LOG, *INDEX_SUFFIXES)

NEVER = (1 << 63) - 1
CHECK_NEXT = -(1 << 63)  # a roll timestamp before every batch: the next append checks whether to roll

_PLACE = struct.Struct(">qi11xi")  # base offset, batch length, last offset delta
_SCAN_CHUNK = 8192


class CleanedFiles(NamedTuple):
    """A cleaned segment, whose files have the suffix `.cleaned`."""

    base_offset: int
    size: int
    max_timestamp: int
    offset_of_max_timestamp: int
    has_aborted: bool


class LogSegment:
    __slots__ = (
        "_aborted",
        "_disk",
        "_file",
        "_files",
        "_growing_offsets",
        "_growing_times",
        "_index_bytes",
        "_offset_index",
        "_time_index",
        "_timestamps_known",
        "base_offset",
        "bytes_since_index",
        "created_ms",
        "directory",
        "first_timestamp",
        "has_aborted",
        "has_index_files",
        "has_loose_tail",
        "jitter_ms",
        "last_batch_offset",
        "last_batch_position",
        "linked",
        "max_offset",
        "max_timestamp",
        "offset_of_max_timestamp",
        "recently_used",
        "roll_timestamp",
        "size",
        "snapshot_to_write",
        "synced",
        "write_position",
    )

    def __init__(
        self, disk: Disk, files: FileCache, directory: str, base_offset: int, size: int, index_bytes: int
    ) -> None:
        self._disk = disk
        self._files = files
        self.directory = directory
        self.base_offset = base_offset
        self.size = size
        self.write_position = size
        self._index_bytes = index_bytes
        self._file: DiskFile | None = None
        self._offset_index: OffsetIndex | None = None
        self._time_index: TimeIndex | None = None
        self._growing_offsets: GrowingOffsetIndex | None = None
        self._growing_times: GrowingTimeIndex | None = None
        self._aborted: list[AbortedTransaction] | None = None
        self.has_aborted = False
        self.has_index_files = True
        self.has_loose_tail = False  # a failed write may have left bytes after the end
        self._timestamps_known = False
        self.max_timestamp = -1
        self.offset_of_max_timestamp = base_offset
        self.first_timestamp: int | None = None
        self.bytes_since_index = 0
        self.max_offset = base_offset + MAX_RELATIVE_OFFSET
        self.roll_timestamp = CHECK_NEXT
        self.jitter_ms = 0
        self.created_ms = 0
        self.last_batch_offset = NEVER  # base offset of the newest batch: a read at the end needs no search
        self.last_batch_position = 0
        self.linked = True  # the directory entry of the log file is on disk
        self.synced = True  # once complete: its indexes are on disk
        self.snapshot_to_write: bytes | None = None
        self.recently_used = False

    @classmethod
    def create(
        cls, disk: Disk, files: FileCache, directory: str, base_offset: int, index_bytes: int, now_ms: int
    ) -> LogSegment:
        """Create an empty segment with its log file, and remove files of an earlier one with this base
        offset.

        If it raises OSError, it leaves no file, because recovery would end the log at a log file without
        batches. The first flush or a clean stop creates the index files: to create a file can take longer
        than a write.
        """
        segment = cls(disk, files, directory, base_offset, 0, index_bytes)
        try:
            segment._file = disk.open(segment.path(LOG), create=True)
            segment._file.truncate(0)
            segment.remove_index_files()
        except OSError:
            for suffix in SEGMENT_SUFFIXES:
                disk.unlink(segment.path(suffix))
            raise
        files.opened(segment)
        segment.created_ms = now_ms
        segment.linked = False
        segment._timestamps_known = True
        segment._aborted = []
        segment._grow(GrowingOffsetIndex(index_bytes), GrowingTimeIndex(index_bytes))
        return segment

    @classmethod
    def of_cleaned(
        cls, disk: Disk, files: FileCache, directory: str, cleaned: CleanedFiles, index_bytes: int
    ) -> LogSegment:
        segment = cls(disk, files, directory, cleaned.base_offset, cleaned.size, index_bytes)
        segment.max_timestamp = cleaned.max_timestamp
        segment.offset_of_max_timestamp = cleaned.offset_of_max_timestamp
        segment._timestamps_known = True
        segment.has_aborted = cleaned.has_aborted
        return segment

    def path(self, suffix: str) -> str:
        return f"{self.directory}/{self.base_offset:020d}{suffix}"

    def __repr__(self) -> str:
        return f"LogSegment({self.path(LOG)!r}, size={self.size})"

    # -- files

    @property
    def file(self) -> DiskFile:
        self.recently_used = True
        file = self._file
        if file is None:
            file = self._file = self._open()
            self._files.opened(self)
        return file

    def _open(self) -> DiskFile:
        try:
            return self._disk.open(self.path(LOG))
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            self._files.release_some()
            return self._disk.open(self.path(LOG))

    # A missing or corrupt index counts as empty: reads then search from the start of the segment.

    def offset_index(self, reads: Reads = WAITING) -> OffsetIndex:
        self.recently_used = True
        index = self._offset_index
        if index is None:
            try:
                index = StoredOffsetIndex(self._disk.open(self.path(OFFSET_INDEX)), self.size, reads)
            except (FileNotFoundError, CorruptIndex):
                index = StoredOffsetIndex(None, self.size)
            self._offset_index = index
            self._files.opened(self)
        return index

    def time_index(self, reads: Reads = WAITING) -> TimeIndex:
        index = self._time_index
        if index is None:
            try:
                index = StoredTimeIndex(self._disk.open(self.path(TIME_INDEX)), reads)
            except (FileNotFoundError, CorruptIndex):
                index = StoredTimeIndex(None)
            self._time_index = index
            self._files.opened(self)
        return index

    def release_files(self) -> None:
        """Close the files. Indexes that are not written yet stay in memory."""
        self._file = None
        if self._growing_offsets is None:
            self._offset_index = None
            self._time_index = None
            self._aborted = None

    # -- growth and completion

    def _grow(self, offsets: GrowingOffsetIndex, times: GrowingTimeIndex) -> None:
        self._growing_offsets = self._offset_index = offsets
        self._growing_times = self._time_index = times

    @property
    def is_growing(self) -> bool:
        """Whether the indexes in memory have entries that are not in their files."""
        return self._growing_offsets is not None

    def load_for_append(self) -> None:
        """Load the indexes and the first timestamp, so that batches can be appended."""
        if self._growing_offsets is None:
            offsets = GrowingOffsetIndex(self._index_bytes, self._index_bytes_of(OFFSET_INDEX))
            times = GrowingTimeIndex(self._index_bytes, self._index_bytes_of(TIME_INDEX))
            self.has_aborted = bool(self.aborted())  # the file may be empty
            self._load_timestamps()
            self._grow(offsets, times)
        if self.first_timestamp is None and self.size:
            self.first_timestamp = self.header_at(0).max_timestamp

    def must_roll(
        self, size: int, max_timestamp: int, last_offset: int, now_ms: int, config: LogConfig
    ) -> bool:
        """Whether a batch has to begin a new segment. Up to `roll_timestamp` its timestamp is no reason."""
        if not self.is_growing:
            self.load_for_append()
            self.created_ms = now_ms
        if self.write_position == 0:
            self.roll_timestamp = NEVER
            return last_offset > self.max_offset
        first = self.first_timestamp
        wait = config.max_segment_ms - self.jitter_ms
        if first is not None and first >= 0:
            self.roll_timestamp = min(first + wait, NEVER)
            waited_long = max_timestamp > self.roll_timestamp
        else:
            # Batches without timestamps: the age of the segment counts, so every append has to check it.
            self.roll_timestamp = CHECK_NEXT
            waited_long = now_ms - self.created_ms > wait
        return (
            waited_long
            or self.write_position + size > config.segment_bytes
            or last_offset > self.max_offset
            or self.indexes_full
        )

    def _index_bytes_of(self, suffix: str) -> bytes:
        try:
            return self._disk.read(self.path(suffix))
        except FileNotFoundError:
            return b""

    def replace_indexes(
        self, offsets: GrowingOffsetIndex, times: GrowingTimeIndex, max_timestamp: int, offset_of_max: int
    ) -> None:
        """Set indexes that were rebuilt from the log."""
        self._grow(offsets, times)
        self._timestamps_known = True
        self.max_timestamp = max_timestamp
        self.offset_of_max_timestamp = offset_of_max

    @property
    def indexes_full(self) -> bool:
        offsets, times = self._growing_offsets, self._growing_times
        return offsets is not None and times is not None and (offsets.is_full or times.is_full)

    def add_index_entry(self, last_offset: int, position: int) -> None:
        offsets, times = self._growing_offsets, self._growing_times
        assert offsets is not None
        assert times is not None
        base = self.base_offset
        offsets.append(last_offset - base, position)
        times.maybe_append(self.max_timestamp, self.offset_of_max_timestamp - base)
        self.bytes_since_index = 0
        if offsets.is_full or times.is_full:
            self.roll_timestamp = CHECK_NEXT

    def complete(self) -> None:
        """Add the last index entries: no batch follows. The next flush writes the indexes."""
        if self._growing_times is not None and self.max_timestamp >= 0:
            self._growing_times.maybe_append(
                self.max_timestamp, self.offset_of_max_timestamp - self.base_offset
            )
        self.last_batch_offset = NEVER
        self.roll_timestamp = CHECK_NEXT
        self.synced = False

    def index_files(self) -> list[tuple[str, bytes]]:
        """The suffixes and contents of the index files to write; empty if they are written."""
        offsets, times = self._growing_offsets, self._growing_times
        if offsets is None or times is None:
            return []
        return [
            (OFFSET_INDEX, offsets.encode()),
            (TIME_INDEX, times.encode()),
            (TRANSACTION_INDEX, encode_transaction_index(self.aborted())),
        ]

    def write_index(self, suffix: str, data: bytes) -> None:
        """Write an index file, in any thread. A transaction index without entries has no file."""
        if data or suffix != TRANSACTION_INDEX:
            self._disk.write(self.path(suffix), data)
        else:
            self._disk.unlink(self.path(suffix))

    def write_indexes(self) -> None:
        """Write the indexes in memory to their files."""
        if self.has_loose_tail:
            self.cut_file(self.size)
            self.has_loose_tail = False
        for suffix, data in self.index_files():
            self.write_index(suffix, data)
        self.has_index_files = True

    def make_index_files(self) -> None:
        """Make the missing index files, in any thread.

        For Kafka, a missing index is a fault if the recovery point is in the segment or after it.
        """
        for suffix in (OFFSET_INDEX, TIME_INDEX):
            if not self._disk.exists(self.path(suffix)):
                self._disk.write(self.path(suffix), b"")
        self.has_index_files = True

    def remove_index_files(self) -> None:
        """Remove the index files of a segment without batches. A missing index counts as empty."""
        self.has_index_files = False
        for suffix in INDEX_SUFFIXES:
            self._disk.unlink(self.path(suffix))

    def indexes_written(self) -> None:
        """Free the memory of the indexes, which are in their files now."""
        self._growing_offsets = self._growing_times = None
        self._offset_index = self._time_index = None
        self._aborted = None

    def seal(self) -> None:
        """Complete the segment, write the indexes and free their memory."""
        self.load_for_append()
        self.complete()
        self.write_indexes()
        self.indexes_written()

    # -- timestamps

    def _load_timestamps(self, reads: Reads = WAITING) -> None:
        if not self._timestamps_known:
            last = self.time_index(reads).last(reads)
            if last is not None:
                self.max_timestamp = last[0]
                self.offset_of_max_timestamp = self.base_offset + last[1]
            self._timestamps_known = True

    def largest_timestamp(self, reads: Reads = WAITING) -> int:
        """The greatest timestamp of the batches, -1 if they have none."""
        self._load_timestamps(reads)
        return self.max_timestamp

    def retention_timestamp(self, reads: Reads = WAITING) -> int:
        """The largest timestamp, or the modification time of the file if no batch has one."""
        largest = self.largest_timestamp(reads)
        return largest if largest >= 0 else self._disk.modified_ms(self.path(LOG))

    # -- finding batches

    def some_positions(self, count: int) -> list[tuple[int, int]]:
        """About `count` entries (offset, position) of the offset index, with the last one.

        Empty if the index is not in memory.
        """
        index = self._growing_offsets
        if index is None or not len(index):
            return []
        base, step = self.base_offset, len(index) // count + 1
        offsets, positions = index.offsets[::-step], index.positions[::-step]
        return [
            (base + offset, at) for offset, at in zip(reversed(offsets), reversed(positions), strict=True)
        ]

    def header_at(self, position: int, reads: Reads = WAITING) -> BatchHeader:
        return read_header(reads.pread(self.file, HEADER_SIZE, position))

    def position_of(self, offset: int, reads: Reads = WAITING) -> tuple[int, int, int] | None:
        """Position, size and base offset of the first batch that ends at or after `offset`."""
        if offset >= self.last_batch_offset:
            return self.last_batch_position, self.size - self.last_batch_position, self.last_batch_offset
        if self.size <= _SCAN_CHUNK:
            return self.scan(offset, 0, reads)  # one read gets all of it
        start, behind = self.offset_index(reads).around(offset - self.base_offset, reads)
        if behind - start > _SCAN_CHUNK:
            # Batches are large here: most likely the next index entry is the batch with the offset.
            found = self._batch_with(offset, behind, reads)
            if found is not None:
                return found
        try:
            found = self.scan(offset, start, reads)
        except CorruptMessage:
            if start == 0:
                raise
            found = None
        if start and (found is None or (found[0] == start and found[2] > offset)):
            found = self.scan(offset, 0, reads)  # the index is wrong
        return found

    def _batch_with(self, offset: int, position: int, reads: Reads) -> tuple[int, int, int] | None:
        """The batch at `position`, if it has `offset`."""
        head = reads.pread(self.file, _PLACE.size, position)
        if len(head) < _PLACE.size:
            return None
        base, length, delta = _PLACE.unpack(head)
        size = length + LENGTH_OVERHEAD
        if not base <= offset <= base + delta or size < HEADER_SIZE or position + size > self.size:
            return None
        return position, size, base

    def scan(self, offset: int, position: int, reads: Reads = WAITING) -> tuple[int, int, int] | None:
        file, size, place = self.file, self.size, _PLACE.unpack_from
        while position < size:
            chunk = reads.pread(file, min(_SCAN_CHUNK, size - position), position)
            at, last = 0, len(chunk) - _PLACE.size
            if last < 0:
                return None
            while at <= last:
                base, length, delta = place(chunk, at)
                if length < HEADER_SIZE - LENGTH_OVERHEAD:
                    raise self._bad_length(length, position + at)
                if base + delta >= offset:
                    return position + at, length + LENGTH_OVERHEAD, base
                at += length + LENGTH_OVERHEAD
            position += at
        return None

    def _bad_length(self, length: int, position: int) -> CorruptMessage:
        return CorruptMessage(f"{self.path(LOG)}: a batch of {length} bytes at position {position}")

    def batches(
        self, position: int = 0, end: int | None = None, reads: Reads = WAITING
    ) -> Iterator[tuple[int, BatchHeader]]:
        """Position and header of every batch from `position` on."""
        end = self.size if end is None else end
        file = self.file
        while position + HEADER_SIZE <= end:
            chunk = reads.pread(file, min(_SCAN_CHUNK, end - position), position)
            at = 0
            while at + HEADER_SIZE <= len(chunk):
                header = read_header(chunk, at)
                if header.batch_length < HEADER_SIZE - LENGTH_OVERHEAD:
                    raise self._bad_length(header.batch_length, position + at)
                yield position + at, header
                at += header.total_size
            if at == 0:
                return
            position += at

    def read_batch(self, position: int, header: BatchHeader, reads: Reads = WAITING) -> bytes | bytearray:
        return reads.pread(self.file, min(header.total_size, self.size - position), position)

    def next_offset(self) -> int:
        """The offset after the last batch, read from the file."""
        end = self.base_offset
        for _, header in self.batches(self._last_indexed_position()):
            end = header.next_offset
        return end

    def _last_indexed_position(self) -> int:
        return self.offset_index().lookup(MAX_RELATIVE_OFFSET)

    # -- aborted transactions

    def aborted(self, reads: Reads = WAITING) -> list[AbortedTransaction]:
        entries = self._aborted
        if entries is None:
            try:
                data = self._read_aborted(reads) if self.has_aborted else b""
                entries = decode_transaction_index(data, self.base_offset)
            except FileNotFoundError:
                entries = []
            except CorruptTransactionIndex as error:
                raise CorruptMessage(f"{self.path(TRANSACTION_INDEX)}: {error}") from None
            self._aborted = entries
        return entries

    def _read_aborted(self, reads: Reads) -> bytes | bytearray:
        file = self._disk.open(self.path(TRANSACTION_INDEX))
        return reads.pread(file, file.size(), 0)

    def add_aborted(self, transaction: AbortedTransaction) -> None:
        """Add an aborted transaction in memory only. Its marker is in the log, so this must not fail."""
        assert self._aborted is not None  # since load_for_append
        self._aborted.append(transaction)
        self.has_aborted = True

    def replace_aborted(self, entries: list[AbortedTransaction]) -> None:
        """Set the aborted transactions of a segment that batches are appended to."""
        self._aborted = entries
        self.has_aborted = bool(entries)

    # -- cutting and removing

    def truncate(self, offset: int) -> None:
        """Remove the batches that end at or after `offset`."""
        self.load_for_append()
        found = self.position_of(offset)
        if found is None:
            return
        position = found[0]
        offsets, times = self._growing_offsets, self._growing_times
        assert offsets is not None
        assert times is not None
        self.cut_file(position)
        self.size = self.write_position = position
        self.last_batch_offset = NEVER
        offsets.truncate(offset - self.base_offset)
        times.truncate(offset - self.base_offset)
        self.replace_aborted([entry for entry in self.aborted() if entry.last_offset < offset])
        self._find_max_timestamp()
        self.bytes_since_index = 0
        if position == 0:
            self.first_timestamp = None
        self.roll_timestamp = CHECK_NEXT

    def cut_file(self, size: int) -> None:
        """Truncate the file and sync it. Without the sync, a crash could bring the old tail back."""
        self.file.truncate(size)
        self.file.fsync()

    def _find_max_timestamp(self) -> None:
        last = self.time_index().last()
        self.max_timestamp, relative = last if last is not None else (-1, 0)
        self.offset_of_max_timestamp = self.base_offset + relative
        for _, header in self.batches(self.offset_index().lookup(relative)):
            if header.max_timestamp > self.max_timestamp:
                self.max_timestamp = header.max_timestamp
                self.offset_of_max_timestamp = header.last_offset

    def existing_files(self) -> list[str]:
        suffixes = SEGMENT_SUFFIXES if self.has_aborted else SEGMENT_SUFFIXES[:3]
        return [self.path(suffix) for suffix in suffixes]

    def close(self) -> list[DiskFile]:
        """Close the segment; returns the open files, for the caller to close off the loop."""
        self._files.forget(self)
        open_files = [] if self._file is None else [self._file]
        self.release_files()
        return open_files
