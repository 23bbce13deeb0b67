"""Reads a range of offsets into Arrow batches: the work of each task of a read.

It requests the next records before it passes on the current ones, so that the broker works while Spark does.
Offsets that are empty after compaction, aborted transactions or control batches are skipped.
"""

from __future__ import annotations

import gc
import logging
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tidelog.errors import KafkaError, OffsetOutOfRange, UnknownTopicOrPartition
from tidelog.records.loops import RecordReader
from tidelog.spark.fetching import Fetched, PartitionFetcher
from tidelog.spark.rows import RowBatches, filled
from tidelog.spark.values import Format

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger("tidelog.spark")

ROWS_PER_BATCH = 65_536


class DataLoss(KafkaError):
    """Offsets of a range do not exist any more."""


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """The offsets of one partition from `start` up to, not including, `end`."""

    topic: str
    partition: int
    start: int
    end: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}, offsets {self.start} to {self.end}"


@dataclass(frozen=True, slots=True)
class ReadSettings:
    """The settings of tasks beside the range. They are pickled with the task."""

    client: Mapping[str, str]
    """Settings of the consumer by Kafka's names, `bootstrap.servers` among them."""
    format: Format = field(default_factory=Format)
    fail_on_data_loss: bool = True
    poll_timeout_ms: int = 120_000
    """How long to wait for a record that should exist."""
    rows_per_batch: int = ROWS_PER_BATCH


def read_range(wanted: OffsetRange, settings: ReadSettings) -> Iterator[pa.RecordBatch]:
    """The rows of a range by offset; none if the range is empty."""
    _spare_the_collector()
    if wanted.start >= wanted.end:
        return
    fetcher = PartitionFetcher(
        settings.client, wanted.topic, wanted.partition, settings.poll_timeout_ms / 1000
    )
    try:
        yield from _RangeReader(wanted, settings, fetcher).batches()
    finally:
        fetcher.close()


def _spare_the_collector() -> None:
    """Exclude imported modules from garbage collection, which Spark's workers run after every task.

    Measured: a collection over all imported modules takes longer than a small task.
    """
    if "pyspark.worker" in sys.modules and gc.get_freeze_count() == 0:
        gc.freeze()


class _RangeReader:
    def __init__(self, wanted: OffsetRange, settings: ReadSettings, fetcher: PartitionFetcher) -> None:
        self._range = wanted
        self._settings = settings
        self._fetcher = fetcher
        self._format = settings.format.prepared()
        self._rows = RowBatches(wanted.topic, wanted.partition, wanted.end, self._format.needed)
        self._check_crcs = fetcher.settings.check_crcs
        self._position = wanted.start
        self._deadline = self._later()

    def _later(self) -> float:
        return time.monotonic() + self._settings.poll_timeout_ms / 1000

    def batches(self) -> Iterator[pa.RecordBatch]:
        self._fetcher.ask(self._position)
        while self._position < self._range.end:
            fetched = self._answer()
            if fetched is None:
                return
            reader = self._reader(fetched)
            if reader is None:
                self._wait_on(fetched)
                continue
            self._deadline = self._later()
            if reader.next_fetch > self._position:
                self._position = reader.next_fetch
                if self._position < self._range.end:
                    self._fetcher.ask(self._position)
            yield from self._rows_of(reader)

    def _rows_of(self, reader: RecordReader) -> Iterator[pa.RecordBatch]:
        while not reader.done:
            sink = filled(self._rows, reader, self._settings.rows_per_batch)
            if sink.rows:
                batch = self._format.batch(self._rows.columns(sink), sink.rows)
                if batch is not None:
                    yield batch
            if sink.ended or not sink.rows:
                return

    def _reader(self, fetched: Fetched) -> RecordReader | None:
        """A reader of the answer; None if the answer has no complete batch."""
        if not len(fetched.records):
            return None
        wanted = self._range
        reader = RecordReader(
            fetched.records, wanted.topic, wanted.partition, fetched.offset, self._check_crcs, fetched.aborted
        )
        return None if reader.next_fetch < 0 and reader.done else reader

    def _answer(self) -> Fetched | None:
        """The next answer; None if the rest of the range is lost and failOnDataLoss is false."""
        try:
            return self._fetcher.answer()
        except OffsetOutOfRange:
            pass
        except UnknownTopicOrPartition:
            self._lost(self._range.end, "the topic or partition does not exist any more")
            return None
        first = self._first_offset()
        if first <= self._position:
            self._lost(self._range.end, "the log ends before it")
            return None
        self._lost(min(first, self._range.end), f"the log starts at offset {first} now")
        if self._position >= self._range.end:
            return None
        self._fetcher.ask(self._position)
        return self._answer()

    def _first_offset(self) -> int:
        return self._fetcher.log_start()

    def _wait_on(self, fetched: Fetched) -> None:
        """The answer was empty: ask again, until the time is over."""
        if time.monotonic() > self._deadline:
            end = fetched.last_stable_offset if fetched.aborted is not None else fetched.high_watermark
            waited = f"{self._settings.poll_timeout_ms} ms"
            self._lost(self._range.end, f"no record came within {waited}, and the log can be read to {end}")
            return
        self._fetcher.ask(self._position)

    def _lost(self, resume: int, reason: str) -> None:
        """Skip offsets that are gone, or raise, as failOnDataLoss says."""
        wanted = self._range
        where = f"{wanted.topic}-{wanted.partition}: offsets {self._position} to {resume}"
        text = f"{where} cannot be read: {reason}"
        if self._settings.fail_on_data_loss:
            raise DataLoss(
                f"{text}. Some data may have been lost; to continue with the rest, set failOnDataLoss=false"
            )
        log.warning("%s; they are skipped", text)
        self._position = resume
