"""Loads a log from its folder: after a clean shutdown from its end, after a crash by reading it.

Everything below the recovery point is on disk. Segments from there on are read batch by batch: the log ends
before the first batch that is cut off or has a wrong CRC, and indexes, epochs and producer state are rebuilt.
"""

from __future__ import annotations

import logging
import re
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from tidelog.errors import CorruptMessage, InvalidRecord, UnsupportedForMessageFormat
from tidelog.records.batch import (
    HEADER_SIZE,
    LENGTH_OVERHEAD,
    MAGIC,
    BatchHeader,
    crc_is_valid,
    read_header,
    read_marker,
)
from tidelog.records.check import CheckedBatch
from tidelog.storage.checkpoints import (
    GAP,
    PARTITION_METADATA,
    CorruptCheckpoint,
    decode_gap,
    decode_partition_metadata,
    encode_gap,
)
from tidelog.storage.config import LogConfig
from tidelog.storage.disk import Disk, DiskFile
from tidelog.storage.file_cache import FileCache
from tidelog.storage.index import (
    OFFSET_ENTRY_SIZE,
    CorruptIndex,
    GrowingOffsetIndex,
    GrowingTimeIndex,
    check_offset_index,
    check_time_index,
)
from tidelog.storage.leader_epoch_file_cache import LeaderEpochFileCache
from tidelog.storage.log_segment import (
    CLEANED,
    LOG,
    OFFSET_INDEX,
    SEGMENT_SUFFIXES,
    SNAPSHOT,
    SWAP,
    TIME_INDEX,
    TRANSACTION_INDEX,
    LogSegment,
)
from tidelog.storage.log_segments import LogSegments
from tidelog.storage.producer_snapshots import ProducerSnapshots
from tidelog.storage.producer_state_manager import ProducerStateManager
from tidelog.storage.transaction_index import AbortedTransaction

logger = logging.getLogger("tidelog.storage")

_CHUNK = 1 << 20
_FILE_NAME = re.compile(
    r"(\d{20})(\.log|\.index|\.timeindex|\.txnindex|\.snapshot)(\.deleted|\.cleaned|\.swap)?"
)
_OLD_MESSAGE = struct.Struct(">qiIb")


@dataclass(slots=True)
class LoadedLog:
    segments: LogSegments
    epochs: LeaderEpochFileCache
    producers: ProducerStateManager
    snapshots: ProducerSnapshots
    topic_id: bytes | None
    log_start_offset: int
    log_end_offset: int
    recovery_point: int
    truncated_bytes: int = 0
    gap: int | None = None  # where the first gap begins that was after the recovery point and was kept


# -- batches


def _refuse_old_message(file: DiskFile, position: int, size: int) -> None:
    """Raise if a message of format 0 or 1 begins here: it is no damage and must not be truncated."""
    head = file.pread(_OLD_MESSAGE.size, position)
    if len(head) < _OLD_MESSAGE.size:
        return
    _, length, crc, magic = _OLD_MESSAGE.unpack(head)
    if magic not in (0, 1) or length < 14 or length > size - position - LENGTH_OVERHEAD:
        return
    message = file.pread(length, position + LENGTH_OVERHEAD)
    if zlib.crc32(memoryview(message)[4:]) == crc:
        raise UnsupportedForMessageFormat(
            f"{file.path} holds messages of format {magic} at position {position}; only {MAGIC} is read"
        )


def valid_batches(
    file: DiskFile, size: int, first_offset: int, max_offset: int
) -> Iterator[tuple[int, BatchHeader, bytes, int]]:
    """Position, header, buffer and position in the buffer of each batch, up to the first invalid one.

    A batch is valid if its length fits, its CRC is right and its offsets follow those before it.
    """
    position, expected = 0, first_offset
    chunk, chunk_start = b"", 0
    while size - position >= HEADER_SIZE:
        at = position - chunk_start
        if at + HEADER_SIZE > len(chunk):
            chunk, chunk_start, at = file.pread(min(_CHUNK, size - position), position), position, 0
            if len(chunk) < HEADER_SIZE:
                return
        header = read_header(chunk, at)
        total = header.total_size
        if (
            header.batch_length < HEADER_SIZE - LENGTH_OVERHEAD
            or total > size - position
            or header.magic != MAGIC
        ):
            break
        if at + total > len(chunk):
            chunk, chunk_start, at = (
                file.pread(min(max(_CHUNK, total), size - position), position),
                position,
                0,
            )
            if len(chunk) < total:
                return
        last_offset = header.last_offset
        if header.base_offset < expected or not header.base_offset <= last_offset <= max_offset:
            return
        if not crc_is_valid(chunk, at, header):
            return
        yield position, header, chunk, at
        position += total
        expected = last_offset + 1
    _refuse_old_message(file, position, size)


