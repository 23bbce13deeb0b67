"""The sink: writers of batches and streams for `df.write.format("tidelog")`.

Plain writes are at least once, as in Spark's Kafka connector: a task that runs again writes its rows again.
With `exactlyOnce` the module `exactly_once` writes.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    DataSourceStreamWriter,
    DataSourceWriter,
    WriterCommitMessage,
)

from tidelog.clients.producer.blocking import Producer
from tidelog.spark.client_options import on_this_machine
from tidelog.spark.contact import first_contact
from tidelog.spark.options import OptionError, SinkOptions, sink_options
from tidelog.spark.sending import RowSender, Target, target_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

# A task has all of its rows at once: large batches in few requests are fastest, measured at local[2].
DEFAULTS = {
    "batch.size": "500000",
    "max.request.size": "8388608",
    "linger.ms": "50",
    "client.id": "tidelog-spark",
}


@dataclass
class Written(WriterCommitMessage):
    """The number of rows that a task wrote."""

    rows: int


def batch_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> DataSourceWriter:
    """The writer of a batch. Raises if the options or columns are not valid."""
    parsed = sink_options(options)
    if overwrite:
        raise OptionError(
            "Save mode Overwrite not allowed for Kafka. Allowed save modes are Append and ErrorIfExists."
        )
    target = target_of(schema, parsed.topic)
    if parsed.exactly_once:
        from tidelog.spark.exactly_once import ExactlyOnceBatchWriter

        first_contact(parsed.client, parsed.bootstrap_timeout_ms)  # before any task begins
        return ExactlyOnceBatchWriter(parsed, target)
    return PlainBatchWriter(parsed, target)


def stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
    """The writer of a stream, in any output mode: a topic only grows, so `overwrite` changes nothing."""
    parsed = sink_options(options)
    target = target_of(schema, parsed.topic)
    if parsed.exactly_once:
        from tidelog.spark.exactly_once import ExactlyOnceStreamWriter

        first_contact(parsed.client, parsed.bootstrap_timeout_ms)
        return ExactlyOnceStreamWriter(parsed, target)
    return PlainStreamWriter(parsed, target)


class PlainBatchWriter(DataSourceArrowWriter):
    def __init__(self, options: SinkOptions, target: Target) -> None:
        self.options = options
        self.target = target

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return write_plain(self.options, self.target, iterator)


class PlainStreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, options: SinkOptions, target: Target) -> None:
        self.options = options
        self.target = target

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return write_plain(self.options, self.target, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Does nothing: the rows of a task are readable already."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Does nothing: written rows stay, and the replay of the batch writes them again."""


def write_plain(options: SinkOptions, target: Target, batches: Iterator[pa.RecordBatch]) -> Written:
    """Write the rows of a task with the producer of this worker."""
    # Not when the write is planned: the driver of a plain write need not reach the brokers.
    first_contact(options.client, options.bootstrap_timeout_ms)
    pool = _pool()
    producer = pool.take(options.client)
    try:
        sender = RowSender(producer, target, one_by_one=options.has_partitioner)
        for batch in batches:
            sender.send(batch)
        rows = sender.finish()
    except BaseException:
        producer.close(0)
        raise
    pool.put_back(options.client, producer)
    return Written(rows)


def producer_config(client: Mapping[str, str]) -> dict[str, str]:
    """The settings of the sink's producers: the given ones, and defaults that suit tasks."""
    return {**DEFAULTS, **on_this_machine(client)}


class ProducerPool:
    """The producers of a Python worker, which runs one task after the other.

    A task takes a producer and puts it back when all rows are written. After a failed task it is not reused.
    """

    def __init__(self) -> None:
        self._idle: dict[tuple[tuple[str, str], ...], Producer] = {}

    def take(self, client: Mapping[str, str]) -> Producer:
        found = self._idle.pop(_key(client), None)
        return found if found is not None else Producer(producer_config(client))

    def put_back(self, client: Mapping[str, str], producer: Producer) -> None:
        other = self._idle.pop(_key(client), None)
        if other is not None:
            other.close()
        self._idle[_key(client)] = producer

    def close(self) -> None:
        while self._idle:
            self._idle.popitem()[1].close()


def _key(client: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(client.items()))


@functools.cache
def _pool() -> ProducerPool:
    """The pool of this worker process. A forked worker starts without one."""
    return ProducerPool()
