"""The log of one partition: batches appended at its end, read from any offset, dropped from its start.

Invariant: log start offset <= last stable offset <= high watermark <= log end offset. A log consists of its
segments and their files (LocalLog), its appends (LogAppender, FollowerAppender), its recovery point
(LogFlusher), its producers and its leader epochs. All of it belongs to one thread, but for
`PendingAppend.write`, `FlushJob.run` and the steps of a Truncation that say so.
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
        # A crash, or the cleaner, left no records from this offset to the next one. A follower fetches them
        # again; None if there is no such doubt. A file keeps it over restarts (`forget_gap`).
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
        """The log in a folder, which may be empty or left by a crash (`clean` False)."""
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
            # Another crash, when the log is no longer compacted, must not take what comes from now on.
            job.run()
            log.end_flush(job, now_ms)
        return log

    def update_config(self, config: LogConfig) -> None:
        self._local.config = config
        self.appender.update_config(config)
        self.quick_appender.update_config()
        self.producers.set_expiration(config.producer_id_expiration_ms)

    def set_topic_id(self, topic_id: bytes, *, durably: bool = True) -> None:
        """Remember which topic this is: a log belongs to one topic for life.

        A new log need not do so durably: until its first flush nothing of it is, and the flush sees to it.
        """
        path, data = f"{self.dir}/{PARTITION_METADATA}", encode_partition_metadata(topic_id)
        if durably:
            self.disk.atomic_write(path, data)
        else:
            self.disk.write(path, data)
        self.topic_id = topic_id
        self._flusher.topic_id_is_loose = not durably

    def listen(self, listener: LogListener) -> None:
        """Tell `listener` what happens to the log from now on, once however often this is called."""
        self._listeners.add(listener)

    def append_as_follower(self, data: bytes | bytearray | memoryview, now_ms: int) -> AppendResult | None:
        """Append whole batches as the leader stored them, in one go; None if there are none."""
        return self.follower_appender.append(data, now_ms)

    def storage_error(self, what: str, error: OSError) -> KafkaStorageError:
        """The error to raise for a disk that refused in another thread; listeners hear of it first."""
        return self._listeners.storage_error(f"{self.dir} {what}", error)

    # -- segments

    def roll(self, now_ms: int) -> LogSegment:
        """Begin a new segment at the log's end, unless the active one is empty already."""
        return self.appender.roll(now_ms)

    def replace_segments(self, old: list[LogSegment], cleaned: CleanedFiles) -> bool:
        """Let a cleaned segment take the place of those it was made from; see `LocalLog.replace`."""
        if self.is_truncating:
            return False
        with self._listeners.disk_errors(f"{self.dir}: cleaned segments cannot be swapped"):
            return self._local.replace(old, cleaned)

    # -- high watermark and leader epochs

    def commit_all(self) -> None:
        """Everything in the log is committed: the high watermark is its end."""
        self._commit(self._local.log_end_offset)

    def update_high_watermark(self, offset: int) -> int:
        """Move the high watermark, within the log; the last stable offset follows it."""
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
        """The largest known epoch up to `epoch` and the offset behind its last batch; (-1, -1) if unknown."""
        return self.leader_epochs.end_offset_for(epoch, self.log_end_offset)

    # -- flush

    def begin_flush(self, up_to: int | None = None) -> FlushJob | None:
        """What has to be synced so that everything below `up_to` is durable; None when it is already.

        None as well while the log is truncated: the truncation syncs what it cuts.
        """
        if self.is_truncating:
            return None
        return self._flusher.begin(self.log_end_offset if up_to is None else min(up_to, self.log_end_offset))

    def end_flush(self, job: FlushJob, now_ms: int) -> None:
        """`job.run` has returned: the recovery point moves, unless the log was cut back meanwhile."""
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
        self._local.log_start_offset = offset
        self.leader_epochs.truncate_from_start(offset)
        self.producers.log_start_moved(offset)
        self.update_high_watermark(self.high_watermark)
        self._listeners.log_start_moved()

    def delete_old_segments(self, now_ms: int, reads: Reads = WAITING) -> int:
        """Drop segments that retention no longer wants; how many went. Their files follow."""
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
        if pending is not None:  # what is being written to stays: a busy log is never without such a segment
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
        """Drop every batch that reaches to `offset` or behind it; whether the end moved.

        The log then ends at `offset`, or where the batch began that holds it: batches are never split.
        """
        if offset >= self.log_end_offset:
            self.forget_empty_epoch()
            return False
        self._truncate(self.truncation(offset, now_ms))
        return True

    def forget_empty_epoch(self) -> None:
        """Forget a leader epoch without batches.

        This replica was the leader and appended nothing before another one was elected: the new leader does
        not know the epoch.
        """
        self._forget_end(self.log_end_offset)

    def _forget_end(self, offset: int) -> None:
        """The log ends at `offset`: forget leader epochs from there on, and a gap that begins there."""
        self.leader_epochs.truncate_from_end(offset)
        if self.gap is not None and offset <= self.gap:
            self.forget_gap()

    def forget_gap(self) -> None:
        """The log has no gap, or its followers have it too."""
        if self.gap is not None:
            self.gap = None
            with suppress(OSError):  # with the file, a follower fetches more than it has to after a restart
                self.disk.unlink(f"{self.dir}/{GAP}")

    def truncate_fully_and_start_at(self, offset: int, now_ms: int) -> None:
        """Drop everything; the log goes on, empty, at `offset`."""
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
        """The files end at `offset`, and these are the producers there."""
        self._end_at(offset)
        self.producers.replace_by(producers)
        self.update_high_watermark(self.high_watermark)

    def started_anew(self, offset: int) -> None:
        """The log is empty and begins at `offset`."""
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

    # -- the end of its life in a folder

    def close(self, now_ms: int) -> None:
        """Everything to disk, with a snapshot of the producers at its end; unfinished appends are lost."""
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
        """Let go of all files without writing anything."""
        self._local.release()

    def release_files(self) -> None:
        """Keep no descriptor while nobody uses the log: they are opened again when needed."""
        self._local.release_files()

    def delete(self) -> str:
        """Close the log and rename its folder so that it is no partition any more; returns the new path.

        Once the folder above is synced it stays so, whatever happens.
        """
        self._local.release()
        with self._listeners.disk_errors(f"{self.dir} cannot be renamed for deletion"):
            target = self._local.rename_for_deletion()
        self._moved(target)
        return target

    def moved_to(self, directory: str) -> list[DiskFile]:
        """The same files lie in another folder: everything from now on is done there.

        Descriptors of the old files are given back, for the caller to close; whoever reads a slice keeps his.
        """
        held = self._local.leave_files()
        self._moved(directory)
        return held

    def _moved(self, directory: str) -> None:
        """What is still written on its way out must not reach the next log of this name."""
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
        """Batches from the one that holds `offset` on, below `max_offset`, the last maybe cut.

        Where the first does not fit there is nothing, unless `min_one_message` asks for it all the same: a
        reader that got only a part of it could neither use that nor get on.
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
        """An offset that nothing of what was read reaches, as near as the index knows."""
        return upper_bound(self.segments, self.log_end_offset, result, reads)

    def aborted_transactions(
        self, start: int, end_offset: int, reads: Reads = WAITING
    ) -> list[AbortedTransaction]:
        """Transactions that were aborted and touch the offsets from `start` up to `end_offset`."""
        return aborted_transactions(self.segments, start, end_offset, reads)

    def offset_for_timestamp(
        self, timestamp: int, max_offset: int | None = None, reads: Reads = WAITING
    ) -> TimestampAndOffset | None:
        """The first record at or after a time, below `max_offset` (the reader's isolation level)."""
        end = self.log_end_offset if max_offset is None else min(max_offset, self.log_end_offset)
        return first_at_or_after(self.segments, timestamp, self.log_start_offset, end, reads)

    def max_timestamp(self, reads: Reads = WAITING) -> TimestampAndOffset | None:
        return greatest(self.segments, self.log_start_offset, self.log_end_offset, reads)

    # -- what others look at

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
        """Another one each time the end moves back: what was read of the log before may not be in it now."""
        return self._local.generation

    @property
    def remover(self) -> FileRemover | None:
        """Renames and unlinks its files off the loop; without it that is done at once."""
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
        """The recovery point as checkpoints may say it."""
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
        """Whether prepared appends are still to be finished."""
        return self.appender.first_pending is not None

    @property
    def starts_with_its_files(self) -> bool:
        """Whether a start that finds the files of now knows from them where the log starts."""
        is_removing = self._local.unfinished_removal is not None
        return self.log_start_offset <= self.segments[0].base_offset and not is_removing
