"""Finds records by time: the first at or after a timestamp, and the one with the greatest timestamp."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tidelog.records.batch import BatchHeader, record_times
from tidelog.storage.log_segment import LogSegment
from tidelog.storage.log_segments import LogSegments
from tidelog.storage.reads import WAITING, Reads


class TimestampAndOffset(NamedTuple):
    timestamp: int
    offset: int
    leader_epoch: int


def first_at_or_after(
    segments: LogSegments, timestamp: int, start: int, end: int, reads: Reads = WAITING
) -> TimestampAndOffset | None:
    """The first record with this timestamp or a later one, at an offset from `start` up to before `end`."""
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
    segment: LogSegment, timestamp: int, start: int, end: int, reads: Reads
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


def _times(
    segment: LogSegment, position: int, header: BatchHeader, reads: Reads
) -> Iterator[tuple[int, int]]:
    return record_times(segment.read_batch(position, header, reads), 0, header)


def greatest(
    segments: LogSegments, start: int, end: int, reads: Reads = WAITING
) -> TimestampAndOffset | None:
    """The first of the records with the greatest timestamp; None if no record has a timestamp."""
    newest: LogSegment | None = None
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


def _before_greatest(segment: LogSegment, reads: Reads) -> int:
    """A position at or before the batch with the segment's greatest timestamp."""
    return segment.offset_index(reads).lookup(segment.offset_of_max_timestamp - segment.base_offset, reads)
