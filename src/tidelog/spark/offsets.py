"""Positions of a query: their JSON, the start and end of a query, and reports of data loss.

The JSON has the format of Spark's Kafka connector, {"topic": {"0": 23}}: either can use the other's
checkpoint.
Positions are resolved when a query is planned.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass

from tidelog.partitions import PartitionKey
from tidelog.protocol.offset_specs import EARLIEST, LATEST
from tidelog.spark.cluster import Cluster
from tidelog.spark.options import (
    AtOffsets,
    AtTime,
    AtTimes,
    Everywhere,
    Limit,
    Offsets,
    OptionError,
    SourceOptions,
    shown,
)
from tidelog.spark.reader import DataLoss

log = logging.getLogger("tidelog.spark")

OffsetJson = dict[str, dict[str, int]]

NO_OFFSET = -1


def report_data_loss(reason: str, fail: bool) -> None:
    """Raise or warn of lost data, as failOnDataLoss says."""
    if fail:
        raise DataLoss(
            "Some data may have been lost because they are not available any more; either the data was aged"
            " out, or the topic may have been deleted before all of it was processed. To continue in such"
            f" cases, set the source option failOnDataLoss to false. Reason: {reason}"
        )
    log.warning("%s Some data may have been lost; with failOnDataLoss=true the query fails instead.", reason)


def to_json(offsets: Mapping[PartitionKey, int]) -> OffsetJson:
    """The JSON of a position. It is sorted, since Spark compares positions as text."""
    found: OffsetJson = {}
    for topic, index in sorted(offsets):
        found.setdefault(topic, {})[str(index)] = offsets[topic, index]
    return found


def from_json(position: Mapping[str, Mapping[str, int]]) -> Offsets:
    try:
        return {
            (topic, int(index)): int(offset)
            for topic, partitions in position.items()
            for index, offset in partitions.items()
        }
    except (AttributeError, TypeError, ValueError):
        raise OptionError(
            f'the checkpoint has the position {position}, where e.g. {{"topicA":{{"0":23}}}} was expected:'
            " it was written by another source"
        ) from None


@dataclass(frozen=True, slots=True)
class Position:
    """The start or end of a query, and the partitions that are at their current end or beginning there."""

    offsets: Offsets
    at_latest: frozenset[PartitionKey] = frozenset()
    at_earliest: frozenset[PartitionKey] = frozenset()


def resolve(cluster: Cluster, limit: Limit, options: SourceOptions, *, starting: bool) -> Position:
    """The offsets of all chosen partitions at `limit`."""
    partitions = cluster.partitions()
    if isinstance(limit, Everywhere):
        specs = dict.fromkeys(partitions, limit.offset)
    elif isinstance(limit, AtOffsets):
        if limit.offsets.keys() != partitions:
            raise OptionError(
                f"Partitions specified for {'starting' if starting else 'ending'}Offsets don't match what are"
                " assigned. Specify all TopicPartitions; use -1 for latest, -2 for earliest, if you don't"
                f" care. Specified: {shown(limit.offsets)} Assigned: {shown(partitions)}"
            )
        specs = limit.offsets
    else:
        specs = _at_times(cluster, _times(limit, partitions, starting), options, starting=starting)
    open_ended = {key: spec for key, spec in specs.items() if spec in (LATEST, EARLIEST)}
    return Position(
        {**specs, **cluster.offsets(open_ended)},
        frozenset(key for key, spec in open_ended.items() if spec == LATEST),
        frozenset(key for key, spec in open_ended.items() if spec == EARLIEST),
    )


def _times(limit: AtTimes | AtTime, partitions: Set[PartitionKey], starting: bool) -> Offsets:
    if isinstance(limit, AtTime):
        return dict.fromkeys(partitions, limit.time)
    if limit.times.keys() != partitions:
        which = "starting" if starting else "ending"
        raise OptionError(
            f"Partitions specified for {which}OffsetsByTimestamp don't match what are assigned. Maybe"
            " partitions are created or deleted while the query is running, or you didn't specify all of"
            f" them. Specified: {shown(limit.times)} Assigned: {shown(partitions)}"
        )
    return limit.times


def _at_times(cluster: Cluster, times: Offsets, options: SourceOptions, *, starting: bool) -> Offsets:
    found = cluster.offsets(times)
    for partition, offset in found.items():
        if offset != NO_OFFSET:
            continue
        if starting and options.when_no_offset == "error":
            topic, index = partition
            raise OptionError(
                f"No offset matched from request of topic-partition {topic}-{index} and timestamp"
                f" {times[partition]}. Set startingOffsetsByTimestampStrategy to latest to start such"
                " partitions at their end."
            )
        found[partition] = LATEST
    return found


def rate_limited(limit: int, start: Offsets, until: Offsets) -> Offsets:
    """Share `limit` offsets among partitions in proportion to their lag; each gets at least one.

    A partition without a `start` gets all of its offsets: the caller has to add its start.
    """
    sizes = {key: end - start[key] for key, end in until.items() if key in start and end > start[key]}
    total = sum(sizes.values())
    if total < 1:
        return until
    limited = dict(until)
    for key, size in sizes.items():
        share = limit * (size / total)
        taken = math.ceil(share) if share < 1 else math.floor(share)
        limited[key] = min(until[key], start[key] + taken)
    return limited


def in_time_order(
    limit: int, start: Offsets, until: Offsets, at: Callable[[int], Offsets], times: range
) -> tuple[Offsets, int]:
    """Take at most `limit` offsets, from all partitions up to the same time; returns the ends and that time.

    `at` gives the first offset of a time or later in each partition, -1 if there is none. Records before the
    first of `times` are taken already. If more records than the limit have one time, their partitions share
    the limit in proportion.
    """

    def size(ends: Offsets) -> int:
        return sum(max(0, end - start[key]) for key, end in ends.items() if key in start)

    if size(until) <= limit:
        return until, times.start
    low, high = times.start, times.stop
    best: Offsets = {}
    too_many = until
    while high - low > 1:
        middle = (low + high) // 2
        found = at(middle)
        ends = {
            key: end
            if key not in start or found.get(key, NO_OFFSET) == NO_OFFSET
            else min(max(found[key], start[key]), end)
            for key, end in until.items()
        }
        if size(ends) > limit:
            high, too_many = middle, ends
            continue
        low, best = middle, ends
        if 2 * size(ends) >= limit:
            break
    return (best, low) if size(best) else (rate_limited(limit, start, too_many), times.start)


def lag(position: Mapping[str, Mapping[str, int]], latest: Mapping[str, Mapping[str, int]]) -> Offsets:
    """The lag of each partition, from two positions in the form of a query's progress."""
    done = from_json(position)
    return {key: max(0, end - done.get(key, 0)) for key, end in from_json(latest).items()}
