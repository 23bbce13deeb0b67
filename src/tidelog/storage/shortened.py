"""What leaves a log: its start by retention, its end by truncation, what lies between by cleaning.

A crash at any step leaves a log that loads right: what must not come back is renamed before something else is
made durable that relies on it.
"""

from __future__ import annotations

import errno

from tidelog.errors import KafkaStorageError, OffsetOutOfRange
from tidelog.storage.disk import DiskFile
from tidelog.storage.reads import WAITING, Reads
from tidelog.storage.recovery import reload_producers
from tidelog.storage.removal import Removal
from tidelog.storage.retention import count_deletable
from tidelog.storage.segment import CLEANED, DELETED, SWAP, CleanedFiles, Segment
from tidelog.storage.segmented import SegmentedLog


class ShortenedLog(SegmentedLog):
    __slots__ = ()

    # -- the start of the log moves

    def delete_records_before(self, offset: int) -> int:
        """Let the log start at `offset` or behind it; returns that offset. -1 is the high watermark."""
        if offset == -1:
            offset = self.high_watermark
        if offset > self.high_watermark or offset < 0:
            raise OffsetOutOfRange(
                f"{self.topic}-{self.partition}: records can be deleted up to offset {self.high_watermark}, "
                f"not up to {offset}"
            )
        self._move_log_start(offset)
        return offset

    def _move_log_start(self, offset: int) -> None:
        if offset <= self.log_start_offset:
            return
        self.log_start_offset = offset
        self.leader_epochs.truncate_from_start(offset)
        self.producers.log_start_moved(offset)
        self.update_high_watermark(self.high_watermark)
        for listener in self.listeners:
            listener.log_start_moved(self)

    def delete_old_segments(self, now_ms: int, reads: Reads = WAITING) -> int:
        """Drop segments that retention no longer wants; how many went. Their files follow."""
        count = count_deletable(
            self.segments,
            self.config,
            log_start_offset=self.log_start_offset,
            high_watermark=self.high_watermark,
            end_offset=self.log_end_offset,
            now_ms=now_ms,
            reads=reads,
        )
        if self._outstanding:  # what is being written to stays: a busy log is never without such a segment
            count = min(count, self.segments.find(self._outstanding[0].segment.base_offset))
        if count:
            if count == len(self.segments):
                self._roll_to(self.log_end_offset, now_ms)
            self._move_log_start(self.segments[count].base_offset)
            removed = self.segments.remove_first(count)
            self._keep_producers(removed)
            self._remove_later(removed)
        elif self._removal is not None:
            self._rename_later(self._removal)  # what was in its way may have passed
        return count

    def _keep_producers(self, removed: list[Segment]) -> None:
        """Segments leave at the log's start: what comes first then needs the snapshot of those before it.

        Without it a crash would forget transactions that began in what is gone, and that they were aborted.
        Each of them may be the last that goes before the crash.
        """
        bases = [*(segment.base_offset for segment in removed[1:]), self.segments[0].base_offset]
        snapshots: list[tuple[int, bytes | None]] = []
        for segment, base in zip(removed, bases, strict=True):
            if segment.synced and segment.snapshot_to_write is None:
                continue
            snapshots.append((base, segment.snapshot_to_write))
            if segment.snapshot_to_write is not None:
                self.snapshots.note(base)
                with self._writing:
                    segment.snapshot_to_write = None  # a flush that began before must not write it once more
        if snapshots:
            self._pending_removal().do_before(lambda: self._write_snapshots(snapshots))

    def _write_snapshots(self, snapshots: list[tuple[int, bytes | None]]) -> None:
        """In any thread: make snapshots durable that nobody else writes; None is written already."""
        for base, data in snapshots:
            with self._writing:
                if self.closed:
                    return
                path = self.snapshots.path(base)
                if data is not None:
                    self._disk.write(path, data)
            try:
                self._disk.fsync(path)
            except FileNotFoundError:
                pass  # there was no need for one
        self._disk.fsync_dir(path.rpartition("/")[0])

    def _remove_later(self, segments: list[Segment]) -> None:
        removal = self._pending_removal()
        for segment in segments:
            held = segment.close()
            removal.add(self._leaving(segment), held)
        self._rename_later(removal)

    def _pending_removal(self) -> Removal:
        if self._removal is None or (self._removal.is_done and not self._removal.syncs):
            self._removal = Removal(self._disk, self.config.file_delete_delay_ms, self._removal_failed)
        return self._removal

    def _rename_later(self, removal: Removal) -> None:
        if removal.is_done:
            self._removal = None
        elif self.remover is not None:
            self.remover.rename_later(removal)
        else:
            self._rename_removed()

    def _rename_removed(self) -> None:
        """Do now what was left for later, because what comes next must not overtake it."""
        removal, self._removal = self._removal, None
        if removal is None:
            return
        try:
            removal.rename()
        except OSError as error:
            self._removal = removal
            raise self._storage_error(f"{self.dir}: segments cannot be removed", error) from error
        self._unlink_later(*removal.take())

    def _removal_failed(self, error: OSError) -> None:
        if not self.closed:
            self._storage_failed(error)

    def _forget_removed(self) -> None:
        """The folder goes or is not used any more, and with it what was to be renamed there."""
        if self._removal is not None:
            self._removal.give_up()
            self._removal = None

    @property
    def starts_with_its_files(self) -> bool:
        """Whether a start that finds the files of now knows from them where the log starts."""
        is_removing = self._removal is not None and not self._removal.is_done
        return self.log_start_offset <= self.segments[0].base_offset and not is_removing

    def _leaving(self, segment: Segment) -> list[str]:
        paths = segment.existing_files()
        snapshot = self.snapshots.let_go(segment.base_offset)
        return paths if snapshot is None else [*paths, snapshot]

    def _rename_deleted(self, paths: list[str]) -> list[str]:
        renamed: list[str] = []
        for path in paths:
            try:
                self._disk.rename(path, path + DELETED)
            except FileNotFoundError:
                continue
            renamed.append(path + DELETED)
        return renamed

    def _remove_for_good(self, segments: list[Segment]) -> None:
        """Segments behind the end must not come back by a crash: others will take their offsets."""
        renamed: list[str] = []
        held: list[DiskFile] = []
        try:
            for segment in segments:
                held += segment.close()
                renamed += self._rename_deleted(self._leaving(segment))
            self._disk.fsync_dir(self.dir)
        except OSError as error:
            raise self._storage_error(f"{self.dir}: segments cannot be removed", error) from error
        self._unlink_later(renamed, held)

    # -- cleaned segments take the place of those they were made from

    def replace_segments(self, old: list[Segment], cleaned: CleanedFiles) -> bool:
        """Swap files that are on disk under their names with `.cleaned` for segments that follow each other.

        False, and nothing is changed, where those segments are no longer all there. From the first `.swap` on
        a start completes what a crash interrupts. Older segments go first, so that no record comes back
        without the later ones that speak of its key.
        """
        at = self.segments.find(old[0].base_offset)
        present = [self.segments[i] for i in range(at, min(at + len(old), len(self.segments)))]
        same = len(present) == len(old) and all(a is b for a, b in zip(present, old, strict=True))
        if self.closed or not same or old[-1] is self._active:
            return False
        if self._removal is not None and self._removal.syncs:
            return False  # that is not waited for here, and soon over
        # Records that retention dropped must not come back without the tombstones that cleaning drops.
        self._rename_removed()
        new = Segment.of_cleaned(self._disk, self._files, self.dir, cleaned, self.config.segment_index_bytes)
        paths = new.existing_files()
        try:
            for path in paths:
                self._disk.rename(path + CLEANED, path + SWAP)
        except OSError as error:
            raise self._storage_error(f"{self.dir}: a cleaned segment cannot be renamed", error) from error
        self.segments.replace(at, len(old), new)
        try:
            held: list[DiskFile] = []
            renamed = self._mark_replaced(old, new.base_offset, held)
            for path in paths:
                self._disk.rename(path + SWAP, path)
        except OSError as error:
            # Names and memory no longer agree: whatever the reason was, the folder cannot be used further.
            broken = OSError(errno.EIO, f"half of a swap: {error}", self.dir)
            raise self._storage_error(f"{self.dir}: segments cannot be swapped", broken) from error
        self._unlink_later(renamed, held)
        return True

    def _mark_replaced(self, old: list[Segment], base_offset: int, held: list[DiskFile]) -> list[str]:
        renamed: list[str] = []
        for segment in old:
            held += segment.close()
            same = segment.base_offset == base_offset  # its snapshot stays
            renamed += self._rename_deleted(segment.existing_files() if same else self._leaving(segment))
        return renamed

    def _unlink_later(self, paths: list[str], held: list[DiskFile]) -> None:
        if self.remover is not None:
            self.remover.unlink_later(paths, held, self.config.file_delete_delay_ms)
        else:
            for path in paths:
                self._disk.unlink(path)

    # -- the end of the log moves back

    def truncate_to(self, offset: int, now_ms: int) -> bool:
        """Drop every batch that reaches to `offset` or behind it; whether the end moved.

        The log then ends at `offset`, or where the batch began that holds it: batches are never split.
        """
        if offset >= self.log_end_offset:
            return False
        self._require_idle()
        if offset < self.segments[0].base_offset:
            self.truncate_fully_and_start_at(offset, now_ms)
            return True
        self._rename_removed()
        at = self.segments.find(offset)
        self.segments[at].load_for_append()
        held_by = self.segments[at].position_of(offset)
        if held_by is not None:
            offset = min(offset, held_by[2])
        self._begin_truncation()
        self._lower_recovery_point(offset)
        if at + 1 < len(self.segments):
            self._remove_for_good(self.segments.remove_from(at + 1))
        self._active = self.segments[at]
        self._active.truncate(offset)
        self._end_at(offset)
        reload_producers(self.segments, self.snapshots, self.producers, offset, now_ms)
        self.update_high_watermark(self.high_watermark)
        return True

    def truncate_fully_and_start_at(self, offset: int, now_ms: int) -> None:
        """Drop everything; the log goes on, empty, at `offset`."""
        self._require_idle()
        self._begin_truncation()
        self._lower_recovery_point(min(offset, self.segments[0].base_offset))
        self._rename_removed()
        self._remove_for_good(self.segments.remove_from(0))
        self.snapshots.delete_outside(offset, offset - 1)
        new = Segment.create(
            self._disk, self._files, self.dir, offset, self.config.segment_index_bytes, now_ms
        )
        self.segments.append(new)
        self._active = new
        self.log_start_offset = offset
        self._end_at(offset)
        self.leader_epochs.clear()
        self.producers.clear()
        self.high_watermark = self.last_stable_offset = offset

    def _lower_recovery_point(self, offset: int) -> None:
        """Before offsets are used anew, nothing on disk may say that what is below them is synced."""
        if offset <= self.recovery_point:
            self.recovery_point = offset
            for listener in self.listeners:
                listener.log_truncated(self)

    def _require_idle(self) -> None:
        if self.has_pending:
            raise KafkaStorageError(f"{self.topic}-{self.partition} is truncated while appends are under way")

    def _begin_truncation(self) -> None:
        """What a flush has still to write is of a log that is no more."""
        with self._writing:
            self._truncations += 1

    def _end_at(self, offset: int) -> None:
        self.log_end_offset = self._next_offset = offset
        self.recovery_point = min(self.recovery_point, offset)
        self.log_start_offset = min(self.log_start_offset, offset)
        self.leader_epochs.truncate_from_end(offset)
