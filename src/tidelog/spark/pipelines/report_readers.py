"""Tables read for the report: files on this machine without a JVM, those of any other path by Spark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from tidelog.spark.pipelines.report_facts import Row

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tidelog.spark.tables import Tables

MINUTE_MS = 60_000
KEYED = {"balances": "user_id", "user_regions": "user_id"}
"""Tables of which only the newest row of a key stands."""


class LocalReader:
    """Counts in Parquet files below `root`, a folder for each table; a part of a table at a time."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def columns(self, table: str) -> frozenset[str]:
        found = self._dataset(table)
        return frozenset() if found is None or found.head(1).num_rows == 0 else frozenset(found.schema.names)

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
                counts[tuple("" if row[name] is None else str(row[name]) for name in columns)] += row[
                    "count_all"
                ]
        return counts

    def top(self, table: str, columns: Sequence[str], by: str, limit: int, where: Row) -> list[Row]:
        best: pa.Table | None = None
        wanted = list(dict.fromkeys([*columns, by, *where]))
        for batch in self._batches(table, wanted):
            rows = pa.Table.from_batches([batch])
            for name, value in where.items():
                rows = rows.filter(pc.equal(pc.fill_null(rows[name], ""), value))
            best = rows if best is None else pa.concat_tables([best, rows])
            best = best.take(pc.select_k_unstable(best, limit, [(by, "descending")]))
        return [] if best is None else list(best.select(list(columns)).to_pylist())

    def numbers(self, table: str, column: str) -> list[int]:
        found: list[int] = []
        for batch in self._batches(table, [column]):
            found += batch.column(column).drop_null().to_pylist()
        return found

    def _batches(self, table: str, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        found = self._dataset(table)
        if found is not None:
            yield from found.to_batches(columns=list(columns))

    def _dataset(self, table: str) -> ds.Dataset | None:
        folder = self.root / table
        if not folder.is_dir():
            return None
        files = sorted(str(path) for path in folder.rglob("*.parquet") if _shown(path.relative_to(folder)))
        return ds.dataset(files, format="parquet") if files else None


def _shown(path: Path) -> bool:
    """Names that begin with these are nobody's rows, by the custom of Hadoop."""
    return not any(part.startswith(("_", ".")) for part in path.parts)


def _add(counts: Counter[int], found: pa.StructArray) -> None:
    for value, count in zip(
        found.field("values").to_pylist(), found.field("counts").to_pylist(), strict=True
    ):
        counts[value] += count


class SparkReader:
    """Counts by Spark's own aggregations, so that only the results travel."""

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

    @staticmethod
    def _text(rows: DataFrame, columns: Sequence[str]) -> DataFrame:
        from pyspark.sql import functions as f

        return rows.select(
            *(f.coalesce(f.col(name).cast("string"), f.lit("")).alias(name) for name in columns)
        )
