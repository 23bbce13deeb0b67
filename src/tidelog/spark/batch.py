"""The batch read: its offset ranges, the filters that narrow them, and the tasks that read them.

Spark plans the tasks of a frame once, however often the frame is used. So a task that begins at `earliest` or
ends at `latest` looks up that offset when it runs, as in Spark's Kafka connector: a second count of a frame
includes the records that arrived meanwhile.

For the same reason filters narrow the ranges only with the option `pushFilters`: Spark would reuse the tasks
of one filtered query for the next query on that frame, whatever its filters are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSourceReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)

from tidelog.partitions import PartitionKey
from tidelog.protocol.offset_specs import EARLIEST, LATEST
from tidelog.spark.cluster import Cluster
from tidelog.spark.fetching import PartitionFetcher
from tidelog.spark.filter_push import FilterPush
from tidelog.spark.offsets import NO_OFFSET, Position, resolve
from tidelog.spark.options import Everywhere, OptionError, SourceOptions
from tidelog.spark.planner import split
from tidelog.spark.reader import OffsetRange, ReadSettings, read_range
from tidelog.spark.tasks import RangePartition, read_settings

if TYPE_CHECKING:
    import pyarrow as pa


class TidelogBatchReader(DataSourceReader):
    def __init__(self, options: SourceOptions) -> None:
        self.options = options
        self.settings = read_settings(options)
        self._filters: list[Filter] = []
        if options.push_filters:
            self.pushFilters = FilterPush(self.take_filters)  # type: ignore[method-assign]

    def partitions(self) -> Sequence[InputPartition]:
        cluster = Cluster(self.options)
        try:
            ranges = self._ranges(cluster)
        finally:
            cluster.close()
        # Without a partition Spark would make one of its own type.
        return [RangePartition(part) for part in ranges] or [RangePartition(OffsetRange("", 0, 0, 0))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, RangePartition)
        return read_range(bound(partition.range, self.settings), self.settings)

    def take_filters(self, filters: Iterable[Filter]) -> None:
        """Keep the filters that can narrow ranges. A column from a value's JSON may have any name."""
        if "valueformat" not in self.options.given:
            self._filters = list(filters)

    def _ranges(self, cluster: Cluster) -> list[OffsetRange]:
        start = resolve(cluster, self.options.starting or Everywhere(EARLIEST), self.options, starting=True)
        end = resolve(cluster, self.options.ending or Everywhere(LATEST), self.options, starting=False)
        ranges = [
            self._range(key, start.offsets[key], until)
            for key, until in end.offsets.items()
            if key in start.offsets
        ]
        least, most = self.options.min_partitions, self.options.max_records_per_partition
        if self._filters:
            for filter in self._filters:
                ranges = list(_narrowed(ranges, filter))
            return split(self._from_times(cluster, ranges), least, most)
        return list(_opened(ranges, split(ranges, least, most), start, end))

    def _range(self, partition: PartitionKey, start: int, end: int) -> OffsetRange:
        topic, index = partition
        if start > end:
            raise OptionError(
                f"The resolved start offset {start} is greater than the resolved end offset {end} for topic"
                f" {topic} partition {index}. Check whether the start is set beyond the end, or beyond the"
                " latest available offset, and whether the topic was deleted and re-created."
            )
        return OffsetRange(topic, index, start, end)

    def _from_times(self, cluster: Cluster, ranges: list[OffsetRange]) -> list[OffsetRange]:
        """Start at the first record that can pass the filters on timestamp."""
        least = max((time for time in map(_least_time, self._filters) if time is not None), default=None)
        if least is None:
            return ranges
        wanted = {(each.topic, each.partition): least for each in ranges if each.end > each.start}
        first = cluster.offsets(wanted)
        return [
            replace(each, start=max(each.start, first[each.topic, each.partition]))
            for each in ranges
            if first.get((each.topic, each.partition), NO_OFFSET) != NO_OFFSET
        ]


