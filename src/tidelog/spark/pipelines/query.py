"""One flow as one streaming query: its rows, its sinks, and a stop between micro-batches.

Every sink is written under the name of the flow and the number of the micro-batch, so a micro-batch that is
replayed after a failure changes nothing that it has written already.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tidelog.errors import KafkaError
from tidelog.spark.cluster import AdminLink
from tidelog.spark.options import Offsets
from tidelog.spark.pipelines.batch_counts import BatchCounts
from tidelog.spark.pipelines.batch_metrics import BatchRecord, FlowTotals, MetricsLog
from tidelog.spark.pipelines.checks import Checks
from tidelog.spark.pipelines.declare import Context, Flow, Sink, Source, Table, Topic
from tidelog.spark.pipelines.progress import FlowProgress
from tidelog.spark.pipelines.running_batch import (
    BatchRows,
    BatchWatch,
    checkpointed,
    has_batches,
    log_span,
    offset_range,
)
from tidelog.spark.pipelines.state import FAILED, RUNNING, STOPPED, LeaseLost

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

FORMAT = "tidelog"
ISOLATION_LEVEL = "read_committed"

log = logging.getLogger("tidelog.spark")


class Stopping(Exception):
    """Raised into Spark by a micro-batch that began after the request to stop. It wrote nothing."""


class CutOff(Exception):
    """Raised into Spark by a micro-batch that was stopped during its writes.

    Spark searches the error text for the interruption with a regular expression. On a text as long as a Java
    stack trace the expression overflows Spark's stack and prints a thousand lines. The words of this message
    match as well.
    """

    def __init__(self, name: str, batch: int) -> None:
        super().__init__(
            f"micro-batch {batch} of {name} was cut off: py4j.protocol.Py4JJavaError: An error occurred while"
            " calling: java.lang.InterruptedException"
        )


@dataclass(frozen=True, slots=True)
class Place:
    """The locations that a run reads and writes."""

    bootstrap: str
    data: str
    client: Mapping[str, str]
    max_offsets_per_trigger: int
    checkpoints: str = ""
    """The folder of checkpoints. Empty: `checkpoints` below `data`."""

    @property
    def tables(self) -> str:
        return f"{self.data}/tables"

    @property
    def checkpoint_root(self) -> str:
        """The address of all checkpoints for Hadoop, which knows S3 as s3a."""
        root = self.checkpoints.rstrip("/") or f"{self.data}/checkpoints"
        return re.sub("^s3://", "s3a://", root)

    def checkpoint(self, pipeline: str, flow: str) -> str:
        return f"{self.checkpoint_root}/{pipeline}/{flow}"

    def options(self) -> dict[str, str]:
        """The options of source and sink to reach the cluster."""
        return {
            "kafka.bootstrap.servers": self.bootstrap,
            **{f"kafka.{name}": value for name, value in self.client.items()},
        }


class FlowQuery:
    """A flow that can be started once, and stopped between two micro-batches."""

    def __init__(
        self,
        flow: Flow,
        context: Context,
        place: Place,
        link: AdminLink,
        check: Callable[[], None] = lambda: None,
        metrics: MetricsLog | None = None,
    ) -> None:
        """`link` reaches the brokers of `place`. The caller closes it. `metrics` takes the counts.

        `check` raises LeaseLost if this driver must not write. It is called before each micro-batch.
        """
        self.flow = flow
        self._metrics = metrics
        self.totals = FlowTotals()
        self._end_of: Callable[[int], Offsets | None] = lambda batch: None
        self._link = link
        self._check = check
        self.name = f"{context.pipeline}/{flow.name}"
        self._context = replace(context, writer=self.name, topics=flow.source.topics)
        self._place = place
        self._started: StreamingQuery | None = None
        self._id = ""
        self._has_id = threading.Event()
        self._closing = False
        self._writing = False
        self._turned_away = False
        self._given_up = False
        self._written = -1
        self._running: tuple[int, float] | None = None
        """The micro-batch that is being written, and its start."""
        self._cut: int | None = None
        self._watch: BatchWatch | None = None
        self.progress = FlowProgress(self._reported)

    def start(self, trigger: Mapping[str, str | bool]) -> None:
        """Start the query from its checkpoint."""
        checkpoint = self._place.checkpoint(*self.name.split("/", 1))
        self._end_of = checkpointed(self._context.spark, checkpoint)
        if not has_batches(self._context.spark, checkpoint):
            warn_of_doubled_topics(self.name, self.flow, checkpoint, self._link)
        rows = self.read()
        for step in self.flow.steps:
            rows = step(rows, self._context)
        writer = rows.writeStream.queryName(self.name).outputMode(self.flow.output_mode)
        writer = writer.option("checkpointLocation", checkpoint)
        writer = writer.foreachBatch(self._write_batch).trigger(**trigger)  # type: ignore[arg-type]
        self._started = writer.start()
        self._id = str(self._started.id)
        level = self._place.client.get("isolation.level", ISOLATION_LEVEL)
        if self._metrics is not None:
            self._metrics.recover(self._context.pipeline, self.flow.name)
        source = self.flow.source
        self._watch = BatchWatch(
            self._link, source.topics, level, self._end_of, from_beginning=self._from_beginning
        )
        self._has_id.set()
        self.progress.flow.state = RUNNING

    def wait_for_source(self, seconds: float) -> bool:
        """Wait until the Python process of the source runs; False if it was too late: start the query again.

        Spark gives each process a constant ten seconds to start. Many at once on few cores would exceed that.
        """
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and self.query.isActive:
            if not self.query.status["message"].startswith("Initializing"):
                return True
            time.sleep(0.05)
        error = None if self.query.isActive else self.query.exception()
        return error is None or "Python worker failed to connect back" not in str(error)

    def read(self) -> DataFrame:
        source = self.flow.source
        options = {
            **source_options(source, self._place),
            "startingOffsets": "earliest",
            "publishGroup": f"pipeline-{self.name.replace('/', '-')}",  # so that Kafka's tools show the lag
            "maxOffsetsPerTrigger": str(self._place.max_offsets_per_trigger),
        }
        return self._context.spark.readStream.format(FORMAT).options(**{**options, **source.options}).load()

    @property
    def _from_beginning(self) -> bool:
        """Whether the first micro-batch begins at the start of the log."""
        return not any(name.lower().startswith("starting") for name in self.flow.source.options)

    @property
    def query(self) -> StreamingQuery:
        assert self._started is not None, f"{self.name} was not started"
        return self._started

    def _write_batch(self, rows: DataFrame, batch: int) -> None:
        self._has_id.wait()
        self._writing = True
        try:
            if self._closing:  # checked after the batch is marked, so that a stop cannot miss it
                self._turned_away = True
                raise Stopping(f"{self.name} is stopping; micro-batch {batch} is done at the next start")
            self._check_lease(batch)
            self.progress.look(self.query)
            self._running = batch, time.time()
            self.write(rows, batch)
            self._written = batch
        except Exception:
            if self._cut is not None:
                raise CutOff(self.name, batch) from None
            raise
        finally:
            self._writing = False
            self._running = None

    def _check_lease(self, batch: int) -> None:
        try:
            self._check()
        except LeaseLost:  # the run sees it and says so
            self._turned_away = True
            raise Stopping(f"{self.name} was taken over; micro-batch {batch} is the other driver's") from None

    def write(self, rows: DataFrame, batch: int) -> None:
        """Write every sink in order. The rows are computed once for all of them."""
        started, counts = time.time(), BatchCounts()
        read = BatchRows(self._link, self._end_of, batch, from_beginning=self._from_beginning)
        context = in_session(self._context, rows.sparkSession, self._place)
        context = replace(
            context,
            checkpoint=self._id,
            offsets=offset_range(self._end_of, batch),
            counts=counts,
            unread=self._unread,
            may_be_replay=self._written < 0,
        )
        if self._written < 0:
            self._check_tables(context, batch)
        for step in self.flow.batch_steps:
            rows = step(rows, context, batch)
        tables = tuple(sink.name for sink in self.flow.sinks if isinstance(sink, Table))
        with Checks(self.flow.expect, tables=tables).applied(rows, context, batch) as rows:
            several = len(self.flow.sinks) > 1
            if several:
                rows = rows.persist()
            try:
                for sink in self.flow.sinks:
                    name = f"{self.name}/{sink.name}/{self._id}"
                    write_sink(sink, rows, context, name, batch, self._place)
                counts.settle()
            finally:
                if several:
                    rows.unpersist()
        self._record(batch, started, context, read.number())

    def _record(self, batch: int, started: float, context: Context, rows_in: int | None) -> None:
        """Keep the counts of a written micro-batch. Spark has not committed it yet."""
        counts = context.counts
        record = BatchRecord(
            self._context.pipeline,
            self.flow.name,
            self._id,
            batch,
            started,
            time.time() - started,
            rows_in=rows_in,
            rows_out=counts.sinks.total(),
            sinks=dict(counts.sinks),
            quarantined=counts.quarantined,
            reasons=dict(counts.reasons),
            expectations=dict(counts.failed),
            offsets=context.offsets,
        )
        self.totals.add(record)
        if self._metrics is not None:
            self._metrics.put(record)

    def _reported(self, batch: int, rows: int, late: int) -> None:
        if self._metrics is not None:
            self._metrics.report(self._context.pipeline, self.flow.name, batch, rows, late)

    def _check_tables(self, context: Context, batch: int) -> None:
        """Raise TableError if a table refuses the first batch of this run, before any sink takes it."""
        for sink in self.flow.sinks:
            if isinstance(sink, Table):
                context.tables.has(sink.name, **context.written(batch))

    def _unread(self, batch: int) -> Collection[tuple[str, int]]:
        return () if self._watch is None else self._watch.unread(batch)

    def close_gate(self) -> None:
        """From now on no micro-batch begins to write. The running one ends normally."""
        self._closing = True

    @property
    def ended(self) -> bool:
        return self._started is not None and (self._given_up or not self._started.isActive)

    def stopped_between_batches(self) -> bool:
        """Stop the query if no micro-batch is running. Call it repeatedly after `close_gate`."""
        if self.ended:
            return True
        if self._writing:
            return False
        last = self.query.lastProgress
        committed = last is not None and last["batchId"] >= self._written
        if not committed and self.query.status["isTriggerActive"]:
            return False  # written, but Spark has not logged it yet
        self.query.stop()
        return True

    def stop_now(self) -> None:
        """Stop at once. A micro-batch that is cut off is replayed at the next start."""
        if self._started is None or self._given_up:
            return
        if self._running is not None:
            self._cut = self._running[0]
        try:
            self._started.stop()
        except Exception as error:  # it took too long, or Spark itself is gone
            log.debug("%s does not stop: %s", self.name, error)
            self._given_up = True

    @property
    def cut_off(self) -> str | None:
        """The micro-batch that the stop did not wait for; None if there is none."""
        return None if self._cut is None else f"micro-batch {self._cut} of {self.name}"

    def look(self) -> None:
        """Update the flow's numbers and state. After the end of the query nothing changes."""
        if self._started is None or self.progress.flow.state in (STOPPED, FAILED):
            return
        ended = self.ended  # before the update, which then includes the last micro-batch
        self.progress.look(self._started)
        self._look_at_running(self._running)
        if ended:
            self.progress.flow.state = STOPPED if self.failure() is None else FAILED

    def _look_at_running(self, running: tuple[int, float] | None) -> None:
        flow = self.progress.flow
        if running is None or self._watch is None:
            flow.running_batch, flow.running_since, flow.running_rows = None, 0.0, None
            return
        if flow.running_batch != running[0]:
            flow.running_rows = None
        flow.running_batch, flow.running_since = running
        self._watch.look(running[0], flow)

    def failure(self) -> Exception | None:
        """The error that ended the query; None if it runs or was stopped."""
        if self._started is None or self._turned_away or self._given_up or self._cut is not None:
            return None
        return self._started.exception()


