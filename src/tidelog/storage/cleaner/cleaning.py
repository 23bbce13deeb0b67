"""Cleaning: one cleaning pass over a log.

The pass puts the keys of the dirty part into an OffsetMap. Then it rewrites each group of segments without
the records that a later record of the same key replaces. `begin` collects the state of the log on the loop;
`Cleaning.work` runs in any thread, in steps. In between, the loop ends the flush at the beginning, and swaps
each cleaned group in. Offsets never change, and batches are never split.
"""

from __future__ import annotations

import time
from array import array
from bisect import bisect_left
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field

from tidelog.errors import CorruptMessage
from tidelog.records import loops
from tidelog.records.batch import (
    CODEC_MASK,
    CONTROL_FLAG,
    HEADER,
    HEADER_SIZE,
    LOG_APPEND_TIME_FLAG,
    NO_TIMESTAMP,
    TRANSACTIONAL_FLAG,
    BatchHeader,
    Buffer,
    assemble,
    build_batch,
    control_record_type,
    payload,
    read_header,
    read_records,
)
from tidelog.records.codecs import Codec, compress
from tidelog.records.loops import Offsets
from tidelog.records.status import (
    BAD_CRC,
    COMPRESSED,
    DROPPED,
    EMPTIED,
    MAP_FULL,
    NO_ROOM,
    OK,
    REWRITTEN,
    UNCHANGED,
)
from tidelog.storage.cleaner.offset_map import OffsetMap
from tidelog.storage.cleaner.policy import CleanableRange, SegmentSizes, group_segments
from tidelog.storage.cleaner.transactions import CleanedTransactions
from tidelog.storage.disk import Disk, DiskFile
from tidelog.storage.flush_job import FlushJob
from tidelog.storage.index import GrowingOffsetIndex, GrowingTimeIndex
from tidelog.storage.log import Log
from tidelog.storage.log_segment import (
    CLEANED,
    LOG,
    OFFSET_INDEX,
    SEGMENT_SUFFIXES,
    TIME_INDEX,
    TRANSACTION_INDEX,
    CleanedFiles,
    LogSegment,
)
from tidelog.storage.transaction_index import (
    AbortedTransaction,
    CorruptTransactionIndex,
    decode_transaction_index,
)

SMALLEST_BUFFER = 1024
SYNC_BYTES = 32 << 20
"""Bytes written between syncs: syncing a whole segment at once would delay appends."""
BREATH_AFTER = 0.0005
BREATH = 0.00005
"""Seconds of work in Python after which the pass sleeps for a moment, so that the loop gets the GIL."""


@dataclass(slots=True)
class CleanerStats:
    bytes_read: int = 0
    bytes_written: int = 0
    records_read: int = 0
    records_kept: int = 0
    map_bytes_read: int = 0
    map_records_read: int = 0
    map_utilization: float = 0.0
    segments: int = 0
    groups: int = 0


@dataclass(slots=True)
class CleanedGroup:
    """Consecutive segments, and the cleaned files that replace them."""

    old: list[LogSegment]
    files: CleanedFiles


Event = int | FlushJob | CleanedGroup


@dataclass(slots=True)
class _Source:
    """A complete segment that the pass reads. Its files do not change any more."""

    segment: LogSegment
    base_offset: int
    next_base: int
    size: int

    def path(self, suffix: str) -> str:
        return self.segment.path(suffix)


@dataclass(slots=True)
class CleaningPlan:
    """The state of the log at the beginning of the pass."""

    disk: Disk
    directory: str
    name: str
    range: CleanableRange
    sources: list[_Source]
    aborted: list[tuple[str, int] | list[AbortedTransaction]]  # a transaction index to read, or its entries
    retained: Offsets
    """The last offsets of batches that stay, even without records: the last batch of each producer, which has
    its sequence, and the last batch of the range, which has its end."""
    producer_epochs: dict[int, int]
    """Epochs of producers that have only a marker: it stays, so that older epochs are refused."""
    now_ms: int
    delete_retention_ms: int
    segment_bytes: int
    segment_index_bytes: int
    index_interval_bytes: int
    largest_batch: int
    max_unpacked: int
    generation: int
    flush: FlushJob | None
    before_first_swap: Callable[[], None] | None = None


