"""Rows for `Tables` without Spark: the methods of a DataFrame that a write uses, over an Arrow table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema

from tidelog.spark.tables import Tables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

Task = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


@dataclass
class ArrowRows:
    """`tasks` split the rows between them."""

    table: pa.Table
    tasks: int = 2

    @property
    def schema(self) -> StructType:
        return from_arrow_schema(self.table.schema)

    def toArrow(self) -> pa.Table:
        return self.table

    def mapInArrow(self, task: Task, schema: str) -> ArrowResult:
        size = -(-self.table.num_rows // self.tasks)
        parts = [self.table.slice(size * n, size) for n in range(self.tasks)] if size else []
        return ArrowResult(
            [
                row
                for part in parts
                for found in task(part.to_batches(max_chunksize=1000))
                for row in found.to_pylist()
            ]
        )


@dataclass
class ArrowResult:
    rows: list[dict[str, object]]

    def collect(self) -> list[SimpleNamespace]:
        return [SimpleNamespace(**row) for row in self.rows]


def frame(columns: dict[str, pa.Array], tasks: int = 2) -> DataFrame:
    return cast("DataFrame", ArrowRows(pa.table(columns), tasks))


def without_spark(root: Path | str) -> Tables:
    """Tables that can be written with ArrowRows, and read by `tables.delta`."""
    return Tables(cast("SparkSession", None), str(root))