def source_options(source: Source, place: Place) -> dict[str, str]:
    """The options of the data source that give the rows of a flow, from a stream or a part of the log."""
    options = {
        **place.options(),
        "kafka.isolation.level": place.client.get("isolation.level", ISOLATION_LEVEL),
        "subscribe": ",".join(source.topics),
    }
    if source.schema is not None:
        options["valueFormat"] = "json"
        options["valueSchema"] = source.schema.json()
        options["valueMode"] = "PERMISSIVE" if source.keep_bad else "DROPMALFORMED"
    if source.metadata:
        options["columns"] = ",".join(source.metadata)
    return options


def in_session(context: Context, spark: SparkSession, place: Place) -> Context:
    """The context in the session of a micro-batch, which is a clone that Spark makes."""
    from tidelog.spark.tables import Tables

    return replace(context, spark=spark, tables=Tables(spark, place.tables, context.tables.written))


def warn_of_doubled_topics(name: str, flow: Flow, checkpoint: str, link: AdminLink) -> None:
    """Warn if the flow begins anew and its topics have records: it would write these a second time.

    Tables refuse a new checkpoint. A topic may have other writers, so its records prove nothing.
    """
    topics = frozenset(sink.name for sink in flow.sinks if isinstance(sink, Topic))
    if not topics:
        return
    try:
        span = link.run(lambda admin: log_span(admin, topics, ISOLATION_LEVEL))
    except KafkaError as error:
        log.debug("the topics of %s are not known: %s", name, error)
        return
    filled = sorted({key[0] for key, last in span.last.items() if last > span.first.get(key, last)})
    if filled:
        log.warning(
            "%s begins anew: its checkpoint %s is empty, and %s has records already. If %s wrote them, they "
            "will be there twice: put the old checkpoint back, or delete the topic",
            name,
            checkpoint,
            ", ".join(filled),
            name,
        )


