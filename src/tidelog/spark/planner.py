"""Splits ranges of offsets into tasks: one for each partition, more if the options ask for it.

`maxRecordsPerPartition` cuts a range into equal parts, `minPartitions` then cuts large ranges in proportion.
Both count as in Spark's connector. Empty ranges are left out.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from tidelog.spark.reader import OffsetRange


def split(
    ranges: Iterable[OffsetRange], min_partitions: int | None, max_records: int | None
) -> list[OffsetRange]:
    """The ranges of the tasks, ordered by topic, partition and offset."""
    divided = sorted(
        (each for each in ranges if each.end > each.start),
        key=lambda each: (each.topic, each.partition, each.start),
    )
    if max_records is not None:
        divided = [part for each in divided for part in _parts(each, -(-_size(each) // max_records))]
    if min_partitions is None or min_partitions <= len(divided):
        return divided
    total = sum(map(_size, divided))
    # Small ranges stay whole. They do not count when the others are cut.
    whole = [each for each in divided if _share(_size(each), total, min_partitions) == 1]
    whole_partitions = {(each.topic, each.partition) for each in whole}
    rest = total - sum(map(_size, whole))
    wanted = max(min_partitions - len(whole), 1)
    return [
        part
        for each in divided
        for part in _parts(
            each,
            1 if (each.topic, each.partition) in whole_partitions else _share(_size(each), rest, wanted),
        )
    ]


def _size(each: OffsetRange) -> int:
    return each.end - each.start


def _share(size: int, total: int, parts: int) -> int:
    """The share of `size` in `parts`, rounded half up, and at least one."""
    return max(int(size / total * parts + 0.5), 1)


def _parts(each: OffsetRange, count: int) -> list[OffsetRange]:
    """`count` ranges of nearly the same size, or fewer if there are fewer offsets."""
    found: list[OffsetRange] = []
    start = each.start
    for left in range(count, 0, -1):
        end = start + (each.end - start) // left
        if end > start:
            found.append(replace(each, start=start, end=end))
        start = end
    return found
