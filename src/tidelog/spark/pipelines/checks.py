"""Checks the expectations of a flow or a table on one micro-batch.

Expectations that only warn are counted while the rows are written. `quarantine` and `stop` need to know the
rows before anything is written: the micro-batch is computed once, counted, and kept until it is written.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import reduce
from typing import TYPE_CHECKING

from tidelog.spark.pipelines import quarantine
from tidelog.spark.pipelines.days import day_of
from tidelog.spark.pipelines.declare import Context
from tidelog.spark.pipelines.expectations import (
    BATCH,
    DAY,
    QUARANTINE,
    STOP,
    WARN,
    Expectation,
    ExpectationFailed,
    Unique,
)
from tidelog.spark.tables.errors import ForeignCheckpoint, VersionGone

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructField, StructType

FAILED = "_failed"
"""The names of the expectations that a row fails, while a micro-batch is checked."""

log = logging.getLogger("tidelog.spark")


@dataclass(frozen=True, slots=True)
class Checks:
    """The expectations of one place: of all rows of a flow, or of the rows of one of its tables."""

    expect: tuple[Expectation, ...]
    table: str = ""
    """The table of the rows; empty for the rows of the flow."""
    tables: tuple[str, ...] = ()
    """The tables that get the rows of the flow."""

    def _place(self, context: Context) -> str:
        return f"table {self.table}" if self.table else f"flow {context.writer}"

    def _away(self, context: Context) -> Context:
        """The context with the name under which rows go to the quarantine."""
        place = f"/{self.table}" if self.table else ""
        return replace(context, writer=f"{context.writer}/expect{place}")

    def _is_written(self, context: Context, batch: int) -> bool:
        tables = (self.table,) if self.table else self.tables
        return any(context.tables.has(name, **context.written(batch)) for name in tables)

    def _is_decided(self, here: Context, batch: int) -> bool:
        """Whether an earlier attempt has quarantined rows of the micro-batch.

        Raises ForeignCheckpoint if rows might have to go to the quarantine, and it has the flow's rows from
        another checkpoint.
        """
        try:
            return here.tables.has(quarantine.TABLE, **here.written(batch))
        except ForeignCheckpoint:
            if any(one.action == QUARANTINE for one in self.expect):
                raise
            return False

    @contextmanager
    def applied(self, rows: DataFrame, context: Context, batch: int) -> Iterator[DataFrame]:
        """The rows to write. Rows that fail with the action `quarantine` are in the quarantine by then.

        Raises `ExpectationFailed` if a row fails with the action `stop`. Rows that an earlier attempt of the
        micro-batch has committed, to a table or to the quarantine, stay there: the expectations may be others
        by now.
        """
        here = self._away(context)
        decided = context.may_be_replay and self._is_decided(here, batch)
        if not self.expect and not decided:
            yield rows
            return
        marked, failures = self._marked(rows, context, batch)
        if all(one.action == WARN for one in self.expect) and not decided:
            yield context.counts.expectations(marked, failures).select(*rows.columns)
            return
        from pyspark.sql import functions as F

        names = [F.when(failed, F.lit(name)) for name, failed in failures.items()]
        kept = marked.withColumn(FAILED, F.array_compact(F.array(*names).cast("array<string>"))).persist()
        try:
            found = kept.select(F.explode(FAILED).alias("name")).groupBy("name").count().collect()
            failed = {str(row["name"]): int(row["count"]) for row in found}
            written = context.may_be_replay and self._is_written(context, batch)
            if not written:
                self._stop_if_failed(failed, context)
            context.counts.failed.update(failed)
            before = _quarantined(here, batch) if decided else None
            if before is not None:
                context.counts.set_aside(before)
                yield without(kept, rows.columns, before, f"micro-batch {batch} of {here.writer}")
                return
            if written and not decided:  # no row was quarantined
                yield kept.select(*rows.columns)
                return
            away = [one.name for one in self.expect if one.action == QUARANTINE and one.name in failed]
            if away:
                goes = F.arrays_overlap(FAILED, F.array(*[F.lit(name) for name in away]))
                self._quarantine(kept.where(goes), rows.columns, context, batch)
                yield kept.where(~goes).select(*rows.columns)
            else:
                yield kept.select(*rows.columns)
        finally:
            kept.unpersist()

    def _marked(self, rows: DataFrame, context: Context, batch: int) -> tuple[DataFrame, dict[str, Column]]:
        """The rows with helper columns, and for each expectation the condition of rows that fail it."""
        from pyspark.sql import functions as F

        failures: dict[str, Column] = {}
        marked = rows
        for at, one in enumerate(self.expect):
            if isinstance(one, Unique):
                column = f"_unique_{at}"
                marked = self._repeated(marked, one, column, context, batch)
                failures[one.name] = F.col(column)
            else:
                failures[one.name] = ~F.coalesce(one.holds(), F.lit(True))
        if "_error" in rows.columns:  # a bad event has no fields that could be checked
            good = F.col("_error").isNull()
            failures = {name: good & failed for name, failed in failures.items()}
        return marked, failures

    def _repeated(
        self, rows: DataFrame, unique: Unique, column: str, context: Context, batch: int
    ) -> DataFrame:
        """The rows and a column that is true for rows whose values another row has."""
        from pyspark.sql import Window
        from pyspark.sql import functions as F

        key = (*unique.key, "day") if unique.within == DAY else unique.key
        # The same row has to pass when the micro-batch is replayed, so the order is that of the content.
        order = F.xxhash64(*[_hashable(field) for field in rows.schema.fields])
        place = F.row_number().over(Window.partitionBy(*key).orderBy(order))
        has_key = reduce(lambda one, other: one & other, (F.col(name).isNotNull() for name in unique.key))
        marked = rows.withColumn(column, has_key & (place > 1))
        if unique.within == BATCH or not context.tables.exists(self.table):
            return marked
        try:
            before = context.tables.read(self.table, without=(context.writer, batch)).select(*key)
        except VersionGone:  # the table has the batch: its rows are only counted
            return marked
        if unique.within == DAY:
            days = [row["day"] for row in rows.select("day").distinct().collect()]
            before = before.where(F.col("day").isin(days))
        there = before.distinct().withColumn("_there", F.lit(True))
        joined = marked.join(there, list(key), "left")
        known = F.coalesce(F.col("_there"), F.lit(False))
        return joined.withColumn(column, F.col(column) | known).select(*marked.columns)

    def _stop_if_failed(self, failed: dict[str, int], context: Context) -> None:
        stops = {one.name for one in self.expect if one.action == STOP}
        broken = [f"{name} ({count:,} rows)" for name, count in sorted(failed.items()) if name in stops]
        if broken:
            raise ExpectationFailed(
                f"{self._place(context)} expects {' and '.join(broken)} to hold; the batch is not written"
            )

    def _quarantine(self, bad: DataFrame, columns: list[str], context: Context, batch: int) -> None:
        from pyspark.sql import functions as F
        from pyspark.sql.types import TimestampType  # "timestamp" may be the one without a zone

        text = _text([name for name in columns if name not in _METADATA])
        error = F.concat(F.lit(f"{self._place(context)} expects "), F.concat_ws(" and ", FAILED))
        partition, offset = (
            F.col(name) if name in columns else F.lit(None) for name in ("partition", "offset")
        )
        timestamp = F.col("timestamp") if "timestamp" in columns else F.lit(None).cast(TimestampType())
        fields = quarantine.bad_row(error, text.cast("binary"), partition, offset, timestamp)
        found = bad.select(fields.alias(quarantine.BAD), self._day(columns).alias("day"))
        rows = found.select(f"{quarantine.BAD}.*", "day")
        quarantine.write(rows, ",".join(context.topics), self._away(context), batch)

    def _day(self, columns: list[str]) -> Column:
        from pyspark.sql import functions as F

        if "timestamp" in columns:
            return quarantine.day_of_record()
        if "ts" in columns:
            return day_of(F.col("ts"))
        return F.lit(datetime.now(UTC).date())


def _quarantined(here: Context, batch: int) -> DataFrame | None:
    """The rows that a micro-batch has quarantined; None if somebody has deleted them."""
    found = quarantine.rows_of(here, batch)
    if found is None:
        log.warning(
            "the quarantine has micro-batch %d of %s without its rows: its rows are checked again, and those "
            "that fail are not written",
            batch,
            here.writer,
        )
    return found


def without(kept: DataFrame, columns: list[str], before: DataFrame, name: str) -> DataFrame:
    """The rows of a micro-batch, called `name`, that an earlier attempt has not quarantined.

    Rows are compared by the columns that both attempts have, and by the position in the log if both have it.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F
    from pyspark.sql.types import StructType

    counts = [F.count(part).alias(part) for part in _POSITION]
    [facts] = before.agg(F.first("raw").alias("raw"), F.count("*").alias("rows"), *counts).collect()
    names = json.loads(facts["raw"]).keys()
    shared = StructType([field for field in kept.schema.fields if field.name in names])
    position = [part for part in _POSITION if part in columns and facts[part]]
    missing = sorted(names - set(columns))
    if missing and not position:
        _warn_of_replay(name, f"lacks columns of the quarantined rows ({', '.join(missing)})")
        if not shared.names:  # every row would be equal to every other one
            return kept.select(*columns)
    as_now = F.from_json(F.col("raw").cast("string"), _in_json(shared), {"timeZone": "UTC"})
    parts = [F.col(part).cast("long") for part in position]
    by = [f"_by_{at}" for at in range(1 + len(parts))]
    keys = [one.alias(key) for one, key in zip([F.to_json(as_now, _STYLE), *parts], by, strict=True)]
    away = before.groupBy(*keys).agg(F.count("*").alias("_away"))
    own = [one.alias(f"_{key}") for one, key in zip([_text(shared.names), *parts], by, strict=True)]
    order = F.xxhash64(*[_hashable(field) for field in kept.schema.fields if field.name in columns])
    place = F.row_number().over(Window.partitionBy(*(f"_{key}" for key in by)).orderBy(order))
    numbered = kept.select("*", *own).withColumn("_place", place)
    same = reduce(lambda one, other: one & other, (F.col(f"_{key}").eqNullSafe(F.col(key)) for key in by))
    joined = numbered.join(away, same, "left").where(F.col("_place") > F.coalesce("_away", F.lit(0)))
    left = joined.select(*columns)
    left_out = kept.count() - left.count()
    if left_out < facts["rows"]:
        _warn_of_replay(name, f"has {left_out} of the {facts['rows']} quarantined rows")
    return left


