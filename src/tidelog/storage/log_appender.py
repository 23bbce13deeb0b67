"""LogAppender: appends batches to a log in three steps, so that the bytes can be written off the loop.

`prepare` assigns offsets and a file position, `PendingAppend.write` writes, and `finish` makes the batch part
of the log; after a failed write, `abandon` undoes the append. Appends finish in the order in which they were
prepared. Everything but `PendingAppend.write` belongs to the thread that owns the log.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence

from tidelog.errors import KafkaError, KafkaStorageError, RecordListTooLarge
from tidelog.records.batch import CONTROL_FLAG, Buffer, WritableBuffer, patch_header
from tidelog.records.check import CheckedBatch, ProduceRules, check_produced
from tidelog.records.loops import lay_out
from tidelog.storage.append import (
    AppendOrigin,
    AppendResult,
    DuplicateBatch,
    PendingAppend,
    UnreadBatch,
    write_together,
)
from tidelog.storage.config import LogConfig
from tidelog.storage.disk import DiskFile
from tidelog.storage.leader_epoch_file_cache import LeaderEpochFileCache
from tidelog.storage.local_log import LocalLog
from tidelog.storage.log_flusher import LogFlusher
from tidelog.storage.log_listener import LogListeners
from tidelog.storage.log_segment import CHECK_NEXT, LOG, LogSegment
from tidelog.storage.produce_rules import produce_rules
from tidelog.storage.producer_history import earlier_batches
from tidelog.storage.producer_state_manager import ProducerStateManager, Verification
from tidelog.storage.reads import CACHED, WAITING, NotCached, Reads
from tidelog.storage.refused_batches import Sequences

logger = logging.getLogger("tidelog.storage")

NO_TIMESTAMP = -1

TurnOutcome = int | DuplicateBatch | UnreadBatch | KafkaError
"""The base offset of a batch; or its duplicate, its error, or that the disk has to be read first."""


class LogAppender:
    __slots__ = (
        "_epochs",
        "_flush_messages",
        "_flusher",
        "_index_interval",
        "_listeners",
        "_local",
        "_log_append_time",
        "_name",
        "_outstanding",
        "_producers",
        "_segment_bytes",
        "_segments",
        "next_offset",
        "rules",
    )

    def __init__(
        self,
        name: str,
        local: LocalLog,
        flusher: LogFlusher,
        producers: ProducerStateManager,
        epochs: LeaderEpochFileCache,
        listeners: LogListeners,
    ) -> None:
        self._name = name
        self._local = local
        self._segments = local.segments
        self._flusher = flusher
        self._producers = producers
        self._epochs = epochs
        self._listeners = listeners
        self.next_offset = local.log_end_offset  # behind the last append that was prepared
        self._outstanding: deque[PendingAppend] = deque()  # prepared, not finished
        self.update_config(local.config)

    def update_config(self, config: LogConfig) -> None:
        self._segment_bytes = config.segment_bytes
        self._index_interval = config.index_interval_bytes
        self._log_append_time = config.log_append_time
        self._flush_messages = config.flush_messages
        self.rules = produce_rules(config)
        self._segments.active.roll_timestamp = CHECK_NEXT

    def rules_for(self, origin: AppendOrigin) -> ProduceRules:
        if origin is AppendOrigin.CLIENT:
            return self.rules
        return produce_rules(self._local.config, from_client=False)

    @property
    def first_pending(self) -> PendingAppend | None:
        """The oldest append that was prepared and is not finished."""
        return self._outstanding[0] if self._outstanding else None

    # -- one batch

    def prepare(
        self,
        batch: CheckedBatch,
        leader_epoch: int,
        now_ms: int,
        *,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        guard: Verification | None = None,
        transaction_version: int = 0,
        reads: Reads = CACHED,
    ) -> PendingAppend | DuplicateBatch:
        """Assign offsets and a file position to a batch; a duplicate gets the result of the original.

        `guard` is the verification of a transaction that begins with this batch, `transaction_version` the
        version of the transaction that a marker ends. Raises NotCached if the check for a duplicate needs the
        disk.
        """
        data, size, attributes, last_offset_delta, max_timestamp, producer_id, _, _ = batch
        entry = marker = None
        if producer_id >= 0:
            producers = self._producers
            entry = producers.entries.get(producer_id)
            if (
                entry is None
                or origin is not AppendOrigin.CLIENT
                or not entry.awaits(batch)
                or producer_id in producers.verifications
            ):
                entry = None  # every check below is needed
                if origin is AppendOrigin.CLIENT and producers.may_have_forgotten(batch):
                    self._search_producer(producer_id, reads)
                known, marker = producers.admit(
                    batch,
                    origin,
                    guard,
                    transaction_version,
                    verify=self._local.config.transaction_verification_enable,
                )
                if known is not None:
                    needs_flush = known.last_offset + 1 - self._flusher.recovery_point >= self._flush_messages
                    return DuplicateBatch(known, self._local.log_start_offset, needs_flush)
        base_offset = self.next_offset
        last_offset = base_offset + last_offset_delta
        segment = self._segments.active
        try:
            if not self._has_room(segment, size, max_timestamp, last_offset):
                segment = self._segment_for(size, max_timestamp, base_offset, last_offset, now_ms)
            pending = PendingAppend(batch, base_offset, last_offset, leader_epoch, segment, marker)
        except OSError as error:  # its file was closed to spare a descriptor, and now there is none
            refused = self._listeners.storage_error(f"{self._local.dir} cannot be appended to", error)
            self._refuse(batch, refused)
            raise refused from error
        except KafkaStorageError as error:
            self._refuse(batch, error)
            raise
        # Sequences go on from here at once: the next batch may be prepared before this one is written.
        if entry is not None:
            pending.undo = entry.append(batch, last_offset)
        elif producer_id >= 0 and not attributes & CONTROL_FLAG:
            pending.undo = self._producers.append(batch, base_offset, last_offset)
        patch_header(data, 0, base_offset, leader_epoch)
        segment.write_position += size
        self.next_offset = last_offset + 1
        self._outstanding.append(pending)
        return pending

    def _search_producer(self, producer_id: int, reads: Reads) -> None:
        """Search the log for the last five batches of a producer; a snapshot has only the last one."""
        producers = self._producers
        try:
            earlier = earlier_batches(self._segments, producers.entries[producer_id], reads)
        except OSError as error:
            # No OSError as its cause: this batch fails alone, and the others may be appended.
            reason = f"{self._name}: the batches of producer {producer_id} cannot be read: {error}"
            raise KafkaStorageError(reason) from None
        producers.remember(producer_id, earlier)

    def finish(self, pending: PendingAppend, now_ms: int) -> AppendResult:
        """Make a written batch part of the log: the log end offset moves behind it.

        Nothing in here opens or writes a file, so nothing can fail after the log end has moved.
        """
        outstanding = self._outstanding
        base_offset = pending.base_offset
        if pending.cancelled or outstanding[0] is not pending:
            raise KafkaStorageError(
                f"{self._name}: the append at offset {base_offset} was given up, "
                f"or finishes before the one at {self._local.log_end_offset}"
            )
        outstanding.popleft()
        segment, position, last_offset = pending.segment, pending.position, pending.last_offset
        batch = pending.batch
        size, max_timestamp = batch.size, batch.max_timestamp
        index_due = segment.bytes_since_index > self._index_interval
        self._grow(
            segment,
            position + size,
            size,
            base_offset,
            last_offset,
            position,
            max_timestamp,
            last_offset,
            index_due,
        )
        if position == 0:
            segment.first_timestamp = max_timestamp
            segment.roll_timestamp = CHECK_NEXT
        if pending.leader_epoch > self._epochs.latest:
            self._epochs.assign(pending.leader_epoch, base_offset)
        self._local.log_end_offset = last_offset + 1
        if pending.marker is not None:
            aborted = self._producers.end_transaction(
                batch.producer_id, batch.producer_epoch, pending.marker, last_offset, max_timestamp
            )
            if aborted is not None:
                segment.add_aborted(aborted)
        if segment is not self._segments.active and segment.size == segment.write_position:
            following = self._segments.base_after(segment)
            assert following is not None
            self._completed(segment, following)
        return self.result_of(base_offset, last_offset, max_timestamp)

    def result_of(self, base_offset: int, last_offset: int, max_timestamp: int) -> AppendResult:
        """The result of a batch that is part of the log now."""
        return tuple.__new__(  # two thirds of the time that the constructor takes
            AppendResult,
            (
                base_offset,
                last_offset,
                max_timestamp if self._log_append_time else NO_TIMESTAMP,
                self._local.log_start_offset,
                last_offset + 1 - self._flusher.recovery_point >= self._flush_messages,
            ),
        )

    def write(self, pending: PendingAppend, now_ms: int) -> AppendResult:
        """Write an append and finish it. If the write fails, abandon it and raise KafkaStorageError."""
        try:
            pending.file.pwrite(pending.data, pending.position)
        except OSError as error:
            raise self.abandon(pending, error) from error
        return self.finish(pending, now_ms)

    def write_all(self, pending: Sequence[PendingAppend], now_ms: int) -> list[AppendResult]:
        """Write and finish consecutive appends, which succeed or fail together."""
        try:
            write_together(pending)
        except OSError as error:
            raise self.abandon(pending[0], error) from error
        return [self.finish(append, now_ms) for append in pending]

    def _grow(
        self,
        segment: LogSegment,
        end: int,
        since_index: int,
        base_offset: int,
        last_offset: int,
        position: int,
        max_timestamp: int,
        offset_of_max_timestamp: int,
        index_due: bool,
    ) -> None:
        """Note that a segment grew to `end`. Its last batch has these offsets and begins at `position`.

        With `index_due`, this batch gets an index entry. `since_index` bytes count for the next entry.
        """
        if max_timestamp > segment.max_timestamp:
            segment.max_timestamp = max_timestamp
            segment.offset_of_max_timestamp = offset_of_max_timestamp
        if index_due:
            segment.add_index_entry(last_offset, position)
        segment.bytes_since_index += since_index
        segment.size = end
        segment.last_batch_offset = base_offset
        segment.last_batch_position = position

    def abandon(self, pending: PendingAppend, error: BaseException | None = None) -> KafkaStorageError:
        """Undo an append whose write failed, and truncate the file; returns the error to answer.

        The appends that were prepared after this one fail with it.
        """
        failure = KafkaStorageError(f"{pending.file.path} cannot be written: {error or 'append given up'}")
        failure.__cause__ = error
        if pending.cancelled:
            return failure
        outstanding, abandoned = self._outstanding, []
        while not pending.cancelled:
            last = outstanding.pop()
            last.cancelled = True
            abandoned.append(last.batch)
            if last.undo is not None:
                self._producers.restore(last.batch.producer_id, last.undo)
        for batch in reversed(abandoned):
            self._refuse(batch, failure)
        while self._segments.active is not pending.segment:
            try:
                self._local.take_back_roll()
            except OSError as not_removed:
                self._listeners.storage_failed(not_removed)
        self.next_offset = outstanding[-1].last_offset + 1 if outstanding else self._local.log_end_offset
        self._cut_back(pending.segment, pending.file, pending.position)
        if isinstance(error, OSError):
            self._listeners.storage_failed(error)
        return failure

    def _refuse(self, batch: CheckedBatch, error: KafkaStorageError) -> None:
        """Refuse the batches in flight behind this one with the same error."""
        if batch.producer_id >= 0 and not batch.attributes & CONTROL_FLAG:
            self._producers.refuse(Sequences.of(batch), error)

    def _cut_back(self, segment: LogSegment, file: DiskFile, position: int) -> None:
        """Truncate a segment to the position where the failed write began."""
        segment.write_position = position
        segment.has_loose_tail = True
        try:
            file.truncate(position)
        except OSError:
            logger.warning("%s has bytes behind its end that could not be cut off", file.path)

    # -- one batch in one step

    def put(
        self, data: WritableBuffer, size: int, last_offset_delta: int, max_timestamp: int, leader_epoch: int
    ) -> int:
        """Append a batch, with the three steps in one; returns its base offset.

        Returns -1 and changes nothing if the batch may begin a segment, or if an append is under way. The
        caller has checked the batch, and updates the state of its producer.
        """
        segment, base_offset = self._segments.active, self.next_offset
        position, last_offset = segment.write_position, base_offset + last_offset_delta
        if (
            self._outstanding
            or position == 0
            or not self._has_room(segment, size, max_timestamp, last_offset)
        ):
            return -1
        patch_header(data, 0, base_offset, leader_epoch)
        try:
            self._write_at(segment, position, data)
        except OSError as error:
            raise self._not_written(segment, error) from error
        segment.write_position = end = position + size
        self.next_offset = last_offset + 1
        self._grow(
            segment,
            end,
            size,
            base_offset,
            last_offset,
            position,
            max_timestamp,
            last_offset,
            segment.bytes_since_index > self._index_interval,
        )
        if leader_epoch > self._epochs.latest:
            self._epochs.assign(leader_epoch, base_offset)
        self._local.log_end_offset = last_offset + 1
        return base_offset

    def _write_at(self, segment: LogSegment, position: int, data: Buffer) -> None:
        """Write at the end of a segment. If the write fails, the segment keeps its end."""
        file = segment.file
        try:
            file.pwrite(data, position)
        except OSError:
            self._cut_back(segment, file, position)
            raise

    def _not_written(self, segment: LogSegment, error: OSError) -> KafkaStorageError:
        return self._listeners.storage_error(f"{segment.path(LOG)} cannot be written", error)

    # -- several batches

    def append_together(
        self,
        batches: list[CheckedBatch],
        data: bytearray,
        leader_epoch: int,
        now_ms: int,
    ) -> list[TurnOutcome]:
        """Append clients' batches, which follow each other in `data`, with as few writes as possible.

        Returns the base offset of each batch, or its duplicate or error. When a write fails, all later
        batches fail with it.
        """
        assert not self._outstanding
        outcomes: list[TurnOutcome] = []
        at = 0
        while (first := len(outcomes)) < len(batches):
            try:
                offsets, size = self._append_run(batches, first, data, at, leader_epoch)
            except KafkaStorageError as error:
                outcomes += self._refuse_all(batches[first:], error)
                break
            outcomes += offsets
            at += size
            if not offsets:  # the batch begins a segment, its producer is new, or it is out of sequence
                batch = _joined(batches[first], data, at)
                try:
                    outcomes.append(self._append_one(batch, leader_epoch, now_ms))
                except NotCached:
                    for batch in batches[first:]:
                        outcomes.append(UnreadBatch(_joined(batch, data, at)))
                        at += batch.size
                    break
                except KafkaStorageError as error:
                    outcomes += self._refuse_all(batches[first:], error)
                    break
                at += batch.size
        return outcomes

    def _refuse_all(self, batches: list[CheckedBatch], error: KafkaStorageError) -> list[KafkaStorageError]:
        for batch in batches:
            self._refuse(batch, error)
        return [error] * len(batches)

    def _append_run(
        self, batches: list[CheckedBatch], first: int, data: bytearray, at: int, leader_epoch: int
    ) -> tuple[Sequence[int], int]:
        """Append the usual batches from `first` on, up to one that needs `_append_one`; returns offsets and
        size.
        """
        segment, producers, base_offset = self._segments.active, self._producers, self.next_offset
        position = segment.write_position
        if position == 0:
            return (), 0
        since_index, interval = segment.bytes_since_index, self._index_interval
        offsets, undo, size, next_offset, last_position, greatest, offset_of_greatest, index_due = lay_out(
            data,
            at,
            batches,
            first,
            len(batches),
            base_offset,
            leader_epoch,
            (
                position,
                self._segment_bytes,
                segment.roll_timestamp,
                segment.max_offset,
                since_index,
                interval,
            ),
            producers.entries,
            producers.verifications,
        )
        if not offsets:
            return (), 0
        try:
            self._write_at(segment, position, memoryview(data)[at : at + size])
        except OSError as error:
            for producer_id, before in reversed(undo):
                producers.restore(producer_id, before)
            raise self._not_written(segment, error) from error
        segment.write_position = end = position + size
        self.next_offset = next_offset
        self._grow(
            segment,
            end,
            end - last_position if index_due else size,
            offsets[-1],
            next_offset - 1,
            last_position,
            greatest,
            offset_of_greatest,
            index_due,
        )
        if leader_epoch > self._epochs.latest:
            self._epochs.assign(leader_epoch, base_offset)
        self._local.log_end_offset = next_offset
        return offsets, size

    def _append_one(self, batch: CheckedBatch, leader_epoch: int, now_ms: int) -> TurnOutcome:
        """Append one batch with all checks. Raises KafkaStorageError if the write fails."""
        try:
            prepared = self.prepare(batch, leader_epoch, now_ms)
        except KafkaError as error:
            if isinstance(error.__cause__, OSError):
                raise
            return error  # this batch fails alone; the cause may also be a refused batch before it
        if isinstance(prepared, DuplicateBatch):
            return prepared
        return self.write(prepared, now_ms).base_offset

    def append_as_leader(
        self,
        batch: bytes | bytearray | memoryview,
        *,
        leader_epoch: int,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        now_ms: int,
    ) -> AppendResult:
        """Check, prepare, write and finish one batch."""
        checked = check_produced(memoryview(batch), self.rules_for(origin), now_ms)
        pending = self.prepare(checked, leader_epoch, now_ms, origin=origin, reads=WAITING)
        return pending.result if isinstance(pending, DuplicateBatch) else self.write(pending, now_ms)

    # -- a run of batches that a follower copies

    def take_on(self, pending: PendingAppend) -> None:
        """Add a run that is about to be written: later appends get offsets behind it."""
        pending.segment.write_position += pending.batch.size
        self.next_offset = pending.last_offset + 1
        self._outstanding.append(pending)

    def let_go(self, pending: PendingAppend) -> None:
        """Remove a run that has been written. Raises KafkaStorageError if it was abandoned meanwhile."""
        outstanding = self._outstanding
        if pending.cancelled or outstanding[0] is not pending:
            raise KafkaStorageError(f"{self._name}: the append at offset {pending.base_offset} was given up")
        outstanding.popleft()

    # -- segments

    def _has_room(self, segment: LogSegment, size: int, max_timestamp: int, last_offset: int) -> bool:
        """Whether a batch fits into the active segment for certain. If not, `segment_for` decides."""
        return (
            segment.write_position + size <= self._segment_bytes
            and max_timestamp <= segment.roll_timestamp
            and last_offset <= segment.max_offset
        )

    def _segment_for(
        self, size: int, max_timestamp: int, base_offset: int, last_offset: int, now_ms: int
    ) -> LogSegment:
        """`segment_for`, for a batch that has to fit into a segment."""
        if size > self._segment_bytes:
            raise RecordListTooLarge(
                f"a batch of {size} bytes does not fit into a segment of segment.bytes={self._segment_bytes}"
            )
        return self.segment_for(size, max_timestamp, base_offset, last_offset, now_ms)

    def segment_for(
        self, size: int, max_timestamp: int, base_offset: int, last_offset: int, now_ms: int
    ) -> LogSegment:
        """The active segment, or a new one if the batch has to begin one (LogSegment.must_roll)."""
        segment = self._segments.active
        with self._listeners.disk_errors(f"{segment.path(LOG)} cannot grow"):
            must_roll = segment.must_roll(size, max_timestamp, last_offset, now_ms, self._local.config)
        return self._roll_to(base_offset, now_ms) if must_roll else segment

    def roll(self, now_ms: int) -> LogSegment:
        """Begin a new segment at the log end, unless the active one is empty."""
        active = self._segments.active
        if active.write_position == 0 and active.base_offset == self.next_offset:
            return active
        return self._roll_to(self.next_offset, now_ms)

    def _roll_to(self, base_offset: int, now_ms: int) -> LogSegment:
        old = self._segments.active
        if old.base_offset == base_offset:
            return old
        with self._listeners.disk_errors(f"{self._local.dir}: no new segment at offset {base_offset}"):
            new = self._local.roll_to(base_offset, self._producers_at_roll(), now_ms)
        if old.size == old.write_position:
            self._completed(old, base_offset)
        return new

    def _producers_at_roll(self) -> bytes:
        """A snapshot of the producers at the end of the segment, with the markers that are being written."""
        markers = [(append.batch, append.marker) for append in self._outstanding if append.marker is not None]
        return self._producers.encode_snapshot(markers)

    def _completed(self, segment: LogSegment, next_base: int) -> None:
        """Note that the last append to a segment has finished. A flush will write its indexes."""
        segment.complete()
        self._flusher.completed(next_base)
        self._listeners.segment_rolled()


def _joined(batch: CheckedBatch, data: bytearray, at: int) -> CheckedBatch:
    """A batch with its bytes from the joined data of a turn."""
    return batch._replace(data=memoryview(data)[at : at + batch.size])
