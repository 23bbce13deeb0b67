"""Rewrites segments of message formats 0 and 1 in format 2, with the same offsets and timestamps.

The new segment is written and synced as `.cleaned`, renamed to `.swap` and then to the name of the old one.
Compaction uses the same names, and recovery knows them. A crash at any point leaves the old segment or the
new one whole, and the next run continues from there. A torn tail is copied as it is: recovery truncates it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tidelog.errors import CorruptMessage, KafkaError
from tidelog.records.batch import (
    BatchHeader,
    Record,
    build_batch,
    crc_is_valid,
    iter_batches,
    read_header,
)
from tidelog.records.codecs import Codec
from tidelog.records.legacy import (
    OLD_MAGICS,
    Entry,
    MessageSet,
    iter_entries,
    message_crc_is_valid,
    read_message_set,
)
from tidelog.storage.config import LogConfig
from tidelog.storage.disk import Disk
from tidelog.storage.index import (
    MAX_RELATIVE_OFFSET,
    OFFSET_ENTRY_SIZE,
    GrowingOffsetIndex,
    GrowingTimeIndex,
)
from tidelog.storage.log_segment import (
    CLEANED,
    LOG,
    OFFSET_INDEX,
    SEGMENT_SUFFIXES,
    SWAP,
    TIME_INDEX,
    TRANSACTION_INDEX,
)
from tidelog.storage.transaction_index import CorruptTransactionIndex, decode_transaction_index

LARGEST_SEGMENT = (1 << 31) - 1  # positions in an index have 31 bits
GROUPED_BYTES = 16 * 1024  # messages without a wrapper are grouped into batches of a size that producers send
# Brokers once accepted wrappers of any size: only a size that no broker can have had is refused.
MAX_UNPACKED = 1 << 30
_WRITE_BYTES = 1 << 20
_HEAD = 17  # bytes of an entry of any format up to its magic
_SMALLEST = 14
_FILE_NAME = re.compile(r"(\d{20})(\.log|\.index|\.timeindex|\.txnindex)(\.cleaned|\.swap)?")

OnProgress = Callable[[int], None]
Data = memoryview


class DamagedSegment(Exception):
    """A segment that cannot be converted without loss; the message says where and why."""


@dataclass(slots=True, frozen=True)
class Limits:
    """The largest segments and batches to write; tests use smaller ones."""

    segment_bytes: int = LARGEST_SEGMENT
    relative_offset: int = MAX_RELATIVE_OFFSET
    grouped_bytes: int = GROUPED_BYTES
    max_unpacked: int = MAX_UNPACKED


@dataclass(slots=True, frozen=True)
class OldSegment:
    """A segment with messages of format 0 or 1."""

    base_offset: int
    size: int


@dataclass(slots=True)
class Converted:
    """The result for a folder: segments rewritten, their sizes, and the sizes of torn tails by path."""

    segments: int = 0
    records: int = 0
    old_bytes: int = 0
    new_bytes: int = 0
    torn: dict[str, int] = field(default_factory=dict)

    def add(self, other: Converted) -> None:
        self.segments += other.segments
        self.records += other.records
        self.old_bytes += other.old_bytes
        self.new_bytes += other.new_bytes
        self.torn |= other.torn


# -- finding them


def old_segments(disk: Disk, directory: str) -> list[OldSegment]:
    """The segments of a partition that have to be converted.

    At first only the start and the end of each segment is read: the format of a log changes with a setting,
    and not forth and back within one segment. If one of them is old, all segments are read in full.
    """
    names = [f"{base:020d}{LOG}{suffix}" for base, suffix in _logs(disk, directory)]
    if not any(_looks_old(disk, directory, name) for name in names):
        return []
    found: dict[int, OldSegment] = {}
    for name in names:
        with memoryview(disk.map(f"{directory}/{name}")) as data:
            if any(True for _ in _old_entries(data)):
                found[int(name[:20])] = OldSegment(int(name[:20]), len(data))
    return list(found.values())


def _logs(disk: Disk, directory: str) -> list[tuple[int, str]]:
    """Base offsets and states of the log files, `.swap` files included."""
    found = []
    for name in disk.listdir(directory):
        match = _FILE_NAME.fullmatch(name)
        if match is not None and match[2] == LOG and match[3] in (None, SWAP):
            found.append((int(match[1]), match[3] or ""))
    return sorted(found)


def _looks_old(disk: Disk, directory: str, name: str) -> bool:
    """Whether the first entry is old, or one after the last index entry."""
    path = f"{directory}/{name}"
    file = disk.open(path)
    size = file.size()
    if _is_old(file.pread(_HEAD, 0)):
        return True
    start = _last_indexed(disk, f"{directory}/{name.replace(LOG, OFFSET_INDEX, 1)}")
    if 0 < start < size and size - start <= _WRITE_BYTES:
        tail = memoryview(file.pread(size - start, start))
        if _is_start(tail, 0):
            return any(entry.magic in OLD_MAGICS for entry in iter_entries(tail))
    # No index, or one that a crash left half written.
    with memoryview(disk.map(path)) as data:
        return any(True for _ in _old_entries(data))


def _is_old(head: bytes) -> bool:
    """Whether an old message begins with `head`; the zeros at the end of a preallocated file do not."""
    return len(head) == _HEAD and head[-1] in OLD_MAGICS and int.from_bytes(head[8:12], "big") >= _SMALLEST


def _last_indexed(disk: Disk, path: str) -> int:
    """The position in the last entry of an offset index, 0 if there is none."""
    try:
        index = disk.open(path)
    except FileNotFoundError:
        return 0
    entries = index.size() // OFFSET_ENTRY_SIZE
    return int.from_bytes(index.pread(4, entries * OFFSET_ENTRY_SIZE - 4), "big") if entries else 0


def _is_start(data: Data, position: int) -> bool:
    """Whether entries follow each other from there to the end of the segment."""
    end = position
    for entry in iter_entries(data, position):
        end = entry.end
    return end == len(data)


def _old_entries(data: Data) -> Iterator[Entry]:
    """The old messages before the first damaged entry: nothing after that can be read."""
    for entry in iter_entries(data):
        if entry.magic in OLD_MAGICS:
            if not message_crc_is_valid(data, entry):
                return
            yield entry


# -- a folder


def convert_folder(
    disk: Disk,
    directory: str,
    *,
    recovery_point: int | None,
    progress: OnProgress = lambda _: None,
    limits: Limits = Limits(),  # it is frozen
) -> Converted:
    """Rewrite the old segments of one partition, one after the other.

    `recovery_point` is None after a clean stop. Otherwise segments after it may have a torn tail. Any other
    damage is a DamagedSegment: recovery would not truncate there.
    """
    finish_interrupted(disk, directory)
    result = Converted()
    bases = [base for base, _ in _logs(disk, directory)]
    for old in old_segments(disk, directory):
        following = next((base for base in bases if base > old.base_offset), None)
        may_be_torn = recovery_point is not None and (following is None or following > recovery_point)
        job = _Conversion(disk, directory, old.base_offset, may_be_torn, progress, limits)
        try:
            torn = job.write()
            job.commit()
        except (OSError, DamagedSegment):
            job.abandon()
            raise
        finish_interrupted(disk, directory)
        result.segments += 1
        result.records += job.records
        result.old_bytes += old.size
        result.new_bytes += job.written
        if torn:
            result.torn[f"{directory}/{old.base_offset:020d}{LOG}"] = torn
    return result


def finish_interrupted(disk: Disk, directory: str) -> None:
    """Undo a conversion or compaction that a crash interrupted, or complete it if its new segments are whole.

    New segments are renamed to `.swap` from the last to the first: those after a `.cleaned` one are useless.
    """
    unfinished: list[tuple[int, str]] = []
    swaps: dict[int, list[str]] = {}
    for name in disk.listdir(directory):
        match = _FILE_NAME.fullmatch(name)
        if match is not None and match[3] == CLEANED:
            unfinished.append((int(match[1]), name))
        elif match is not None and match[3] == SWAP:
            swaps.setdefault(int(match[1]), []).append(name)
    first = min((base for base, _ in unfinished), default=None)
    useless: list[str] = []
    for base in [base for base in swaps if first is not None and base >= first]:
        useless += swaps.pop(base)
    # As long as a `.cleaned` file exists, the next run knows that the `.swap` files after it are useless.
    for names in (useless, [name for _, name in unfinished]):
        for name in names:
            disk.unlink(f"{directory}/{name}")
        if names:
            disk.fsync_dir(directory)
    for base in sorted(swaps, reverse=True):
        _swap_in(disk, directory, base, swaps[base])
    if swaps:
        disk.fsync_dir(directory)


def _swap_in(disk: Disk, directory: str, base: int, names: list[str]) -> None:
    """Replace segments by the one made from them. Renaming its log file comes last and completes the swap."""
    log = f"{base:020d}{LOG}{SWAP}"
    if log in names:
        path = f"{directory}/{log}"
        with memoryview(disk.map(path)) as data:
            end = _next_offset(data, base)
            _write_indexes(disk, directory, base, data)
        for name in disk.listdir(directory):
            match = _FILE_NAME.fullmatch(name)
            if match is not None and match[3] is None and base < int(match[1]) < end:
                disk.unlink(f"{directory}/{name}")
        transactions = f"{base:020d}{TRANSACTION_INDEX}"
        if f"{transactions}{SWAP}" in names:
            disk.rename(f"{directory}/{transactions}{SWAP}", f"{directory}/{transactions}")
        disk.fsync_dir(directory)
        disk.rename(path, path.removesuffix(SWAP))
    for suffix in (OFFSET_INDEX, TIME_INDEX) if log in names else SEGMENT_SUFFIXES:
        disk.unlink(f"{directory}/{base:020d}{suffix}{SWAP}")


def _next_offset(data: Data, base: int) -> int:
    end = base + 1
    for entry in iter_entries(data):
        last = entry.offset if entry.magic in OLD_MAGICS else read_header(data, entry.position).last_offset
        end = max(end, last + 1)
    return end


def _write_indexes(disk: Disk, directory: str, base: int, data: Data) -> None:
    """Write the indexes that appending the batches one by one would have made."""
    config = LogConfig()
    offsets = GrowingOffsetIndex(config.segment_index_bytes)
    times = GrowingTimeIndex(config.segment_index_bytes)
    largest, offset_of_largest, since_index = -1, base, 0
    try:
        for position, header in iter_batches(data):
            if header.max_timestamp > largest:
                largest, offset_of_largest = header.max_timestamp, header.last_offset
            if since_index > config.index_interval_bytes:
                offsets.append(header.last_offset - base, position)
                times.maybe_append(largest, offset_of_largest - base)
                since_index = 0
            since_index += header.total_size
    except CorruptMessage:
        pass  # a torn tail is not indexed
    times.maybe_append(largest, offset_of_largest - base)
    for suffix, index in ((OFFSET_INDEX, offsets.encode()), (TIME_INDEX, times.encode())):
        path = f"{directory}/{base:020d}{suffix}"
        disk.write(path, index)
        disk.fsync(path)


# -- one segment


class _NewSegment:
    """A segment that is being written as `.cleaned`, which a crash throws away."""

    __slots__ = ("_buffer", "_file", "_written", "base_offset", "directory", "size")

    def __init__(self, disk: Disk, directory: str, base_offset: int) -> None:
        self.directory = directory
        self.base_offset = base_offset
        self.size = 0
        self._written = 0
        self._buffer: list[bytes] = []
        self._file = disk.open(self.path(LOG, CLEANED), create=True)
        self._file.truncate(0)

    def path(self, suffix: str, state: str) -> str:
        return f"{self.directory}/{self.base_offset:020d}{suffix}{state}"

    def append(self, data: bytes) -> None:
        self._buffer.append(data)
        self.size += len(data)
        if self.size - self._written >= _WRITE_BYTES:
            self._write()

    def _write(self) -> None:
        if self._buffer:
            self._file.pwrite(b"".join(self._buffer), self._written)
            self._buffer.clear()
            self._written = self.size

    def finish(self, disk: Disk, modified_ms: int) -> None:
        self._write()
        self._file.fsync()
        disk.set_modified_ms(self.path(LOG, CLEANED), modified_ms)


class _Conversion:
    """Converts an old segment to a new one, or to several if offsets or bytes do not fit into one."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        base_offset: int,
        may_be_torn: bool,
        progress: OnProgress,
        limits: Limits,
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._base_offset = base_offset
        self._may_be_torn = may_be_torn
        self._progress = progress
        self._limits = limits
        self._path = f"{directory}/{base_offset:020d}{LOG}"
        self._outputs: list[_NewSegment] = []
        self._group: list[Record] = []
        self._group_bytes = 0
        self._group_kind: tuple[int, int | None] = (0, None)
        self._next_offset = base_offset
        self._told = 0
        self.records = 0

    @property
    def written(self) -> int:
        return sum(output.size for output in self._outputs)

    def write(self) -> int:
        """Write and sync the new segments; returns the size of the torn tail."""
        self._outputs = [_NewSegment(self._disk, self._directory, self._base_offset)]
        with memoryview(self._disk.map(self._path)) as data:
            end = self._copy(data)
            if end < len(data):
                if not self._may_be_torn:
                    raise self._damaged(end, "it is truncated or does not match its CRC")
                self._outputs[-1].append(bytes(data[end:]))
            self._tell(len(data))
            torn = len(data) - end
        modified_ms = self._disk.modified_ms(self._path)
        for output in self._outputs:
            output.finish(self._disk, modified_ms)
        self._write_aborted()
        return torn

    def commit(self) -> None:
        """Rename the new segments to `.swap`, the first one last: its name says that all exist."""
        self._disk.fsync_dir(self._directory)
        for output in reversed(self._outputs):
            for suffix in (TRANSACTION_INDEX, LOG):
                if self._disk.exists(output.path(suffix, CLEANED)):
                    self._disk.rename(output.path(suffix, CLEANED), output.path(suffix, SWAP))
        self._disk.fsync_dir(self._directory)

    def abandon(self) -> None:
        """Remove the incomplete new segments."""
        for output in reversed(self._outputs):
            for suffix in (TRANSACTION_INDEX, LOG):
                self._disk.unlink(output.path(suffix, CLEANED))

    def _copy(self, data: Data) -> int:
        """Copy the entries up to the first damaged one; returns the end of the last one copied."""
        end = 0
        for entry in iter_entries(data):
            if entry.magic in OLD_MAGICS:
                if not message_crc_is_valid(data, entry):
                    break
                self._add(self._read(data, entry), entry)
            else:
                header = read_header(data, entry.position)
                if not crc_is_valid(data, entry.position, header):
                    break
                self._check_order(header.base_offset, header.last_offset, entry)
                self._close_group()
                self._append(bytes(data[entry.position : entry.end]), header)
            end = entry.end
            if end - self._told >= _WRITE_BYTES:
                self._tell(end)
        self._close_group()
        return end

    def _read(self, data: Data, entry: Entry) -> MessageSet:
        try:
            return read_message_set(data, entry, max_unpacked=self._limits.max_unpacked, check_crc=False)
        except KafkaError as error:
            raise self._damaged(entry.position, str(error)) from None

    def _add(self, found: MessageSet, entry: Entry) -> None:
        self._check_order(found.records[0].offset, found.last_offset, entry)
        self.records += len(found.records)
        if found.codec is not Codec.NONE:
            self._close_group()
            self._append_wrapped(found)
            return
        kind = (found.magic, found.log_append_time)
        first = self._group[0].offset if self._group else found.last_offset
        if (
            self._group_bytes + entry.size > self._limits.grouped_bytes
            or kind != self._group_kind
            or found.last_offset - first > self._limits.relative_offset
        ):
            self._close_group()
        self._group_kind = kind
        self._group += found.records
        self._group_bytes += entry.size

    def _close_group(self) -> None:
        if self._group:
            records, self._group, self._group_bytes = self._group, [], 0
            self._append_batch(records, Codec.NONE, self._group_kind[1], records[-1].offset)

    def _append_wrapped(self, found: MessageSet) -> None:
        """Append a wrapper as one batch, or as several if the offsets have gaps too large for one."""
        part: list[Record] = []
        for record in found.records:
            if part and record.offset - part[0].offset > self._limits.relative_offset:
                self._append_batch(part, found.codec, found.log_append_time, part[-1].offset)
                part = []
            part.append(record)
        last = min(found.last_offset, part[0].offset + self._limits.relative_offset)
        self._append_batch(part, found.codec, found.log_append_time, last)

    def _append_batch(
        self, records: list[Record], codec: Codec, append_time: int | None, last_offset: int
    ) -> None:
        base = records[0].offset
        batch = build_batch(
            records,
            codec=codec,
            base_offset=base,
            log_append_time=append_time,
            last_offset_delta=last_offset - base,
        )
        self._append(batch, read_header(batch))

    def _append(self, batch: bytes, header: BatchHeader) -> None:
        output = self._outputs[-1]
        too_far = header.last_offset - output.base_offset > self._limits.relative_offset
        if too_far or (output.size and output.size + len(batch) > self._limits.segment_bytes):
            output = _NewSegment(self._disk, self._directory, header.base_offset)
            self._outputs.append(output)
        output.append(batch)

    def _write_aborted(self) -> None:
        """Write the aborted transactions of format 2 batches between the old messages."""
        path = f"{self._directory}/{self._base_offset:020d}{TRANSACTION_INDEX}"
        if not self._disk.exists(path):
            return
        try:
            entries = decode_transaction_index(self._disk.read(path), self._base_offset)
        except CorruptTransactionIndex as error:
            raise DamagedSegment(f"{path}: {error}") from None
        starts = [output.base_offset for output in self._outputs]
        for output, end in zip(self._outputs, [*starts[1:], None], strict=True):
            inside = [
                entry
                for entry in entries
                if entry.last_offset >= output.base_offset and (end is None or entry.last_offset < end)
            ]
            target = output.path(TRANSACTION_INDEX, CLEANED)
            self._disk.write(target, b"".join(entry.encode() for entry in inside))
            self._disk.fsync(target)

    def _check_order(self, first: int, last: int, entry: Entry) -> None:
        if not self._next_offset <= first <= last:
            raise self._damaged(
                entry.position, f"it has offsets {first} to {last}, where {self._next_offset} was to follow"
            )
        self._next_offset = last + 1

    def _damaged(self, position: int, reason: str) -> DamagedSegment:
        return DamagedSegment(f"{self._path}: the message at position {position} cannot be kept: {reason}")

    def _tell(self, position: int) -> None:
        self._progress(position - self._told)
        self._told = position