def _warn_of_replay(name: str, words: str) -> None:
    log.warning("the replay of %s %s: a row may be in the quarantine and written, or neither", name, words)


def _text(columns: Sequence[str]) -> Column:
    from pyspark.sql import functions as F

    return F.to_json(F.struct(*[F.col(f"`{name}`") for name in columns]), _STYLE)


def _in_json(schema: StructType) -> StructType:
    """The columns whose values have the same JSON, with text as the keys of maps: Spark parses no others."""
    from pyspark.sql.types import StructField, StructType

    return StructType([StructField(field.name, _type_in_json(field.dataType)) for field in schema.fields])


def _type_in_json(kind: DataType) -> DataType:
    from pyspark.sql.types import ArrayType, MapType, StringType, StructType

    if isinstance(kind, StructType):
        return _in_json(kind)
    if isinstance(kind, ArrayType):
        return ArrayType(_type_in_json(kind.elementType))
    if isinstance(kind, MapType):
        return MapType(StringType(), _type_in_json(kind.valueType))
    return kind


def _hashable(field: StructField) -> Column:
    """The column, as JSON if it has maps, which Spark does not hash."""
    from pyspark.sql import functions as F

    column = F.col(f"`{field.name}`")
    return F.to_json(column) if "map<" in field.dataType.simpleString() else column


_STYLE = {"ignoreNullFields": "false", "timeZone": "UTC"}
_POSITION = ("partition", "offset")
_METADATA = frozenset({*_POSITION, "timestamp", "_error", "_raw"})
