"""Chooses the log to clean, its range and the segments to merge. Pure functions.

A record may be removed only if the later record of its key is safe. So only whole segments below the last
stable offset are cleaned: no truncation and no abort can remove records there. A crash cannot either, because
the log is flushed before the first swap.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeVar

from tidelog.storage.config import INT_MAX, LONG_MAX, LogConfig
from tidelog.storage.log_segments import LogSegments
from tidelog.storage.reads import WAITING, Reads

MAX_GROUP = 64
"""The most segments to merge: their files are renamed in one turn of the loop, which must be short."""

K = TypeVar("K")


class CleanableRange(NamedTuple):
    first_dirty_offset: int
    end: int  # the base offset of the first segment that is not cleaned
    clean_bytes: int
    dirty_bytes: int
    overdue_ms: int  # by how much its oldest record exceeds max.compaction.lag.ms
    checkpoint_is_wrong: bool = False

    @property
    def dirty_ratio(self) -> float:
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0

    def is_due(self, config: LogConfig) -> bool:
        if self.dirty_bytes == 0:
            return False
        return self.overdue_ms > 0 or self.dirty_ratio > config.min_cleanable_dirty_ratio


def first_dirty_offset(
    checkpoint: int | None, log_start_offset: int, log_end_offset: int
) -> tuple[int, bool]:
    """The first offset that is not cleaned, and whether the checkpoint is outside of the log."""
    if checkpoint is None:
        return log_start_offset, False
    if log_start_offset <= checkpoint <= log_end_offset:
        return checkpoint, False
    return log_start_offset, True


def cleanable_range(
    segments: LogSegments,
    config: LogConfig,
    *,
    checkpoint: int | None,
    log_start_offset: int,
    log_end_offset: int,
    last_stable_offset: int,
    now_ms: int,
    reads: Reads = WAITING,
) -> CleanableRange:
    """The part of a log that can be cleaned now. The last stable offset is at most the high watermark."""
    first_dirty, wrong = first_dirty_offset(checkpoint, log_start_offset, log_end_offset)
    young = now_ms - config.min_compaction_lag_ms
    end, clean_bytes, dirty_bytes = segments[0].base_offset, 0, 0
    oldest = LONG_MAX
    for at, segment in enumerate(segments):
        following = segments.next_base(at)
        if following is None or following > last_stable_offset:
            break
        if following <= first_dirty:
            clean_bytes += segment.size
        else:
            if config.min_compaction_lag_ms > 0 and segment.largest_timestamp(reads) > young:
                break
            dirty_bytes += segment.size
            if config.max_compaction_lag_ms < LONG_MAX and segment.size:
                if segment.first_timestamp is None:
                    segment.first_timestamp = segment.header_at(0, reads).max_timestamp
                if segment.first_timestamp > 0:
                    oldest = min(oldest, segment.first_timestamp)
        end = following
    overdue = max(0, now_ms - config.max_compaction_lag_ms - oldest)
    return CleanableRange(first_dirty, end, clean_bytes, dirty_bytes, overdue, wrong)


def dirtiest(candidates: Iterable[tuple[K, CleanableRange]]) -> K | None:
    """The key with the greatest dirty ratio; the first of equals."""
    best: K | None = None
    ratio = -1.0
    for key, found in candidates:
        if found.dirty_ratio > ratio:
            best, ratio = key, found.dirty_ratio
    return best


class SegmentSizes(NamedTuple):
    """The sizes by which segments are grouped."""

    base_offset: int
    next_base: int
    size: int
    index_bytes: int
    time_index_bytes: int


def group_segments(
    segments: Sequence[SegmentSizes], max_bytes: int, max_index_bytes: int, max_count: int = MAX_GROUP
) -> list[range]:
    """Group consecutive segments that fit into one, as ranges of indexes of `segments`.

    Limits are the bytes of the log and of its indexes, and the 31 bits of a relative offset.
    """
    groups: list[range] = []
    start = 0
    while start < len(segments):
        first = segments[start]
        size, index, times = first.size, first.index_bytes, first.time_index_bytes
        end = start + 1
        while end < len(segments) and end - start < max_count:
            other = segments[end]
            size += other.size
            index += other.index_bytes
            times += other.time_index_bytes
            if size > max_bytes or index > max_index_bytes or times > max_index_bytes:
                break
            if other.size and other.next_base - 1 - first.base_offset > INT_MAX:
                break
            end += 1
        groups.append(range(start, end))
        start = end
    return groups