def begin(log: Log, range_: CleanableRange, now_ms: int) -> CleaningPlan:
    """Collect what the pass needs, on the loop."""
    config, segments = log.config, log.segments
    sources: list[_Source] = []
    aborted: list[tuple[str, int] | list[AbortedTransaction]] = []
    for at, segment in enumerate(segments):
        following = segments.next_base(at)
        if following is not None and following <= range_.end:
            sources.append(_Source(segment, segment.base_offset, following, segment.size))
        if segment.has_aborted:
            if segment.is_growing:
                aborted.append(list(segment.aborted()))
            else:
                aborted.append((segment.path(TRANSACTION_INDEX), segment.base_offset))
    retained = {range_.end - 1}
    epochs: dict[int, int] = {}
    for producer_id, entry in log.producers.entries.items():
        if entry.last_offset >= 0:
            retained.add(entry.last_offset)
        else:
            epochs[producer_id] = entry.epoch
    return CleaningPlan(
        disk=log.disk,
        directory=log.dir,
        name=f"{log.topic}-{log.partition}",
        range=range_,
        sources=sources,
        aborted=aborted,
        retained=array("q", sorted(retained)),
        producer_epochs=epochs,
        now_ms=now_ms,
        delete_retention_ms=config.delete_retention_ms,
        segment_bytes=config.segment_bytes,
        segment_index_bytes=config.segment_index_bytes,
        index_interval_bytes=config.index_interval_bytes,
        largest_batch=max(config.max_message_bytes, config.batch_unpacked_max_bytes),
        max_unpacked=config.batch_unpacked_max_bytes,
        generation=log.generation,
        flush=log.begin_flush(),
    )