def replay(
    producers: ProducerStateManager, header: BatchHeader, buf: bytes | bytearray, at: int
) -> AbortedTransaction | None:
    """Update the producers with a batch of the log; returns the transaction if the batch aborts one."""
    if header.producer_id < 0:
        return None
    if not header.is_control:
        batch = CheckedBatch.of(memoryview(buf)[at : at + header.total_size])
        producers.append(batch, header.base_offset, header.last_offset)
        return None
    marker = read_marker(buf, at, header)
    if marker is None:
        return None
    return producers.end_transaction(
        header.producer_id, header.producer_epoch, marker, header.base_offset, header.max_timestamp
    )


# -- one segment


def recover_segment(
    segment: LogSegment,
    expected: int,
    config: LogConfig,
    epochs: LeaderEpochFileCache,
    producers: ProducerStateManager,
) -> tuple[int, int]:
    """Read a segment, truncate it after its last valid batch and rebuild its indexes.

    Returns the next offset and the number of truncated bytes.
    """
    offsets = GrowingOffsetIndex(config.segment_index_bytes)
    times = GrowingTimeIndex(config.segment_index_bytes)
    aborted: list[AbortedTransaction] = []
    base, interval = segment.base_offset, config.index_interval_bytes
    max_timestamp, offset_of_max, valid, since_index = -1, base, 0, 0
    next_offset = max(expected, base)
    first_timestamp: int | None = None
    size = segment.file.size()
    for position, header, buf, at in valid_batches(segment.file, size, base, segment.max_offset):
        try:
            ended = replay(producers, header, buf, at)
        except (InvalidRecord, CorruptMessage):
            break
        if ended is not None:
            aborted.append(ended)
        if header.max_timestamp > max_timestamp:
            max_timestamp, offset_of_max = header.max_timestamp, header.last_offset
        if since_index > interval:
            offsets.append(header.last_offset - base, position)
            times.maybe_append(max_timestamp, offset_of_max - base)
            since_index = 0
        if header.partition_leader_epoch > epochs.latest:
            epochs.assign(header.partition_leader_epoch, header.base_offset)
        if first_timestamp is None:
            first_timestamp = header.max_timestamp
        valid = position + header.total_size
        since_index += header.total_size
        next_offset = header.next_offset
    if valid < size:
        segment.cut_file(valid)
    segment.size = segment.write_position = valid
    segment.first_timestamp = first_timestamp
    segment.replace_aborted(aborted)
    segment.replace_indexes(offsets, times, max_timestamp, offset_of_max)
    segment.complete()
    if valid:
        segment.write_indexes()
    else:
        segment.remove_index_files()
    return next_offset, size - valid


def _replay_segments(producers: ProducerStateManager, segments: LogSegments, start: int, end: int) -> None:
    """Update the producers with the batches from `start` up to `end`."""
    if start >= end:
        return
    for segment in segments.starting_from(start):
        if segment.base_offset >= end:
            break
        try:
            _replay_segment(producers, segment, start, end)
        except (CorruptMessage, InvalidRecord) as error:
            logger.warning(
                "%s is damaged, producers after the damage are not known: %s", segment.path(LOG), error
            )
        segment.close()


def _replay_segment(producers: ProducerStateManager, segment: LogSegment, start: int, end: int) -> None:
    found = segment.position_of(max(start, segment.base_offset))
    if found is None:
        return
    for position, header in segment.batches(found[0]):
        if header.base_offset >= end:
            break
        if header.producer_id >= 0:
            replay(producers, header, segment.read_batch(position, header), 0)


# -- the folder


