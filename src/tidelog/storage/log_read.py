"""Reads a log: finds batches in its segments, and the aborted transactions among them."""

from __future__ import annotations

from tidelog.storage.file_slice import FileSlice
from tidelog.storage.log_segment import LogSegment
from tidelog.storage.log_segments import LogSegments
from tidelog.storage.reads import WAITING, Reads
from tidelog.storage.transaction_index import AbortedTransaction


class ReadResult:
    """Batches from the one with the wanted offset on. `slice` is None if there are none."""

    __slots__ = ("offset", "segment", "slice")

    def __init__(
        self, offset: int, slice_: FileSlice | None = None, segment: LogSegment | None = None
    ) -> None:
        self.offset = offset
        self.slice = slice_
        self.segment = segment

    @property
    def size(self) -> int:
        return self.slice.size if self.slice is not None else 0


def read_batches(
    segments: LogSegments,
    offset: int,
    max_bytes: int,
    bound: int | None,
    min_one_message: bool,
    reads: Reads,
) -> ReadResult:
    """Read batches from the one with `offset` on, below `bound` if given. The last one may be incomplete."""
    segment = segments.active
    if offset >= segment.base_offset:
        batch = segment.position_of(offset, reads)
    else:
        segment, batch = _find_in_older(segments, offset, reads)
    if batch is None:
        return ReadResult(offset)
    position, first_size, _ = batch
    end = segment.size if bound is None else _end_position(segments, segment, bound, reads)
    if max_bytes < first_size:
        if not min_one_message:
            return ReadResult(offset)
        max_bytes = first_size
    size = min(end - position, max_bytes)
    if size <= 0:
        return ReadResult(offset)
    return ReadResult(offset, FileSlice(segment.file, position, size), segment)


def _find_in_older(
    segments: LogSegments, offset: int, reads: Reads
) -> tuple[LogSegment, tuple[int, int, int] | None]:
    """Find the first batch from `offset` on. Cleaning may have removed all of them from the first segment."""
    for at in range(segments.find(offset), len(segments)):
        segment = segments[at]
        batch = segment.position_of(offset, reads)
        if batch is not None:
            return segment, batch
    return segments.active, None


def _end_position(segments: LogSegments, segment: LogSegment, bound: int, reads: Reads) -> int:
    """The position in a segment at which the batches below `bound` end."""
    if segment is not segments.active:
        following = segments.base_after(segment)
        if following is not None and following <= bound:
            return segment.size
    if bound <= segment.base_offset:
        return 0
    batch = segment.position_of(bound, reads)
    return segment.size if batch is None else batch[0]


def upper_bound(
    segments: LogSegments, log_end_offset: int, result: ReadResult, reads: Reads = WAITING
) -> int:
    """An offset above all batches of a read, as near as the offset index can say."""
    segment, piece = result.segment, result.slice
    if segment is None or piece is None:
        return result.offset
    relative = segment.offset_index(reads).offset_after(piece.position + piece.size, reads)
    if relative is not None:
        return segment.base_offset + relative
    following = segments.base_after(segment)
    return log_end_offset if following is None else following


def aborted_transactions(
    segments: LogSegments, start: int, end_offset: int, reads: Reads = WAITING
) -> list[AbortedTransaction]:
    """The aborted transactions with offsets from `start` up to `end_offset`."""
    result: list[AbortedTransaction] = []
    for segment in segments.starting_from(start):
        if not segment.has_aborted:
            continue
        for transaction in segment.aborted(reads):
            if transaction.last_offset >= start and transaction.first_offset < end_offset:
                result.append(transaction)
            if transaction.last_stable_offset >= end_offset:
                return result
    return result
