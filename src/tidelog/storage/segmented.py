"""The segments of a log and where they begin and end: rolling, flushing, retention, truncation, closing.

Invariants: everything below the recovery point is on disk; log start <= high watermark <= log end; segments
follow each other without overlap, and only the last one grows.
"""

from __future__ import annotations

import errno
import logging
import os
import random
import uuid
from collections import deque
from collections.abc import Callable

from tidelog.errors import KafkaStorageError, OffsetOutOfRange, RecordListTooLarge
from tidelog.records.check import ProduceRules
from tidelog.storage.append import AppendOrigin, PendingAppend
from tidelog.storage.checkpoints import PARTITION_METADATA, encode_partition_metadata
from tidelog.storage.config import LogConfig
from tidelog.storage.disk import Disk, DiskFile
from tidelog.storage.files import FileCache
from tidelog.storage.flush import FlushJob
from tidelog.storage.recovery import LoadedLog, reload_producers
from tidelog.storage.removal import Removal
from tidelog.storage.retention import count_deletable
from tidelog.storage.rules import produce_rules
from tidelog.storage.segment import (
    CHECK_NEXT,
    CLEANED,
    DELETED,
    LOG,
    NEVER,
    OFFSET_INDEX,
    SWAP,
    TIME_INDEX,
    TRANSACTION_INDEX,
    CleanedFiles,
    Segment,
)

logger = logging.getLogger("tidelog.storage")

MAX_NAME = 255  # what file systems allow a file to be called


def path_for_deletion(directory: str) -> str:
    """What a partition's folder is called from when it is deleted until it is removed."""
    parent, name = os.path.split(directory)
    suffix = f".{uuid.uuid4().hex}-delete"
    return f"{parent}/{name[: MAX_NAME - len(suffix)]}{suffix}"


