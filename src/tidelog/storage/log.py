"""Log: the log of one partition (Kafka's UnifiedLog).

It appends at the end, reads anywhere, deletes at the start. Invariant: log start offset <= last stable offset
<= high watermark <= log end offset. A log consists of its segments and their files (LocalLog), its appends
(LogAppender, FollowerAppender), its recovery point (LogFlusher), its producers and its leader epochs. All of
it belongs to one thread, except for `PendingAppend.write`, `FlushJob.run` and some steps of a Truncation.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress

from tidelog.errors import KafkaStorageError, OffsetOutOfRange
from tidelog.storage.append import AppendResult
from tidelog.storage.checkpoints import GAP, PARTITION_METADATA, encode_partition_metadata
from tidelog.storage.config import LogConfig
from tidelog.storage.disk import Disk, DiskFile
from tidelog.storage.file_cache import FileCache
from tidelog.storage.file_remover import FileRemover
from tidelog.storage.flush_job import FlushJob
from tidelog.storage.follower_appender import FollowerAppender
from tidelog.storage.local_log import LocalLog
from tidelog.storage.log_appender import LogAppender
from tidelog.storage.log_flusher import LogFlusher
from tidelog.storage.log_listener import LogListener, LogListeners
from tidelog.storage.log_read import ReadResult, aborted_transactions, read_batches, upper_bound
from tidelog.storage.log_segment import CleanedFiles, LogSegment
from tidelog.storage.lookup import TimestampAndOffset, first_at_or_after, greatest
from tidelog.storage.producer_state_manager import ProducerStateManager
from tidelog.storage.quick_appender import QuickAppender
from tidelog.storage.reads import WAITING, Reads
from tidelog.storage.recovery import LoadedLog, load_log
from tidelog.storage.retention_policy import count_deletable
from tidelog.storage.transaction_index import AbortedTransaction
from tidelog.storage.truncation import Truncation


class Log:
    __slots__ = (
        "_flusher",
        "_listeners",
        "_local",
        "appender",
        "follower_appender",
        "gap",
        "high_watermark",
        "is_truncating",
        "last_stable_offset",
        "leader_epochs",
        "partition",
        "producers",
        "quick_appender",
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
        self.topic_id = loaded.topic_id
        self.segments = loaded.segments
        self.snapshots = loaded.snapshots
        self.leader_epochs = loaded.epochs
        self.producers = loaded.producers
        self.high_watermark = loaded.log_start_offset
        self.last_stable_offset = loaded.log_start_offset
        self.is_truncating = False
        # From this offset on, records are missing: a crash lost them, or the cleaner removed them. A follower
        # fetches from there again. None if the log has no such gap. A file keeps it over restarts
        # (`forget_gap`).
        self.gap = loaded.gap
        self._listeners = LogListeners(self)
        self._local = LocalLog(directory, config, loaded, disk=disk, files=files, rng=rng)
        self._flusher = LogFlusher(self._local, loaded.epochs, loaded.recovery_point, now_ms)
        self.appender = LogAppender(
            f"{topic}-{partition}",
            self._local,
            self._flusher,
            loaded.producers,
            loaded.epochs,
            self._listeners,
        )
        self.quick_appender = QuickAppender(self._local, self.appender, loaded.producers)
        self.follower_appender = FollowerAppender(
            f"{topic}-{partition}",
            self._local,
            self.appender,
            loaded.producers,
            loaded.epochs,
            self._listeners,
        )
        self.producers.set_expiration(config.producer_id_expiration_ms)

    @classmethod
    def open(
        cls,
        topic: str,
        partition: int,
        directory: str,
        config: LogConfig,
        *,
        disk: Disk,
        files: FileCache,
        now_ms: int,
        clean: bool = False,
        recovery_point: int | None = 0,
        log_start_offset: int = 0,
        high_watermark: int = 0,
        rng: random.Random | None = None,
    ) -> Log:
        """Open the log in a folder, which may be empty. `clean` is False after a crash."""
        loaded = load_log(
            disk,
            files,
            directory,
            config,
            clean=clean,
            recovery_point=recovery_point,
            log_start_offset=log_start_offset,
            now_ms=now_ms,
        )
        log = cls(topic, partition, directory, config, loaded, disk=disk, files=files, now_ms=now_ms, rng=rng)
        log.update_high_watermark(high_watermark)
        job = log.begin_flush() if loaded.gap is not None else None
        if job is not None:
            # The log may not be compacted any more at the next crash, which must not truncate new records.
            job.run()
            log.end_flush(job, now_ms)
        return log

    def update_config(self, config: LogConfig) -> None:
        self._local.config = config
        self.appender.update_config(config)
        self.quick_appender.update_config()
        self.producers.set_expiration(config.producer_id_expiration_ms)

    def set_topic_id(self, topic_id: bytes, *, durably: bool = True) -> None:
        """Set the topic id, which never changes again.

        A new log need not write it durably (`durably` False): the first flush syncs it with the records.
        """
        path, data = f"{self.dir}/{PARTITION_METADATA}", encode_partition_metadata(topic_id)
        if durably:
            self.disk.atomic_write(path, data)
        else:
            self.disk.write(path, data)
        self.topic_id = topic_id
        self._flusher.topic_id_is_loose = not durably

    def listen(self, listener: LogListener) -> None:
        """Add a listener for the events of the log, unless it is added already."""
        self._listeners.add(listener)

    def append_as_follower(self, data: bytes | bytearray | memoryview, now_ms: int) -> AppendResult | None:
        """Append whole batches of the leader unchanged, with all steps at once; None if there are none."""
        return self.follower_appender.append(data, now_ms)

    def storage_error(self, what: str, error: OSError) -> KafkaStorageError:
        """Report an error of the disk from another thread to the listeners; returns the error to raise."""
        return self._listeners.storage_error(f"{self.dir} {what}", error)

    # -- segments

    def roll(self, now_ms: int) -> LogSegment:
        """Begin a new segment at the log end, unless the active one is empty."""
        return self.appender.roll(now_ms)

    def replace_segments(self, old: list[LogSegment], cleaned: CleanedFiles) -> bool:
        """Replace segments by the cleaned one that was made from them; see `LocalLog.replace`."""
        if self.is_truncating:
            return False
        with self._listeners.disk_errors(f"{self.dir}: cleaned segments cannot be swapped"):
            return self._local.replace(old, cleaned)

    # -- high watermark and leader epochs

    def commit_all(self) -> None:
        """Move the high watermark to the log end."""
        self._commit(self._local.log_end_offset)

    def update_high_watermark(self, offset: int) -> int:
        """Move the high watermark, within the bounds of the log, and the last stable offset with it."""
        local = self._local
        start, end = local.log_start_offset, local.log_end_offset
        if offset < start:
            offset = start
        self._commit(offset if offset < end else end)
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

    def assign_epoch(self, epoch: int, start_offset: int) -> None:
        self.leader_epochs.assign(epoch, start_offset)

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """The largest known epoch up to `epoch`, and the offset after its last batch; (-1, -1) if there is
        none.
        """
        return self.leader_epochs.end_offset_for(epoch, self.log_end_offset)

    # -- flush

    def begin_flush(self, up_to: int | None = None) -> FlushJob | None:
        """The job that makes everything below `up_to` durable; None if it is durable already.

        Also None during a truncation, which syncs the files that it cuts.
        """
        if self.is_truncating:
            return None
        return self._flusher.begin(self.log_end_offset if up_to is None else min(up_to, self.log_end_offset))

    def end_flush(self, job: FlushJob, now_ms: int) -> None:
        """Move the recovery point after `job.run`, unless the log was truncated meanwhile."""
        self._listeners.log_flushed(job)
        self._flusher.end(job, self.log_end_offset, now_ms)

    def flush(self, now_ms: int, up_to: int | None = None) -> None:
        job = self.begin_flush(up_to)
        if job is not None:
            with self._listeners.disk_errors(f"{self.dir} cannot be synced"):
                job.run()
            self.end_flush(job, now_ms)

    # -- the start of the log moves

    def delete_records_before(self, offset: int) -> int:
        """Move the log start offset up to `offset`, or to the high watermark for -1; returns that target."""
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
        self._local.log_start_offset = offset
        self.leader_epochs.truncate_from_start(offset)
        self.producers.log_start_moved(offset)
        self.update_high_watermark(self.high_watermark)
        self._listeners.log_start_moved()

    def delete_old_segments(self, now_ms: int, reads: Reads = WAITING) -> int:
        """Drop the segments that retention selects; returns their number. Their files are removed later."""
        if self.is_truncating:
            return 0
        count = count_deletable(
            self.segments,
            self.config,
            log_start_offset=self.log_start_offset,
            high_watermark=self.high_watermark,
            end_offset=self.log_end_offset,
            now_ms=now_ms,
            reads=reads,
        )
        pending = self.appender.first_pending
        if pending is not None:  # a segment with unfinished appends stays, so that a busy log always has one
            count = min(count, self.segments.find(pending.segment.base_offset))
        with self._listeners.disk_errors(f"{self.dir}: segments cannot be removed"):
            if count == 0:
                self._local.retry_removal()
                return 0
            if count == len(self.segments):
                self.appender.roll(now_ms)
            self._move_log_start(self.segments[count].base_offset)
            self._local.remove_first(count, self._removal_failed)
        return count

    def _removal_failed(self, error: OSError) -> None:
        if not self.closed:
            self._listeners.storage_failed(error)

    # -- the end of the log moves back

    def truncate_to(self, offset: int, now_ms: int) -> bool:
        """Drop the batches that end at `offset` or later; returns whether the log end moved.

        The log then ends at `offset`, or at the base offset of the batch with this offset: batches are never
        split.
        """
        if offset >= self.log_end_offset:
            self.forget_empty_epoch()
            return False
        self._truncate(self.truncation(offset, now_ms))
        return True

    def forget_empty_epoch(self) -> None:
        """Forget the latest leader epoch if it has no batches.

        This replica led with it, and appended nothing before the next election. The new leader does not know
        it.
        """
        self._forget_end(self.log_end_offset)

    def _forget_end(self, offset: int) -> None:
        """Forget the leader epochs and the gap that begin at `offset`, the new log end, or later."""
        self.leader_epochs.truncate_from_end(offset)
        if self.gap is not None and offset <= self.gap:
            self.forget_gap()

    def forget_gap(self) -> None:
        """Forget the gap: it is filled, or this log leads and its followers take it over."""
        if self.gap is not None:
            self.gap = None
            self._remove_gap_file(self.dir)

    def _remove_gap_file(self, directory: str) -> None:
        with suppress(OSError):  # if the file stays, a follower fetches more than necessary after a restart
            self.disk.unlink(f"{directory}/{GAP}")

    def truncate_fully_and_start_at(self, offset: int, now_ms: int) -> None:
        """Drop all records and continue, empty, at `offset`."""
        self._truncate(self.truncation_fully(offset, now_ms))

    def _truncate(self, truncation: Truncation) -> None:
        with self._listeners.disk_errors(f"{self.dir} cannot be truncated"):
            truncation.run()

    def truncation(self, offset: int, now_ms: int) -> Truncation:
        """`truncate_to` in steps, for an offset below the log end offset."""
        return Truncation(self, self._local, offset, now_ms, fully=False)

    def truncation_fully(self, offset: int, now_ms: int) -> Truncation:
        """`truncate_fully_and_start_at` in steps."""
        return Truncation(self, self._local, offset, now_ms, fully=True)

    def begin_truncation(self, offset: int) -> list[Callable[[], None]]:
        """Lower the recovery point to `offset`; returns the checkpoints to write before a file is cut."""
        if self.has_pending or self.is_truncating:
            raise KafkaStorageError(f"{self.topic}-{self.partition} is truncated while appends are under way")
        self.is_truncating = True
        self._local.begin_truncation()
        return self._listeners.log_truncated() if self._flusher.lower(offset) else []

    def truncated(self, offset: int, producers: ProducerStateManager) -> None:
        """Adopt the end of a truncation: the files end at `offset`, where the log has these producers."""
        self._end_at(offset)
        self.producers.replace_by(producers)
        self.update_high_watermark(self.high_watermark)

    def started_anew(self, offset: int) -> None:
        """Adopt the end of a full truncation: the log is empty and begins at `offset`."""
        self._local.log_start_offset = offset
        self._end_at(offset)
        self.leader_epochs.clear()
        self.producers.clear()
        self.high_watermark = self.last_stable_offset = offset

    def _end_at(self, offset: int) -> None:
        local, flusher = self._local, self._flusher
        local.log_end_offset = self.appender.next_offset = offset
        local.log_start_offset = min(local.log_start_offset, offset)
        flusher.recovery_point = min(flusher.recovery_point, offset)
        self._forget_end(offset)
        self.is_truncating = False

    # -- closing, deleting and moving

    def close(self, now_ms: int) -> None:
        """Write everything to disk, with a producer snapshot at the log end. Unfinished appends are lost."""
        if self.closed:
            return
        pending = self.appender.first_pending
        if pending is not None:
            self.appender.abandon(pending)
        with self._listeners.disk_errors(f"{self.dir}: segments cannot be removed"):
            self._local.rename_removed()
        self.flush(now_ms)
        self._flusher.close(self.log_end_offset, self.producers.encode_snapshot())
        self._local.release()

    def release(self) -> None:
        """Close all files without a write."""
        self._local.release()

    def release_files(self) -> None:
        """Close all files until the next access opens them again."""
        self._local.release_files()

    def delete(self) -> str:
        """Close the log and rename its folder for deletion; returns the new path.

        The deletion is durable when the log folder above is synced.
        """
        self._local.release()
        with self._listeners.disk_errors(f"{self.dir} cannot be renamed for deletion"):
            target = self._local.rename_for_deletion()
        self._moved(target)
        return target

    def moved_to(self, directory: str) -> list[DiskFile]:
        """Continue in another folder, which has a copy of the files.

        Returns the open files of the old folder, for the caller to close. A slice keeps its own file open.
        """
        open_files = self._local.leave_files()
        self._moved(directory)
        if self.gap is None:  # it may be forgotten since the copy was complete
            self._remove_gap_file(directory)
        return open_files

    def _moved(self, directory: str) -> None:
        """Refuse later writes of running flushes: they must not reach a new log of the same name."""
        with self._local.lock:
            self._local.moved_to(directory)
            self.leader_epochs.moved(directory)

    # -- read

    def read(
        self,
        offset: int,
        max_bytes: int,
        *,
        max_offset: int | None = None,
        min_one_message: bool = True,
        reads: Reads = WAITING,
    ) -> ReadResult:
        """Read batches from the one with `offset` on, below `max_offset`. The last one may be incomplete.

        If the first batch is larger than `max_bytes`, the result is empty, or with `min_one_message` the
        whole batch. Part of a batch would be useless, and the reader could never continue.
        """
        log_end_offset = self.log_end_offset
        if offset > log_end_offset or offset < self.log_start_offset:
            raise OffsetOutOfRange(
                f"{self.topic}-{self.partition}: offset {offset} is not within "
                f"{self.log_start_offset} to {log_end_offset}"
            )
        if max_offset is not None and max_offset >= log_end_offset:
            max_offset = None
        if offset >= (log_end_offset if max_offset is None else max_offset):
            return ReadResult(offset)
        return read_batches(self.segments, offset, max_bytes, max_offset, min_one_message, reads)

    def upper_bound(self, result: ReadResult, reads: Reads = WAITING) -> int:
        """An offset above all batches of a read, as near as the offset index can say."""
        return upper_bound(self.segments, self.log_end_offset, result, reads)

    def aborted_transactions(
        self, start: int, end_offset: int, reads: Reads = WAITING
    ) -> list[AbortedTransaction]:
        """The aborted transactions with offsets from `start` up to `end_offset`."""
        return aborted_transactions(self.segments, start, end_offset, reads)

    def offset_for_timestamp(
        self, timestamp: int, max_offset: int | None = None, reads: Reads = WAITING
    ) -> TimestampAndOffset | None:
        """The first record at or after a time, below `max_offset` (the reader's isolation level)."""
        end = self.log_end_offset if max_offset is None else min(max_offset, self.log_end_offset)
        return first_at_or_after(self.segments, timestamp, self.log_start_offset, end, reads)

    def max_timestamp(self, reads: Reads = WAITING) -> TimestampAndOffset | None:
        return greatest(self.segments, self.log_start_offset, self.log_end_offset, reads)

    # -- properties

    def __repr__(self) -> str:
        return f"Log({self.topic}-{self.partition}, {self.log_start_offset}..{self.log_end_offset})"

    @property
    def log_start_offset(self) -> int:
        return self._local.log_start_offset

    @property
    def log_end_offset(self) -> int:
        return self._local.log_end_offset

    @property
    def config(self) -> LogConfig:
        return self._local.config

    @property
    def dir(self) -> str:
        return self._local.dir

    @property
    def disk(self) -> Disk:
        return self._local.disk

    @property
    def closed(self) -> bool:
        return self._local.closed

    @property
    def generation(self) -> int:
        """A number that changes with each truncation. Records read in an older generation may be gone."""
        return self._local.generation

    @property
    def remover(self) -> FileRemover | None:
        """Renames and unlinks files off the loop. Without a remover this happens at once."""
        return self._local.remover

    @remover.setter
    def remover(self, remover: FileRemover) -> None:
        self._local.remover = remover

    @property
    def recovery_point(self) -> int:
        """Everything below it is on disk."""
        return self._flusher.recovery_point

    @property
    def recovery_point_to_keep(self) -> int:
        """The recovery point for checkpoints; see `LogFlusher.recovery_point_to_keep`."""
        return self._flusher.recovery_point_to_keep

    @property
    def last_flush_ms(self) -> int:
        return self._flusher.last_flush_ms

    @property
    def size(self) -> int:
        return sum(segment.size for segment in self.segments)

    @property
    def active_segment(self) -> LogSegment:
        return self.segments.active

    @property
    def has_pending(self) -> bool:
        """Whether a prepared append is not finished yet."""
        return self.appender.first_pending is not None

    @property
    def starts_with_its_files(self) -> bool:
        """Whether the next start can learn the log start offset from the file names alone."""
        is_removing = self._local.unfinished_removal is not None
        return self.log_start_offset <= self.segments[0].base_offset and not is_removing
