"""Collects seven logs of the app into tables, one for each log, by the day on which an event happened.

Every record of a log is in a table afterwards: a good event in its log's, a bad one in `quarantine` with what
is wrong with it, its bytes and where it stands in the log. An event that was sent twice is there twice, as in
the log; Cassandra, where it is configured, keeps one row for an event.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidelog.spark import compaction
from tidelog.spark.pipelines import cassandra
from tidelog.spark.pipelines.days import day_of
from tidelog.spark.pipelines.declare import Context, Flow, Pipeline, Setting, SettingValue, Sink, Source
from tidelog.spark.pipelines.events import (
    CREDITS,
    EXPOSURES,
    INSTALLS,
    LEFT_SWIPES,
    LOGINS,
    RIGHT_SWIPES,
    VERIFICATIONS,
    EventSchema,
)
from tidelog.spark.tables import COMPACT_EVERY, Tables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

LOGS = (CREDITS, LEFT_SWIPES, RIGHT_SWIPES, EXPOSURES, INSTALLS, LOGINS, VERIFICATIONS)
QUARANTINE = "quarantine"
METADATA = ("partition", "offset", "timestamp")
_BAD = "bad"


@dataclass(slots=True)
class Collected:
    """Good events to their table, bad ones to the quarantine, in one pass over the micro-batch."""

    schema: EventSchema
    name: str = "tables"

    def write(self, rows: DataFrame, context: Context, flow: str, batch: int) -> None:
        tables = Tables(
            context.spark,
            context.tables.root,
            target_bytes=context.number("compact.target.bytes"),
            small_files=context.number("compact.small.files"),
            compact_every=context.number("compact.every"),
        )
        sorted_out = sort_out(rows, self.schema)
        with tables.write_aside(
            sorted_out, self.schema.table, writer=flow, batch=batch, partition_by=("day",), aside=_BAD
        ) as bad:
            if bad is None:
                tables.clear(QUARANTINE, writer=flow, batch=batch)
            else:
                rest = quarantined(bad, self.schema)
                tables.write(rest, QUARANTINE, writer=flow, batch=batch, partition_by=("day",))


def sort_out(rows: DataFrame, schema: EventSchema) -> DataFrame:
    """The event's columns, its day and whether it is bad.

    All rows are to go through one write, and the files of good events are to have an event's columns and no
    others. So what there is to say of a bad event travels in columns that every event has, and `quarantined`
    takes it out of them again.
    """
    from pyspark.sql import functions as F

    is_bad = F.col("_error").isNotNull()
    # An event that can be read and is none of ours is told by its schema, in better words than a condition.
    error = F.coalesce(schema.spark_error(), F.col("_error"))
    instead = {
        "event_id": error,
        "user_id": F.base64("_raw"),
        "version": F.col("partition"),
        "ts": F.col("offset"),
        "device_id": F.unix_micros("timestamp").cast("string"),
    }
    columns = [
        F.when(is_bad, instead[name]).otherwise(F.col(name)).alias(name) if name in instead else F.col(name)
        for name in schema.names
    ]
    day = F.when(is_bad, day_of(F.unix_millis("timestamp"))).otherwise(day_of(F.col("ts")))
    return rows.select(*columns, day.alias("day"), is_bad.cast("int").alias(_BAD))


def quarantined(bad: DataFrame, schema: EventSchema) -> DataFrame:
    """Bad events as they were put into an event's columns by `sort_out`."""
    from pyspark.sql import functions as F

    return bad.select(
        F.lit(schema.topic).alias("topic"),
        F.col("version").alias("partition"),
        F.col("ts").alias("offset"),
        F.timestamp_micros(F.col("device_id").cast("long")).alias("timestamp"),
        F.col("event_id").alias("error"),
        F.unbase64("user_id").alias("raw"),
        "day",
    )


def good_events(rows: DataFrame, schema: EventSchema) -> DataFrame:
    from pyspark.sql import functions as F

    return rows.where(F.col("_error").isNull()).select(*schema.names, day_of(F.col("ts")).alias("day"))


@dataclass(slots=True)
class InCassandra:
    """Good events to Cassandra, each written again and again as the same rows."""

    schema: EventSchema
    keyspace: cassandra.Keyspace
    name: str = "cassandra"

    def write(self, rows: DataFrame, context: Context, flow: str, batch: int) -> None:
        self.keyspace.write(good_events(rows, self.schema), self.schema)


def flows(settings: Mapping[str, SettingValue]) -> tuple[Flow, ...]:
    cassandra.check_target(settings)
    target = cassandra.Target.of(settings)
    keyspace = cassandra.Keyspace(target, LOGS) if target.contact_points else None
    return tuple(_flow(schema, keyspace) for schema in LOGS)


def _flow(schema: EventSchema, keyspace: cassandra.Keyspace | None) -> Flow:
    source = Source(
        (schema.topic,),
        schema.spark_schema(),
        keep_bad=True,
        metadata=METADATA,
        options={"valueCheck": schema.condition()},
    )
    sinks: tuple[Sink, ...] = (Collected(schema),)
    if keyspace is not None:
        sinks = (*sinks, InCassandra(schema, keyspace))
    return Flow(schema.table, source, sinks)


def _positive(value: SettingValue) -> bool:
    return int(value) > 0


PIPELINE = Pipeline(
    "collect",
    "seven logs of the app into tables by day, bad events into a quarantine",
    __doc__,
    flows,
    (
        Setting(
            "compact.every",
            COMPACT_EVERY,
            "Look for small files to merge every so many micro-batches of a log; 0 never does.",
            lambda value: int(value) >= 0,
            "a whole number, 0 or more",
        ),
        Setting(
            "compact.small.files",
            compaction.SMALL_FILES,
            "Merge the small files of a day when there are more than this.",
            _positive,
            "a whole number above 0",
        ),
        Setting(
            "compact.target.bytes",
            compaction.TARGET_BYTES,
            "The size of merged files, about; files below half of it are small.",
            _positive,
            "a number of bytes above 0",
        ),
        *cassandra.SETTINGS,
    ),
)
