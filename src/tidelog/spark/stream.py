"""The streaming read: the range of the next micro-batch, and the tasks that read it.

Beyond Spark's Kafka connector it promises:
- The first micro-batch of a query that starts at the end is empty. Its position is in the query's offset log
  before a row is read, so a query killed in its first batch starts at the same place again.
- With AvailableNow nothing waits for minOffsetsPerTrigger.
The reader lives in its own process beside the driver, has one client, and closes it in `stop`. Spark also
pickles it to the executors for `read`, before it has connected.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from tidelog.partitions import PartitionKey
from tidelog.protocol.offset_specs import EARLIEST, LATEST
from tidelog.spark import offsets as positions
from tidelog.spark.cluster import Cluster
from tidelog.spark.lag import GroupPublisher
from tidelog.spark.offsets import (
    OffsetJson,
    from_json,
    in_time_order,
    rate_limited,
    report_data_loss,
    to_json,
)
from tidelog.spark.options import LONG_MAX, Everywhere, Offsets, SourceOptions, SubscribePattern, shown
from tidelog.spark.planner import split
from tidelog.spark.reader import OffsetRange, read_range
from tidelog.spark.tasks import RangePartition, read_settings

if TYPE_CHECKING:
    import pyarrow as pa

FUTURE_MS = 366 * 86_400_000
"""Records may have times in the future."""


class TidelogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: SourceOptions) -> None:
        self.options = options
        self.settings = read_settings(options)
        self._cluster = Cluster(options)
        self._publisher = GroupPublisher(options.publish_group, self._cluster.link)
        self._initial: positions.Position | None = None
        self._latest: Offsets | None = None
        self._target: Offsets | None = None
        self._available_now = False
        self._last_trigger = -float("inf")
        self._new_starts: Offsets = {}
        self._taken_before = 0
        """Records before this time are in earlier micro-batches. It only shortens a search."""

    # Spark's interface

    def initialOffset(self) -> OffsetJson:
        limit = self.options.starting or Everywhere(LATEST)
        self._initial = positions.resolve(self._cluster, limit, self.options, starting=True)
        return to_json(self._initial.offsets)

    def getDefaultReadLimit(self) -> ReadLimit:
        """Never "all": Spark itself passes that limit for a trigger that takes everything at once."""
        if self.options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self.options.max_offsets_per_trigger)
        if self.options.min_offsets_per_trigger is not None:
            return ReadMinRows(self.options.min_offsets_per_trigger)
        return ReadMaxRows(LONG_MAX)

    def prepareForTriggerAvailableNow(self) -> None:
        self._available_now = True

    def latestOffset(self, start: Mapping[str, Mapping[str, int]], limit: ReadLimit) -> OffsetJson:
        done = from_json(start)
        self._publisher.publish(done)
        latest = self._latest = self._latest_offsets(done)
        if not latest and isinstance(self.options.selection, SubscribePattern):
            # If no topic matches, a broker may lack its metadata: keep the position.
            return to_json(done)
        if isinstance(limit, ReadAllAvailable):
            return to_json(self._pinned(done, latest))
        if self._too_few(done, latest):
            return to_json(done)
        most = self.options.max_offsets_per_trigger
        if most is not None:
            latest = self._limited(most, {**done, **self._starts_of_new(done, latest)}, latest)
        return to_json(self._pinned(done, latest))

    def reportLatestOffset(self) -> OffsetJson | None:
        return to_json(self._latest) if self._latest else None

    def partitions(
        self, start: Mapping[str, Mapping[str, int]], end: Mapping[str, Mapping[str, int]]
    ) -> Sequence[InputPartition]:
        until = from_json(end)
        if self._target is not None:
            self._check_still_there(until)
        ranges = self._ranges(from_json(start), until)
        parts = split(ranges, self.options.min_partitions, self.options.max_records_per_partition)
        return [RangePartition(part) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, RangePartition)
        return read_range(partition.range, self.settings)

    def commit(self, end: Mapping[str, Mapping[str, int]]) -> None:
        """Does nothing: the position is published when the next micro-batch is planned."""

    def stop(self) -> None:
        self._cluster.close()

    # Offsets

    def _latest_offsets(self, done: Offsets) -> Offsets:
        """The ends of the partitions; with AvailableNow, the ends at the first call."""
        if self._target is not None:
            return self._target
        found = self._ends(done)
        if self._available_now:
            self._target = found
        return found

    def _ends(self, done: Offsets) -> Offsets:
        """The ends of the partitions. Asks again if one is before the read position, as after an election."""
        attempt = 1
        while True:
            there = self._cluster.partitions(known=done.keys())
            found = self._cluster.offsets(dict.fromkeys(there, LATEST))
            if attempt >= self.options.fetch_offset_retries:
                return found
            if all(found.get(key, offset) >= offset for key, offset in done.items()):
                return found
            attempt += 1
            time.sleep(self.options.fetch_offset_retry_interval_ms / 1000)

    def _check_still_there(self, until: Offsets) -> None:
        """Report data that was lost since AvailableNow fixed the ends, before tasks wait for it."""
        ends = self._ends(until)
        for (topic, index), end in until.items():
            there = ends.get((topic, index))
            if there is None:
                report_data_loss(
                    f"Partition {topic}-{index} was deleted while the query ran.",
                    self.options.fail_on_data_loss,
                )
            elif there < end:
                report_data_loss(
                    f"Partition {topic}-{index} was to be read to offset {end}, and ends at {there} now: the"
                    " topic was deleted and re-created while the query ran.",
                    self.options.fail_on_data_loss,
                )

    def _pinned(self, done: Offsets, until: Offsets) -> Offsets:
        """Keep partitions that start at their end there for the first micro-batch."""
        initial = self._initial
        if initial is None or not initial.at_latest or done != initial.offsets:
            return until
        self._initial = positions.Position(initial.offsets)
        return {key: done[key] if key in initial.at_latest else end for key, end in until.items()}

    def _too_few(self, done: Offsets, latest: Offsets) -> bool:
        least = self.options.min_offsets_per_trigger
        if least is None or self._available_now:
            return False
        now = time.monotonic()
        waited_ms = (now - self._last_trigger) * 1000
        new = sum(end - done.get(key, 0) for key, end in latest.items())
        if waited_ms < self.options.max_trigger_delay_ms and new < least:
            return True
        self._last_trigger = now
        return False

    def _limited(self, most: int, start: Offsets, until: Offsets) -> Offsets:
        if self.options.max_offsets_by == "share":
            return rate_limited(most, start, until)

        def at(moment: int) -> Offsets:
            return self._cluster.offsets(dict.fromkeys(until, moment))

        times = range(self._taken_before, int(time.time() * 1000) + FUTURE_MS)
        limited, self._taken_before = in_time_order(most, start, until, at, times)
        return limited

    def _starts_of_new(self, done: Offsets, until: Offsets) -> Offsets:
        """The starts of new partitions, kept until a batch has taken them."""
        new = until.keys() - done.keys()
        if not new:
            self._new_starts = {}
        elif new - self._new_starts.keys():
            self._new_starts = self._cluster.offsets_of_existing(dict.fromkeys(new, EARLIEST))
        return self._new_starts

    def _ranges(self, start: Offsets, end: Offsets) -> list[OffsetRange]:
        fail = self.options.fail_on_data_loss
        new = end.keys() - start.keys()
        starts = {key: offset for key, offset in self._starts_of_new(start, end).items() if key in new}
        if new - starts.keys():
            report_data_loss(
                f"Cannot find initial offsets for partitions {shown(new - starts.keys())}."
                " They may have been deleted.",
                fail,
            )
        for (topic, index), offset in starts.items():
            if offset != 0:
                report_data_loss(f"Added partition {topic}-{index} starts from {offset} instead of 0.", fail)
        if gone := start.keys() - end.keys():
            report_data_loss(f"Partitions {shown(gone)} have been deleted.", fail)
        starts.update(start)
        return [self._range(key, starts[key], until) for key, until in end.items() if key in starts]

    def _range(self, partition: PartitionKey, start: int, end: int) -> OffsetRange:
        topic, index = partition
        if end < start:
            initial = self._initial
            if initial is not None and partition in initial.at_latest:
                # The first micro-batch of a query that was killed in it: it was empty here.
                return OffsetRange(topic, index, end, end)
            report_data_loss(
                f"Partition {topic}-{index} offset was changed from {start} to {end}. This could be either"
                " 1) a user error that the start offset is set beyond available offset when starting query,"
                " or 2) the topic-partition is deleted and re-created.",
                self.options.fail_on_data_loss,
            )
        return OffsetRange(topic, index, start, end)
