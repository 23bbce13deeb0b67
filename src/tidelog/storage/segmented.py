"""The segments of a log and where they begin and end: rolling, sealing, flushing.

Invariants: everything below the recovery point is on disk; log start <= high watermark <= log end; segments
follow each other without overlap, and only the last one grows.
"""

from __future__ import annotations

import errno
import logging
import random
from collections import deque
from threading import Lock

from tidelog.errors import KafkaStorageError, RecordListTooLarge
from tidelog.records.check import ProduceRules
from tidelog.storage.append import AppendOrigin, PendingAppend
from tidelog.storage.checkpoints import PARTITION_METADATA, encode_partition_metadata
from tidelog.storage.config import LogConfig
from tidelog.storage.disk import Disk, DiskFile
from tidelog.storage.files import FileCache
from tidelog.storage.flush import CompletedSegment, FlushJob, Syncs
from tidelog.storage.log_listener import LogListener
from tidelog.storage.producer_state import ProducerEntry, encode_snapshot
from tidelog.storage.recovery import LoadedLog
from tidelog.storage.removal import FileRemover, Removal
from tidelog.storage.rules import produce_rules
from tidelog.storage.segment import (
    CHECK_NEXT,
    LOG,
    NEVER,
    OFFSET_INDEX,
    SNAPSHOT,
    TIME_INDEX,
    TRANSACTION_INDEX,
    Segment,
)

logger = logging.getLogger("tidelog.storage")


