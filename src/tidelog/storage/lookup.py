"""Finding offsets by time: the first record at or after a timestamp, and the one with the greatest."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tidelog.records.batch import BatchHeader, record_times
from tidelog.storage.segment import Segment
from tidelog.storage.segments import SegmentList


class TimestampAndOffset(NamedTuple):
    timestamp: int
    offset: int
    leader_epoch: int


def first_at_or_after(
    segments: SegmentList, timestamp: int, start: int, end: int
) -> TimestampAndOffset | None:
    """The first record with that timestamp or a later one among the offsets from `start` up to `end`."""
    for segment in segments.starting_from(start):
        if segment.base_offset >= end:
            return None
        if segment.largest_timestamp() < timestamp:
            continue
        found = _search_segment(segment, timestamp, start, end)
        if found is not None:
            return found
    return None


def _search_segment(segment: Segment, timestamp: int, start: int, end: int) -> TimestampAndOffset | None:
    relative = max(segment.time_index.lookup(timestamp), start - segment.base_offset)
    for position, header in segment.batches(segment.offset_index.lookup(relative)):
        if header.base_offset >= end:
            return None
        if header.max_timestamp < timestamp or header.last_offset < start:
            continue
        for offset, time in _times(segment, position, header):
            if time >= timestamp and start <= offset < end:
                return TimestampAndOffset(time, offset, header.partition_leader_epoch)
    return None


def _times(segment: Segment, position: int, header: BatchHeader) -> Iterator[tuple[int, int]]:
    return record_times(segment.read_batch(position, header), 0, header)


def greatest(segments: SegmentList, start: int, end: int) -> TimestampAndOffset | None:
    """The first record that has the greatest timestamp of all; None where no record has one."""
    newest: Segment | None = None
    for segment in segments.starting_from(start):
        if segment.base_offset < end and (
            newest is None or segment.largest_timestamp() > newest.largest_timestamp()
        ):
            newest = segment
    if newest is None or newest.largest_timestamp() < 0:
        return None
    wanted = newest.largest_timestamp()
    for position, header in newest.batches(_before_greatest(newest)):
        if header.max_timestamp != wanted:
            continue
        for offset, time in _times(newest, position, header):
            if time == wanted:
                return TimestampAndOffset(time, offset, header.partition_leader_epoch)
    return None


def _before_greatest(segment: Segment) -> int:
    """A position at or before the batch with the segment's greatest timestamp."""
    return segment.offset_index.lookup(segment.offset_of_max_timestamp - segment.base_offset)
