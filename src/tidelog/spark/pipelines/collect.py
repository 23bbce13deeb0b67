"""Collects seven logs of the app into tables, one for each log, by the day of the event.

Every record of a log ends up in a table: a good event in the table of its log, a bad one in `quarantine` with
its error, its bytes and its offset. An event that was sent twice is in the table twice, as in the log. If
Cassandra is configured, it keeps one row for an event.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidelog.spark.pipelines import cassandra
from tidelog.spark.pipelines.days import day_of
from tidelog.spark.pipelines.declare import Context, Flow, Pipeline, SettingValue, Sink, Source
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

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

LOGS = (CREDITS, LEFT_SWIPES, RIGHT_SWIPES, EXPOSURES, INSTALLS, LOGINS, VERIFICATIONS)
QUARANTINE = "quarantine"
METADATA = ("partition", "offset", "timestamp")
_BAD = "bad"


@dataclass(slots=True)
class Collected:
    """Writes good events to their table and bad ones to the quarantine, in one pass over the micro-batch."""

    schema: EventSchema
    name: str = "tables"

    def write(self, rows: DataFrame, context: Context, flow: str, batch: int) -> None:
        tables, written = context.tables, context.written(batch)
        sorted_out = sort_out(rows, self.schema)
        with tables.write_aside(
            sorted_out, self.schema.table, partition_by=("day",), aside=_BAD, **written
        ) as bad:
            if bad is not None:
                tables.write(quarantined(bad, self.schema), QUARANTINE, partition_by=("day",), **written)


def sort_out(rows: DataFrame, schema: EventSchema) -> DataFrame:
    """The event's columns, its day and whether it is bad.

    One write takes all rows, and the files of good events must have no columns but the event's. So the error
    of a bad event travels in columns that every event has, and `quarantined` takes it out again.
    """
    from pyspark.sql import functions as F

    is_bad = F.col("_error").isNotNull()
    # For an event with valid JSON that fails a check, the schema has a better message than a condition.
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
    """Bad events, from the columns that `sort_out` has put them into."""
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
    """Writes good events to Cassandra. A replay writes the same rows again."""

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


PIPELINE = Pipeline(
    "collect",
    "seven logs of the app into tables by day, bad events into a quarantine",
    __doc__,
    flows,
    cassandra.SETTINGS,
)
