"""Which segments of a log are too old, too many, or below the log start offset."""

from __future__ import annotations

from tidelog.storage.config import LogConfig
from tidelog.storage.log_segments import LogSegments
from tidelog.storage.reads import WAITING, Reads


def count_deletable(
    segments: LogSegments,
    config: LogConfig,
    *,
    log_start_offset: int,
    high_watermark: int,
    end_offset: int,
    now_ms: int,
    reads: Reads = WAITING,
) -> int:
    """How many segments at the start of the log may be deleted; none that ends above the high watermark."""
    by_policy = "delete" in config.cleanup_policy
    limit_size = by_policy and config.retention_bytes >= 0
    excess = sum(segment.size for segment in segments) - config.retention_bytes if limit_size else 0
    limit_time = by_policy and config.retention_ms >= 0
    for at, segment in enumerate(segments):
        following = segments.next_base(at)
        if following is None and segment.size == 0:
            return at
        if high_watermark < (end_offset if following is None else following):
            return at
        too_large = limit_size and excess - segment.size >= 0
        too_old = limit_time and now_ms - segment.retention_timestamp(reads) > config.retention_ms
        below_start = following is not None and following <= log_start_offset
        if not (too_large or too_old or below_start):
            return at
        excess -= segment.size
    return len(segments)