class SegmentedLog:
    __slots__ = (
        "_active",
        "_disk",
        "_files",
        "_index_interval",
        "_log_append_time",
        "_loose_names",
        "_next_offset",
        "_outstanding",
        "_random",
        "_removal",
        "_segment_bytes",
        "_synced_names",
        "_syncs",
        "_topic_id_is_loose",
        "_truncations",
        "_writing",
        "closed",
        "config",
        "dir",
        "flush_messages",
        "high_watermark",
        "last_flush_ms",
        "last_stable_offset",
        "leader_epochs",
        "listeners",
        "log_end_offset",
        "log_start_offset",
        "partition",
        "produce_rules",
        "producers",
        "recovery_point",
        "remover",
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
        self._syncs = Syncs()
        self._writing = Lock()  # held while a flush writes one of the small files, in a thread of its own
        self._loose_names = self._synced_names = 0  # files that were removed; of how many the disk knows
        self.last_flush_ms = now_ms
        self._removal: Removal | None = None  # files that retention dropped and that still have their names
        self.remover: FileRemover | None = None  # renames and unlinks files off the loop; without it at once
        self.listeners: tuple[LogListener, ...] = ()
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

    def listen(self, listener: LogListener) -> None:
        """Tell `listener` what happens to the log from now on, once however often this is called."""
        if listener not in self.listeners:
            self.listeners = (*self.listeners, listener)

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
        """The error to raise for a disk that refused; listeners hear of it first."""
        self._storage_failed(error)
        return KafkaStorageError(f"{what}: {error}")

    def _storage_failed(self, error: OSError) -> None:
        for listener in self.listeners:
            listener.storage_failed(self, error)

    # -- segments

    def _segment_for(
        self, size: int, max_timestamp: int, base_offset: int, last_offset: int, now_ms: int
    ) -> Segment:
        """The close look at whether the batch goes into the active segment or begins a new one."""
        if size > self._segment_bytes:
            raise RecordListTooLarge(
                f"a batch of {size} bytes does not fit into a segment of segment.bytes={self._segment_bytes}"
            )
        segment = self._active
        if not segment.is_growing:
            try:
                segment.load_for_append()
            except OSError as error:
                raise self._storage_error(f"{segment.path(LOG)} cannot grow", error) from error
            segment.created_ms = now_ms
        if segment.write_position == 0:
            segment.roll_timestamp = NEVER
            if last_offset <= segment.max_offset:
                return segment
            return self._roll_to(base_offset, now_ms)
        first = segment.first_timestamp
        wait = self.config.max_segment_ms - segment.jitter_ms
        if first is not None and first >= 0:
            segment.roll_timestamp = min(first + wait, NEVER)
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
            return self._roll_to(base_offset, now_ms)
        return segment

    def roll(self, now_ms: int) -> Segment:
        """Begin a new segment at the log's end, unless the active one is empty already."""
        if self._active.write_position == 0 and self._active.base_offset == self._next_offset:
            return self._active
        return self._roll_to(self._next_offset, now_ms)

    def _roll_to(self, base_offset: int, now_ms: int) -> Segment:
        """Begin a segment. Nothing is written to the one before: the flush that follows sees to its files."""
        old = self._active
        if old.base_offset == base_offset:
            return old
        config = self.config
        try:
            new = Segment.create(
                self._disk, self._files, self.dir, base_offset, config.segment_index_bytes, now_ms
            )
        except OSError as error:
            raise self._storage_error(f"{self.dir}: no new segment at offset {base_offset}", error) from error
        if config.segment_jitter_ms:
            rng = self._random or random.Random()
            new.jitter_ms = rng.randrange(min(config.segment_jitter_ms, config.max_segment_ms) + 1)
        new.roll_timestamp = NEVER
        old.snapshot_to_write = self._producers_at_roll()
        self.segments.append(new)
        self._active = new
        if old.size == old.write_position:
            self._completed(old, base_offset)
        return new

    def _producers_at_roll(self) -> bytes:
        """The producers at the end of a segment, to which markers may still be on their way."""
        ended: dict[int, ProducerEntry] = {}
        for pending in self._outstanding:
            batch, marker = pending.batch, pending.marker
            if marker is not None:
                known = ended.get(batch.producer_id) or self.producers.entries.get(batch.producer_id)
                entry = ProducerEntry(batch.producer_id) if known is None else known.copy()
                entry.end_transaction(batch.producer_epoch, marker.coordinator_epoch, batch.max_timestamp)
                ended[batch.producer_id] = entry
        return encode_snapshot({**self.producers.entries, **ended}.values())

    def _completed(self, segment: Segment, next_base: int) -> None:
        """The last append to a segment has finished. Its indexes stay in memory until a flush has them."""
        segment.complete()
        # Recovery must begin in it until then. A checkpoint of before cannot say otherwise, see
        # `recovery_point_to_keep`.
        self.recovery_point = min(self.recovery_point, next_base - 1)
        for listener in self.listeners:
            listener.segment_rolled(self)

    @property
    def recovery_point_to_keep(self) -> int:
        """The recovery point as checkpoints may say it: such that recovery begins in a segment that may grow.

        It may have been rolled at this offset when the checkpoint is read, without its indexes on disk.
        """
        point = self.recovery_point
        is_inside = point > self.segments[self.segments.find(point)].base_offset
        return point - 1 if is_inside and not self.closed else point

    def write_file(self, completed: CompletedSegment, truncations: int, suffix: str, data: bytes) -> bool:
        """For a flush, in any thread: write one of the small files of a segment that is complete.

        False where that is no longer right, because the log was cut back, closed or given another folder.
        """
        segment = completed.segment
        with self._writing:
            if self.closed or truncations != self._truncations:
                return False
            if segment.synced or not self._is_still(completed):
                pass  # another flush was first, or its roll was taken back
            elif suffix == SNAPSHOT:
                if segment.snapshot_to_write is not None:  # else it is kept where the segment is removed
                    self._disk.write(self.snapshots.path(completed.next_base), data)
            elif suffix == LOG:
                self._disk.open(segment.path(LOG)).truncate(completed.size)
            elif segment.is_growing:
                segment.write_index(suffix, data)
            return True

    def files_synced(self, completed: CompletedSegment, truncations: int) -> None:
        """For a flush, in any thread: from here on no other flush writes these files again."""
        with self._writing:
            if truncations == self._truncations and self._is_still(completed):
                completed.segment.synced = True

    def _is_still(self, completed: CompletedSegment) -> bool:
        """Whether the segment is as it was when a flush began, and its roll was not taken back."""
        return completed.segment is not self._active and completed.segment.size == completed.size

    def _small_files(self, segment: Segment, following: int | None) -> list[str]:
        paths = [segment.path(OFFSET_INDEX), segment.path(TIME_INDEX)]
        if segment.has_aborted:
            paths.append(segment.path(TRANSACTION_INDEX))
        if following is not None and following in self.snapshots:
            paths.append(self.snapshots.path(following))
        return paths

    def abandon(self, pending: PendingAppend, error: BaseException | None = None) -> KafkaStorageError:
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
                self.producers.restore(last.batch.producer_id, last.undo)
        while self._active is not pending.segment:
            self._take_back_roll()
        self._next_offset = outstanding[-1].last_offset + 1 if outstanding else self.log_end_offset
        self._cut_back(pending.segment, pending.file, pending.position)
        if isinstance(error, OSError):
            self._storage_failed(error)
        return failure

    def _cut_back(self, segment: Segment, file: DiskFile, position: int) -> None:
        """Let a segment end where a write began that failed."""
        segment.write_position = position
        segment.has_loose_tail = True
        try:
            file.truncate(position)
        except OSError:
            logger.warning("%s has bytes behind its end that could not be cut off", file.path)

    def _take_back_roll(self) -> None:
        """Remove an active segment that no append has reached yet."""
        removed = self.segments.remove_from(len(self.segments) - 1)[0]
        with self._writing:
            self._active = self.segments[-1]
        self._active.snapshot_to_write = None
        try:
            self.snapshots.delete(removed.base_offset)
            for path in removed.existing_files():
                self._disk.unlink(path)
        except OSError as error:
            # The segment before it will hold its offsets: a start that finds both would end the log here.
            self._storage_failed(
                OSError(errno.EIO, f"a segment cannot be removed: {error}", removed.path(LOG))
            )
        self._loose_names += 1
        removed.close()

    # -- high watermark

    def commit_all(self) -> None:
        """Everything in the log is committed: the high watermark is its end."""
        self._commit(self.log_end_offset)

    def update_high_watermark(self, offset: int) -> int:
        """Move the high watermark, within the log; the last stable offset follows it."""
        self._commit(min(max(offset, self.log_start_offset), self.log_end_offset))
        return self.high_watermark

    def _commit(self, high_watermark: int) -> None:
        self.high_watermark = stable = high_watermark
        producers = self.producers
        if producers.unreplicated:
            producers.high_watermark_moved(high_watermark)
        first = producers.first_unstable
        if first < stable:
            stable = first if first > self.log_start_offset else self.log_start_offset
        self.last_stable_offset = stable

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
        job = FlushJob(self._disk, up_to, self.leader_epochs, self._truncations, self._syncs, self)
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
            if segment is not self._active and segment.size == segment.write_position:
                self._flush_completed(segment, job)
        if self._loose_names != self._synced_names:
            job.add_directory(self.dir)
        job.loose_names = self._loose_names
        return job

    def _flush_completed(self, segment: Segment, job: FlushJob) -> None:
        following = self.segments.next_base(self.segments.find(segment.base_offset))
        assert following is not None
        if segment.snapshot_to_write is not None:
            self.snapshots.note(following)
        for path in self._small_files(segment, following):
            job.add_path(path)
        job.add_directory(self.dir)
        job.completed.append(CompletedSegment(segment, following))

    def end_flush(self, job: FlushJob, now_ms: int) -> None:
        """`job.run` has returned: the recovery point moves, unless the log was cut back meanwhile."""
        for listener in self.listeners:
            listener.log_flushed(job)
        if job.truncations != self._truncations or self.closed:
            return
        if job.names_topic:
            self._topic_id_is_loose = False
        for segment in job.linked:
            segment.linked = True
        self._synced_names = max(self._synced_names, job.loose_names)
        self._note_synced(job.completed)
        synced_up_to = min(job.up_to, self.log_end_offset)
        at = self.segments.find(self.recovery_point)
        while (following := self.segments.next_base(at)) is not None and following <= synced_up_to:
            if not self.segments[at].synced:  # complete while the job ran: recovery has to begin in it
                synced_up_to = following - 1
            at += 1
        self.recovery_point = max(self.recovery_point, synced_up_to)
        self.last_flush_ms = now_ms

    def _note_synced(self, synced: list[CompletedSegment]) -> None:
        for completed in synced:
            segment = completed.segment
            if not self._is_still(completed):
                continue
            with self._writing:
                segment.indexes_written()
                segment.snapshot_to_write = None
            segment.has_loose_tail = False
            segment.synced = True

    def flush(self, now_ms: int, up_to: int | None = None) -> None:
        job = self.begin_flush(up_to)
        if job is not None:
            try:
                job.run()
            except OSError as error:
                raise self._storage_error(f"{self.dir} cannot be synced", error) from error
            self.end_flush(job, now_ms)

    # -- what others look at

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
