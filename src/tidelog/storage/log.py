"""The log of one partition: batches appended at its end, read from any offset, dropped from its start.

An append has three steps so that its bytes can be written off the loop: `prepare` assigns offsets and a place in
the file, `PendingAppend.write` writes, `finish` makes the batch part of the log. Appends finish in the order
in which they were prepared. Everything but `write` and `FlushJob.run` belongs to the thread that owns the log.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable

from tidelog.errors import KafkaStorageError, OffsetOutOfRange, RecordListTooLarge
from tidelog.records.batch import BatchHeader, EndTransactionMarker, patch_header
from tidelog.records.check import CheckedBatch, ProduceRules, check_produced
from tidelog.records.codecs import Codec
from tidelog.storage.append import AppendOrigin, AppendResult, DuplicateBatch, PendingAppend, ReadResult
from tidelog.storage.checkpoints import PARTITION_METADATA, encode_partition_metadata
from tidelog.storage.config import LogConfig
from tidelog.storage.disk import Disk
from tidelog.storage.files import FileCache
from tidelog.storage.flush import FlushJob
from tidelog.storage.producer_state import BatchMetadata, CompletedTransaction
from tidelog.storage.recovery import LoadedLog, load_log, marker_of
from tidelog.storage.segment import (
    CHECK_NEXT,
    LOG,
    NEVER,
    OFFSET_INDEX,
    TIME_INDEX,
    TRANSACTION_INDEX,
    Segment,
)
from tidelog.storage.slices import FileSlice
from tidelog.storage.txnindex import AbortedTransaction

_CODECS = {
    "producer": None,
    "uncompressed": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}
NO_TIMESTAMP = -1


def produce_rules(config: LogConfig, *, from_client: bool = True) -> ProduceRules:
    """What the settings of a topic ask of a batch."""
    codec = _CODECS[config.compression_type]
    levels = {
        Codec.GZIP: config.compression_gzip_level,
        Codec.LZ4: config.compression_lz4_level,
        Codec.ZSTD: config.compression_zstd_level,
    }
    return ProduceRules(
        max_message_bytes=config.max_message_bytes,
        log_append_time=config.log_append_time,
        timestamp_before_max_ms=config.message_timestamp_before_max_ms,
        timestamp_after_max_ms=config.message_timestamp_after_max_ms,
        compacted=config.compacted,
        target_codec=codec,
        target_level=None if codec is None else levels.get(codec),
        from_client=from_client,
    )


class Log:
    __slots__ = (
        "_active",
        "_disk",
        "_files",
        "_index_interval",
        "_log_append_time",
        "_next_offset",
        "_outstanding",
        "_random",
        "_segment_bytes",
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
        "on_roll",
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
        self.on_roll: Callable[[Log], None] | None = None  # told after a roll, to flush what came before it
        self.closed = False
        self.update_config(config)

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
        recovery_point: int = 0,
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
        return log

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

    def set_topic_id(self, topic_id: bytes) -> None:
        """Remember which topic this is, durably; a log belongs to one topic for life."""
        path = f"{self.dir}/{PARTITION_METADATA}"
        self._disk.atomic_write(path, encode_partition_metadata(topic_id))
        self.topic_id = topic_id

    def __repr__(self) -> str:
        return f"Log({self.topic}-{self.partition}, {self.log_start_offset}..{self.log_end_offset})"

    # -- append

    def prepare(
        self,
        checked: CheckedBatch,
        *,
        leader_epoch: int,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        now_ms: int,
    ) -> PendingAppend | DuplicateBatch:
        """Assign offsets and a place in the file. A duplicate is to be answered once the log end offset is past it."""
        header = checked.header
        data = checked.data
        size = len(data)
        segment = self._active
        base_offset = self._next_offset
        last_offset = base_offset + header.last_offset_delta
        max_timestamp = checked.max_timestamp
        producer_id = header.producer_id
        marker = None
        if producer_id >= 0:
            known, marker = self._check_producer(header, data, origin)
            if known is not None:
                return DuplicateBatch(known, self.log_start_offset)
        if (
            segment.write_position + size > self._segment_bytes
            or max_timestamp > segment.roll_timestamp
            or last_offset > segment.max_offset
        ):
            segment = self._segment_for(size, max_timestamp, last_offset, now_ms)
        position = segment.write_position
        pending = PendingAppend(
            segment,
            segment.file,
            position,
            data,
            size,
            header,
            base_offset,
            last_offset,
            max_timestamp,
            leader_epoch,
        )
        if producer_id >= 0:
            pending.marker = marker
            if marker is None:
                self._note_batch(pending)
        patch_header(data, 0, base_offset, leader_epoch)
        segment.write_position = position + size
        self._next_offset = last_offset + 1
        self._outstanding.append(pending)
        return pending

    def finish(self, pending: PendingAppend, now_ms: int) -> AppendResult:
        """The bytes are in the file: the batch becomes part of the log."""
        outstanding = self._outstanding
        base_offset = pending.base_offset
        if pending.cancelled or outstanding[0] is not pending:
            raise KafkaStorageError(
                f"{self.topic}-{self.partition}: the append at offset {base_offset} was given up, "
                f"or finishes before the one at {self.log_end_offset}"
            )
        outstanding.popleft()
        segment = pending.segment
        last_offset = pending.last_offset
        position = pending.position
        size = pending.size
        max_timestamp = pending.max_timestamp
        if max_timestamp > segment.max_timestamp:
            segment.max_timestamp = max_timestamp
            segment.offset_of_max_timestamp = last_offset
        if segment.bytes_since_index > self._index_interval:
            segment.add_index_entry(last_offset, position)
        segment.bytes_since_index += size
        segment.size = position + size
        segment.last_batch_offset = base_offset
        segment.last_batch_position = position
        if position == 0:
            segment.first_timestamp = max_timestamp
            segment.roll_timestamp = CHECK_NEXT
        if pending.leader_epoch > self.leader_epochs.latest:
            self.leader_epochs.assign(pending.leader_epoch, base_offset)
        self.log_end_offset = next_offset = last_offset + 1
        if pending.header.producer_id >= 0:
            self._finish_producer(pending)
        if segment is not self._active and segment.size == segment.write_position:
            self._seal(segment)
        return AppendResult(
            base_offset,
            last_offset,
            max_timestamp if self._log_append_time else NO_TIMESTAMP,
            self.log_start_offset,
            next_offset - self.recovery_point >= self.flush_messages,
        )

    def abandon(self, pending: PendingAppend) -> None:
        """The write failed: cut the file back. Appends that were prepared after this one fail with it."""
        if pending.cancelled:
            return
        outstanding = self._outstanding
        while not pending.cancelled:
            last = outstanding.pop()
            last.cancelled = True
            if last.undo is not None:
                self.producers.restore(*last.undo)
        while self._active is not pending.segment:
            self._take_back_roll()
        segment = pending.segment
        self._next_offset = pending.base_offset
        segment.write_position = pending.position
        segment.has_loose_tail = True
        try:
            pending.file.truncate(pending.position)
        except OSError as error:
            raise KafkaStorageError(f"{segment.path(LOG)} cannot be cut back: {error}") from error

    def append_as_leader(
        self,
        batch: bytes | bytearray | memoryview,
        *,
        leader_epoch: int,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        now_ms: int,
    ) -> AppendResult:
        """Check, write and finish one batch in one go."""
        checked = check_produced(memoryview(batch), self.rules(origin), now_ms)
        pending = self.prepare(checked, leader_epoch=leader_epoch, origin=origin, now_ms=now_ms)
        if isinstance(pending, DuplicateBatch):
            return pending.result
        try:
            pending.write()
        except OSError as error:
            self.abandon(pending)
            raise KafkaStorageError(f"{pending.file.path} cannot be written: {error}") from error
        return self.finish(pending, now_ms)

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
        wait = self.config.segment_ms - segment.jitter_ms
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
        if replaces:
            self.segments.remove_from(len(self.segments) - 1)
            old.close()
        else:
            old.snapshot_to_write = self.producers.encode_snapshot()
        config = self.config
        try:
            new = Segment.create(
                self._disk, self._files, self.dir, base_offset, config.segment_index_bytes, now_ms
            )
        except OSError as error:
            if replaces:
                self.segments.append(old)
            raise KafkaStorageError(f"{self.dir}: no new segment at offset {base_offset}: {error}") from error
        if config.segment_jitter_ms:
            rng = self._random or random.Random()
            new.jitter_ms = rng.randrange(min(config.segment_jitter_ms, config.segment_ms) + 1)
        new.roll_timestamp = NEVER
        self.segments.append(new)
        self._active = new
        if not replaces and old.size == old.write_position:
            self._seal(old)
        return new

    def _seal(self, segment: Segment) -> None:
        """The segment is complete: its indexes and the producers at its end go to their files."""
        following = self.segments.next_base(self.segments.find(segment.base_offset))
        try:
            if segment.snapshot_to_write is not None and following is not None:
                self.snapshots.write(following, segment.snapshot_to_write)
            segment.snapshot_to_write = None
            segment.seal()
        except OSError as error:
            raise KafkaStorageError(f"{segment.path(LOG)} cannot be completed: {error}") from error
        if self.on_roll is not None:
            self.on_roll(self)

    def _take_back_roll(self) -> None:
        """Remove an active segment that no append has reached yet."""
        removed = self.segments.remove_from(len(self.segments) - 1)[0]
        self._active = self.segments[-1]
        self._active.snapshot_to_write = None
        self.snapshots.delete(removed.base_offset)
        for path in removed.existing_files():
            self._disk.unlink(path)
        removed.close()

    # -- producers

    def _check_producer(
        self, header: BatchHeader, data: memoryview, origin: AppendOrigin
    ) -> tuple[BatchMetadata | None, EndTransactionMarker | None]:
        """Refuse what does not follow from the producer's past; the same batch of before, or the marker it holds."""
        producers, producer_id, epoch = self.producers, header.producer_id, header.producer_epoch
        if header.is_control:
            marker = marker_of(data, 0, header)
            if marker is not None:
                producers.check_marker(producer_id, epoch, marker.coordinator_epoch, origin)
            return None, marker
        if origin is AppendOrigin.CLIENT:
            entry = producers.entries.get(producer_id)
            if entry is not None:
                known = entry.find_duplicate(epoch, header.base_sequence, header.last_sequence)
                if known is not None:
                    return known, None
        producers.check(producer_id, epoch, header.base_sequence, origin)
        producers.check_transactional(producer_id, header.is_transactional)
        return None, None

    def _note_batch(self, pending: PendingAppend) -> None:
        """The producer's sequences go on from here already, so that its next batch can be prepared before this is written."""
        header, producers = pending.header, self.producers
        producer_id = header.producer_id
        before = producers.entries.get(producer_id)
        pending.undo = (producer_id, None if before is None else before.copy())
        producers.append(
            producer_id,
            header.producer_epoch,
            header.last_sequence,
            pending.base_offset,
            pending.last_offset,
            pending.max_timestamp,
            header.is_transactional,
        )

    def _finish_producer(self, pending: PendingAppend) -> None:
        header, producers = pending.header, self.producers
        producers.map_end_offset = self.log_end_offset
        if pending.marker is None:
            return
        completed = producers.append_marker(
            header.producer_id,
            header.producer_epoch,
            pending.marker.coordinator_epoch,
            not pending.marker.commit,
            pending.last_offset,
            pending.max_timestamp,
        )
        if completed is not None:
            self._complete_transaction(completed, pending.segment)

    def _complete_transaction(self, completed: CompletedTransaction, segment: Segment) -> None:
        stable = self.producers.stable_offset_after(completed)
        if completed.aborted:
            segment.add_aborted(
                AbortedTransaction(
                    completed.producer_id, completed.first_offset, completed.last_offset, stable
                )
            )
        self.producers.complete(completed)

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

    # -- read

    def read(
        self, offset: int, max_bytes: int, *, max_offset: int | None = None, min_one_message: bool = True
    ) -> ReadResult:
        """Whole or cut batches from the one that holds `offset` on, below `max_offset`, of one segment."""
        log_end_offset = self.log_end_offset
        if offset > log_end_offset or offset < self.log_start_offset:
            raise OffsetOutOfRange(
                f"{self.topic}-{self.partition}: offset {offset} is not within "
                f"{self.log_start_offset} to {log_end_offset}"
            )
        bound = log_end_offset if max_offset is None or max_offset > log_end_offset else max_offset
        if offset >= bound:
            return ReadResult(offset)
        segment = self._active
        if offset >= segment.base_offset:
            found = segment.position_of(offset)
        else:
            segment, found = self._find_in_older(offset)
        if found is None:
            return ReadResult(offset)
        position, first_size, _ = found
        end = segment.size if bound == log_end_offset else self._end_position(segment, bound)
        if max_bytes < first_size:
            if not min_one_message:
                if max_bytes <= 0:
                    return ReadResult(offset)
            else:
                max_bytes = first_size
        size = min(end - position, max_bytes)
        if size <= 0:
            return ReadResult(offset)
        return ReadResult(offset, FileSlice(segment.file, position, size), segment)

    def _find_in_older(self, offset: int) -> tuple[Segment, tuple[int, int, int] | None]:
        """Cleaning may have emptied the end of a segment: then the batch is in a later one."""
        segments = self.segments
        for at in range(segments.find(offset), len(segments)):
            segment = segments[at]
            found = segment.position_of(offset)
            if found is not None:
                return segment, found
        return self._active, None

    def _end_position(self, segment: Segment, bound: int) -> int:
        """Where in a segment the batches end that lie below `bound`."""
        if segment is not self._active:
            following = self.segments.next_base(self.segments.find(segment.base_offset))
            if following is not None and following <= bound:
                return segment.size
        if bound <= segment.base_offset:
            return 0
        found = segment.position_of(bound)
        return segment.size if found is None else found[0]

    def upper_bound(self, result: ReadResult) -> int:
        """An offset that no batch of what was read reaches, as near as the index knows without reading the file."""
        segment, piece = result.segment, result.slice
        if segment is None or piece is None:
            return result.offset
        relative = segment.offset_index.offset_after(piece.position + piece.size)
        if relative is not None:
            return segment.base_offset + relative
        following = self.segments.next_base(self.segments.find(segment.base_offset))
        return self.log_end_offset if following is None else following

    def aborted_transactions(self, start: int, end_offset: int) -> list[AbortedTransaction]:
        """Transactions that were aborted and touch the offsets from `start` up to `end_offset`."""
        result: list[AbortedTransaction] = []
        for segment in self.segments.starting_from(start):
            if not segment.has_aborted:
                continue
            for transaction in segment.aborted():
                if transaction.last_offset >= start and transaction.first_offset < end_offset:
                    result.append(transaction)
                if transaction.last_stable_offset >= end_offset:
                    return result
        return result

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
        job = FlushJob(self._disk, up_to, self.leader_epochs)
        for segment in self.segments.starting_from(self.recovery_point):
            if segment.base_offset >= up_to and segment.base_offset > self.recovery_point:
                break
            job.add_file(segment.file)
            if not segment.linked:
                job.add_directory(self.dir)
                job.segments.append(segment)
            if segment is not self._active:
                self._add_sealed(job, segment)
        return job

    def _add_sealed(self, job: FlushJob, segment: Segment) -> None:
        job.add_path(segment.path(OFFSET_INDEX))
        job.add_path(segment.path(TIME_INDEX))
        if segment.has_aborted:
            job.add_path(segment.path(TRANSACTION_INDEX))
        following = self.segments.next_base(self.segments.find(segment.base_offset))
        if following is not None and following in self.snapshots:
            job.add_path(self.snapshots.path(following))
            job.add_directory(self.dir)

    def end_flush(self, job: FlushJob, now_ms: int) -> None:
        """`job.run` has returned: the recovery point moves."""
        for segment in job.segments:
            segment.linked = True
        self.recovery_point = max(self.recovery_point, min(job.up_to, self.log_end_offset))
        self.last_flush_ms = now_ms

    def flush(self, now_ms: int, up_to: int | None = None) -> None:
        job = self.begin_flush(up_to)
        if job is not None:
            try:
                job.run()
            except OSError as error:
                raise KafkaStorageError(f"{self.dir} cannot be synced: {error}") from error
            self.end_flush(job, now_ms)

    # -- size, close

    @property
    def size(self) -> int:
        return sum(segment.size for segment in self.segments)

    @property
    def active_segment(self) -> Segment:
        return self._active

    @property
    def has_pending(self) -> bool:
        """Whether prepared appends are still to be finished."""
        return bool(self._outstanding)

    def close(self, now_ms: int) -> None:
        """Everything to disk, with a snapshot of the producers at the log's end."""
        if self.closed:
            return
        self.flush(now_ms)
        active, synced = self._active, []
        if active.is_growing:
            active.write_indexes(closing=True)
            synced += [active.path(OFFSET_INDEX), active.path(TIME_INDEX)]
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
        for segment in self.segments:
            segment.close()
