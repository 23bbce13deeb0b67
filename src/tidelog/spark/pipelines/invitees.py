"""Follows invitees: do they act, and whom do they invite? Finds idle invitees and rings.

A batch step on the events of several topics. Its memory is the table `invite_history`, which has what earlier
micro-batches left open: for each span and invitee the first invitation and the last action, the invitations
among which rings are looked for, and the newest event of each partition. A micro-batch starts from the table
before it, so a replay decides the same. Closed spans and old invitations are removed.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING

from tidelog.spark.pipelines.alerts import (
    IDLE_INVITEES,
    LISTED,
    RING,
    Finding,
    as_alerts,
    batch_time,
)
from tidelog.spark.pipelines.days import DAY_MS, HOUR_MS
from tidelog.spark.pipelines.declare import Context
from tidelog.spark.pipelines.event_clock import EventClock, Newest
from tidelog.spark.pipelines.event_times import in_time, record_time
from tidelog.spark.pipelines.events import INVITES

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

    from tidelog.spark.pipelines.rings import RingSearch

HISTORY = "invite_history"
MINUTE_MS = 60_000
SPAN, EDGE, CLOCK = "span", "invitation", "clock"
"""The kinds of rows in the history."""
PARTITION_BY = ("kind", "slot")
"""A slot is the first millisecond of a span, or of the day of an invitation or of a micro-batch."""


def activity_schema() -> StructType:
    """The fields of invitations and of all other user events that are needed here."""
    from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

    return StructType(
        [
            StructField("version", IntegerType(), False),
            StructField("ts", LongType(), False),
            StructField("user_id", StringType(), False),
            StructField("invitee_id", StringType(), True),
        ]
    )


def stamped(rows: DataFrame, context: Context) -> DataFrame:
    """The rows with the start of the micro-batch, which is the same in a replay."""
    return rows.withColumn("now", batch_time())


@dataclass(slots=True)
class Memory:
    """The state between two micro-batches."""

    clock: EventClock
    rings: RingSearch
    after: int = -1
    """The micro-batch whose events are included last."""


@dataclass(slots=True)
class Invitees:
    """The batch step. Keeps the memory of the last micro-batch, to read the table only at the start."""

    _memory: Memory | None = field(default=None, repr=False)

    def __call__(self, rows: DataFrame, context: Context, batch: int, /) -> DataFrame:
        from pyspark.sql.functions import lit

        memory, self._memory = self._memory, None  # after a failure it is read from the table
        unread = None
        if memory is None or memory.after >= batch:
            memory, unread = remembered(context, batch), decided(context, batch)
        if unread is None:
            unread = to_text(context.unread(batch))
        before = memory.clock.watermark
        history = gathered(rows, context, before, batch).withColumn("unread", lit(unread)).persist()
        try:
            context.tables.write(history, HISTORY, partition_by=PARTITION_BY, **context.written(batch))
            new = history.where(f"kind != '{SPAN}'").toArrow()
        finally:
            history.unpersist()
        now = tick(memory.clock, new)
        found = [*ring_alerts(context, memory.rings.add(invitations(new), before), now)]
        if spans_closed(context, before, memory.clock.watermark):
            found.append(idle_alerts(context, before, memory.clock.watermark, now))
            forget(context, before, memory.rings.oldest_day(before), now)
        memory.after = batch
        self._memory = memory
        return reduce(lambda one, other: one.unionByName(other), found) if found else no_alerts(context)


def remembered(context: Context, batch: int) -> Memory:
    """The memory before a micro-batch, from the table."""
    from tidelog.spark.pipelines.rings import RingSearch

    number = context.number
    clock = EventClock(number("lateness_minutes") * MINUTE_MS, number("silent_minutes") * MINUTE_MS)
    rings = RingSearch(number("ring_length"), number("ring_hours") * HOUR_MS)
    memory = Memory(clock, rings)
    if not context.tables.exists(HISTORY):
        return memory
    history = context.tables.read(HISTORY, without=(context.writer, batch))
    ticks = history.where(f"kind = '{CLOCK}'").toArrow()
    if ticks.num_rows:
        memory.after = max(ticks["batch"].to_pylist())
        last = ticks.filter(_equal(ticks["batch"], memory.after))
        clock.watermark = last["watermark"][0].as_py()
        for partition, newest in newest_in(ticks):
            clock.newest[partition] = newest.with_later(clock.newest.get(partition, newest))
        tick(clock, last)
    edges = history.where(f"kind = '{EDGE}' and slot >= {rings.oldest_day(clock.watermark)}")
    rings.load(invitations(edges.toArrow()))
    return memory


def _equal(column: pa.ChunkedArray, value: int | str) -> pa.ChunkedArray:
    import pyarrow.compute as pc

    return pc.equal(column, value)


def tick(clock: EventClock, rows: pa.Table) -> int:
    """Advance the clock by the ticks of one micro-batch; returns its start in microseconds, 0 if empty."""
    ticks = rows.filter(_equal(rows["kind"], CLOCK))
    if not ticks.num_rows:
        return 0
    clock.advance(dict(newest_in(ticks)), from_text(ticks["unread"][0].as_py()))
    return int(max(ticks["now"].to_pylist()))


def newest_in(ticks: pa.Table) -> Iterator[tuple[tuple[str, int], Newest]]:
    for row in ticks.select(["who", "number", "event", "record"]).to_pylist():
        yield (row["who"], row["number"]), Newest(row["event"], row["record"])


def decided(context: Context, batch: int) -> str | None:
    """The unread partitions as an earlier attempt of a micro-batch saw them; None if there is none.

    The log has grown since, and the sinks may have alerts of that attempt already: a replay must not wait for
    partitions that it did not wait for.
    """
    if not context.tables.exists(HISTORY):
        return None
    ticks = context.tables.read(HISTORY).where(f"kind = '{CLOCK}' and batch = {batch}").select("unread")
    found = ticks.head()
    return None if found is None else str(found.unread)


def to_text(partitions: Collection[tuple[str, int]]) -> str:
    return json.dumps(sorted(partitions))


def from_text(text: str) -> set[tuple[str, int]]:
    return {(topic, partition) for topic, partition in json.loads(text)}


def invitations(rows: pa.Table) -> pa.Table:
    """The invitations of history rows, with the columns of `RingSearch`."""
    edges = rows.filter(_equal(rows["kind"], EDGE)).select(["other", "who", "number"])
    return edges.rename_columns(["inviter", "invitee", "ts"])


def gathered(rows: DataFrame, context: Context, watermark: int, batch: int) -> DataFrame:
    """The history rows of a micro-batch, in one pass: each event counts for its spans, and for the clock."""
    from pyspark.sql import functions as f

    length = context.number("idle_hours") * HOUR_MS
    ts, user, invitee = f.col("ts"), f.col("user_id"), f.col("invitee_id")
    record = record_time()
    # A bad event counts for the clock alone: its partition has been read up to the time of its record.
    good = f.col("_error").isNull() & INVITES.spark_error().isNull() & in_time(context)
    invited = good & (f.col("topic") == INVITES.topic) & invitee.isNotNull()
    acted = good & (f.col("topic") != INVITES.topic)
    span, today = _floor(ts, length), _floor(f.floor(f.col("now") / 1_000), DAY_MS)

    def case(condition: Column, kind: str, slot: Column, *key: Column) -> Column:
        named = zip((f.lit(kind), slot, *key), ("kind", "slot", "who", "other", "number"), strict=True)
        return f.when(condition, f.struct(*[column.alias(name) for column, name in named]))

    none, zero = f.lit(None).cast("string"), f.lit(0).cast("long")
    cases = f.array(
        case(f.lit(True), CLOCK, today, f.col("topic"), none, f.col("partition").cast("long")),
        case(invited & (span + 2 * length > watermark), SPAN, span, invitee, none, zero),
        case(acted & (span + 2 * length > watermark), SPAN, span, user, none, zero),
        case(acted & (span + length > watermark), SPAN, span - length, user, none, zero),
        case(invited & (ts >= watermark) & (invitee != user), EDGE, _floor(ts, DAY_MS), invitee, user, ts),
    )
    first = f.min(f.when(invited, f.struct("ts", "user_id")))
    return (
        rows.select("*", f.explode(f.array_compact(cases)).alias("case"))
        .groupBy("case.kind", "case.slot", "case.who", "case.other", "case.number")
        .agg(
            f.max("now").alias("now"),
            first["ts"].alias("invited"),
            first["user_id"].alias("inviter"),
            f.max(f.when(acted, ts)).alias("acted"),
            f.coalesce(f.max(f.when(good, ts)), f.lit(-1)).alias("event"),
            f.coalesce(f.max(f.when(good, record)), f.max(record)).alias("record"),
        )
        .withColumn("batch", f.lit(batch).cast("long"))
        .withColumn("watermark", f.lit(watermark).cast("long"))
    )


def _floor(value: Column, step: int) -> Column:
    from pyspark.sql import functions as f

    return (f.floor(value / step) * step).cast("long")


def spans_closed(context: Context, before: int, watermark: int) -> bool:
    """Whether the watermark has passed the end of a span."""
    length = context.number("idle_hours") * HOUR_MS
    return watermark // length != before // length


def forget(context: Context, before: int, oldest_day: int, now: int) -> None:
    """Remove spans and invitations that were decided before this micro-batch, and old clocks.

    Its replay reads none of them. A table whose files change at the same time is left for the next time.
    """
    length = context.number("idle_hours") * HOUR_MS
    silent = now // 1_000 - context.number("silent_minutes") * MINUTE_MS
    old = {SPAN: before - 2 * length + 1, EDGE: oldest_day, CLOCK: silent - DAY_MS}
    context.tables.delete(HISTORY, lambda values: is_old(str(values["kind"]), values["slot"], old))


def is_old(kind: str, slot: object, old: Mapping[str, int]) -> bool:
    return isinstance(slot, int) and kind in old and slot < old[kind]


def idle_alerts(context: Context, before: int, watermark: int, now: int) -> DataFrame:
    """The inviters whose invitees mostly did nothing, of the spans that the watermark has passed.

    A span is closed when the next span has ended: an invitee has at least the length of a span to act.
    """
    from pyspark.sql import functions as f

    length = context.number("idle_hours") * HOUR_MS
    closed = f"kind = '{SPAN}' and slot > {before - 2 * length} and slot <= {watermark - 2 * length}"
    first = f.min(f.when(f.col("invited").isNotNull(), f.struct("invited", "inviter")))
    followed = context.tables.read(HISTORY).where(closed).groupBy("slot", "who")
    invitees = (
        followed.agg(first.alias("first"), f.max("acted").alias("acted"))
        .where(f.col("first").isNotNull())
        .select(
            f.col("slot").alias("first"),
            f.col("who").alias("invitee"),
            "first.inviter",
            (f.col("acted").isNull() | (f.col("acted") < f.col("first.invited"))).alias("idle"),
        )
    )
    return mostly_idle(invitees, context, now)


def mostly_idle(invitees: DataFrame, context: Context, now: int) -> DataFrame:
    """An alert for each span and inviter with enough idle invitees and a high share of them."""
    from pyspark.sql import functions as f

    names = f.sort_array(f.collect_set(f.when(f.col("idle"), f.col("invitee"))))
    found = invitees.groupBy("first", "inviter").agg(
        f.count("*").alias("invitee_count"),
        f.count_if("idle").alias("idle_count"),
        f.slice(names, 1, LISTED).alias("idle_invitees"),
    )
    few, share = context.number("idle_invitees"), context.fraction("idle_share")
    length = context.number("idle_hours")
    facts = f.struct("invitee_count", "idle_count", "idle_invitees", f.lit(length).alias("idle_hours"))
    enough = (f.col("idle_count") >= few) & (f.col("idle_count") >= share * f.col("invitee_count"))
    return as_alerts(
        found.where(enough).select(
            f.lit(IDLE_INVITEES).alias("rule"),
            f.col("inviter").alias("subject"),
            f.lit(now).cast("long").alias("now"),
            "first",
            (f.col("first") + length * HOUR_MS).alias("last"),
            f.to_json(facts).alias("evidence"),
        ),
        hourly=True,
    )


def ring_alerts(context: Context, found: list[Finding], now: int) -> Iterator[DataFrame]:
    if found:
        yield as_alerts(findings(context, [(RING, *finding, now) for finding in found]))


def no_alerts(context: Context) -> DataFrame:
    return as_alerts(findings(context, []))


def findings(context: Context, rows: list[tuple[str | int, ...]]) -> DataFrame:
    import pyarrow as pa

    kinds = [("rule", pa.string()), ("subject", pa.string()), ("first", pa.int64()), ("last", pa.int64())]
    schema = pa.schema([*kinds, ("evidence", pa.string()), ("now", pa.int64())])
    columns = [list(column) for column in zip(*rows, strict=True)] or [[] for _ in schema]
    return context.spark.createDataFrame(pa.table(columns, schema))  # unlike rows, without Python workers