def _finish_interrupted_work(disk: Disk, directory: str, names: list[str]) -> list[str]:
    """Complete interrupted deletions and swaps of cleaned segments, and undo unfinished cleanings."""
    first_cleaned: int | None = None
    swaps: list[tuple[int, str, str]] = []
    remaining: list[str] = []
    for name in names:
        match = _FILE_NAME.fullmatch(name)
        if match is None or match[3] is None:
            if name.endswith(".tmp"):
                disk.unlink(f"{directory}/{name}")
            else:
                remaining.append(name)
        elif match[3] == SWAP:
            swaps.append((int(match[1]), match[2], name))
        else:
            if match[3] == CLEANED:
                first_cleaned = min(
                    int(match[1]), first_cleaned if first_cleaned is not None else int(match[1])
                )
            disk.unlink(f"{directory}/{name}")
    usable = [swap for swap in swaps if first_cleaned is None or swap[0] < first_cleaned]
    for _, _, name in set(swaps) - set(usable):
        disk.unlink(f"{directory}/{name}")
    return _swap_in(disk, directory, remaining, usable) if usable else remaining


def _swap_in(disk: Disk, directory: str, names: list[str], swaps: list[tuple[int, str, str]]) -> list[str]:
    """Replace segments by the cleaned ones made from them."""
    remaining = list(names)
    for base, suffix, name in swaps:
        if suffix != LOG:
            continue
        path = f"{directory}/{name}"
        file = disk.open(path)
        end = base + 1
        for _, header, _, _ in valid_batches(file, file.size(), base, base + (1 << 31)):
            end = header.next_offset
        for other in list(remaining):
            match = _FILE_NAME.fullmatch(other)
            if match is not None and match[2] in SEGMENT_SUFFIXES and base <= int(match[1]) < end:
                disk.unlink(f"{directory}/{other}")
                remaining.remove(other)
    for _, _, name in swaps:
        target = name.removesuffix(SWAP)
        disk.rename(f"{directory}/{name}", f"{directory}/{target}")
        if target not in remaining:
            remaining.append(target)
    return remaining


def _collect(
    disk: Disk, files: FileCache, directory: str, config: LogConfig
) -> tuple[list[LogSegment], ProducerSnapshots, list[str]]:
    """The segments and snapshots of a folder, and the names of all its files."""
    names = _finish_interrupted_work(disk, directory, disk.listdir(directory))
    found: dict[str, list[int]] = {
        LOG: [],
        OFFSET_INDEX: [],
        TIME_INDEX: [],
        TRANSACTION_INDEX: [],
        SNAPSHOT: [],
    }
    for name in names:
        match = _FILE_NAME.fullmatch(name)
        if match is not None and match[3] is None:
            found[match[2]].append(int(match[1]))
    bases = set(found[LOG])
    for suffix in (OFFSET_INDEX, TIME_INDEX, TRANSACTION_INDEX):
        for base in found[suffix]:
            if base not in bases:
                disk.unlink(f"{directory}/{base:020d}{suffix}")
    with_aborted = set(found[TRANSACTION_INDEX])
    segments = []
    for base in sorted(bases):
        size = disk.size(f"{directory}/{base:020d}{LOG}")
        segment = LogSegment(disk, files, directory, base, size, config.segment_index_bytes)
        segment.has_aborted = base in with_aborted
        segments.append(segment)
    return segments, ProducerSnapshots(disk, directory, found[SNAPSHOT]), names


def read_topic_id(disk: Disk, directory: str) -> bytes | None:
    path = f"{directory}/{PARTITION_METADATA}"
    try:
        return decode_partition_metadata(path, disk.read(path))
    except FileNotFoundError:
        return None
    except (CorruptCheckpoint, UnicodeDecodeError) as error:
        logger.warning("the topic id of a partition is not known: %s", error)
        return None


