"""Finds the older batches of a producer in the log, which a producer snapshot does not have.

A snapshot has only the last batch of each producer, but producers retry any of the last five. Without the
others, a retry would be out of sequence, and its client would write the record twice. The log still has these
batches: the search reads their headers backwards, and as few bytes as the index allows.
"""

from __future__ import annotations

import logging
from array import array
from typing import Final

from tidelog.errors import CorruptMessage
from tidelog.records.batch import CONTROL_FLAG, HEADER_SIZE, read_header
from tidelog.records.loops import (
    COPIED_FIELDS,
    LAST_SEQUENCE,
    REMEMBERED_BATCHES,
    BatchMetadata,
    ProducerEntry,
    copied_batches,
)
from tidelog.records.status import OK
from tidelog.storage.index import MAX_RELATIVE_OFFSET
from tidelog.storage.log_segment import LOG, LogSegment
from tidelog.storage.log_segments import LogSegments
from tidelog.storage.reads import Reads

logger = logging.getLogger("tidelog.storage")

SEARCHED_BYTES: Final = 4 << 20
"""The most that a search reads: 1.4 ms of CPU where all of it is small batches.

A cold disk is read a dozen times meanwhile. Each time the search begins anew: 4 to 6 ms of CPU together.
"""

_CHUNK = 64 << 10
_FIRST_WINDOW = 128 << 10
_PRODUCER_ID = 6  # a column of `copied_batches`


def earlier_batches(segments: LogSegments, entry: ProducerEntry, reads: Reads) -> list[BatchMetadata]:
    """The batches of the same epoch before the oldest one in `entry`, so that five are known together.

    There are fewer if the log has no more, and if the search ends after SEARCHED_BYTES or at a damaged batch.
    Raises NotCached if the disk has to be read first. The next search begins from the start again.
    """
    return _Search(segments, entry, reads).run()


class _Search:
    __slots__ = ("_at", "_end", "_entry", "_epoch_began", "_left", "_reads", "_segments", "_wanted")

    def __init__(self, segments: LogSegments, entry: ProducerEntry, reads: Reads) -> None:
        self._segments = segments
        self._entry = entry
        self._reads = reads
        self._wanted = REMEMBERED_BATCHES - len(entry.batches)
        self._left = SEARCHED_BYTES
        self._epoch_began = False  # a batch of an older epoch was found
        self._at = 0  # the index of the segment being searched,
        self._end = 0  # and where its batches begin that were searched or are known

    def run(self) -> list[BatchMetadata]:
        found: list[BatchMetadata] = []
        window = _FIRST_WINDOW
        try:
            self._begin(self._entry.batches[0].first_offset)
            while len(found) < self._wanted and not self._epoch_began and self._step_back():
                found = self._search_window(window) + found
                window *= 2
        except CorruptMessage as error:
            producer_id = self._entry.producer_id
            logger.warning("earlier batches of producer %d are not known: %s", producer_id, error)
        return found[-self._wanted :]

    def _begin(self, offset: int) -> None:
        self._at = self._segments.find(offset)
        segment = self._segments[self._at]
        held_by = segment.position_of(offset, self._reads)
        self._end = segment.size if held_by is None else held_by[0]

    def _step_back(self) -> bool:
        """Go to the previous segment if this one is searched; returns whether there is anything left to
        search.
        """
        while self._end == 0:
            if self._at == 0:
                return False
            self._at -= 1
            self._end = self._segments[self._at].size
        return self._left > 0

    def _search_window(self, size: int) -> list[BatchMetadata]:
        """Find the batches of the producer in the `size` bytes before the end, or in some more bytes."""
        segment, end = self._segments[self._at], self._end
        self._end = position = self._indexed_position(segment, end, size)
        found: list[BatchMetadata] = []
        while position < end:
            if self._left <= 0:
                return []  # newer batches may be in the rest
            chunk = self._reads.pread(segment.file, min(_CHUNK, end - position), position)
            self._left -= len(chunk)
            status, columns, whole = copied_batches(chunk)
            self._note(columns, found)
            position += whole
            if status == OK and len(chunk) - whole >= HEADER_SIZE:  # a batch that is cut off by the chunk
                header = read_header(chunk, whole)
                fields = (
                    *(header.base_offset, header.last_offset, header.total_size),
                    *(header.partition_leader_epoch, header.max_timestamp, header.attributes),
                    *(header.producer_id, header.producer_epoch, header.base_sequence),
                )
                self._note(array("q", fields), found)
                position += header.total_size
            elif status != OK or whole == 0:
                break
        if position != end:
            raise CorruptMessage(f"{segment.path(LOG)} has no batch at position {position}")
        return found

    def _indexed_position(self, segment: LogSegment, end: int, size: int) -> int:
        """The position of a batch before `end`, if possible about `size` bytes before it (by the index)."""
        if end <= size:
            return 0
        index = segment.offset_index(self._reads)
        behind = index.offset_after(end - size, self._reads)
        if behind is not None:
            position = index.lookup(behind, self._reads)
            if position < end:
                return position
        before = MAX_RELATIVE_OFFSET if behind is None else behind - 1
        position = index.lookup(before, self._reads)
        return position if position < end else 0

    def _note(self, columns: array[int], found: list[BatchMetadata]) -> None:
        """Add the batches of the producer and its epoch."""
        entry, row = self._entry, -1
        producers = columns[_PRODUCER_ID::COPIED_FIELDS]
        for _ in range(producers.count(entry.producer_id)):
            row = producers.index(entry.producer_id, row + 1)
            base, last, _, _, timestamp, attributes, _, epoch, sequence = columns[
                row * COPIED_FIELDS : (row + 1) * COPIED_FIELDS
            ]
            if epoch < entry.epoch:
                self._epoch_began = True
            elif epoch == entry.epoch and not attributes & CONTROL_FLAG and sequence >= 0:
                last_sequence = (sequence + last - base) & LAST_SEQUENCE
                found.append(BatchMetadata(last_sequence, last, last - base, timestamp))
