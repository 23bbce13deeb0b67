"""Readers of tables for the report: local files without a JVM, other paths with Spark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from tidelog.spark.pipelines.report_facts import Row
from tidelog.spark.tables.delta_log import DeltaLog

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tidelog.spark.tables import Tables

MINUTE_MS = 60_000
READ_ATTEMPTS = 5


class TablesChanged(Exception):
    """Files of a table were replaced during the read. Start again."""


class LocalReader:
    """Counts in the Delta tables below the folder `root`. Reads a table in parts.

    A reader sees each table as of the first query on it. It raises `TablesChanged` if a vacuum has deleted
    files of that version since.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._seen: dict[str, ds.Dataset | None] = {}

    def columns(self, table: str) -> frozenset[str]:
        found = self._table(table)
        if found is None or found.head(1).num_rows == 0:
            return frozenset()
        return frozenset(found.schema.names)

    def per_minute(self, table: str) -> Counter[int]:
        counts: Counter[int] = Counter()
        for batch in self._batches(table, ["ts"]):
            minutes = pc.divide(batch.column("ts"), MINUTE_MS)
            _add(counts, pc.value_counts(minutes.drop_null()))
        return counts

    def counts(self, table: str, columns: Sequence[str]) -> Counter[tuple[str, ...]]:
        counts: Counter[tuple[str, ...]] = Counter()
        for batch in self._batches(table, columns):
            grouped = pa.Table.from_batches([batch]).group_by(list(columns)).aggregate([([], "count_all")])
            for row in grouped.to_pylist():
                counts[tuple(_shown(row[name]) for name in columns)] += row["count_all"]
        return counts

    def top(self, table: str, columns: Sequence[str], by: str, limit: int, where: Row) -> list[Row]:
        best: pa.Table | None = None
        wanted = list(dict.fromkeys([*columns, by, *where]))
        for batch in self._batches(table, wanted):
            rows = pa.Table.from_batches([batch])
            for name, value in where.items():
                rows = rows.filter(pc.equal(pc.fill_null(rows[name], ""), value))
            best = rows if best is None else pa.concat_tables([best, rows])
            best = best.sort_by([(by, "descending")]).slice(0, limit)
        return [] if best is None else list(best.select(list(columns)).to_pylist())

    def numbers(self, table: str, column: str) -> list[int]:
        found: list[int] = []
        for batch in self._batches(table, [column]):
            found += batch.column(column).drop_null().to_pylist()
        return found

    def sums(
        self, table: str, by: Sequence[str], columns: Sequence[str]
    ) -> dict[tuple[str, ...], tuple[int, ...]]:
        found: dict[tuple[str, ...], tuple[int, ...]] = {}
        asked = [([], "count_all"), *((name, "sum") for name in columns)]
        for batch in self._batches(table, [*by, *columns]):
            for row in pa.Table.from_batches([batch]).group_by(list(by)).aggregate(asked).to_pylist():
                key = tuple(_shown(row[name]) for name in by)
                sums = (row["count_all"], *(row[f"{name}_sum"] or 0 for name in columns))
                before = found.get(key, (0,) * len(sums))
                found[key] = tuple(one + other for one, other in zip(before, sums, strict=True))
        return found

    def _batches(self, table: str, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        found = self._table(table)
        if found is None:
            return
        try:
            yield from found.to_batches(columns=list(columns))
        except FileNotFoundError as error:
            raise TablesChanged(table) from error

    def _table(self, table: str) -> ds.Dataset | None:
        if table not in self._seen:
            log = DeltaLog(str(self.root / table))
            self._seen[table] = log.snapshot().table.to_pyarrow_dataset() if log.exists() else None
        return self._seen[table]


def _add(counts: Counter[int], found: pa.StructArray) -> None:
    for value, count in zip(
        found.field("values").to_pylist(), found.field("counts").to_pylist(), strict=True
    ):
        counts[value] += count


def _shown(value: object) -> str:
    """A value as Spark shows it, with times in UTC and nothing for null."""
    if isinstance(value, datetime):
        return str(value.replace(tzinfo=None))
    return "" if value is None else str(value)


class SparkReader:
    """Counts with Spark's aggregations, so that only the results travel."""

    def __init__(self, tables: Tables) -> None:
        self.tables = tables

    def columns(self, table: str) -> frozenset[str]:
        if not self.tables.exists(table):
            return frozenset()
        rows = self.tables.read(table)
        return frozenset() if rows.isEmpty() else frozenset(rows.columns)

    def per_minute(self, table: str) -> Counter[int]:
        from pyspark.sql import functions as f

        minute = f.expr(f"ts div {MINUTE_MS}").alias("minute")
        rows = self.tables.read(table).where("ts is not null").groupBy(minute).count().collect()
        return Counter({row["minute"]: row["count"] for row in rows})

    def counts(self, table: str, columns: Sequence[str]) -> Counter[tuple[str, ...]]:
        rows = self._text(self.tables.read(table), columns).groupBy(*columns).count().collect()
        return Counter({tuple(row[name] for name in columns): row["count"] for row in rows})

    def top(self, table: str, columns: Sequence[str], by: str, limit: int, where: Row) -> list[Row]:
        from pyspark.sql import functions as f

        rows = self.tables.read(table)
        for name, value in where.items():
            rows = rows.where(f.coalesce(f.col(name).cast("string"), f.lit("")) == f.lit(value))
        found = rows.orderBy(f.col(by).desc_nulls_last()).limit(limit).select(*columns).toArrow()
        return list(found.to_pylist())

    def numbers(self, table: str, column: str) -> list[int]:
        found = self.tables.read(table).select(column).toArrow()
        return list(found.column(column).drop_null().to_pylist())

    def sums(
        self, table: str, by: Sequence[str], columns: Sequence[str]
    ) -> dict[tuple[str, ...], tuple[int, ...]]:
        from pyspark.sql import functions as f

        asked = [f.count(f.lit(1)), *(f.coalesce(f.sum(name), f.lit(0)) for name in columns)]
        rows = self.tables.read(table).groupBy(*by).agg(*asked).collect()
        return {
            tuple("" if row[at] is None else str(row[at]) for at in range(len(by))): tuple(row[len(by) :])
            for row in rows
        }

    @staticmethod
    def _text(rows: DataFrame, columns: Sequence[str]) -> DataFrame:
        from pyspark.sql import functions as f

        return rows.select(
            *(f.coalesce(f.col(name).cast("string"), f.lit("")).alias(name) for name in columns)
        )