def _end_of_clean_segment(disk: Disk, segment: LogSegment) -> int | None:
    """The offset after the last batch; None if index and log do not match, so that the log has to be read."""
    try:
        index = disk.read(segment.path(OFFSET_INDEX))
        check_offset_index(index, segment.size)
        check_time_index(disk.read(segment.path(TIME_INDEX)))
        segment.aborted()
        position = int.from_bytes(index[-4:], "big") if len(index) >= OFFSET_ENTRY_SIZE else 0
        end, next_offset = position, segment.base_offset
        for start, header in segment.batches(position):
            if (
                header.magic != MAGIC
                or header.base_offset < next_offset
                or header.last_offset > segment.max_offset
            ):
                return None
            end, next_offset = start + header.total_size, header.next_offset
        return next_offset if end == segment.size else None
    except (FileNotFoundError, CorruptIndex, CorruptMessage):
        return None


def load_log(
    disk: Disk,
    files: FileCache,
    directory: str,
    config: LogConfig,
    *,
    clean: bool,
    recovery_point: int | None,
    log_start_offset: int,
    now_ms: int,
) -> LoadedLog:
    """Load a log from the files of its folder.

    If `recovery_point` is None, the whole log is read and gaps stay: without a checkpoint, a gap may come
    from a crash or from cleaning.
    """
    segments, snapshots, names = _collect(disk, files, directory, config)
    epochs = LeaderEpochFileCache(disk, directory)
    try:
        epochs.load()
        has_epochs = True
    except CorruptCheckpoint as error:
        logger.warning("leader epochs are taken from the batches of the log: %s", error)
        has_epochs = False
    producers = ProducerStateManager(config.producer_id_expiration_ms)
    topic_id = read_topic_id(disk, directory) if PARTITION_METADATA in names else None
    is_new = not segments
    if is_new:
        segments = [
            LogSegment.create(disk, files, directory, log_start_offset, config.segment_index_bytes, now_ms)
        ]
    listed = LogSegments(segments)
    log_start_offset = max(log_start_offset, listed[0].base_offset)
    point = recovery_point or 0
    loaded = LoadedLog(
        listed, epochs, producers, snapshots, topic_id, log_start_offset, log_start_offset, point
    )
    end = _end_of_clean_segment(disk, listed[-1]) if clean else None
    if is_new:  # there is nothing to read, and no index to rebuild
        reload_producers(listed, snapshots, producers, log_start_offset, now_ms)
        loaded.recovery_point = min(point, log_start_offset)
    elif end is not None:
        loaded.log_end_offset = loaded.recovery_point = end
        had_snapshots = bool(snapshots)
        reload_producers(listed, snapshots, producers, end, now_ms, assume_none=not had_snapshots)
        if had_snapshots and end not in snapshots:
            snapshots.write(end, producers.encode_snapshot())
        listed[-1].close()
    else:
        first = listed.find(point) if not clean else len(listed) - 1
        keep_gaps = config.compacted or recovery_point is None
        _recover(loaded, first, disk, files, directory, config, now_ms, keep_gaps)
    if not has_epochs:
        _read_epochs(loaded)
    _settle(loaded, disk, files, directory, config, now_ms)
    _keep_gap(loaded, disk, directory, has_file=GAP in names)
    return loaded


def _keep_gap(loaded: LoadedLog, disk: Disk, directory: str, *, has_file: bool) -> None:
    """Write the offset of the gap to a file.

    The next start would not find the gap, because the log is flushed.
    """
    known = _read_gap(disk, directory) if has_file else None
    if known is not None and (loaded.gap is None or known <= loaded.gap):
        loaded.gap = known
    elif loaded.gap is not None:
        disk.atomic_write(f"{directory}/{GAP}", encode_gap(loaded.gap))


def _read_gap(disk: Disk, directory: str) -> int | None:
    path = f"{directory}/{GAP}"
    try:
        return decode_gap(path, disk.read(path))
    except CorruptCheckpoint as error:
        logger.warning("a gap that an earlier start has found is not known: %s", error)
        return None


def _read_epochs(loaded: LoadedLog) -> None:
    """Rebuild the leader epochs from the batches, because their checkpoint is damaged."""
    loaded.epochs.clear()
    for segment in loaded.segments:
        try:
            for _, header in segment.batches():
                if header.partition_leader_epoch > loaded.epochs.latest:
                    loaded.epochs.assign(header.partition_leader_epoch, header.base_offset)
        except CorruptMessage as error:
            logger.warning("leader epochs are not known from a damaged batch on: %s", error)
        segment.close()


