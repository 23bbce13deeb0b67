"""Reading the batches of a log: where they lie in its segments, and which transactions among them aborted."""

from __future__ import annotations

from tidelog.storage.file_slice import FileSlice
from tidelog.storage.log_segment import LogSegment
from tidelog.storage.log_segments import LogSegments
from tidelog.storage.reads import WAITING, Reads
from tidelog.storage.transaction_index import AbortedTransaction


class ReadResult:
    """Batches from the one that holds the wanted offset on; `slice` is None where there are none."""

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
    """Batches from the one that holds `offset` on, below `bound` or to the end, the last maybe cut."""
    segment = segments.active
    if offset >= segment.base_offset:
        found = segment.position_of(offset, reads)
    else:
        segment, found = _find_in_older(segments, offset, reads)
    if found is None:
        return ReadResult(offset)
    position, first_size, _ = found
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
    """Cleaning may have emptied the end of a segment: then the batch is in a later one."""
    for at in range(segments.find(offset), len(segments)):
        segment = segments[at]
        found = segment.position_of(offset, reads)
        if found is not None:
            return segment, found
    return segments.active, None


def _end_position(segments: LogSegments, segment: LogSegment, bound: int, reads: Reads) -> int:
    """Where in a segment the batches end that lie below `bound`."""
    if segment is not segments.active:
        following = segments.base_after(segment)
        if following is not None and following <= bound:
            return segment.size
    if bound <= segment.base_offset:
        return 0
    found = segment.position_of(bound, reads)
    return segment.size if found is None else found[0]


def upper_bound(
    segments: LogSegments, log_end_offset: int, result: ReadResult, reads: Reads = WAITING
) -> int:
    """An offset that nothing of what was read reaches, as near as the index knows."""
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
    """Transactions that were aborted and touch the offsets from `start` up to `end_offset`."""
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
