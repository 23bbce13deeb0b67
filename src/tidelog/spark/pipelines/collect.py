"""Collects seven logs of the app into tables, one for each log, by the day of the event.

Every record of a log ends up in a table: a good event in the table of its log, a bad one in `quarantine` with
its error, its bytes and its offset. An event that was sent twice is in the table twice, as in the log. If
Cassandra is configured, it keeps one row for an event.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from tidelog.spark.pipelines import cassandra, quarantine
from tidelog.spark.pipelines.days import day_of
from tidelog.spark.pipelines.declare import (
    BackfillRefused,
    Context,
    Flow,
    Pipeline,
    SettingValue,
    Sink,
    Source,
)
from tidelog.spark.pipelines.event_times import AHEAD, ahead_ms
from tidelog.spark.pipelines.events import LOGS, EventSchema

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

QUARANTINE = quarantine.TABLE
METADATA = ("partition", "offset", "timestamp")


@dataclass(slots=True)
class Collected:
    """Writes good events to their table and bad ones to the quarantine, in one pass over the micro-batch."""

    schema: EventSchema
    name: str = "tables"
    _columns: list[Column] = field(default_factory=list, repr=False, compare=False)
    """The columns of `sorted_out`. They are made once: each takes several calls of the JVM."""

    def write(self, rows: DataFrame, context: Context, flow: str, batch: int) -> None:
        context = replace(context, writer=flow)
        self._columns = self._columns or sorted_out(self.schema)
        events = rows.select(*self._columns)
        with quarantine.set_aside(events, self.schema.table, context, batch) as bad:
            if bad is not None:
                quarantine.write(bad, self.schema.topic, context, batch)

    @property
    def table(self) -> str:
        return self.schema.table

    def backfill(self, rows: DataFrame, context: Context) -> DataFrame:
        """The good events. Refuses if an event would be in neither or in both of table and quarantine."""
        from pyspark.sql import functions as F

        is_bad, known = F.col("_error").isNotNull(), F.lit(False)
        found = rows.select("partition", "offset", "_error")
        if context.tables.exists(QUARANTINE):
            there = context.tables.read(QUARANTINE).where(F.col("topic") == self.schema.topic)
            there = there.select("partition", "offset").distinct().withColumn("_known", F.lit(True))
            found = found.join(F.broadcast(there), ["partition", "offset"], "left")
            known = F.coalesce("_known", F.lit(False))
        counted = found.agg(
            F.count_if(is_bad & ~known).alias("lost"), F.count_if(~is_bad & known).alias("good")
        )
        [row] = counted.collect()
        if row["lost"]:
            raise BackfillRefused(
                f"{row['lost']:,} events of {self.schema.topic} are bad by the present schema and not in the "
                "quarantine: they would be lost"
            )
        if row["good"]:
            raise BackfillRefused(
                f"{row['good']:,} quarantined events of {self.schema.topic} are good by now: run `tidelog "
                "pipeline replay quarantine` first, or they would be in the table and in the quarantine"
            )
        return good_events(rows, self.schema)


def sorted_out(schema: EventSchema) -> list[Column]:
    """The event's columns, its day, and `_bad`: the error, bytes and position of a bad event, else null."""
    from pyspark.sql import functions as F

    is_bad = F.col("_error").isNotNull()
    # For an event with valid JSON that fails a check, the schema has a better message than a condition.
    error = F.coalesce(schema.spark_error(), F.col("_error"))
    bad = quarantine.bad_row(error, F.col("_raw"), F.col("partition"), F.col("offset"), F.col("timestamp"))
    day = F.when(is_bad, quarantine.day_of_record()).otherwise(day_of(F.col("ts")))
    names = (F.col(name) for name in schema.names)
    return [*names, day.alias("day"), F.when(is_bad, bad).alias(quarantine.BAD)]


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
    return tuple(_flow(schema, keyspace, ahead_ms(settings)) for schema in LOGS)


def source_checks(schema: EventSchema, ahead: int) -> dict[str, str]:
    """The options of the data source for the rules of events beyond types and fields."""
    return {"valueCheck": schema.condition(), "valueTime": "ts", "valueTimeAheadMs": str(ahead)}


def _flow(schema: EventSchema, keyspace: cassandra.Keyspace | None, ahead: int) -> Flow:
    source = Source(
        (schema.topic,),
        schema.spark_schema(),
        keep_bad=True,
        metadata=METADATA,
        options=source_checks(schema, ahead),
    )
    sinks: tuple[Sink, ...] = (Collected(schema),)
    if keyspace is not None:
        sinks = (*sinks, InCassandra(schema, keyspace))
    return Flow(schema.table, source, sinks)


PIPELINE = Pipeline(
    "collect",
    "Seven logs of the app into tables by day, bad events into a quarantine.",
    __doc__,
    flows,
    (*cassandra.SETTINGS, AHEAD),
)
