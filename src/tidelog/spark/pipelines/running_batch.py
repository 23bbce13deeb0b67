"""The micro-batch that a flow is writing: its number of records, and the flow's lag meanwhile.

Spark reports a micro-batch when it has ended, and the first one may take minutes. Before that the checkpoint
has its offset range, and the brokers know the end of the log. They are asked without waiting for the answer.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidelog.errors import KafkaError
from tidelog.partitions import PartitionKey
from tidelog.protocol.offset_specs import EARLIEST, LATEST
from tidelog.spark.cluster import AdminLink, OffsetAdmin
from tidelog.spark.files import Files, join
from tidelog.spark.offsets import from_json
from tidelog.spark.options import Offsets
from tidelog.spark.pipelines.progress import offsets
from tidelog.spark.pipelines.state import FlowStatus

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("tidelog.spark")

LOOK_SECONDS = 2.0
ANSWER_SECONDS = 30.0
"""The brokers have had the time of the micro-batch's writes already, and have sent its records."""
# The lines of an offset log before the lines of the sources: its version, and Spark's metadata.
HEADER_LINES = 2


@dataclass(frozen=True, slots=True)
class LogSpan:
    """The first and last offsets of the partitions of a flow's topics."""

    first: Offsets
    last: Offsets


async def log_span(admin: OffsetAdmin, topics: frozenset[str], isolation_level: str) -> LogSpan:
    there, _ = await admin.partitions(topics)
    first = await admin.list_offsets(dict.fromkeys(there, EARLIEST), isolation_level=isolation_level)
    last = await admin.list_offsets(dict.fromkeys(there, LATEST), isolation_level=isolation_level)
    return LogSpan(
        {key: found.offset for key, found in first.items()},
        {key: found.offset for key, found in last.items()},
    )


async def log_starts(admin: OffsetAdmin, partitions: Collection[PartitionKey]) -> Offsets:
    """The first offset of each partition."""
    found = await admin.list_offsets(dict.fromkeys(partitions, EARLIEST))
    return {key: one.offset for key, one in found.items()}


def has_batches(spark: SparkSession, checkpoint: str) -> bool:
    """Whether a query has planned micro-batches with this checkpoint."""
    return bool(Files(spark, checkpoint).entries(join(checkpoint, "offsets")))


def offset_range(end_of: Callable[[int], Offsets | None], batch: int) -> str:
    """The offsets of a micro-batch as JSON, `{topic: {partition: [start, end]}}`; empty if not known.

    A start of null is the beginning of the partition. A replay of the micro-batch has the same range.
    """
    end = end_of(batch)
    if end is None:
        return ""
    start = end_of(batch - 1) or {}
    found: dict[str, dict[str, list[int | None]]] = {}
    for (topic, partition), offset in sorted(end.items()):
        found.setdefault(topic, {})[str(partition)] = [start.get((topic, partition)), offset]
    return json.dumps(found, separators=(",", ":"))


def checkpointed(spark: SparkSession, checkpoint: str) -> Callable[[int], Offsets | None]:
    """A function that returns the end offsets of a micro-batch in a checkpoint; None if it has none.

    Each micro-batch is read once: its offsets do not change after Spark has planned it.
    """
    files = Files(spark, checkpoint)
    known: dict[int, Offsets] = {}

    def end_of(batch: int) -> Offsets | None:
        found = known.get(batch)
        if found is not None or batch < 0:
            return found
        text = files.read(join(checkpoint, "offsets", str(batch)))
        if text is None:
            return None
        for older in [number for number in tuple(known) if number < batch - 1]:
            known.pop(older, None)
        found = known[batch] = offsets_in(text)
        return found

    return end_of


def offsets_in(text: str) -> Offsets:
    """The offsets of all sources in a file of Spark's offset log."""
    found: Offsets = {}
    for line in text.splitlines()[HEADER_LINES:]:
        position = offsets(line)
        if position is not None:
            found.update(from_json(position))
    return found


def distance(start: Mapping[PartitionKey, int], end: Mapping[PartitionKey, int]) -> int:
    """The number of offsets between two positions, without partitions that have no start."""
    return sum(max(0, last - start[key]) for key, last in end.items() if key in start)


class BatchRows:
    """The number of records of a micro-batch, before Spark reports it.

    A partition without a start in the checkpoint is new to the query, which reads it from its beginning.
    """

    def __init__(
        self, link: AdminLink, end_of: Callable[[int], Offsets | None], batch: int, *, from_beginning: bool
    ) -> None:
        """With `from_beginning` the first micro-batch begins at the start of the log."""
        self._begin, self._end = end_of(batch - 1), end_of(batch)
        self._starts: Future[Offsets] | None = None
        if self._begin is None and batch == 0 and from_beginning:
            self._begin = {}
        if self._begin is None or self._end is None:
            return
        new = self._end.keys() - self._begin.keys()
        if new:
            self._starts = link.submit(lambda admin: log_starts(admin, new))

    def number(self) -> int | None:
        """The number of offsets of the micro-batch; None if its start is not known.

        Waits for brokers that have not answered yet.
        """
        if self._begin is None or self._end is None:
            return None
        starts: Offsets = {}
        if self._starts is not None:
            try:
                starts = self._starts.result(ANSWER_SECONDS)
            except (KafkaError, TimeoutError) as error:
                log.debug("the start of the log is not known: %s", error)
                return None
        return distance({**starts, **self._begin}, self._end)


class BatchWatch:
    """Updates a flow's `running_rows` and `lag` during a micro-batch."""

    def __init__(
        self,
        link: AdminLink,
        topics: tuple[str, ...],
        isolation_level: str,
        end_of: Callable[[int], Offsets | None],
        *,
        from_beginning: bool = True,
    ) -> None:
        """With `from_beginning` the first micro-batch begins at the start of the log."""
        self._from_beginning = from_beginning
        self._link = link
        self._topics = frozenset(topics)
        self._isolation_level = isolation_level
        self._end_of = end_of
        self._batch = -1
        self._begin: Offsets | None = None
        self._end: Offsets | None = None
        self._asked: Future[LogSpan] | None = None
        self._next = 0.0

    def look(self, batch: int, flow: FlowStatus) -> None:
        """Take the answers of the brokers, and ask again from time to time."""
        if batch != self._batch:
            self._batch, self._next = batch, 0.0
            self._begin, self._end = self._end_of(batch - 1), self._end_of(batch)
        if self._asked is None and time.monotonic() >= self._next:
            self._next = time.monotonic() + LOOK_SECONDS
            self._asked = self._link.submit(self._span)
        elif self._asked is not None and self._asked.done():
            asked, self._asked = self._asked, None
            try:
                self._take(asked.result(), flow)
            except KafkaError as error:
                log.debug("the end of the log is not known: %s", error)

    def unread(self, batch: int) -> frozenset[PartitionKey]:
        """The partitions with records after a micro-batch. Waits for the brokers."""
        end = self._end_of(batch) or {}
        last = self._link.run(self._span).last
        return frozenset(key for key, offset in last.items() if end.get(key, 0) < offset)

    async def _span(self, admin: OffsetAdmin) -> LogSpan:
        return await log_span(admin, self._topics, self._isolation_level)

    def _take(self, span: LogSpan, flow: FlowStatus) -> None:
        if self._begin is None and not self._from_beginning:
            if self._end is not None:
                flow.lag = distance(self._end, span.last)
            return
        # A partition that is new to the query is read from its beginning.
        begin = {**span.first, **(self._begin or {})}
        flow.lag = distance(begin, span.last)
        flow.running_rows = None if self._end is None else distance(begin, self._end)