def bound(wanted: OffsetRange, settings: ReadSettings) -> OffsetRange:
    """A range with EARLIEST and LATEST replaced by the current offsets."""
    if wanted.start >= 0 and wanted.end >= 0:
        return wanted
    patience = settings.poll_timeout_ms / 1000
    fetcher = PartitionFetcher(settings.client, wanted.topic, wanted.partition, patience)
    try:
        start = fetcher.log_start() if wanted.start == EARLIEST else wanted.start
        end = fetcher.log_end() if wanted.end == LATEST else wanted.end
    finally:
        fetcher.close()
    return replace(wanted, start=start, end=end)


def _opened(
    whole: Iterable[OffsetRange], parts: Iterable[OffsetRange], start: Position, end: Position
) -> Iterator[OffsetRange]:
    """The parts of each range. The first keeps an open start of the range, the last an open end."""
    by_partition: dict[PartitionKey, list[OffsetRange]] = {
        (each.topic, each.partition): [each] for each in whole if each.start == each.end
    }
    for part in parts:
        by_partition.setdefault((part.topic, part.partition), []).append(part)
    for key, mine in sorted(by_partition.items()):
        if key in start.at_earliest:
            mine[0] = replace(mine[0], start=EARLIEST)
        if key in end.at_latest:
            mine[-1] = replace(mine[-1], end=LATEST)
        yield from (part for part in mine if part.start != part.end)


def _narrowed(ranges: Iterable[OffsetRange], filter: Filter) -> Iterator[OffsetRange]:
    for each in ranges:
        if isinstance(filter, EqualTo | EqualNullSafe) and filter.attribute == ("offset",):
            yield _within(each, filter.value, filter.value + 1)
        elif isinstance(filter, GreaterThan) and filter.attribute == ("offset",):
            yield _within(each, filter.value + 1, each.end)
        elif isinstance(filter, GreaterThanOrEqual) and filter.attribute == ("offset",):
            yield _within(each, filter.value, each.end)
        elif isinstance(filter, LessThan) and filter.attribute == ("offset",):
            yield _within(each, each.start, filter.value)
        elif isinstance(filter, LessThanOrEqual) and filter.attribute == ("offset",):
            yield _within(each, each.start, filter.value + 1)
        elif _may_pass(each, filter):
            yield each


def _within(each: OffsetRange, start: int, end: int) -> OffsetRange:
    """The part of a range within `start` and `end`; empty if there is none, and then the planner drops it."""
    start = max(each.start, start)
    return replace(each, start=start, end=max(start, min(each.end, end)))


_COMPARISONS: dict[type[Filter], Callable[[int, int], bool]] = {
    EqualTo: lambda mine, given: mine == given,
    EqualNullSafe: lambda mine, given: mine == given,
    GreaterThan: lambda mine, given: mine > given,
    GreaterThanOrEqual: lambda mine, given: mine >= given,
    LessThan: lambda mine, given: mine < given,
    LessThanOrEqual: lambda mine, given: mine <= given,
}


def _may_pass(each: OffsetRange, filter: Filter) -> bool:
    """Whether a filter on topic or partition lets rows of a range pass; True for other filters."""
    attribute = getattr(filter, "attribute", None)
    if attribute == ("topic",):
        mine: object = each.topic
    elif attribute == ("partition",):
        mine = each.partition
    else:
        return True
    if isinstance(filter, In):
        return mine in filter.value
    compare = _COMPARISONS.get(type(filter))
    return compare is None or compare(mine, filter.value)  # type: ignore[attr-defined,arg-type]


def _least_time(filter: Filter) -> int | None:
    """The lower bound in milliseconds that a filter sets for timestamp, if it sets one."""
    if not isinstance(filter, EqualTo | EqualNullSafe | GreaterThan | GreaterThanOrEqual):
        return None
    if filter.attribute != ("timestamp",) or not isinstance(filter.value, datetime):
        return None
    return int(filter.value.timestamp() * 1000 // 1)
