"""A task writes rows with a struct of errors aside: the struct alone, in files that are not the table's."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tidelog.spark.tables.store import Store
from tidelog.spark.tables.task_files import Target, write_task

DAY = date(2026, 11, 15)


@pytest.mark.parametrize("partition_by", [(), ("day",)])
def test_the_struct_is_only_in_files_that_are_put_aside(
    tmp_path: Path, partition_by: tuple[str, ...]
) -> None:
    # Spark marks a field that is never null, also in a struct that may be.
    why = pa.field("why", pa.string(), nullable=False)
    at = pa.field("at", pa.timestamp("us", "Asia/Tokyo"))
    children = [pa.array([None, "two", None]), pa.array([None, 0, None], at.type)]
    errors = pa.StructArray.from_arrays(children, fields=[why, at], mask=pa.array([True, False, True]))
    batch = pa.RecordBatch.from_pydict(
        {
            "n": pa.array([1, 2, 3]),
            "day": pa.array([DAY] * 3),
            "_bad": errors,
        }
    )
    target = Target(Store.of(None, tmp_path), partition_by, "_bad")
    [found] = write_task(target, [batch])
    files = {row["aside"]: row for row in found.to_pylist()}
    assert (files[False]["rows"], files[True]["rows"]) == (2, 1)
    good = pq.read_table(tmp_path / files[False]["path"], partitioning=None)
    assert good.column("n").to_pylist() == [1, 3]
    assert good.column_names == [name for name in ("n", "day") if name not in partition_by]
    aside = pq.read_table(tmp_path / files[True]["path"], partitioning=None)
    assert aside.column_names == ["why", "at", *partition_by]
    assert aside.column("why").to_pylist() == ["two"]
    assert aside.schema.field("at").type == pa.timestamp("us", "UTC")


def test_without_bad_rows_nothing_is_put_aside(tmp_path: Path) -> None:
    nothing = pa.nulls(2, pa.struct([("why", pa.string())]))
    batch = pa.RecordBatch.from_arrays([pa.array([1, 2]), nothing], ["n", "_bad"])
    [found] = write_task(Target(Store.of(None, tmp_path), (), "_bad"), [batch])
    assert found.column("aside").to_pylist() == [False]