class SegmentedLog:
    __slots__ = (
        "_active",
        "_disk",
        "_files",
        "_index_interval",
        "_log_append_time",
        "_next_offset",
        "_outstanding",
        "_random",
        "_removal",
        "_segment_bytes",
        "_topic_id_is_loose",
        "_truncations",
        "closed",
        "config",
        "dir",
        "flush_messages",
        "high_watermark",
        "last_flush_ms",
        "last_stable_offset",
        "leader_epochs",
        "log_end_offset",
        "log_start_offset",
        "on_delete",
        "on_flush",
        "on_remove",
        "on_roll",
        "on_storage_error",
        "on_truncate",
        "partition",
        "produce_rules",
        "producers",
        "recovery_point",
        "segments",
        "snapshots",
        "topic",
        "topic_id",
    )

    def __init__(
        self,
        topic: str,
        partition: int,
        directory: str,
        config: LogConfig,
        loaded: LoadedLog,
        *,
        disk: Disk,
        files: FileCache,
        now_ms: int,
        rng: random.Random | None = None,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.dir = directory
        self._disk = disk
        self._files = files
        self._random = rng
        self.topic_id = loaded.topic_id
        self._topic_id_is_loose = False
        self.segments = loaded.segments
        self._active = loaded.segments[-1]
        self.leader_epochs = loaded.epochs
        self.producers = loaded.producers
        self.snapshots = loaded.snapshots
        self.log_start_offset = loaded.log_start_offset
        self.log_end_offset = loaded.log_end_offset
        self._next_offset = loaded.log_end_offset
        self.recovery_point = loaded.recovery_point
        self.high_watermark = loaded.log_start_offset
        self.last_stable_offset = loaded.log_start_offset
        self._outstanding: deque[PendingAppend] = deque()
        self.last_flush_ms = now_ms
        self.on_roll: Callable[[SegmentedLog], None] | None = (
            None  # told after a roll, to flush what came before it
        )
        self._removal: Removal | None = None  # files that retention dropped and that still have their names
        self.on_remove: Callable[[Removal], None] | None = None  # given files to rename off the loop
        # Given files to unlink after so many ms, and their descriptors, to be let go of off the loop.
        self.on_delete: Callable[[list[str], list[DiskFile], int], None] | None = None
        self.on_flush: Callable[[FlushJob], None] | None = None  # told of every flush that was made
        self.on_truncate: Callable[[SegmentedLog], None] | None = (
            None  # to checkpoint the recovery point at once
        )
        self.on_storage_error: Callable[[SegmentedLog, OSError], None] | None = None
        self._truncations = 0
        self.closed = False
        self.update_config(config)

    def update_config(self, config: LogConfig) -> None:
        self.config = config
        self._segment_bytes = config.segment_bytes
        self._index_interval = config.index_interval_bytes
        self._log_append_time = config.log_append_time
        self.flush_messages = config.flush_messages
        self.produce_rules = produce_rules(config)
        self.producers.set_expiration(config.producer_id_expiration_ms)
        self._active.roll_timestamp = CHECK_NEXT

    def rules(self, origin: AppendOrigin = AppendOrigin.CLIENT) -> ProduceRules:
        if origin is AppendOrigin.CLIENT:
            return self.produce_rules
        return produce_rules(self.config, from_client=False)

    def set_topic_id(self, topic_id: bytes, *, durably: bool = True) -> None:
        """Remember which topic this is: a log belongs to one topic for life.

        A new log need not do so durably: until its first flush nothing of it is, and the flush sees to it.
        """
        path, data = f"{self.dir}/{PARTITION_METADATA}", encode_partition_metadata(topic_id)
        if durably:
            self._disk.atomic_write(path, data)
        else:
            self._disk.write(path, data)
        self.topic_id = topic_id
        self._topic_id_is_loose = not durably

    def __repr__(self) -> str:
        return f"Log({self.topic}-{self.partition}, {self.log_start_offset}..{self.log_end_offset})"

    def _storage_error(self, what: str, error: OSError) -> KafkaStorageError:
        """The error to raise for a disk that refused; whoever watches over the folder hears of it first."""
        if self.on_storage_error is not None:
            self.on_storage_error(self, error)
        return KafkaStorageError(f"{what}: {error}")

    # -- segments

    def _segment_for(self, size: int, max_timestamp: int, last_offset: int, now_ms: int) -> Segment:
        """The close look at whether the batch goes into the active segment or begins a new one."""
        if size > self._segment_bytes:
            raise RecordListTooLarge(
                f"a batch of {size} bytes does not fit into a segment of segment.bytes={self._segment_bytes}"
            )
        segment = self._active
        if not segment.is_growing:
            segment.load_for_append()
            segment.created_ms = now_ms
        if segment.write_position == 0:
            segment.roll_timestamp = NEVER
            if last_offset <= segment.max_offset:
                return segment
            return self._roll_to(self._next_offset, now_ms)
        first = segment.first_timestamp
        wait = self.config.max_segment_ms - segment.jitter_ms
        if first is not None and first >= 0:
            segment.roll_timestamp = first + wait
            waited_long = max_timestamp > segment.roll_timestamp
        else:
            # Batches without timestamps: the age of the segment counts, and is looked at with every append.
            segment.roll_timestamp = CHECK_NEXT
            waited_long = now_ms - segment.created_ms > wait
        if (
            waited_long
            or segment.write_position + size > self._segment_bytes
            or last_offset > segment.max_offset
            or segment.indexes_full
        ):
            return self._roll_to(self._next_offset, now_ms)
        return segment

    def roll(self, now_ms: int) -> Segment:
        """Begin a new segment at the log's end, unless the active one is empty already."""
        if self._active.write_position == 0 and self._active.base_offset == self._next_offset:
            return self._active
        return self._roll_to(self._next_offset, now_ms)

    def _roll_to(self, base_offset: int, now_ms: int) -> Segment:
        old = self._active
        replaces = old.base_offset == base_offset
        complete = not replaces and old.size == old.write_position
        if replaces:
            self.segments.remove_from(len(self.segments) - 1)
            old.close()
        else:
            old.snapshot_to_write = self.producers.encode_snapshot()
            if complete:
                self._seal(old, base_offset)
        config = self.config
        try:
            new = Segment.create(
                self._disk, self._files, self.dir, base_offset, config.segment_index_bytes, now_ms
            )
        except OSError as error:
            if replaces:
                self.segments.append(old)
            raise self._storage_error(f"{self.dir}: no new segment at offset {base_offset}", error) from error
        if config.segment_jitter_ms:
            rng = self._random or random.Random()
            new.jitter_ms = rng.randrange(min(config.segment_jitter_ms, config.max_segment_ms) + 1)
        new.roll_timestamp = NEVER
        self.segments.append(new)
        self._active = new
        if complete and self.on_roll is not None:
            self.on_roll(self)
        return new

    def _seal(self, segment: Segment, following: int) -> None:
        """The segment is complete: its indexes and the producers at its end go to their files."""
        try:
            if segment.snapshot_to_write is not None:
                self.snapshots.write(following, segment.snapshot_to_write)
                segment.snapshot_to_write = None
            segment.seal()
            if self.recovery_point >= following:
                # Recovery will begin with the next segment, so it must find all of this one.
                for path in self._small_files(segment, following):
                    self._disk.fsync(path)
                self._disk.fsync_dir(self.dir)
                segment.synced = True
        except OSError as error:
            raise self._storage_error(f"{segment.path(LOG)} cannot be completed", error) from error

    def _small_files(self, segment: Segment, following: int | None) -> list[str]:
        paths = [segment.path(OFFSET_INDEX), segment.path(TIME_INDEX)]
        if segment.has_aborted:
            paths.append(segment.path(TRANSACTION_INDEX))
        if following is not None and following in self.snapshots:
            paths.append(self.snapshots.path(following))
        return paths

    def abandon(self, pending: PendingAppend, error: OSError | None = None) -> KafkaStorageError:
        """The write failed: cut the file back, and take the error to answer with.

        Appends that were prepared after this one fail with it.
        """
        failure = KafkaStorageError(f"{pending.file.path} cannot be written: {error or 'append given up'}")
        failure.__cause__ = error
        if pending.cancelled:
            return failure
        outstanding = self._outstanding
        while not pending.cancelled:
            last = outstanding.pop()
            last.cancelled = True
            if last.undo is not None:
                self.producers.restore(*last.undo)
        while self._active is not pending.segment:
            self._take_back_roll()
        segment = pending.segment
        self._next_offset = outstanding[-1].last_offset + 1 if outstanding else self.log_end_offset
        segment.write_position = pending.position
        segment.has_loose_tail = True
        try:
            pending.file.truncate(pending.position)
        except OSError:
            logger.warning("%s has bytes behind its end that could not be cut off", pending.file.path)
        if error is not None and self.on_storage_error is not None:
            self.on_storage_error(self, error)
        return failure

    def _take_back_roll(self) -> None:
        """Remove an active segment that no append has reached yet."""
        removed = self.segments.remove_from(len(self.segments) - 1)[0]
        self._active = self.segments[-1]
        self._active.snapshot_to_write = None
        self.snapshots.delete(removed.base_offset)
        try:
            for path in removed.existing_files():
                self._disk.unlink(path)
            self._disk.fsync_dir(self.dir)  # the segment before it will hold its offsets
        except OSError as error:
            raise self._storage_error(f"{removed.path(LOG)} cannot be removed", error) from error
        removed.close()

    # -- high watermark

    def commit_all(self) -> None:
        """Everything in the log is committed: the high watermark is its end."""
        if self.producers.has_unstable:
            self.update_high_watermark(self.log_end_offset)
        else:
            self.high_watermark = self.last_stable_offset = self.log_end_offset

    def update_high_watermark(self, offset: int) -> int:
        """Move the high watermark, within the log; the last stable offset follows it."""
        offset = min(max(offset, self.log_start_offset), self.log_end_offset)
        self.high_watermark = offset
        producers = self.producers
        if producers.has_unstable:
            producers.high_watermark_moved(offset)
            first = producers.first_unstable_offset()
            if first is not None:
                offset = min(offset, max(first, self.log_start_offset))
        self.last_stable_offset = offset
        return self.high_watermark

    def remove_expired_producers(self, now_ms: int) -> int:
        return self.producers.remove_expired(now_ms)

    # -- leader epochs

    def assign_epoch(self, epoch: int, start_offset: int) -> None:
        self.leader_epochs.assign(epoch, start_offset)

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """The largest known epoch up to `epoch` and the offset behind its last batch; (-1, -1) if unknown."""
        return self.leader_epochs.end_offset_for(epoch, self.log_end_offset)

    # -- flush

    def begin_flush(self, up_to: int | None = None) -> FlushJob | None:
        """What has to be synced so that everything below `up_to` is durable; None when it is already."""
        up_to = self.log_end_offset if up_to is None else min(up_to, self.log_end_offset)
        if up_to <= self.recovery_point:
            return None
        job = FlushJob(self._disk, up_to, self.leader_epochs, self._truncations)
        if self._topic_id_is_loose:
            job.add_path(f"{self.dir}/{PARTITION_METADATA}")
            job.add_directory(self.dir)
            job.names_topic = True
        if self._removal is not None and not self._removal.is_done:
            # Dropped segments are not synced: were they found by the next start, the log would end in them.
            job.rename_first(self._removal)
            job.add_directory(self.dir)
        for segment in self.segments.starting_from(self.recovery_point):
            if segment.base_offset >= up_to and segment.base_offset > self.recovery_point:
                break
            job.add_file(segment.file)
            if not segment.linked:
                job.add_directory(self.dir)
                job.linked.append(segment)
            if segment is not self._active and not segment.is_growing:
                following = self.segments.next_base(self.segments.find(segment.base_offset))
                for path in self._small_files(segment, following):
                    job.add_path(path)
                job.add_directory(self.dir)
                job.sealed.append(segment)
        return job

    def end_flush(self, job: FlushJob, now_ms: int) -> None:
        """`job.run` has returned: the recovery point moves, unless the log was cut back meanwhile."""
        if self.on_flush is not None:
            self.on_flush(job)
        if job.truncations != self._truncations:
            return
        if job.names_topic:
            self._topic_id_is_loose = False
        for segment in job.linked:
            segment.linked = True
        for segment in job.sealed:
            segment.synced = True
        synced_up_to = min(job.up_to, self.log_end_offset)
        at = self.segments.find(self.recovery_point)
        while (following := self.segments.next_base(at)) is not None and following <= synced_up_to:
            if not self.segments[at].synced:  # sealed while the job ran: recovery has to begin in it
                synced_up_to = following - 1
            at += 1
        self.recovery_point = max(self.recovery_point, synced_up_to)
        self.last_flush_ms = now_ms

    def flush(self, now_ms: int, up_to: int | None = None) -> None:
        job = self.begin_flush(up_to)
        if job is not None:
            try:
                job.run()
            except OSError as error:
                raise self._storage_error(f"{self.dir} cannot be synced", error) from error
            self.end_flush(job, now_ms)

    # -- the start of the log moves

    def delete_records_before(self, offset: int) -> int:
        """Let the log start at `offset` (-1: at the high watermark); returns where it starts now."""
        if offset == -1:
            offset = self.high_watermark
        if offset > self.high_watermark or offset < 0:
            raise OffsetOutOfRange(
                f"{self.topic}-{self.partition}: records can be deleted up to offset {self.high_watermark}, "
                f"not up to {offset}"
            )
        self._move_log_start(offset)
        return self.log_start_offset

    def _move_log_start(self, offset: int) -> None:
        if offset <= self.log_start_offset:
            return
        self.log_start_offset = offset
        self.leader_epochs.truncate_from_start(offset)
        self.producers.log_start_moved(offset)
        self.update_high_watermark(self.high_watermark)

    def delete_old_segments(self, now_ms: int) -> int:
        """Drop segments that retention no longer wants; how many went. Their files follow (`on_remove`)."""
        count = count_deletable(
            self.segments,
            self.config,
            log_start_offset=self.log_start_offset,
            high_watermark=self.high_watermark,
            end_offset=self.log_end_offset,
            now_ms=now_ms,
        )
        if self._outstanding:  # what is being written to stays: a busy log is never without such a segment
            count = min(count, self.segments.find(self._outstanding[0].segment.base_offset))
        if count:
            if count == len(self.segments):
                self._roll_to(self.log_end_offset, now_ms)
            self._move_log_start(self.segments[count].base_offset)
            self._remove_later(self.segments.remove_first(count))
        elif self._removal is not None:
            self._rename_later(self._removal)  # what was in its way may have passed
        return count

    def _remove_later(self, segments: list[Segment]) -> None:
        if self._removal is None or self._removal.is_done:
            self._removal = Removal(self._disk, self.config.file_delete_delay_ms, self._removal_failed)
        for segment in segments:
            held = segment.close()
            self._removal.add(self._leaving(segment), held)
        self._rename_later(self._removal)

    def _rename_later(self, removal: Removal) -> None:
        if removal.is_done:
            self._removal = None
        elif self.on_remove is not None:
            self.on_remove(removal)
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
        if self.on_storage_error is not None and not self.closed:
            self.on_storage_error(self, error)

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
        if self.on_delete is not None:
            self.on_delete(paths, held, self.config.file_delete_delay_ms)
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
        at = self.segments.find(offset)
        held_by = self.segments[at].position_of(offset)
        if held_by is not None:
            offset = min(offset, held_by[2])
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
        self.producers.clear(offset)
        self.high_watermark = self.last_stable_offset = offset

    def _lower_recovery_point(self, offset: int) -> None:
        """Before offsets are used anew, nothing on disk may say that what is below them is synced."""
        if offset < self.recovery_point:
            self.recovery_point = offset
            if self.on_truncate is not None:
                self.on_truncate(self)

    def _require_idle(self) -> None:
        if self.has_pending:
            raise KafkaStorageError(f"{self.topic}-{self.partition} is truncated while appends are under way")

    def _end_at(self, offset: int) -> None:
        self._truncations += 1
        self.log_end_offset = self._next_offset = offset
        self.recovery_point = min(self.recovery_point, offset)
        self.log_start_offset = min(self.log_start_offset, offset)
        self.leader_epochs.truncate_from_end(offset)

    # -- size, close

    @property
    def size(self) -> int:
        return sum(segment.size for segment in self.segments)

    @property
    def active_segment(self) -> Segment:
        return self._active

    @property
    def disk(self) -> Disk:
        return self._disk

    @property
    def generation(self) -> int:
        """Another one each time the end moves back: what was read of the log before may not be in it now."""
        return self._truncations

    @property
    def has_pending(self) -> bool:
        """Whether prepared appends are still to be finished."""
        return bool(self._outstanding)

    def close(self, now_ms: int) -> None:
        """Everything to disk, with a snapshot of the producers at its end; unfinished appends are lost."""
        if self.closed:
            return
        if self._outstanding:
            self.abandon(self._outstanding[0])
        self._rename_removed()
        self.flush(now_ms)
        active, synced = self._active, []
        if active.is_growing:
            active.write_indexes(closing=True)
            synced += self._small_files(active, None)
        if self.log_end_offset > 0 and self.log_end_offset not in self.snapshots:
            self.snapshots.write(self.log_end_offset, self.producers.encode_snapshot())
            synced.append(self.snapshots.path(self.log_end_offset))
        for path in synced:
            self._disk.fsync(path)
        if synced:
            self._disk.fsync_dir(self.dir)
        self.leader_epochs.save()
        self.release()

    def release(self) -> None:
        """Let go of all files without writing anything."""
        self.closed = True
        self._forget_removed()
        for segment in self.segments:
            segment.close()

    def release_files(self) -> None:
        """Keep no descriptor while nobody uses the log: they are opened again when needed."""
        for segment in self.segments:
            segment.release_files()
            self._files.forget(segment)

    def delete(self) -> str:
        """Close the log and rename its folder so that it is no partition any more; returns the new path.

        Once the folder above is synced it stays so, whatever happens.
        """
        self.release()
        target = path_for_deletion(self.dir)
        try:
            self._disk.rename(self.dir, target)
        except OSError as error:
            raise self._storage_error(f"{self.dir} cannot be renamed for deletion", error) from error
        self._moved(target)
        return target

    def moved_to(self, directory: str) -> list[DiskFile]:
        """The same files lie in another folder: everything from now on is done there.

        Descriptors of the old files are given back, for the caller to close; whoever reads a slice keeps his.
        """
        held: list[DiskFile] = []
        for segment in self.segments:
            held += segment.close()
        self._forget_removed()
        self._moved(directory)
        return held

    def _moved(self, directory: str) -> None:
        """What is still written on its way out must not reach the next log of this name."""
        self.dir = directory
        self.leader_epochs.moved(directory)
        self.snapshots.moved(directory)
        for segment in self.segments:
            segment.directory = directory
