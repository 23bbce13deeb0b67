"""Finding offsets by time: the first record at or after a timestamp, and the one with the greatest."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tidelog.records.batch import BatchHeader, record_times
from tidelog.storage.reads import WAITING, Reads
from tidelog.storage.segment import Segment
from tidelog.storage.segments import SegmentList


class TimestampAndOffset(NamedTuple):
    timestamp: int
    offset: int
    leader_epoch: int


def first_at_or_after(
    segments: SegmentList, timestamp: int, start: int, end: int, reads: Reads = WAITING
) -> TimestampAndOffset | None:
    """The first record with that timestamp or a later one among the offsets from `start` up to `end`."""
    for segment in segments.starting_from(start):
        if segment.base_offset >= end:
            return None
        if segment.largest_timestamp(reads) < timestamp:
            continue
        found = _search_segment(segment, timestamp, start, end, reads)
        if found is not None:
            return found
    return None


def _search_segment(
    segment: Segment, timestamp: int, start: int, end: int, reads: Reads
) -> TimestampAndOffset | None:
    relative = max(segment.time_index(reads).lookup(timestamp, reads), start - segment.base_offset)
    first = segment.offset_index(reads).lookup(relative, reads)
    for position, header in segment.batches(first, reads=reads):
        if header.base_offset >= end:
            return None
        if header.max_timestamp < timestamp or header.last_offset < start:
            continue
        for offset, time in _times(segment, position, header, reads):
            if time >= timestamp and start <= offset < end:
                return TimestampAndOffset(time, offset, header.partition_leader_epoch)
    return None


def _times(segment: Segment, position: int, header: BatchHeader, reads: Reads) -> Iterator[tuple[int, int]]:
    return record_times(segment.read_batch(position, header, reads), 0, header)


def greatest(
    segments: SegmentList, start: int, end: int, reads: Reads = WAITING
) -> TimestampAndOffset | None:
    """The first record that has the greatest timestamp of all; None where no record has one."""
    newest: Segment | None = None
    for segment in segments.starting_from(start):
        if segment.base_offset < end and (
            newest is None or segment.largest_timestamp(reads) > newest.largest_timestamp(reads)
        ):
            newest = segment
    if newest is None or newest.largest_timestamp(reads) < 0:
        return None
    wanted = newest.largest_timestamp(reads)
    for position, header in newest.batches(_before_greatest(newest, reads), reads=reads):
        if header.max_timestamp != wanted:
            continue
        for offset, time in _times(newest, position, header, reads):
            if time == wanted:
                return TimestampAndOffset(time, offset, header.partition_leader_epoch)
    return None


def _before_greatest(segment: Segment, reads: Reads) -> int:
    """A position at or before the batch with the segment's greatest timestamp."""
    return segment.offset_index(reads).lookup(segment.offset_of_max_timestamp - segment.base_offset, reads)
