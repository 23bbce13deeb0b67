"""FollowerAppender: appends batches as the leader stored them, with their offsets and leader epochs.

`check` reads the headers of all fetched batches. `prepare` takes a run of them: those that fit into the
active segment, for one write. Any thread checks the CRCs and writes (`PendingCopy.write`), and `finish` makes
the run part of the log. The next run goes into the next segment.
"""

from __future__ import annotations

from array import array

from tidelog.clock import Clock
from tidelog.errors import CorruptMessage
from tidelog.records.batch import CONTROL_FLAG, TRANSACTIONAL_FLAG, read_header, read_marker
from tidelog.records.check import CheckedBatch
from tidelog.records.loops import COPIED_FIELDS, copied_batches, copied_run, first_bad_crc, note_copied
from tidelog.records.status import BAD_OFFSET_RANGE, OK
from tidelog.storage.append import AppendResult, PendingAppend
from tidelog.storage.leader_epoch_file_cache import LeaderEpochFileCache
from tidelog.storage.local_log import LocalLog
from tidelog.storage.log_appender import LogAppender
from tidelog.storage.log_listener import LogListeners
from tidelog.storage.log_segment import CHECK_NEXT, NEVER, LogSegment
from tidelog.storage.producer_state_manager import ProducerStateManager

_PRODUCER_ID = 6  # a column
_NO_PRODUCER_ID = -1


class OffsetsOutOfOrder(ValueError):
    """The offsets of fetched batches do not rise."""


class UnexpectedAppendOffset(ValueError):
    """The first fetched batch begins below the log end offset."""

    def __init__(self, message: str, first_offset: int, last_offset: int) -> None:
        super().__init__(message)
        self.first_offset = first_offset
        self.last_offset = last_offset


class FetchedRecords:
    """The whole batches that a fetch returned for one partition, and the fields of their headers."""

    __slots__ = ("columns", "count", "data", "first_offset", "last_epoch", "last_offset", "next", "position")

    def __init__(self, data: memoryview, columns: array[int]) -> None:
        self.data = data
        self.columns = columns
        self.count = len(columns) // COPIED_FIELDS
        self.first_offset = columns[0]
        self.last_offset = columns[-COPIED_FIELDS + 1]
        self.last_epoch = columns[-COPIED_FIELDS + 3]
        self.next = 0  # the index of the first batch that is not appended yet
        self.position = 0  # its position in `data`

    @property
    def is_appended(self) -> bool:
        return self.next == self.count


class PendingCopy(PendingAppend):
    """A run of fetched batches with a position in the segment file, not yet part of the log."""

    __slots__ = ("first", "records", "stop")

    def __init__(self, records: FetchedRecords, stop: int, size: int, segment: LogSegment) -> None:
        columns, self.first = records.columns, records.next
        base_offset = columns[self.first * COPIED_FIELDS]
        last_offset = columns[(stop - 1) * COPIED_FIELDS + 1]
        run = records.data[records.position : records.position + size]
        batch = CheckedBatch(run, size, 0, last_offset - base_offset, -1, _NO_PRODUCER_ID, -1, -1)
        super().__init__(batch, base_offset, last_offset, -1, segment, None)
        self.records = records
        self.stop = stop

    def write(self) -> None:
        """Check the CRCs and write, in any thread.

        With a wrong CRC, raises CorruptMessage and writes nothing.
        """
        bad = first_bad_crc(self.data)
        if bad >= 0:
            offset = read_header(memoryview(self.data)[bad:]).base_offset
            raise CorruptMessage(f"the batch that the leader sent at offset {offset} has a wrong CRC")
        super().write()


