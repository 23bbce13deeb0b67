"""LocalLog: the segments of one partition and their files.

It rolls, removes, replaces and truncates segments. Segments do not overlap, and only the last one, the active
segment, grows. A crash at any step leaves files that load correctly: files that must not reappear are renamed
before anything that relies on it is made durable. Methods raise the OSError of the disk. They belong to the
thread that owns the log, except where a docstring says otherwise.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from threading import Lock

from tidelog.storage.config import LogConfig
from tidelog.storage.disk import Disk, DiskFile
from tidelog.storage.file_cache import FileCache
from tidelog.storage.file_remover import FileRemover, Removal
from tidelog.storage.log_segment import CLEANED, DELETED, LOG, NEVER, SWAP, CleanedFiles, LogSegment
from tidelog.storage.partition_folders import path_for_deletion
from tidelog.storage.recovery import LoadedLog


class LocalLog:
    __slots__ = (
        "_files",
        "_removal",
        "_rng",
        "closed",
        "config",
        "dir",
        "disk",
        "generation",
        "lock",
        "log_end_offset",
        "log_start_offset",
        "loose_names",
        "remover",
        "segments",
        "snapshots",
    )

    def __init__(
        self,
        directory: str,
        config: LogConfig,
        loaded: LoadedLog,
        *,
        disk: Disk,
        files: FileCache,
        rng: random.Random | None,
    ) -> None:
        self.dir = directory
        self.config = config
        self.segments = loaded.segments
        self.snapshots = loaded.snapshots
        self.log_start_offset = loaded.log_start_offset
        self.log_end_offset = loaded.log_end_offset
        self.disk = disk
        self._files = files
        self._rng = rng
        self.lock = Lock()  # held while another thread writes one of the small files, and by what ends that
        self.closed = False
        self.generation = 0  # another one each time the end moves back
        self.loose_names = 0  # files that were unlinked; a sync of the folder makes that durable
        self._removal: Removal | None = None  # files that retention dropped and that still have their names
        self.remover: FileRemover | None = None  # renames and unlinks files off the loop; without it at once

    # -- the active segment

    def roll_to(self, base_offset: int, producers: bytes, now_ms: int) -> LogSegment:
        """Begin a segment. The next flush writes the files of the segment before it.

        `producers` is the snapshot of the producers below the offset.
        """
        config = self.config
        new = self._new_segment(base_offset, now_ms)
        if config.segment_jitter_ms:
            rng = self._rng or random
            new.jitter_ms = rng.randrange(min(config.segment_jitter_ms, config.max_segment_ms) + 1)
        new.roll_timestamp = NEVER
        self.segments.active.snapshot_to_write = producers
        self.segments.append(new)
        return new

    def _new_segment(self, base_offset: int, now_ms: int) -> LogSegment:
        index_bytes = self.config.segment_index_bytes
        return LogSegment.create(self.disk, self._files, self.dir, base_offset, index_bytes, now_ms)

    def take_back_roll(self) -> None:
        """Remove the active segment, which no append has reached.

        The one before it grows again, also after an error.
        """
        with self.lock:
            removed = self.segments.remove_from(len(self.segments) - 1)[0]
        self.segments.active.snapshot_to_write = None
        self.loose_names += 1
        try:
            self.snapshots.delete(removed.base_offset)
            for path in removed.existing_files():
                self.disk.unlink(path)
        except OSError as error:
            # The segment before it will get these offsets. If the next start found both, it would end the log
            # here.
            raise OSError(errno.EIO, f"a segment cannot be removed: {error}", removed.path(LOG)) from error
        finally:
            removed.close()

    # -- removal at the start, off the loop

    def remove_first(self, count: int, failed: Callable[[OSError], None]) -> None:
        """Drop the oldest segments now and their files later.

        Calls `failed` if the files cannot be removed.
        """
        removed = self.segments.remove_first(count)
        removal = self._pending_removal(failed)
        self._keep_producers(removed, removal)
        for segment in removed:
            open_files = segment.close()
            removal.add(self._leaving(segment), open_files)
        self._rename_later(removal)

    def _pending_removal(self, failed: Callable[[OSError], None]) -> Removal:
        if self._removal is None or (self._removal.is_done and not self._removal.syncs):
            self._removal = Removal(self.disk, self.config.file_delete_delay_ms, failed)
        return self._removal

    def _keep_producers(self, removed: list[LogSegment], removal: Removal) -> None:
        """Make the snapshots at the ends of removed segments durable, before the segments go.

        A recovery that begins after a removed segment needs its snapshot, for the transactions that began
        there and for the aborted ones. A crash may come after each of the removals, so each snapshot counts.
        """
        bases = [*(segment.base_offset for segment in removed[1:]), self.segments[0].base_offset]
        snapshots: list[tuple[int, bytes | None]] = []
        for segment, base in zip(removed, bases, strict=True):
            if segment.synced and segment.snapshot_to_write is None:
                continue
            snapshots.append((base, segment.snapshot_to_write))
            if segment.snapshot_to_write is not None:
                self.snapshots.note(base)
                with self.lock:
                    segment.snapshot_to_write = None  # a flush that began before must not write it once more
        if snapshots:
            removal.do_before(lambda: self.write_snapshots(snapshots))

    def write_snapshots(self, snapshots: list[tuple[int, bytes | None]]) -> None:
        """Write and sync snapshots, in any thread.

        A snapshot with the data None is written, but not synced.
        """
        for base, data in snapshots:
            with self.lock:
                if self.closed:
                    return
                path = self.snapshots.path(base)
                if data is not None:
                    self.disk.write(path, data)
            try:
                self.disk.fsync(path)
            except FileNotFoundError:
                pass  # the segment needed no snapshot
        self.disk.fsync_dir(path.rpartition("/")[0])

    def _rename_later(self, removal: Removal) -> None:
        if removal.is_done:
            self._removal = None
        elif self.remover is not None:
            self.remover.rename_later(removal)
        else:
            self.rename_removed()

    def retry_removal(self) -> None:
        """Try an earlier removal of files again, if one has failed."""
        if self._removal is not None:
            self._rename_later(self._removal)

    @property
    def unfinished_removal(self) -> Removal | None:
        """The removal whose files are not renamed yet, or None."""
        return None if self._removal is None or self._removal.is_done else self._removal

    def rename_removed(self) -> None:
        """Rename the removed files now, before a step that must not overtake the removal."""
        self.unlink_later(*self.rename_removed_here())

    def rename_removed_here(self) -> tuple[list[str], list[DiskFile]]:
        """`rename_removed` in any thread; returns the arguments for `unlink_later`."""
        removal, self._removal = self._removal, None
        if removal is None:
            return [], []
        try:
            removal.rename()
        except OSError:
            self._removal = removal
            raise
        return removal.take()

    def _forget_removed(self) -> None:
        """Give the unfinished removal up: the folder is deleted, or not used any more."""
        if self._removal is not None:
            self._removal.give_up()
            self._removal = None

    def _leaving(self, segment: LogSegment) -> list[str]:
        paths = segment.existing_files()
        snapshot = self.snapshots.let_go(segment.base_offset)
        return paths if snapshot is None else [*paths, snapshot]

    def _rename_deleted(self, paths: list[str]) -> list[str]:
        renamed: list[str] = []
        for path in paths:
            try:
                self.disk.rename(path, path + DELETED)
            except FileNotFoundError:
                continue
            renamed.append(path + DELETED)
        return renamed

    def unlink_later(self, paths: list[str], open_files: list[DiskFile]) -> None:
        """Unlink renamed files after a delay, and close their descriptors off the loop."""
        if not paths and not open_files:
            return
        if self.remover is not None:
            self.remover.unlink_later(paths, open_files, self.config.file_delete_delay_ms)
        else:
            for path in paths:
                self.disk.unlink(path)

    # -- truncation at the end

    def begin_truncation(self) -> None:
        """Begin a new generation, so that a running flush writes no more files of the old one."""
        with self.lock:
            self.generation += 1

    def truncate_to(self, offset: int) -> tuple[list[str], list[DiskFile]]:
        """Drop the batches that end at `offset` or later, in any thread. A segment has this offset.

        Returns the arguments for `unlink_later`.
        """
        at = self.segments.find(offset)
        removed: tuple[list[str], list[DiskFile]] = ([], [])
        if at + 1 < len(self.segments):
            removed = self._remove_for_good(self.segments.remove_from(at + 1))
        self.segments.active.truncate(offset)
        return removed

    def start_anew_at(self, offset: int, now_ms: int) -> tuple[list[str], list[DiskFile]]:
        """Drop every segment, and begin an empty one at `offset`, in any thread.

        The new segment is created first, if its name is free: on a full disk the log must keep its segments.
        """
        segments = self.segments
        new = None if segments.contains_base(offset) else self._new_segment(offset, now_ms)
        dropped = segments.remove_from(0)
        if new is not None:
            segments.append(new)
        removed = self._remove_for_good(dropped)
        self.snapshots.delete_outside(offset, offset - 1)
        if new is None:
            segments.append(self._new_segment(offset, now_ms))
        return removed

    def _remove_for_good(self, segments: list[LogSegment]) -> tuple[list[str], list[DiskFile]]:
        """Remove segments durably: others will get their offsets, so a crash must not bring them back."""
        renamed: list[str] = []
        open_files: list[DiskFile] = []
        for segment in segments:
            open_files += segment.close()
            renamed += self._rename_deleted(self._leaving(segment))
        self.disk.fsync_dir(self.dir)
        return renamed, open_files

    # -- replacing segments by cleaned ones

    def replace(self, old: list[LogSegment], cleaned: CleanedFiles) -> bool:
        """Replace consecutive segments by a cleaned one, whose files are on disk with the suffix `.cleaned`.

        Returns False and changes nothing if a segment has been removed since. From the first rename to
        `.swap` on, the next start completes a swap that a crash interrupts. Older segments are removed first:
        a record must not reappear without the later records of its key.
        """
        at = self.segments.find(old[0].base_offset)
        present = [self.segments[i] for i in range(at, min(at + len(old), len(self.segments)))]
        same = len(present) == len(old) and all(a is b for a, b in zip(present, old, strict=True))
        if self.closed or not same or old[-1] is self.segments.active:
            return False
        if self._removal is not None and self._removal.syncs:
            return (
                False  # a removal waits for a sync, which is too long for the loop: the cleaner tries again
            )
        # Records that retention has dropped must not reappear without the tombstones that cleaning drops.
        self.rename_removed()
        new = LogSegment.of_cleaned(
            self.disk, self._files, self.dir, cleaned, self.config.segment_index_bytes
        )
        paths = new.existing_files()
        for path in paths:
            self.disk.rename(path + CLEANED, path + SWAP)
        self.segments.replace(at, len(old), new)
        try:
            open_files: list[DiskFile] = []
            renamed = self._mark_replaced(old, new.base_offset, open_files)
            for path in paths:
                self.disk.rename(path + SWAP, path)
        except OSError as error:
            # The file names and the segments in memory differ now: the folder cannot be used any more.
            raise OSError(errno.EIO, f"half of a swap: {error}", self.dir) from error
        self.unlink_later(renamed, open_files)
        return True

    def _mark_replaced(
        self, old: list[LogSegment], base_offset: int, open_files: list[DiskFile]
    ) -> list[str]:
        renamed: list[str] = []
        for segment in old:
            open_files += segment.close()
            same = segment.base_offset == base_offset  # its snapshot stays
            renamed += self._rename_deleted(segment.existing_files() if same else self._leaving(segment))
        return renamed

    # -- closing, deleting and moving

    def release(self) -> None:
        """Close all files without a write."""
        with self.lock:
            self.closed = True
        self._forget_removed()
        for segment in self.segments:
            segment.close()

    def release_files(self) -> None:
        """Close all files until the next access opens them again."""
        for segment in self.segments:
            segment.release_files()
            self._files.forget(segment)

    def rename_for_deletion(self) -> str:
        """Rename the folder for its deletion; returns the new path."""
        target = path_for_deletion(self.dir)
        self.disk.rename(self.dir, target)
        return target

    def leave_files(self) -> list[DiskFile]:
        """Leave the files of the old folder; returns those that were open, for the caller to close."""
        open_files: list[DiskFile] = []
        for segment in self.segments:
            open_files += segment.close()
        self._forget_removed()
        return open_files

    def moved_to(self, directory: str) -> None:
        """Continue in another folder. The caller holds the lock."""
        self.dir = directory
        self.snapshots.moved(directory)
        for segment in self.segments:
            segment.directory = directory