def reload_producers(
    segments: LogSegments,
    snapshots: ProducerSnapshots,
    producers: ProducerStateManager,
    end: int,
    now_ms: int,
    *,
    assume_none: bool = False,
) -> None:
    """Load the producers at the end of the log, from the newest snapshot and the batches after it."""
    # A snapshot from before the first segment is useless: the ends of its transactions are deleted.
    snapshots.delete_outside(segments[0].base_offset, end)
    latest = snapshots.load_latest(end)
    if latest is not None:
        known_up_to, entries = latest
        producers.load(entries, known_up_to, now_ms)
    else:
        # A clean shutdown writes a snapshot of each log with batches; no snapshot means no producers.
        known_up_to = end if assume_none else segments[0].base_offset
        producers.clear()
    _replay_segments(producers, segments, known_up_to, end)


def _recover(
    loaded: LoadedLog,
    first: int,
    disk: Disk,
    files: FileCache,
    directory: str,
    config: LogConfig,
    now_ms: int,
    keep_gaps: bool,
) -> None:
    segments, producers, snapshots = loaded.segments, loaded.producers, loaded.snapshots
    loaded.log_end_offset = segments[first].base_offset
    reload_producers(segments, snapshots, producers, loaded.log_end_offset, now_ms)
    next_offset = segments[first].base_offset
    for at in range(first, len(segments)):
        segment = segments[at]
        segment.linked = False  # its directory entry may not be on disk either
        # The first snapshot of the recovery is durable and must not be replaced: after another crash it is
        # needed again, and the batches before it may have been cleaned.
        if at > first or (at > 0 and segment.base_offset not in snapshots):
            snapshots.write(segment.base_offset, producers.encode_snapshot())
        next_offset, cut = recover_segment(segment, next_offset, config, loaded.epochs, producers)
        if cut:
            logger.warning("%s: %d bytes after the last valid batch are truncated", segment.path(LOG), cut)
            loaded.truncated_bytes += cut
        following = segments.next_base(at)
        if following is None:
            break
        segment.seal()
        segment.close()
        # A crash can lose the unsynced end of a segment although a later segment exists: the log ends there.
        # A gap in a compacted log is normal: the cleaner removed the records between.
        gap = following > next_offset >= loaded.recovery_point
        if gap and keep_gaps and not cut and loaded.gap is None:  # a log that is cut ends here
            loaded.gap = next_offset
        if cut or following < next_offset or (gap and not keep_gaps):
            _drop_segments(disk, directory, segments.remove_from(at + 1))
            segment.load_for_append()
            break
    loaded.log_end_offset = next_offset
    loaded.recovery_point = min(loaded.recovery_point, next_offset)
    snapshots.delete_outside(0, next_offset)


def _drop_segments(disk: Disk, directory: str, segments: list[LogSegment]) -> None:
    """Remove segments at once: new records will get their offsets."""
    for segment in segments:
        logger.warning("%s is after the end of the log and is removed", segment.path(LOG))
        for path in segment.existing_files():
            disk.unlink(path)
        segment.close()
    disk.fsync_dir(directory)


def _settle(
    loaded: LoadedLog, disk: Disk, files: FileCache, directory: str, config: LogConfig, now_ms: int
) -> None:
    """Make log start offset, leader epochs and snapshots consistent with the segments."""
    if loaded.log_end_offset < loaded.log_start_offset:
        logger.warning(
            "%s ends at offset %d, before its log start offset %d: it starts empty from there",
            directory, loaded.log_end_offset, loaded.log_start_offset,
        )  # fmt: skip
        _drop_segments(disk, directory, loaded.segments.remove_from(0))
        start = loaded.log_start_offset
        loaded.segments.append(
            LogSegment.create(disk, files, directory, start, config.segment_index_bytes, now_ms)
        )
        loaded.log_end_offset = start
        loaded.producers.clear()
        loaded.snapshots.delete_outside(start, start - 1)  # the ends of their transactions are gone
        loaded.epochs.clear()
        loaded.recovery_point = min(loaded.recovery_point, start)
    loaded.epochs.truncate_from_end(loaded.log_end_offset + 1)
    loaded.epochs.truncate_from_start(loaded.log_start_offset)
    loaded.snapshots.delete_strays(loaded.segments.bases())
