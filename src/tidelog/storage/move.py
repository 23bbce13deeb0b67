"""A partition's files copied into a future folder while the log is written and read.

Segments are copied one after the other, byte for byte; the active one is followed while it grows. What an
earlier try left is compared with the log and used as far as it is the same. `look` and `last_look` belong to
the thread that owns the log; the rest may run in any, one call at a time, and mostly outside of the GIL.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass

from tidelog.storage.checkpoints import (
    LEADER_EPOCHS,
    PARTITION_METADATA,
    encode_epochs,
    encode_partition_metadata,
)
from tidelog.storage.disk import Disk, DiskFile
from tidelog.storage.future_replica import MOVE_COMPLETE
from tidelog.storage.log import Log
from tidelog.storage.reads import CACHED, NotCached
from tidelog.storage.segment import LOG, OFFSET_INDEX, SNAPSHOT, TIME_INDEX, TRANSACTION_INDEX, Segment

CHUNK = 1 << 20
SYNC_BYTES = 32 << 20
"""Synced as they are copied, so that no flood of writes meets the producers' at the end of a segment."""
LOOK_AHEAD = 64
"""Segments that one step is told of."""


@dataclass(slots=True)
class Piece:
    """A segment as it was when it was looked at."""

    base_offset: int
    size: int
    is_sealed: bool
    has_aborted: bool
    unwritten: list[tuple[str, bytes]]
    """Files of a sealed one that no flush has written yet."""