class Cleaning:
    """A cleaning pass (Kafka's Cleaner). After it, the log is clean up to `end_offset`."""

    def __init__(self, plan: CleaningPlan, offsets: OffsetMap, io_buffer_size: int) -> None:
        self.plan = plan
        self.stats = CleanerStats()
        self.end_offset = plan.range.first_dirty_offset
        self._map = offsets
        self._chunk = max(SMALLEST_BUFFER, io_buffer_size // 2)
        self._out = bytearray(self._chunk)
        self._out_at = 0
        self._scratch = bytearray()
        self._target: _Target | None = None
        self._horizon = plan.now_ms + plan.delete_retention_ms
        self._released = 0.0

    def work(self) -> Generator[Event, None, None]:
        """Run the pass. Yields the number of bytes after each step, the completed flush, and each group to
        swap.
        """
        self._released = time.perf_counter()
        try:
            if self.plan.flush is not None:
                self.plan.flush.run()
                yield self.plan.flush
            yield from self._fill_map()
            self.end_offset = self._map.latest_offset + 1
            self.stats.map_utilization = self._map.utilization
            sources = [source for source in self.plan.sources if source.base_offset < self.end_offset]
            transactions = CleanedTransactions(self._aborted())
            if self.plan.before_first_swap is not None:
                self.plan.before_first_swap()
            for group in group_segments(
                [self._sizes(source) for source in sources],
                self.plan.segment_bytes,
                self.plan.segment_index_bytes,
            ):
                yield from self._clean([sources[at] for at in group], transactions)
                # A later group leaves out records because of records in this group: those must be durable.
                self.plan.disk.fsync_dir(self.plan.directory)
        finally:
            self._map.close()
            if self._target is not None:
                self._target.remove()

    def _sizes(self, source: _Source) -> SegmentSizes:
        sizes = []
        for suffix in (OFFSET_INDEX, TIME_INDEX):
            try:
                sizes.append(self.plan.disk.size(source.path(suffix)))
            except FileNotFoundError:  # a missing index counts as empty, see LogSegment
                sizes.append(0)
        return SegmentSizes(source.base_offset, source.next_base, source.size, *sizes)

    def _aborted(self) -> list[AbortedTransaction]:
        found: list[AbortedTransaction] = []
        for known in self.plan.aborted:
            if isinstance(known, list):
                found += known
                continue
            path, base_offset = known
            try:
                found += decode_transaction_index(self.plan.disk.read(path), base_offset)
            except FileNotFoundError:
                continue
            except CorruptTransactionIndex as error:
                raise CorruptMessage(f"{path}: {error}") from None
        return found

    def _breathe(self) -> None:
        now = time.perf_counter()
        if now - self._released > BREATH_AFTER:
            time.sleep(BREATH)
            self._released = time.perf_counter()

    # -- reading

    def _read(self, source: _Source, handle_chunk: Callable[[bytes], int]) -> Iterator[int]:
        """Read a segment in chunks.

        `handle_chunk` handles the whole batches of a chunk and returns their size, or -1 to stop.
        """
        file = self.plan.disk.open(source.path(LOG))
        position, chunk_size = 0, self._chunk
        while position < source.size:
            chunk = file.pread(min(chunk_size, source.size - position), position)
            self._released = time.perf_counter()
            used_bytes = handle_chunk(chunk)
            if used_bytes < 0:
                return
            position += used_bytes
            chunk_size = self._chunk
            if used_bytes == 0:
                chunk_size = self._size_of_next(file, source, chunk, position)
            yield used_bytes

    def _size_of_next(self, file: DiskFile, source: _Source, chunk: bytes, position: int) -> int:
        """The size of a batch that is larger than the chunk. CorruptMessage if it cannot be a batch."""
        remaining = source.size - position
        size = read_header(chunk).total_size if len(chunk) >= HEADER_SIZE else remaining + 1
        if size > remaining or size <= len(chunk) or size > self.plan.largest_batch:
            raise CorruptMessage(f"{file.path}: no whole batch at position {position}")
        return size

    def _wrong(self, source: _Source, status: int, chunk: bytes, at: int) -> CorruptMessage:
        offset = int.from_bytes(chunk[at : at + 8], "big", signed=True)
        reason = "its CRC is wrong" if status == BAD_CRC else f"it is malformed ({status})"
        return CorruptMessage(f"{source.path(LOG)}: the batch at offset {offset}: {reason}")

    # -- the map

    def _fill_map(self) -> Iterator[int]:
        plan, stats = self.plan, self.stats
        start = plan.range.first_dirty_offset
        transactions = CleanedTransactions(self._aborted())
        self._map.cover(start - 1)
        full = False
        for source in plan.sources:
            if source.next_base <= start:
                continue

            def use(chunk: bytes, source: _Source = source) -> int:
                nonlocal full
                used = self._map_chunk(source, chunk, start, transactions)
                full = used < 0
                return used

            for used in self._read(source, use):
                stats.map_bytes_read += used
                yield used
            if full:
                return
            self._map.cover(source.next_base - 1)  # an earlier cleaning may have left a gap at its end

    def _map_chunk(self, source: _Source, chunk: bytes, start: int, transactions: CleanedTransactions) -> int:
        at, end, offsets = 0, len(chunk), self._map
        while True:
            status, at, records = offsets.put_batches(chunk, at, end, start)
            self.stats.map_records_read += records
            if status == OK:
                return at
            if status == COMPRESSED:
                header = read_header(chunk, at)
                status = self._map_batch(chunk, at, header, start, transactions)
                at += header.total_size
                self._breathe()
            if status == MAP_FULL:
                return -1
            if status != OK:
                raise self._wrong(source, status, chunk, at)

    def _map_batch(
        self, chunk: bytes, at: int, header: BatchHeader, start: int, transactions: CleanedTransactions
    ) -> int:
        """Add a compressed or transactional batch. Aborted records do not count for their keys."""
        status = OK
        if header.is_control:
            transactions.control(header, _control_type(chunk, at, header))
        elif not transactions.batch(header) and header.last_offset >= start:
            data, first, end = payload(chunk, at, header, max_unpacked=self.plan.max_unpacked)
            count, base = header.record_count, header.base_offset
            status = self._map.put_records(data, first, end, count, base, start)
        self.stats.map_records_read += max(0, header.record_count)
        if status == OK and header.last_offset >= start:
            self._map.cover(header.last_offset)
        return status

    # -- cleaning

    def _clean(self, sources: list[_Source], transactions: CleanedTransactions) -> Iterator[Event]:
        plan, stats = self.plan, self.stats
        transactions.still_aborted = []
        target = self._target = _Target(plan, sources[0].base_offset)
        for source in sources:

            def use(chunk: bytes, source: _Source = source) -> int:
                return self._clean_chunk(source, chunk, transactions, target)

            for used in self._read(source, use):
                stats.bytes_read += used
                yield used
        self._write_out(target)
        files = target.finish(transactions.still_aborted, plan.disk.modified_ms(sources[-1].path(LOG)))
        stats.bytes_written += files.size
        stats.segments += len(sources)
        stats.groups += 1
        yield files.size
        yield CleanedGroup([source.segment for source in sources], files)
        self._target = None

    def _clean_chunk(
        self, source: _Source, chunk: bytes, transactions: CleanedTransactions, target: _Target
    ) -> int:
        plan, offsets, stats = self.plan, self._map, self.stats
        at, end = 0, len(chunk)
        while True:
            status, at, self._out_at, records_read, retained = loops.filter_batches(
                offsets.table, offsets.hash_key, chunk, at, end, self._out, self._out_at,
                offsets.latest_offset, plan.now_ms, self._horizon, plan.retained, False, False,
            )  # fmt: skip
            stats.records_read += records_read
            stats.records_kept += retained
            if status == OK:
                return at
            if status == NO_ROOM:
                self._write_out(target)
                header = read_header(chunk, at)
                self._require_room(header.total_size + 15 * max(0, header.record_count))
            elif status == COMPRESSED:
                header = read_header(chunk, at)
                self._put(target, self._clean_batch(source, chunk, at, header, transactions))
                at += header.total_size
                self._breathe()
            else:
                raise self._wrong(source, status, chunk, at)

    def _require_room(self, size: int) -> None:
        if size > len(self._out):
            self._out = bytearray(size)

    def _put(self, target: _Target, data: Buffer) -> None:
        if self._out_at + len(data) > len(self._out):
            self._write_out(target)
            self._require_room(len(data))
        self._out[self._out_at : self._out_at + len(data)] = data
        self._out_at += len(data)

    def _write_out(self, target: _Target) -> None:
        if self._out_at:
            target.append(memoryview(self._out)[: self._out_at])
            self._out_at = 0

    def _clean_batch(
        self, source: _Source, chunk: bytes, at: int, header: BatchHeader, transactions: CleanedTransactions
    ) -> Buffer:
        """Clean a batch that is compressed, transactional or a marker.

        Returns no bytes if the batch is removed.
        """
        original = memoryview(chunk)[at : at + header.total_size]
        count = max(0, header.record_count)
        self.stats.records_read += count
        if header.is_control:
            retained, result = self._clean_marker(chunk, at, header, original, transactions)
        elif transactions.batch(header):
            retained, result = 0, self._emptied(header)
        elif header.base_offset > self._map.latest_offset:
            retained, result = count, original
        else:
            retained, result = self._filter(source, chunk, at, header, original)
        self.stats.records_kept += retained
        return result

    def _clean_marker(
        self,
        chunk: bytes,
        at: int,
        header: BatchHeader,
        original: memoryview,
        transactions: CleanedTransactions,
    ) -> tuple[int, Buffer]:
        discardable = transactions.control(header, _control_type(chunk, at, header))
        if header.record_count == 0:
            return 0, self._emptied(header)
        if not discardable:
            return header.record_count, original
        if not header.has_delete_horizon:
            return header.record_count, _with_horizon(chunk, at, header, self._horizon)
        if header.base_timestamp > self.plan.now_ms:
            return header.record_count, original
        return 0, self._emptied(header)

    def _is_retained(self, header: BatchHeader) -> bool:
        retained, last_offset = self.plan.retained, header.last_offset
        at = bisect_left(retained, last_offset)
        if at < len(retained) and retained[at] == last_offset:
            return True
        return (
            header.is_control and self.plan.producer_epochs.get(header.producer_id) == header.producer_epoch
        )

    def _emptied(self, header: BatchHeader) -> Buffer:
        """The batch without its records, or no bytes if the batch itself need not be retained."""
        if not self._is_retained(header):
            return b""
        attributes = header.attributes & (LOG_APPEND_TIME_FLAG | TRANSACTIONAL_FLAG | CONTROL_FLAG)
        return assemble(
            header._replace(attributes=attributes, base_timestamp=NO_TIMESTAMP, record_count=0), b""
        )

    def _filter(
        self, source: _Source, chunk: bytes, at: int, header: BatchHeader, original: memoryview
    ) -> tuple[int, Buffer]:
        plan, offsets = self.plan, self._map
        codec = header.codec
        batch: Buffer = original
        if codec is not Codec.NONE:
            data, start, end = payload(chunk, at, header, max_unpacked=plan.max_unpacked)
            unpacked = bytearray(HEADER_SIZE + end - start)
            HEADER.pack_into(unpacked, 0, *header._replace(attributes=header.attributes & ~CODEC_MASK))
            unpacked[HEADER_SIZE:] = memoryview(data)[start:end]
            batch = unpacked
        room = len(batch) + 15 * max(0, header.record_count)
        if len(self._scratch) < room:
            self._scratch = bytearray(room)
        status, _, size, _, retained = loops.filter_batches(
            offsets.table, offsets.hash_key, batch, 0, len(batch), self._scratch, 0, offsets.latest_offset,
            plan.now_ms, self._horizon, plan.retained, True, self._is_retained(header),
        )  # fmt: skip
        if status == UNCHANGED:
            return retained, original
        if status == DROPPED:
            return 0, b""
        if status not in (REWRITTEN, EMPTIED):
            raise self._wrong(source, status, chunk, at)
        cleaned = bytes(memoryview(self._scratch)[:size])
        if status == EMPTIED or codec is Codec.NONE:
            return retained, cleaned
        fields = read_header(cleaned)
        packed = compress(codec, memoryview(cleaned)[HEADER_SIZE:])
        return retained, assemble(fields._replace(attributes=fields.attributes | codec), packed)


def _control_type(chunk: bytes, at: int, header: BatchHeader) -> int | None:
    records = read_records(chunk, at, header=header)
    return control_record_type(records[0]) if records else None


def _with_horizon(chunk: bytes, at: int, header: BatchHeader, horizon: int) -> bytes:
    return build_batch(
        read_records(chunk, at, header=header),
        codec=header.codec,
        base_offset=header.base_offset,
        leader_epoch=header.partition_leader_epoch,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        transactional=header.is_transactional,
        control=header.is_control,
        log_append_time=header.max_timestamp if header.is_log_append_time else None,
        delete_horizon=horizon,
        last_offset_delta=header.last_offset_delta,
    )


@dataclass(slots=True)
class _Target:
    """Writes the files of a cleaned segment with the suffix `.cleaned`. Recovery deletes such files."""

    plan: CleaningPlan
    base_offset: int
    file: DiskFile = field(init=False)
    position: int = field(init=False, default=0)
    offsets: GrowingOffsetIndex = field(init=False)
    times: GrowingTimeIndex = field(init=False)
    unsynced: int = field(init=False, default=0)
    since_index: int = field(init=False, default=0)
    max_timestamp: int = field(init=False, default=-1)
    offset_of_max: int = field(init=False)

    def __post_init__(self) -> None:
        self.file = self.plan.disk.open(self.path(LOG), create=True)
        self.file.truncate(0)
        self.offsets = GrowingOffsetIndex(self.plan.segment_index_bytes)
        self.times = GrowingTimeIndex(self.plan.segment_index_bytes)
        self.offset_of_max = self.base_offset

    def path(self, suffix: str) -> str:
        return f"{self.plan.directory}/{self.base_offset:020d}{suffix}{CLEANED}"

    def append(self, data: memoryview) -> None:
        """Append whole batches."""
        self.file.pwrite(data, self.position)
        self.unsynced += len(data)
        if self.unsynced >= SYNC_BYTES:
            self.file.fsync()
            self.unsynced = 0
        entries, self.since_index, self.max_timestamp, self.offset_of_max = loops.index_batches(
            data, 0, len(data), self.position, self.plan.index_interval_bytes, self.since_index,
            self.max_timestamp, self.offset_of_max,
        )  # fmt: skip
        base = self.base_offset
        for last_offset, position, timestamp, offset in entries:
            if not (self.offsets.is_full or self.times.is_full):
                self.offsets.append(last_offset - base, position)
                self.times.maybe_append(timestamp, offset - base)
        self.position += len(data)

    def finish(self, aborted: list[AbortedTransaction], modified_ms: int) -> CleanedFiles:
        """Write the indexes and sync all files before the swap."""
        disk = self.plan.disk
        if self.max_timestamp >= 0:
            self.times.maybe_append(self.max_timestamp, self.offset_of_max - self.base_offset)
        disk.write(self.path(OFFSET_INDEX), self.offsets.encode())
        disk.write(self.path(TIME_INDEX), self.times.encode())
        if aborted:
            disk.write(self.path(TRANSACTION_INDEX), b"".join(entry.encode() for entry in aborted))
            disk.fsync(self.path(TRANSACTION_INDEX))
        disk.fsync(self.path(OFFSET_INDEX))
        disk.fsync(self.path(TIME_INDEX))
        self.file.fsync()
        # Retention uses the modification time if no record has a timestamp.
        disk.set_modified_ms(self.path(LOG), modified_ms)
        disk.fsync_dir(self.plan.directory)
        return CleanedFiles(
            self.base_offset, self.position, self.max_timestamp, self.offset_of_max, bool(aborted)
        )

    def remove(self) -> None:
        """Remove the files of a pass that ends before the swap."""
        for suffix in SEGMENT_SUFFIXES:
            self.plan.disk.unlink(self.path(suffix))