class FollowerAppender:
    __slots__ = ("_appender", "_epochs", "_listeners", "_local", "_name", "_producers", "_segments")

    def __init__(
        self,
        name: str,
        local: LocalLog,
        appender: LogAppender,
        producers: ProducerStateManager,
        epochs: LeaderEpochFileCache,
        listeners: LogListeners,
    ) -> None:
        self._name = name
        self._local = local
        self._segments = local.segments
        self._appender = appender
        self._producers = producers
        self._epochs = epochs
        self._listeners = listeners

    def check(self, data: memoryview) -> FetchedRecords | None:
        """The whole batches in `data`, without an incomplete last one; None if there are none.

        Raises CorruptMessage, OffsetsOutOfOrder or UnexpectedAppendOffset. The write checks the CRCs.
        """
        status, columns, size = copied_batches(data)
        if status == BAD_OFFSET_RANGE:
            raise OffsetsOutOfOrder(f"{self._name}: the leader's offsets do not rise at byte {size}")
        if status != OK:
            raise CorruptMessage(f"{self._name}: the bytes from {size} on are no batch of format 2")
        if not columns:
            return None
        records = FetchedRecords(data[:size], columns)
        if records.first_offset < self._appender.next_offset:
            raise UnexpectedAppendOffset(
                f"{self._name}: the leader's first batch has offset {records.first_offset}, below the log "
                f"end offset {self._appender.next_offset}",
                records.first_offset,
                records.last_offset,
            )
        return records

    def prepare(self, records: FetchedRecords, now_ms: int) -> PendingCopy:
        """Reserve file positions for the next run of batches.

        Raises KafkaStorageError if no segment can be created.
        """
        appender, columns, row = self._appender, records.columns, records.next * COPIED_FIELDS
        base_offset, last_offset, size, _, timestamp = columns[row : row + 5]
        segment, segment_bytes = self._segments.active, self._local.config.segment_bytes
        try:
            if (
                segment.write_position + size > segment_bytes
                or timestamp > segment.roll_timestamp
                or last_offset > segment.max_offset
            ):
                segment = appender.segment_for(size, timestamp, base_offset, last_offset, now_ms)
            latest = segment.roll_timestamp
            if latest == CHECK_NEXT:  # the check is done for this run
                latest = NEVER
            limits = (segment.write_position, segment_bytes, latest, segment.max_offset)
            stop, run_bytes = copied_run(columns, records.next, limits)
            assert stop > records.next, "a new segment takes at least one batch"
            pending = PendingCopy(records, stop, run_bytes, segment)
        except OSError as error:  # its file was closed to spare a descriptor, and now there is none
            raise self._listeners.storage_error(f"{self._local.dir} cannot be appended to", error) from error
        appender.take_on(pending)
        return pending

    def finish(self, pending: PendingCopy) -> None:
        """Make a written run part of the log: the log end offset moves behind it."""
        self._appender.let_go(pending)
        records, segment = pending.records, pending.segment
        columns, at, position = records.columns, pending.first, pending.position
        if position == 0:
            segment.first_timestamp = columns[at * COPIED_FIELDS + 4]
            segment.roll_timestamp = CHECK_NEXT
        while True:
            at, position = self._note(segment, columns, at, pending.stop, position)
            if at == pending.stop:
                break
            self._note_transaction(segment, pending, at, position)
            columns[at * COPIED_FIELDS + _PRODUCER_ID] = _NO_PRODUCER_ID  # its producer is up to date
        last = (pending.stop - 1) * COPIED_FIELDS
        segment.size = position
        segment.last_batch_offset = columns[last]
        segment.last_batch_position = position - columns[last + 2]
        self._local.log_end_offset = pending.last_offset + 1
        records.next = pending.stop
        records.position += len(pending.data)

    def _note(
        self, segment: LogSegment, columns: array[int], at: int, stop: int, position: int
    ) -> tuple[int, int]:
        """Update producers, epochs and indexes, up to a batch that begins or ends a transaction."""
        at, position, since_index, greatest, offset_of_greatest, index, epochs = note_copied(
            columns,
            at,
            stop,
            (
                position,
                segment.bytes_since_index,
                self._local.config.index_interval_bytes,
                segment.max_timestamp,
                segment.offset_of_max_timestamp,
            ),
            self._epochs.latest,
            self._producers.entries,
        )
        for last_offset, batch_position, timestamp, offset_of_timestamp in index:
            segment.max_timestamp = timestamp
            segment.offset_of_max_timestamp = offset_of_timestamp
            if not segment.indexes_full:
                segment.add_index_entry(last_offset, batch_position)
        segment.max_timestamp = greatest
        segment.offset_of_max_timestamp = offset_of_greatest
        segment.bytes_since_index = since_index
        for epoch, base_offset in epochs:
            self._epochs.assign(epoch, base_offset)
        return at, position

    def _note_transaction(self, segment: LogSegment, pending: PendingCopy, at: int, position: int) -> None:
        start = position - pending.position
        data = memoryview(pending.data)[start:]
        header = read_header(data)
        if not header.attributes & CONTROL_FLAG:
            batch = CheckedBatch.of(data[: header.total_size])
            self._producers.append(batch, header.base_offset, header.last_offset)
            return
        marker = read_marker(data, 0, header)
        if marker is not None:
            aborted = self._producers.end_transaction(
                header.producer_id, header.producer_epoch, marker, header.last_offset, header.max_timestamp
            )
            if aborted is not None:
                segment.add_aborted(aborted)

    def abandon(self, pending: PendingCopy, error: BaseException) -> BaseException:
        """Undo a run whose write failed; returns the error to report."""
        failure = self._appender.abandon(pending, error if isinstance(error, OSError) else None)
        return failure if isinstance(error, OSError) else error

    def append(self, data: bytes | bytearray | memoryview, now_ms: int) -> AppendResult | None:
        """Append all whole batches in one go; None if there are none."""
        records = self.check(memoryview(data))
        if records is None:
            return None
        self.append_rest(records, now_ms)
        return AppendResult(records.first_offset, records.last_offset, -1, self._local.log_start_offset)

    def append_one(self, data: memoryview, clock: Clock) -> tuple[int, int] | None:
        """Append a single usual batch to the active segment; returns its last offset and its leader epoch.

        Returns None and changes nothing if the data is not one whole batch, or if the batch needs the checks
        of `check` and `prepare`. Raises KafkaStorageError if the write fails.
        """
        status, columns, size = copied_batches(data)
        if status != OK or len(columns) != COPIED_FIELDS or size != len(data):
            return None
        base_offset, last_offset, _, epoch, timestamp, attributes, _, _, _ = columns
        appender, segment = self._appender, self._segments.active
        position = segment.write_position
        end = position + size
        if (
            attributes & (TRANSACTIONAL_FLAG | CONTROL_FLAG)
            or base_offset < appender.next_offset
            or position == 0
            or end > self._local.config.segment_bytes
            or timestamp > segment.roll_timestamp
            or last_offset > segment.max_offset
            or appender.first_pending is not None
            or first_bad_crc(data) >= 0
        ):
            return None
        try:
            file = segment.file
        except OSError:
            return None  # its file was closed to spare a descriptor, and now there is none
        try:
            file.pwrite(data, position)
        except OSError as error:
            pending = self.prepare(FetchedRecords(data, columns), clock.ms())
            raise self.abandon(pending, error) from error
        segment.write_position = end
        appender.next_offset = last_offset + 1
        self._note(segment, columns, 0, 1, position)
        segment.size = end
        segment.last_batch_offset = base_offset
        segment.last_batch_position = position
        self._local.log_end_offset = last_offset + 1
        return last_offset, epoch

    def append_rest(self, records: FetchedRecords, now_ms: int) -> None:
        """Append the remaining batches, run by run."""
        while not records.is_appended:
            pending = self.prepare(records, now_ms)
            try:
                pending.write()
            except (OSError, CorruptMessage) as error:
                raise self.abandon(pending, error) from error
            self.finish(pending)