@dataclass(slots=True)
class LastLook:
    """What a log consists of while nothing is appended to it."""

    pieces: list[Piece]
    bases: list[int]
    with_aborted: set[int]
    snapshots: list[int]
    epochs: bytes
    topic_id: bytes | None


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
        self._compared = 0  # up to here the file that was there is compared instead of written
        self._unsynced = 0
        self._written = 0
        self._snapshots: set[int] = set()  # those that were copied
        self._small: dict[str, bytes] = {}  # small files that are on disk, and what is in them
        self._linked = False  # the future folder itself is on disk
        self.at_target = False  # which side was being used, for who hears of an error
        self.base_offset = -1  # the segment being copied, or the lowest that the next one may have
        self.position = 0
        self.reading = -1  # the segment that is being read
        self.finished_bytes = 0
        self.generation = generation

    # -- on the loop

    def look(self, log: Log) -> list[Piece]:
        """The segments that come next."""
        if log.generation != self.generation:
            self._start_over(log.generation)
        return [_piece(log, segment) for segment in self._following(log)[:LOOK_AHEAD]]

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
        """Where the copy ends, as near as the index knows."""
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
            relative = None  # nobody waits for the disk to learn how far a copy is
        return segment.base_offset if relative is None else segment.base_offset + relative

    def last_look(self, log: Log) -> LastLook:
        """To be taken while no append is under way, and none is let in before the copy is complete."""
        if log.generation != self.generation:
            self._start_over(log.generation)
        segments = list(log.segments)
        return LastLook(
            [_piece(log, segment) for segment in self._following(log)],
            [segment.base_offset for segment in segments],
            {segment.base_offset for segment in segments if segment.has_aborted},
            log.snapshots.offsets(),
            encode_epochs(log.leader_epochs.entries()),
            log.topic_id,
        )

    def _following(self, log: Log) -> list[Segment]:
        segments = log.segments.starting_from(max(0, self.base_offset))
        return segments[1:] if segments and segments[0].base_offset < self.base_offset else segments

    def _start_over(self, generation: int) -> None:
        self.generation = generation
        self.base_offset, self.position, self.finished_bytes = -1, 0, 0
        self._from = self._into = None
        self._snapshots.clear()
        self._small.clear()

    # -- beside the loop

    def step(self, pieces: list[Piece], limit: int) -> int:
        """Go over up to about `limit` bytes; how many had to be written."""
        if not self._linked:
            self.at_target = True
            self._disk.fsync_dir(self._target.rpartition("/")[0])
            self._linked = True
        seen, before = 0, self._written
        for piece in pieces:
            seen += self._copy(piece, limit - seen)
            if self.position < piece.size or not piece.is_sealed:
                break
            self._finish_segment(piece)
            if seen >= limit:
                break
        return self._written - before

    def prepare(self, look: LastLook) -> None:
        """Bring what there is by now to the disk, so that little is left when appends have to wait."""
        self._sync()
        for piece in look.pieces:
            if not piece.is_sealed:
                self._copy_active_indexes(piece)
        self._copy_small_files(look)

    def _sync(self) -> None:
        self.at_target = True
        if self._into is not None:
            self._into.fsync()
            self._unsynced = 0

    def _copy_small_files(self, look: LastLook) -> None:
        for offset in look.snapshots:
            if offset not in self._snapshots:
                self._copy_small(f"{offset:020d}{SNAPSHOT}")
                self._snapshots.add(offset)
        self._write_changed(LEADER_EPOCHS, look.epochs)
        if look.topic_id is not None:
            self._write_changed(PARTITION_METADATA, encode_partition_metadata(look.topic_id))

    def _write_changed(self, name: str, data: bytes) -> None:
        if self._small.get(name) != data:
            self._write(name, data)
            self._small[name] = data

    def complete(self, last: LastLook, checkpoint: Callable[[], None]) -> None:
        """The rest, everything on disk, the checkpoints of the folder, and the mark that says so."""
        for piece in last.pieces:
            while self.base_offset != piece.base_offset or self.position < piece.size:
                self._copy(piece, CHUNK)
            if piece.is_sealed:
                self._finish_segment(piece)
            else:
                self._finish_active(piece)
        self._remove_others(last)
        self._copy_small_files(last)
        self.at_target = True
        self._disk.fsync_dir(self._target)
        checkpoint()
        self._write(MOVE_COMPLETE, f"copied from {self._source}\n".encode())
        self._disk.fsync_dir(self._target)

    def _copy(self, piece: Piece, limit: int) -> int:
        self.reading = piece.base_offset
        if piece.base_offset != self.base_offset:
            self._open(piece)
        source, target = self._from, self._into
        assert source is not None
        assert target is not None
        seen = 0
        while self.position < piece.size and seen < limit:
            self.at_target = False
            data = source.pread(min(CHUNK, piece.size - self.position), self.position)
            if not data:
                raise OSError(errno.EIO, f"it ends at {self.position}, not at {piece.size}", source.path)
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
        """Whether what was left by an earlier try is the same here; the file is cut where it is not."""
        if target.pread(len(data), self.position) == data:
            return True
        target.truncate(self.position)
        return False

    def _open(self, piece: Piece) -> None:
        self.at_target = False
        source = self._disk.open(self._path(self._source, piece.base_offset))
        self.at_target = True
        target = self._disk.open(self._path(self._target, piece.base_offset), create=True)
        self._from, self._into = source, target
        self._compared = target.size()
        self.base_offset, self.position, self._unsynced = piece.base_offset, 0, 0

    def _path(self, directory: str, base_offset: int) -> str:
        return f"{directory}/{base_offset:020d}{LOG}"

    def _finish_segment(self, piece: Piece) -> None:
        self._finish_file(piece)
        unwritten = dict(piece.unwritten)
        names = [f"{piece.base_offset:020d}{suffix}" for suffix in (OFFSET_INDEX, TIME_INDEX)]
        if piece.has_aborted:
            names.append(f"{piece.base_offset:020d}{TRANSACTION_INDEX}")
        for name in names:
            if name not in unwritten:
                self._copy_small(name)
        if piece.base_offset not in self._snapshots:
            self._copy_small(f"{piece.base_offset:020d}{SNAPSHOT}")
            self._snapshots.add(piece.base_offset)
        for name, data in unwritten.items():
            self._write(name, data)
            if name.endswith(SNAPSHOT):
                self._snapshots.add(int(name.removesuffix(SNAPSHOT)))
        self.finished_bytes += self.position
        self._close_segment()

    def _finish_active(self, piece: Piece) -> None:
        self._finish_file(piece)
        self._copy_active_indexes(piece)
        if piece.has_aborted:
            self._copy_small(f"{piece.base_offset:020d}{TRANSACTION_INDEX}")

    def _copy_active_indexes(self, piece: Piece) -> None:
        """They grow in memory: the files are as good as what they say, which a start finds out."""
        for suffix in (OFFSET_INDEX, TIME_INDEX):
            name = f"{piece.base_offset:020d}{suffix}"
            self.at_target = False
            try:
                data = self._disk.read(f"{self._source}/{name}")
            except FileNotFoundError:
                data = b""
            self._write_changed(name, data)

    def _finish_file(self, piece: Piece) -> None:
        if piece.base_offset != self.base_offset:
            self._open(piece)
        target = self._into
        assert target is not None
        self.at_target = False
        modified_ms = self._disk.modified_ms(self._path(self._source, piece.base_offset))
        self.at_target = True
        if target.size() > piece.size:
            target.truncate(piece.size)
        target.fsync()
        self._unsynced = 0
        self._disk.set_modified_ms(self._path(self._target, piece.base_offset), modified_ms)

    def _close_segment(self) -> None:
        self.base_offset += 1
        self.position = self._compared = 0
        self._from = self._into = None

    def _copy_small(self, name: str) -> None:
        self.at_target = False
        try:
            data = self._disk.read(f"{self._source}/{name}")
        except FileNotFoundError:  # an index or a snapshot that is missing is made anew when it is needed
            return
        self._write(name, data)

    def _write(self, name: str, data: bytes) -> None:
        self.at_target = True
        path = f"{self._target}/{name}"
        self._disk.write(path, data)
        self._disk.fsync(path)

    def _remove_others(self, last: LastLook) -> None:
        """What retention has taken from the log, or an earlier try has left."""
        self.at_target = True
        wanted = {f"{base:020d}{suffix}" for base in last.bases for suffix in (LOG, OFFSET_INDEX, TIME_INDEX)}
        wanted |= {f"{base:020d}{TRANSACTION_INDEX}" for base in last.with_aborted}
        wanted |= {f"{offset:020d}{SNAPSHOT}" for offset in last.snapshots}
        wanted |= {LEADER_EPOCHS, PARTITION_METADATA} & self._small.keys()
        for name in self._disk.listdir(self._target):
            if name not in wanted:
                self._disk.unlink(f"{self._target}/{name}")


def _piece(log: Log, segment: Segment) -> Piece:
    is_sealed = segment is not log.active_segment and segment.size == segment.write_position
    return Piece(
        segment.base_offset,
        segment.size,
        is_sealed,
        segment.has_aborted,
        _unwritten(log, segment) if is_sealed else [],
    )


def _unwritten(log: Log, segment: Segment) -> list[tuple[str, bytes]]:
    files = [(f"{segment.base_offset:020d}{suffix}", data) for suffix, data in segment.index_files() if data]
    following = log.segments.next_base(log.segments.find(segment.base_offset))
    if segment.snapshot_to_write is not None and following is not None:
        files.append((f"{following:020d}{SNAPSHOT}", segment.snapshot_to_write))
    return files
