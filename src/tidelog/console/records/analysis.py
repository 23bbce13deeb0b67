"""Analyses of topics in the background: counts, nulls, different keys, sizes, hours, partitions.

An analysis reads the records that a topic had when it began. It can be watched and cancelled; the results
of the last ones are kept in memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from tidelog.console.records.scan import scan
from tidelog.console.records.statistics import HyperLogLog, SizeHistogram
from tidelog.console.records.topic_reader import Chunk, TopicReader
from tidelog.errors import KafkaError

log = logging.getLogger("tidelog.console")

MAX_RUNNING = 2
MAX_KEPT = 50
MAX_HOURS = 24 * 366 * 5
HOUR_MS = 3_600_000
CHUNK_BYTES = 256 << 10
REST = 0.5
"""Between two chunks an analysis rests for this part of the time that the last one took."""


class AnalysisState(StrEnum):
    RUNNING = "running"
    DONE = "done"
    CANCELLED = "cancelled"
    FAILED = "failed"


class AnalysisRefused(ValueError):
    """The analysis cannot begin now; the message says why."""


@dataclass(slots=True)
class PartStatistics:
    """The statistics of one partition, or of the whole topic."""

    records: int = 0
    null_keys: int = 0
    null_values: int = 0
    control: int = 0
    first_offset: int | None = None
    last_offset: int | None = None
    first_ms: int | None = None
    last_ms: int | None = None
    keys: HyperLogLog = field(default_factory=HyperLogLog)
    values: HyperLogLog = field(default_factory=HyperLogLog)
    key_sizes: SizeHistogram = field(default_factory=SizeHistogram)
    value_sizes: SizeHistogram = field(default_factory=SizeHistogram)
    hours: Counter[int] = field(default_factory=Counter)


@dataclass(slots=True)
class Analysis:
    """One analysis, with the results so far. The times are milliseconds since 1970."""

    topic: str
    started_ms: int
    partitions: dict[int, PartStatistics] = field(default_factory=dict)
    total: PartStatistics = field(default_factory=PartStatistics)
    state: AnalysisState = AnalysisState.RUNNING
    error: str = ""
    finished_ms: int | None = None
    offsets: int = 0
    offsets_read: int = 0
    bytes_read: int = 0
    is_capped: bool = False

    @property
    def progress(self) -> float:
        if self.state is AnalysisState.DONE or not self.offsets:
            return 1.0
        return min(1.0, self.offsets_read / self.offsets)


def take_chunk(analysis: Analysis, chunk: Chunk, end: int) -> None:
    """Count the records of a chunk for its partition and for the topic."""
    records = list(chunk.stored(end))
    part = analysis.partitions.setdefault(chunk.partition, PartStatistics())
    if not records:
        return
    keys = [record.key for record in records if record.key is not None]
    values = [record.value for record in records if record.value is not None]
    times = [record.timestamp for record in records if record.timestamp >= 0]
    hours = Counter(time - time % HOUR_MS for time in times)
    key_sizes, value_sizes = Counter(map(len, keys)), Counter(map(len, values))
    for found in (part, analysis.total):
        found.records += len(records)
        found.null_keys += len(records) - len(keys)
        found.null_values += len(records) - len(values)
        found.key_sizes.add_counts(key_sizes)
        found.value_sizes.add_counts(value_sizes)
        if times:
            found.first_ms = min(times) if found.first_ms is None else min(found.first_ms, *times)
            found.last_ms = max(times) if found.last_ms is None else max(found.last_ms, *times)
        if len(found.hours) <= MAX_HOURS:
            found.hours.update(hours)
        else:
            analysis.is_capped = True
    part.keys.add_all(set(keys))
    part.values.add_all(set(values))
    part.first_offset = records[0].offset if part.first_offset is None else part.first_offset
    part.last_offset = records[-1].offset


class Analyses:
    """The analyses of one cluster, by topic."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._found: dict[str, Analysis] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def get(self, topic: str) -> Analysis | None:
        return self._found.get(topic)

    def start(self, reader: TopicReader) -> Analysis:
        """Begin to analyse a topic, from its start to its present end. Raises AnalysisRefused."""
        topic = reader.topic
        if topic in self._tasks:
            raise AnalysisRefused(f"topic {topic} is being analysed already")
        if len(self._tasks) >= MAX_RUNNING:
            busy = ", ".join(self._tasks)
            raise AnalysisRefused(f"{MAX_RUNNING} analyses are running ({busy}); wait for one, or cancel it")
        analysis = Analysis(topic, self._now())
        self._found.pop(topic, None)
        self._found[topic] = analysis
        while len(self._found) > MAX_KEPT:
            del self._found[next(iter(self._found))]
        task = asyncio.create_task(self._run(analysis, reader), name=f"analysis of {topic}")
        self._tasks[topic] = task
        task.add_done_callback(lambda _: self._tasks.pop(topic, None))
        return analysis

    async def cancel(self, topic: str) -> bool:
        """Stop the analysis of a topic and keep its counts; False if none was running."""
        task = self._tasks.get(topic)
        if task is None:
            return False
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        return True

    async def close(self) -> None:
        for topic in list(self._tasks):
            await self.cancel(topic)

    def _now(self) -> int:
        return int(self._clock() * 1000)

    async def _run(self, analysis: Analysis, reader: TopicReader) -> None:
        try:
            await self._scan(analysis, reader)
            analysis.state = AnalysisState.DONE
        except asyncio.CancelledError:
            analysis.state = AnalysisState.CANCELLED
            raise
        except KafkaError as error:
            analysis.state, analysis.error = AnalysisState.FAILED, str(error)
        except Exception:
            log.exception("the analysis of topic %s failed", analysis.topic)
            analysis.state, analysis.error = AnalysisState.FAILED, "The analysis failed; the log says why."
        finally:
            for part in analysis.partitions.values():
                analysis.total.keys.merge(part.keys)
                analysis.total.values.merge(part.values)
            analysis.finished_ms = self._now()

    async def _scan(self, analysis: Analysis, reader: TopicReader) -> None:
        ranges = await reader.ranges()
        analysis.offsets = sum(found.end - found.start for found in ranges.values())
        analysis.partitions = {index: PartStatistics() for index in ranges}
        loop = asyncio.get_running_loop()
        async for chunk, end in scan(reader, ranges, CHUNK_BYTES):
            began = loop.time()
            take_chunk(analysis, chunk, end)
            analysis.offsets_read += max(0, min(chunk.next_offset, end) - chunk.fetched)
            analysis.bytes_read += chunk.size
            await asyncio.sleep((loop.time() - began) * REST)
