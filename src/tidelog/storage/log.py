"""The log of one partition: batches appended at its end, read from any offset, dropped from its start.

Every append has three steps, so that its bytes can be written off the loop: `prepare` assigns offsets and a
place in the file, `PendingAppend.write` writes, and `finish` makes the batch part of the log, or `abandon`
takes it back. Appends finish in the order in which they were prepared. All but `PendingAppend.write` and
`FlushJob.run` belongs to the thread that owns the log.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence

from tidelog.errors import CorruptMessage, KafkaError, KafkaStorageError, OffsetOutOfRange
from tidelog.records.batch import (
    CONTROL_FLAG,
    TRANSACTIONAL_FLAG,
    BatchHeader,
    EndTransactionMarker,
    crc_is_valid,
    iter_batches,
    patch_header,
    read_header,
    read_marker,
)
from tidelog.records.check import CheckedBatch, check_produced
from tidelog.records.loops import lay_out
from tidelog.storage.append import (
    AppendOrigin,
    AppendResult,
    DuplicateBatch,
    PendingAppend,
    ReadResult,
    write_together,
)
from tidelog.storage.closing import ClosingLog
from tidelog.storage.config import LogConfig
from tidelog.storage.disk import Disk
from tidelog.storage.files import FileCache
from tidelog.storage.lookup import TimestampAndOffset, first_at_or_after, greatest
from tidelog.storage.producer_state import BatchMetadata, CompletedTransaction, Verification
from tidelog.storage.reads import WAITING, Reads
from tidelog.storage.recovery import load_log
from tidelog.storage.segment import CHECK_NEXT, LOG, Segment
from tidelog.storage.slices import FileSlice
from tidelog.storage.txnindex import AbortedTransaction

logger = logging.getLogger("tidelog.storage")

NO_TIMESTAMP = -1


class Log(ClosingLog):
    __slots__ = ()

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
        job = log.begin_flush() if loaded.has_gap else None
        if job is not None:
            # Another crash, when the log is no longer compacted, must not take what comes from now on.
            job.run()
            log.end_flush(job, now_ms)
        return log

    # -- append

    def prepare(
        self,
        batch: CheckedBatch,
        leader_epoch: int,
        now_ms: int,
        *,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        guard: Verification | None = None,
        transaction_version: int = 0,
        base_offset: int | None = None,
    ) -> PendingAppend | DuplicateBatch:
        """Assign offsets and a place in the file. Answer a duplicate once the log end offset is past it.

        `guard` is what a transaction that begins here was verified with, `transaction_version` that of the
        transaction that a marker ends, `base_offset` that of a batch which a leader has stored.
        """
        data, size, attributes, last_offset_delta, max_timestamp, producer_id, _, _ = batch
        entry = marker = None
        if producer_id >= 0:
            producers = self.producers
            entry = producers.entries.get(producer_id)
            if (
                entry is None
                or origin is not AppendOrigin.CLIENT
                or not entry.awaits(batch)
                or producer_id in producers.verifications
            ):
                entry = None  # nothing of what follows goes without saying
                known, marker = self._check_producer(batch, origin, guard, transaction_version)
                if known is not None:
                    needs_flush = known.last_offset + 1 - self.recovery_point >= self.flush_messages
                    return DuplicateBatch(known, self.log_start_offset, needs_flush)
        if base_offset is None:
            base_offset = self._next_offset
        last_offset = base_offset + last_offset_delta
        segment = self._active
        try:
            if (
                segment.write_position + size > self._segment_bytes
                or max_timestamp > segment.roll_timestamp
                or last_offset > segment.max_offset
            ):
                segment = self._segment_for(size, max_timestamp, base_offset, last_offset, now_ms)
            pending = PendingAppend(batch, base_offset, last_offset, leader_epoch, segment, marker)
        except OSError as error:  # its file was closed to spare a descriptor, and now there is none
            raise self._storage_error(f"{self.dir} cannot be appended to", error) from error
        # Sequences go on from here at once: the next batch may be prepared before this one is written.
        if entry is not None:
            pending.undo = entry.append(batch, last_offset)
        elif producer_id >= 0 and not attributes & CONTROL_FLAG:
            pending.undo = self.producers.append(batch, base_offset, last_offset)
        if origin is not AppendOrigin.REPLICATION:
            patch_header(data, 0, base_offset, leader_epoch)
        segment.write_position += size
        self._next_offset = last_offset + 1
        self._outstanding.append(pending)
        return pending

    def finish(self, pending: PendingAppend, now_ms: int) -> AppendResult:
        """The bytes are in the file: the batch becomes part of the log, which now ends behind it.

        Nothing here opens or writes a file: there is nothing that may fail once the log end has moved.
        """
        outstanding = self._outstanding
        base_offset = pending.base_offset
        if pending.cancelled or outstanding[0] is not pending:
            raise KafkaStorageError(
                f"{self.topic}-{self.partition}: the append at offset {base_offset} was given up, "
                f"or finishes before the one at {self.log_end_offset}"
            )
        outstanding.popleft()
        segment, position, last_offset = pending.segment, pending.position, pending.last_offset
        _, size, _, _, max_timestamp, _, _, _ = pending.batch
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
        if pending.leader_epoch > self.leader_epochs.latest:
            self.leader_epochs.assign(pending.leader_epoch, base_offset)
        self.log_end_offset = next_offset = last_offset + 1
        if pending.marker is not None:
            self._end_transaction(pending, pending.marker)
        if segment is not self._active and segment.size == segment.write_position:
            following = self.segments.next_base(self.segments.find(segment.base_offset))
            assert following is not None
            self._completed(segment, following)
        return tuple.__new__(  # two thirds of the time that the constructor takes
            AppendResult,
            (
                base_offset,
                last_offset,
                max_timestamp if self._log_append_time else NO_TIMESTAMP,
                self.log_start_offset,
                next_offset - self.recovery_point >= self.flush_messages,
            ),
        )

    def _grow(
        self,
        segment: Segment,
        end: int,
        since_index: int,
        base_offset: int,
        last_offset: int,
        position: int,
        max_timestamp: int,
        offset_of_max_timestamp: int,
        index_due: bool,
    ) -> None:
        """A segment grew to `end`. Its last batch has these offsets and begins at `position`.

        That batch gets an index entry where one is due. `since_index` bytes count for the next entry.
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

    def append_together(
        self,
        batches: list[CheckedBatch],
        data: bytearray,
        leader_epoch: int,
        now_ms: int,
    ) -> list[int | DuplicateBatch | KafkaError]:
        """Append clients' batches that lie one behind the other in `data`, with as few writes as possible.

        Gives the base offset of each, or what there is to say instead. Once a write has failed, the batches
        after it fail with it.
        """
        assert not self._outstanding
        outcomes: list[int | DuplicateBatch | KafkaError] = []
        at = 0
        while (first := len(outcomes)) < len(batches):
            try:
                offsets, size = self._append_run(batches, first, data, at, leader_epoch)
            except KafkaStorageError as error:
                outcomes += [error] * (len(batches) - first)
                break
            outcomes += offsets
            at += size
            if not offsets:  # it begins a segment, its producer is new, or it is out of sequence
                size = batches[first].size
                batch = batches[first]._replace(data=memoryview(data)[at : at + size])
                at += size
                try:
                    outcomes.append(self._append_one(batch, leader_epoch, now_ms))
                except KafkaStorageError as error:
                    outcomes += [error] * (len(batches) - first)
                    break
        return outcomes

    def _append_run(
        self, batches: list[CheckedBatch], first: int, data: bytearray, at: int, leader_epoch: int
    ) -> tuple[Sequence[int], int]:
        """Append what follows each other without anything out of the ordinary: its offsets, and its size."""
        segment, producers, base_offset = self._active, self.producers, self._next_offset
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
            file = segment.file
            try:
                file.pwrite(memoryview(data)[at : at + size], position)
            except OSError:
                self._cut_back(segment, file, position)
                raise
        except OSError as error:
            for producer_id, before in reversed(undo):
                producers.restore(producer_id, before)
            raise self._storage_error(f"{segment.path(LOG)} cannot be written", error) from error
        segment.write_position = end = position + size
        self._next_offset = next_offset
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
        if leader_epoch > self.leader_epochs.latest:
            self.leader_epochs.assign(leader_epoch, base_offset)
        self.log_end_offset = next_offset
        return offsets, size

    def _append_one(
        self, batch: CheckedBatch, leader_epoch: int, now_ms: int
    ) -> int | DuplicateBatch | KafkaError:
        """Append one batch, whatever may be out of the ordinary; KafkaStorageError where the disk refuses."""
        try:
            prepared = self.prepare(batch, leader_epoch, now_ms)
        except KafkaStorageError:
            raise
        except KafkaError as error:
            return error
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
        """Check, write and finish one batch in one go."""
        checked = check_produced(memoryview(batch), self.rules(origin), now_ms)
        pending = self.prepare(checked, leader_epoch, now_ms, origin=origin)
        return pending.result if isinstance(pending, DuplicateBatch) else self.write(pending, now_ms)

    def append_as_follower(self, data: bytes | bytearray | memoryview, *, now_ms: int) -> AppendResult | None:
        """Whole batches as the leader stored them, offsets and epochs included; None when there are none."""
        view = memoryview(data)
        pending: list[PendingAppend] = []
        try:
            for position, header in iter_batches(view):
                pending.append(self._prepare_copy(view, position, header, now_ms))
        except KafkaError:
            if pending:
                self.abandon(pending[0])
            raise
        if not pending:
            return None
        results = self.write_all(pending, now_ms)
        return results[-1]._replace(base_offset=results[0].base_offset)

    def _prepare_copy(
        self, data: memoryview, position: int, header: BatchHeader, now_ms: int
    ) -> PendingAppend:
        name, base_offset = f"{self.topic}-{self.partition}", header.base_offset
        if not crc_is_valid(data, position, header):
            raise CorruptMessage(f"{name}: bad CRC at offset {base_offset}")
        if base_offset < self._next_offset:
            raise CorruptMessage(
                f"{name}: the leader's batch at offset {base_offset} is not behind the log end offset "
                f"{self._next_offset}"
            )
        pending = self.prepare(
            CheckedBatch.of(data[position : position + header.total_size]),
            header.partition_leader_epoch,
            now_ms,
            origin=AppendOrigin.REPLICATION,
            base_offset=base_offset,
        )
        assert isinstance(pending, PendingAppend)  # only clients' batches can be duplicates
        return pending

    def write(self, pending: PendingAppend, now_ms: int) -> AppendResult:
        """Write an append and finish it; KafkaStorageError where it is given up instead."""
        try:
            pending.file.pwrite(pending.data, pending.position)
        except OSError as error:
            raise self.abandon(pending, error) from error
        return self.finish(pending, now_ms)

    def write_all(self, pending: Sequence[PendingAppend], now_ms: int) -> list[AppendResult]:
        """The same for consecutive appends, which succeed or fail together."""
        try:
            write_together(pending)
        except OSError as error:
            raise self.abandon(pending[0], error) from error
        return [self.finish(append, now_ms) for append in pending]

    # -- producers

    def _check_producer(
        self,
        batch: CheckedBatch,
        origin: AppendOrigin,
        guard: Verification | None = None,
        transaction_version: int = 0,
    ) -> tuple[BatchMetadata | None, EndTransactionMarker | None]:
        """Refuse what does not follow from the producer's past; the twin it has, or the marker it holds."""
        producers, producer_id, epoch = self.producers, batch.producer_id, batch.producer_epoch
        if batch.attributes & CONTROL_FLAG:
            marker = read_marker(batch.data, 0, read_header(batch.data))
            if marker is not None:
                producers.check_marker(
                    producer_id, epoch, marker.coordinator_epoch, origin, transaction_version
                )
            return None, marker
        if origin is AppendOrigin.CLIENT:
            known = producers.find_duplicate(batch)
            if known is not None:
                return known, None
        transactional = batch.attributes & TRANSACTIONAL_FLAG != 0
        if (
            transactional
            and origin is not AppendOrigin.REPLICATION
            and not producers.has_ongoing(producer_id, epoch)
        ):
            producers.check_epoch(producer_id, epoch)
            if self.config.transaction_verification_enable:
                if origin is AppendOrigin.COORDINATOR:
                    guard = producers.verifications.get(producer_id)  # what it verified is gone with a marker
                producers.check_verified(producer_id, epoch, guard)
        producers.check(producer_id, epoch, batch.base_sequence, origin)
        producers.check_transactional(producer_id, transactional)
        return None, None

    def _end_transaction(self, pending: PendingAppend, marker: EndTransactionMarker) -> None:
        batch, producers = pending.batch, self.producers
        if producers.verifications:
            producers.end_verification(batch.producer_id, batch.producer_epoch)
        completed = producers.append_marker(
            batch.producer_id,
            batch.producer_epoch,
            marker.coordinator_epoch,
            not marker.commit,
            pending.last_offset,
            batch.max_timestamp,
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
        bound = log_end_offset if max_offset is None or max_offset > log_end_offset else max_offset
        if offset >= bound:
            return ReadResult(offset)
        segment = self._active
        if offset >= segment.base_offset:
            found = segment.position_of(offset, reads)
        else:
            segment, found = self._find_in_older(offset, reads)
        if found is None:
            return ReadResult(offset)
        position, first_size, _ = found
        end = segment.size if bound == log_end_offset else self._end_position(segment, bound, reads)
        if max_bytes < first_size:
            if not min_one_message:
                return ReadResult(offset)
            max_bytes = first_size
        size = min(end - position, max_bytes)
        if size <= 0:
            return ReadResult(offset)
        return ReadResult(offset, FileSlice(segment.file, position, size), segment)

    def _find_in_older(self, offset: int, reads: Reads) -> tuple[Segment, tuple[int, int, int] | None]:
        """Cleaning may have emptied the end of a segment: then the batch is in a later one."""
        segments = self.segments
        for at in range(segments.find(offset), len(segments)):
            segment = segments[at]
            found = segment.position_of(offset, reads)
            if found is not None:
                return segment, found
        return self._active, None

    def _end_position(self, segment: Segment, bound: int, reads: Reads) -> int:
        """Where in a segment the batches end that lie below `bound`."""
        if segment is not self._active:
            following = self.segments.next_base(self.segments.find(segment.base_offset))
            if following is not None and following <= bound:
                return segment.size
        if bound <= segment.base_offset:
            return 0
        found = segment.position_of(bound, reads)
        return segment.size if found is None else found[0]

    def upper_bound(self, result: ReadResult, reads: Reads = WAITING) -> int:
        """An offset that nothing of what was read reaches, as near as the index knows."""
        segment, piece = result.segment, result.slice
        if segment is None or piece is None:
            return result.offset
        relative = segment.offset_index(reads).offset_after(piece.position + piece.size, reads)
        if relative is not None:
            return segment.base_offset + relative
        following = self.segments.next_base(self.segments.find(segment.base_offset))
        return self.log_end_offset if following is None else following

    def aborted_transactions(
        self, start: int, end_offset: int, reads: Reads = WAITING
    ) -> list[AbortedTransaction]:
        """Transactions that were aborted and touch the offsets from `start` up to `end_offset`."""
        result: list[AbortedTransaction] = []
        for segment in self.segments.starting_from(start):
            if not segment.has_aborted:
                continue
            for transaction in segment.aborted(reads):
                if transaction.last_offset >= start and transaction.first_offset < end_offset:
                    result.append(transaction)
                if transaction.last_stable_offset >= end_offset:
                    return result
        return result

    # -- lookup by time

    def offset_for_timestamp(
        self, timestamp: int, max_offset: int | None = None, reads: Reads = WAITING
    ) -> TimestampAndOffset | None:
        """The first record at or after a time, below `max_offset` (the reader's isolation level)."""
        end = self.log_end_offset if max_offset is None else min(max_offset, self.log_end_offset)
        return first_at_or_after(self.segments, timestamp, self.log_start_offset, end, reads)

    def max_timestamp(self, reads: Reads = WAITING) -> TimestampAndOffset | None:
        return greatest(self.segments, self.log_start_offset, self.log_end_offset, reads)
