"""The rows of a table as DuckDB, polars and Spark read them, and how they differ from what they should be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeAlias

from deltalake import DeltaTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Texts: TypeAlias = tuple[str, ...]
Columns: TypeAlias = tuple[str, ...]
Read: TypeAlias = Callable[[str, Columns], Iterable[tuple[object, ...]]]
"""Takes the name of a table and columns, returns the rows."""


@dataclass(frozen=True, slots=True)
class Expected:
    """The rows that a table has to have, as texts."""

    columns: Columns
    rows: Counter[Texts]

    @classmethod
    def of(cls, columns: Columns, rows: Iterable[tuple[object, ...]]) -> Expected:
        return cls(columns, Counter(map(texts, rows)))


def texts(row: Iterable[object]) -> Texts:
    """A row as texts: nothing for null, times in UTC."""
    return tuple(_text(value) for value in row)


def _text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, datetime):
        return str(value if value.tzinfo is None else value.astimezone(UTC).replace(tzinfo=None))
    return value.hex() if isinstance(value, bytes) else str(value)


def readers(
    root: str, spark: SparkSession | None = None, options: Mapping[str, str] | None = None
) -> dict[str, Read]:
    """Every reader by name. `options` are the store's, for tables on S3."""
    held = dict(options or {})

    def with_duckdb(table: str, columns: Columns) -> Iterable[tuple[object, ...]]:
        import duckdb

        rows = DeltaTable(f"{root}/{table}", storage_options=held).to_pyarrow_dataset()
        with duckdb.connect() as connection:
            connection.register("delta_rows", rows)
            names = ", ".join(f'"{name}"' for name in columns)
            found = connection.sql(f"SELECT {names} FROM delta_rows").to_arrow_table()
        return _rows(found.to_pylist(), columns)

    def with_polars(table: str, columns: Columns) -> Iterable[tuple[object, ...]]:
        import polars

        lazy = polars.scan_delta(f"{root}/{table}", storage_options=held)
        return lazy.select(columns).collect().iter_rows()

    def with_spark(table: str, columns: Columns) -> Iterable[tuple[object, ...]]:
        from tidelog.spark.tables import Tables

        assert spark is not None
        return _rows(Tables(spark, root).read(table).select(*columns).toArrow().to_pylist(), columns)

    found: dict[str, Read] = {"DuckDB": with_duckdb, "polars": with_polars}
    return found if spark is None else {**found, "Spark": with_spark}


def _rows(found: list[dict[str, object]], columns: Columns) -> Iterable[tuple[object, ...]]:
    return (tuple(row[name] for name in columns) for row in found)


def table_faults(by_reader: Mapping[str, Read], expected: Mapping[str, Expected]) -> list[str]:
    """Each row that a reader finds too often or too seldom. A table without rows need not be there."""
    faults: list[str] = []
    for table, wanted in expected.items():
        for name, read in by_reader.items():
            try:
                found = Counter(map(texts, read(table, wanted.columns)))
            except Exception as error:
                if wanted.rows:
                    faults.append(f"{table}: {name} cannot read it: {error}")
                continue
            for row in {**found, **wanted.rows}:
                if found[row] != wanted.rows[row]:
                    faults.append(
                        f"{table}: {name} finds {row} {found[row]} times, not {wanted.rows[row]} times"
                    )
    return faults
