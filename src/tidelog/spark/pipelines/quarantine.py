"""The table of rows that a flow could not use: their error, their bytes and their position in the log.

`set_aside` writes good rows to their table and yields the others, in one pass over the micro-batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tidelog.spark.pipelines.days import day_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from tidelog.spark.pipelines.declare import Context

TABLE = "quarantine"
BAD = "_bad"
"""The column of a row's error: null for good rows."""


def bad_row(error: Column, raw: Column, partition: Column, offset: Column, timestamp: Column) -> Column:
    """The struct of a bad row, for the column `_bad`."""
    from pyspark.sql import functions as F

    return F.struct(
        error.alias("error"),
        raw.alias("raw"),
        partition.cast("int").alias("partition"),
        offset.cast("long").alias("offset"),
        timestamp.alias("timestamp"),
    )


@contextmanager
def set_aside(rows: DataFrame, table: str, context: Context, batch: int) -> Iterator[DataFrame | None]:
    """Write the rows whose `_bad` is null by day, and yield the fields of `_bad` of the others, or None."""
    from pyspark.sql import functions as F

    with context.tables.write_aside(
        rows, table, partition_by=("day",), aside=BAD, **context.written(batch)
    ) as aside:
        context.counts.wrote(table, aside.written, lambda: rows.where(F.col(BAD).isNull()))
        yield aside.rows


def write(bad: DataFrame, topic: str, context: Context, batch: int) -> None:
    """Write the fields of bad rows to the quarantine."""
    from pyspark.sql import functions as F

    rows = bad.select(
        F.lit(topic).alias("topic"),
        "partition",
        "offset",
        "timestamp",
        "error",
        "raw",
        "day",
        F.lit(context.writer).alias("flow"),
        F.lit(batch).cast("long").alias("batch"),
    )
    counted = context.counts.set_aside(rows)
    if context.tables.write(counted, TABLE, partition_by=("day",), **context.written(batch)) is None:
        # Nothing was written that would have counted the rows, and their files may be deleted next.
        context.counts.settle()


def rows_of(context: Context, batch: int) -> DataFrame | None:
    """The rows that a micro-batch of the writer has put into the quarantine; None if there are none."""
    from pyspark.sql import functions as F

    rows = context.tables.read(TABLE)
    if "batch" not in rows.columns:  # every row is older
        return None
    found = rows.where((F.col("flow") == context.writer) & (F.col("batch") == batch))
    return None if found.isEmpty() else found


def day_of_record() -> Column:
    """The day of a bad row: that of its record, as its event may have no time."""
    from pyspark.sql import functions as F

    return day_of(F.unix_millis("timestamp"))
