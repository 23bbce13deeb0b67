"""FutureCopy: copies the files of a log to its future replica while the log is written and read.

Segments are copied byte for byte, one after the other. The copy of the active segment grows with it. Files of
an earlier attempt are compared with the log, and reused as far as they are equal. Methods with a `log`
argument belong to the loop; the others run in any thread, one call at a time, mostly without the GIL.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass

from tidelog.storage.checkpoints import (
    GAP,
    LEADER_EPOCHS,
    PARTITION_METADATA,
    encode_epochs,
    encode_gap,
    encode_partition_metadata,
)
from tidelog.storage.disk import Disk, DiskFile
from tidelog.storage.future_replica import MOVE_COMPLETE
from tidelog.storage.log import Log
from tidelog.storage.log_segment import LOG, OFFSET_INDEX, SNAPSHOT, TIME_INDEX, TRANSACTION_INDEX, LogSegment
from tidelog.storage.reads import CACHED, NotCached

CHUNK = 1 << 20
SYNC_BYTES = 32 << 20
"""Bytes copied between syncs: syncing a whole segment at once would delay appends."""
MAX_SEGMENTS = 64
"""The most segments that one step copies."""


@dataclass(slots=True)
class SegmentState:
    """A segment as it was at one moment."""

    base_offset: int
    size: int
    is_sealed: bool
    has_aborted: bool
    unwritten: list[tuple[str, bytes]]
    """Names and contents of the files of a sealed segment that no flush has written yet."""


@dataclass(slots=True)
class LogState:
    """A log as it was at one moment."""

    segments: list[SegmentState]
    """Those that are not copied yet."""
    bases: list[int]
    with_aborted: set[int]
    snapshots: list[int]
    epochs: bytes
    topic_id: bytes | None
    gap: int | None


class FutureCopy:
    __slots__ = (
        "_compared",
        "_disk",
        "_from",
        "_into",
        "_linked",
        "_small",
        "_snapshots",
        "_source",
        "_target",
        "_unsynced",
        "_written",
        "at_target",
        "base_offset",
        "finished_bytes",
        "generation",
        "position",
        "reading",
    )

    def __init__(self, disk: Disk, source: str, target: str, generation: int) -> None:
        self._disk = disk
        self._source = source
        self._target = target
        self._from: DiskFile | None = None
        self._into: DiskFile | None = None
        self._compared = 0  # up to here the existing file is compared instead of written
        self._unsynced = 0
        self._written = 0
        self._snapshots: set[int] = set()  # offsets of the copied snapshots
        self._small: dict[str, bytes] = {}  # small files on disk, and their contents
        self._linked = False  # the directory entry of the future replica is on disk
        self.at_target = False  # whether an error came from the copy's log folder, not from the log's
        self.base_offset = -1  # of the segment being copied, or the lowest of the next one
        self.position = 0
        self.reading = -1  # base offset of the segment being read
        self.finished_bytes = 0
        self.generation = generation

    # -- on the loop

    def next_segments(self, log: Log) -> list[SegmentState]:
        """The segments to copy next."""
        if log.generation != self.generation:
            self._start_over(log.generation)
        return [_segment_state(log, segment) for segment in self._following(log)[:MAX_SEGMENTS]]

    def remaining(self, log: Log) -> int:
        """Bytes that are still to be copied."""
        following = self._following(log)
        total = sum(segment.size for segment in following)
        if following and following[0].base_offset == self.base_offset:
            total -= self.position
        return total

    def copied_bytes(self) -> int:
        return self.finished_bytes + self.position

    def next_offset(self, log: Log) -> int:
        """An offset near the end of the copy, from the offset index."""
        following = self._following(log)
        if not following:
            return log.log_end_offset
        segment = following[0]
        if segment.base_offset != self.base_offset or self.position == 0:
            return segment.base_offset
        if self.position >= segment.size:
            return following[1].base_offset if len(following) > 1 else log.log_end_offset
        try:
            relative = segment.offset_index(CACHED).offset_after(self.position, CACHED)
        except NotCached:
            relative = None  # not worth waiting for the disk
        return segment.base_offset if relative is None else segment.base_offset + relative

    def log_state(self, log: Log) -> LogState:
        """The state of the log for `prepare` or `complete`. For `complete`, the appends must be held."""
        if log.generation != self.generation:
            self._start_over(log.generation)
        segments = list(log.segments)
        return LogState(
            [_segment_state(log, segment) for segment in self._following(log)],
            [segment.base_offset for segment in segments],
            {segment.base_offset for segment in segments if segment.has_aborted},
            log.snapshots.offsets(),
            encode_epochs(log.leader_epochs.entries()),
            log.topic_id,
            log.gap,
        )

    def _following(self, log: Log) -> list[LogSegment]:
        segments = log.segments.starting_from(max(0, self.base_offset))
        return segments[1:] if segments and segments[0].base_offset < self.base_offset else segments

    def _start_over(self, generation: int) -> None:
        self.generation = generation
        self.base_offset, self.position, self.finished_bytes = -1, 0, 0
        self._from = self._into = None
        self._snapshots.clear()
        self._small.clear()

    # -- beside the loop

    def step(self, segments: list[SegmentState], limit: int) -> int:
        """Copy or compare up to about `limit` bytes; returns how many were written."""
        if not self._linked:
            self.at_target = True
            self._disk.fsync_dir(self._target.rpartition("/")[0])
            self._linked = True
        seen, before = 0, self._written
        for segment in segments:
            seen += self._copy(segment, limit - seen)
            if self.position < segment.size or not segment.is_sealed:
                break
            self._finish_segment(segment)
            if seen >= limit:
                break
        return self._written - before

    def prepare(self, state: LogState) -> None:
        """Sync the copy so far, so that `complete` is short: appends wait for it."""
        self._sync()
        for segment in state.segments:
            if not segment.is_sealed:
                self._copy_active_indexes(segment)
        self._copy_small_files(state)

    def _sync(self) -> None:
        self.at_target = True
        if self._into is not None:
            self._into.fsync()
            self._unsynced = 0

    def _copy_small_files(self, state: LogState) -> None:
        for offset in state.snapshots:
            if offset not in self._snapshots:
                self._copy_small(f"{offset:020d}{SNAPSHOT}")
                self._snapshots.add(offset)
        self._write_changed(LEADER_EPOCHS, state.epochs)
        if state.topic_id is not None:
            self._write_changed(PARTITION_METADATA, encode_partition_metadata(state.topic_id))
        if state.gap is not None:
            self._write_changed(GAP, encode_gap(state.gap))

    def _write_changed(self, name: str, data: bytes) -> None:
        if self._small.get(name) != data:
            self._write(name, data)
            self._small[name] = data

    def complete(self, state: LogState, checkpoint: Callable[[], None]) -> None:
        """Copy the rest and sync it, call `checkpoint`, and mark the copy as complete."""
        for segment in state.segments:
            while self.base_offset != segment.base_offset or self.position < segment.size:
                self._copy(segment, CHUNK)
            if segment.is_sealed:
                self._finish_segment(segment)
            else:
                self._finish_active(segment)
        self._remove_others(state)
        self._copy_small_files(state)
        self.at_target = True
        self._disk.fsync_dir(self._target)
        checkpoint()
        self._write(MOVE_COMPLETE, f"copied from {self._source}\n".encode())
        self._disk.fsync_dir(self._target)

    def _copy(self, segment: SegmentState, limit: int) -> int:
        self.reading = segment.base_offset
        self._go_to(segment)
        source, target = self._from, self._into
        assert source is not None
        assert target is not None
        seen = 0
        while self.position < segment.size and seen < limit:
            self.at_target = False
            data = source.pread(min(CHUNK, segment.size - self.position), self.position)
            if not data:
                raise OSError(errno.EIO, f"it ends at {self.position}, not at {segment.size}", source.path)
            self.at_target = True
            if self.position >= self._compared or not self._is_there(target, data):
                target.pwrite(data, self.position)
                self._compared = 0
                self._unsynced += len(data)
                self._written += len(data)
            seen += len(data)
            self.position += len(data)
            if self._unsynced >= SYNC_BYTES:
                self._sync()
        return seen

    def _is_there(self, target: DiskFile, data: bytes) -> bool:
        """Whether the file of an earlier attempt has the same bytes here. If not, truncate it here."""
        if target.pread(len(data), self.position) == data:
            return True
        target.truncate(self.position)
        return False

    def _go_to(self, segment: SegmentState) -> None:
        """Open the files of a segment, unless they are open."""
        # The segment after one of a single offset begins at `base_offset` before its files are open.
        if self._into is None or segment.base_offset != self.base_offset:
            self._open(segment)

    def _open(self, segment: SegmentState) -> None:
        self.at_target = False
        source = self._disk.open(self._path(self._source, segment.base_offset))
        self.at_target = True
        target = self._disk.open(self._path(self._target, segment.base_offset), create=True)
        self._from, self._into = source, target
        self._compared = target.size()
        self.base_offset, self.position, self._unsynced = segment.base_offset, 0, 0

    def _path(self, directory: str, base_offset: int) -> str:
        return f"{directory}/{base_offset:020d}{LOG}"

    def _finish_segment(self, segment: SegmentState) -> None:
        self._finish_file(segment)
        unwritten = dict(segment.unwritten)
        names = [f"{segment.base_offset:020d}{suffix}" for suffix in (OFFSET_INDEX, TIME_INDEX)]
        if segment.has_aborted:
            names.append(f"{segment.base_offset:020d}{TRANSACTION_INDEX}")
        for name in names:
            if name not in unwritten:
                self._copy_small(name)
        if segment.base_offset not in self._snapshots:
            self._copy_small(f"{segment.base_offset:020d}{SNAPSHOT}")
            self._snapshots.add(segment.base_offset)
        for name, data in unwritten.items():
            self._write(name, data)
            if name.endswith(SNAPSHOT):
                self._snapshots.add(int(name.removesuffix(SNAPSHOT)))
        self.finished_bytes += self.position
        self._close_segment()

    def _finish_active(self, segment: SegmentState) -> None:
        self._finish_file(segment)
        self._copy_active_indexes(segment)
        if segment.has_aborted:
            self._copy_small(f"{segment.base_offset:020d}{TRANSACTION_INDEX}")

    def _copy_active_indexes(self, segment: SegmentState) -> None:
        """Copy the index files without the newest entries, which are in memory.

        The next start rebuilds them.
        """
        for suffix in (OFFSET_INDEX, TIME_INDEX):
            name = f"{segment.base_offset:020d}{suffix}"
            self.at_target = False
            try:
                data = self._disk.read(f"{self._source}/{name}")
            except FileNotFoundError:
                data = b""
            self._write_changed(name, data)

    def _finish_file(self, segment: SegmentState) -> None:
        self._go_to(segment)
        target = self._into
        assert target is not None
        self.at_target = False
        modified_ms = self._disk.modified_ms(self._path(self._source, segment.base_offset))
        self.at_target = True
        if target.size() > segment.size:
            target.truncate(segment.size)
        target.fsync()
        self._unsynced = 0
        self._disk.set_modified_ms(self._path(self._target, segment.base_offset), modified_ms)

    def _close_segment(self) -> None:
        self.base_offset += 1
        self.position = self._compared = 0
        self._from = self._into = None

    def _copy_small(self, name: str) -> None:
        self.at_target = False
        try:
            data = self._disk.read(f"{self._source}/{name}")
        except FileNotFoundError:  # a missing index or snapshot is rebuilt when it is needed
            self.at_target = True
            self._disk.unlink(f"{self._target}/{name}")  # that of an earlier attempt may be of other records
            return
        self._write(name, data)

    def _write(self, name: str, data: bytes) -> None:
        self.at_target = True
        path = f"{self._target}/{name}"
        self._disk.write(path, data)
        self._disk.fsync(path)

    def _remove_others(self, state: LogState) -> None:
        """Remove files of segments that retention deleted, and other files of an earlier attempt."""
        self.at_target = True
        wanted = {
            f"{base:020d}{suffix}" for base in state.bases for suffix in (LOG, OFFSET_INDEX, TIME_INDEX)
        }
        wanted |= {f"{base:020d}{TRANSACTION_INDEX}" for base in state.with_aborted}
        wanted |= {f"{offset:020d}{SNAPSHOT}" for offset in state.snapshots}
        wanted |= {LEADER_EPOCHS, PARTITION_METADATA} & self._small.keys()
        if state.gap is not None:
            wanted.add(GAP)
        for name in self._disk.listdir(self._target):
            if name not in wanted:
                self._disk.unlink(f"{self._target}/{name}")


def _segment_state(log: Log, segment: LogSegment) -> SegmentState:
    is_sealed = segment is not log.active_segment and segment.size == segment.write_position
    return SegmentState(
        segment.base_offset,
        segment.size,
        is_sealed,
        segment.has_aborted,
        _unwritten(log, segment) if is_sealed else [],
    )


def _unwritten(log: Log, segment: LogSegment) -> list[tuple[str, bytes]]:
    files = [(f"{segment.base_offset:020d}{suffix}", data) for suffix, data in segment.index_files() if data]
    following = log.segments.next_base(log.segments.find(segment.base_offset))
    if segment.snapshot_to_write is not None and following is not None:
        files.append((f"{following:020d}{SNAPSHOT}", segment.snapshot_to_write))
    return files
