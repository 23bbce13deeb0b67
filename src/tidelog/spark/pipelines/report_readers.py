"""Readers of tables for the report: local files without a JVM, other paths with Spark."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from tidelog.spark import compaction
from tidelog.spark.files import Entry, Files
from tidelog.spark.pipelines.report_facts import Row
from tidelog.spark.table_log import HIDDEN, VERSION, Marker, TableLog

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tidelog.spark.tables import Tables

MINUTE_MS = 60_000
READ_ATTEMPTS = 50
COMPACTION_SECONDS = 2.0


class TablesChanged(Exception):
    """Files of a table were replaced during the read. Start again."""


@dataclass(frozen=True, slots=True)
class LocalTable:
    """The files of a table at one moment, and its key columns."""

    rows: ds.Dataset
    keys: tuple[str, ...]


class LocalReader:
    """Counts in Parquet files below `root`, which has a folder for each table. Reads a table in parts.

    A reader sees each table as of the first query on it. It raises `TablesChanged` if a compaction has
    deleted files of the table since.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._seen: dict[str, LocalTable | None] = {}

    def columns(self, table: str) -> frozenset[str]:
        found = self._table(table)
        if found is None or found.rows.head(1).num_rows == 0:
            return frozenset()
        return frozenset(found.rows.schema.names)

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
            best = best.sort_by([(by, "descending")]).slice(0, limit)
        return [] if best is None else list(best.select(list(columns)).to_pylist())

    def numbers(self, table: str, column: str) -> list[int]:
        found: list[int] = []
        for batch in self._batches(table, [column]):
            found += batch.column(column).drop_null().to_pylist()
        return found

    def _batches(self, table: str, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        found = self._table(table)
        if found is None:
            return
        try:
            if found.keys:
                yield from _newest(found, columns).to_batches()
            else:
                yield from found.rows.to_batches(columns=list(columns))
        except FileNotFoundError as error:
            raise TablesChanged(table) from error

    def _table(self, table: str) -> LocalTable | None:
        if table not in self._seen:
            self._seen[table] = self._open(self.root / table)
        return self._seen[table]

    def _open(self, folder: Path) -> LocalTable | None:
        log = TableLog(LocalFiles(), str(folder))
        for _ in range(READ_ATTEMPTS):
            merges = _merges_at_rest(log)
            seen = log.markers()
            files = _whole_batches(log, seen, merges)
            # A batch that began or ended while the folder was listed may be listed in part.
            if log.markers() == seen and compaction.under_way(log) == merges:
                return LocalTable(ds.dataset(files, format="parquet"), _keys(folder)) if files else None
        raise TablesChanged(folder.name)


class LocalFiles(Files):
    """The methods that reading a table's log needs, without a JVM."""

    def __init__(self) -> None:
        pass

    def exists(self, path: str) -> bool:
        return Path(path).exists()

    def entries(self, folder: str) -> list[Entry]:
        try:
            paths = sorted(Path(folder).iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return []
        found: list[Entry] = []
        for path in paths:
            try:
                stat = path.stat()
            except FileNotFoundError:
                continue  # deleted since it was listed
            found.append(Entry(path.name, path.is_dir(), stat.st_size, int(stat.st_mtime * 1000)))
        return found

    def read(self, path: str) -> str | None:
        try:
            return Path(path).read_text()
        except FileNotFoundError:
            return None


def _merges_at_rest(log: TableLog) -> list[compaction.Merge]:
    """Compactions that a dead process left unfinished. Waits for running ones."""
    deadline = time.monotonic() + COMPACTION_SECONDS
    while (merges := compaction.under_way(log)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return merges


def _whole_batches(log: TableLog, seen: list[Marker], merges: list[compaction.Merge]) -> list[str]:
    """The files of the table, according to its log."""
    unfinished = [log.files_of(marker) for marker in seen if not marker.done]
    without = {file.rpartition("/")[2] for held in unfinished if held for file in held.files}
    more: list[Path] = []
    for merge in merges:
        gone, folder = compaction.instead(log, merge)
        waiting = list(Path(folder).rglob("*.parquet"))
        without.update(gone, (path.name for path in waiting))
        more += waiting
    table = Path(log.folder)
    there = [path for path in table.rglob("*.parquet") if _shown(path.relative_to(table))]
    return sorted(str(path) for path in [*more, *(path for path in there if path.name not in without)])


def _keys(folder: Path) -> tuple[str, ...]:
    for declared in sorted((folder / HIDDEN / "schema").glob("*.json")):
        return tuple(json.loads(declared.read_text())["keys"])
    return ()


def _newest(table: LocalTable, columns: Sequence[str]) -> pa.Table:
    """The row with the highest version of each key."""
    keys = list(table.keys)
    rows = table.rows.to_table(columns=list(dict.fromkeys([*columns, *keys, VERSION]))).sort_by(VERSION)
    places = pa.array(range(rows.num_rows), pa.int64())
    last = rows.select(keys).append_column("place", places).group_by(keys).aggregate([("place", "max")])
    return rows.take(last.column("place_max")).select(list(columns))


def _shown(path: Path) -> bool:
    """Whether a file has rows. By Hadoop's convention, names with these prefixes are hidden."""
    return not any(part.startswith(("_", ".")) for part in path.parts)


def _add(counts: Counter[int], found: pa.StructArray) -> None:
    for value, count in zip(
        found.field("values").to_pylist(), found.field("counts").to_pylist(), strict=True
    ):
        counts[value] += count


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

    @staticmethod
    def _text(rows: DataFrame, columns: Sequence[str]) -> DataFrame:
        from pyspark.sql import functions as f

        return rows.select(
            *(f.coalesce(f.col(name).cast("string"), f.lit("")).alias(name) for name in columns)
        )