def write_sink(sink: Sink, rows: DataFrame, context: Context, name: str, batch: int, place: Place) -> None:
    if not isinstance(sink, Table | Topic):
        sink.write(rows, context, context.writer, batch)
        return
    if sink.select is not None:
        rows = sink.select(rows, context)
    if isinstance(sink, Table):
        with Checks(sink.expect, sink.name).applied(rows, context, batch) as good:
            number = context.tables.write(
                good,
                sink.name,
                partition_by=sink.partition_by,
                keys=sink.keys,
                **context.written(batch),
            )
            context.counts.wrote(sink.name, number, lambda: good)
            context.counts.settle()
        return
    options = {
        **place.options(),
        "topic": sink.name,
        "exactlyOnce": "true",
        "exactlyOnceName": name,
        "exactlyOnceBatch": str(batch),
    }
    records = as_records(context.counts.written(rows, sink.name), sink.key)
    records.write.format(FORMAT).options(**options).mode("append").save()


def as_records(rows: DataFrame, key: str) -> DataFrame:
    """The key and value of a record for each row. The value is the JSON of all columns, with nulls."""
    from pyspark.sql import functions as f

    style = {"ignoreNullFields": "false", "timeZone": "UTC"}
    return rows.select(
        f.col(key).cast("string").alias("key"),
        f.to_json(f.struct(*[f.col(f"`{name}`") for name in rows.columns]), style).alias("value"),
    )
