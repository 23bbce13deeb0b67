"""Five readers see the same rows of a table: deltalake, pandas, polars, DuckDB and Spark without a jar."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import pandas
import polars
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.docs.pages import PROJECT, blocks
from tidelog.spark.table_source import TableDataSource, TableReader, in_tasks
from tidelog.spark.tables.errors import TableError
from tidelog.spark.tables.live_files import live_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Rows = list[tuple[object, ...]]
NOON = datetime(2026, 11, 15, 12, 0, 0, 123456, tzinfo=UTC)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a table of each kind."""
    root = tmp_path_factory.mktemp("tables")
    plain(str(root / "plain"))
    partitioned(str(root / "partitioned"))
    merged(str(root / "merged"))
    return root


def plain(uri: str) -> None:
    """Every type that events have, nulls, and a column that came later."""
    first = {
        "user": ["u1", "u2", None],
        "amount": pa.array([1, None, 3], pa.int64()),
        "small": pa.array([1, 2, 3], pa.int32()),
        "share": pa.array([0.5, None, 2.0], pa.float64()),
        "good": [True, False, None],
        "at": pa.array([NOON, None, NOON], pa.timestamp("us", "UTC")),
        "on": pa.array([date(2026, 11, 15), None, date(1969, 1, 1)], pa.date32()),
        "price": pa.array([Decimal("1.50"), None, Decimal("-2.25")], pa.decimal128(10, 2)),
        "raw": pa.array([b"\x00\xff", b"", None], pa.binary()),
    }
    write_deltalake(uri, pa.table(first))
    later = pa.table({"user": ["u4"], "amount": pa.array([4], pa.int64()), "late": ["yes"]})
    write_deltalake(uri, later, mode="append", schema_mode="merge")


def partitioned(uri: str) -> None:
    for number, day in enumerate(["2026-11-14", "2026-11-15", "2026-11-16", "2026-11-16", None]):
        days = pa.array([day] * 3, pa.string())
        rows = {"user": [f"u{number}"] * 3, "reason": ["tea: 50%", "a/b", "x y"], "day": days}
        write_deltalake(uri, pa.table(rows), mode="append", partition_by=["day", "reason"])


def merged(uri: str) -> None:
    write_deltalake(uri, pa.table({"user": [f"u{n}" for n in range(100)], "balance": [0] * 100}))
    for batch in range(1, 4):
        changed = pa.table(
            {"user": [f"u{n}" for n in range(90, 90 + 10 * batch)], "balance": [batch] * 10 * batch}
        )
        merge = DeltaTable(uri).merge(changed, "old.user = new.user", source_alias="new", target_alias="old")
        merge.when_matched_update_all().when_not_matched_insert_all().execute()
    DeltaTable(uri).delete("user = 'u0'")


def of_arrow(uri: str) -> Rows:
    found = DeltaTable(uri).to_pyarrow_table()
    return [tuple(row.values()) for row in found.to_pylist()]


def of_pandas(uri: str) -> Rows:
    frame = DeltaTable(uri).to_pandas(types_mapper=pandas.ArrowDtype)
    return [tuple(row.values()) for row in pa.Table.from_pandas(frame, preserve_index=False).to_pylist()]


def of_polars(uri: str) -> Rows:
    return polars.read_delta(uri).rows()


def of_duckdb(uri: str) -> Rows:
    rows = DeltaTable(uri).to_pyarrow_dataset()  # noqa: F841 - DuckDB finds it by its name
    found = duckdb.sql("SELECT * FROM rows").to_arrow_table()
    return [tuple(row.values()) for row in found.to_pylist()]


def comparable(rows: Rows) -> list[str]:
    """Rows as texts in one order. Moments are in UTC."""

    def plain_value(value: object) -> object:
        if isinstance(value, datetime):
            return (value if value.tzinfo else value.replace(tzinfo=UTC)).astimezone(UTC).isoformat()
        return bytes(value) if isinstance(value, bytearray) else value

    return sorted(repr([plain_value(value) for value in row]) for row in rows)


@pytest.mark.parametrize("reader", [of_pandas, of_polars, of_duckdb])
@pytest.mark.parametrize("table", ["plain", "partitioned", "merged"])
def test_other_readers_see_the_rows_of_deltalake(
    root: Path, table: str, reader: Callable[[str], Rows]
) -> None:
    uri = str(root / table)
    expected = comparable(of_arrow(uri))
    assert len(expected) == {"plain": 4, "partitioned": 15, "merged": 119}[table]
    assert comparable(reader(uri)) == expected


# -- Spark


@pytest.fixture(scope="module")
def load(spark: SparkSession) -> Callable[..., DataFrame]:
    from tidelog.spark.session import register

    register(spark)

    def load(path: Path | str, **options: object) -> DataFrame:
        return spark.read.format("tidelog-table").options(**options).load(str(path))  # type: ignore[arg-type]

    return load


@pytest.mark.parametrize("table", ["plain", "partitioned", "merged"])
def test_spark_sees_the_rows_of_deltalake(root: Path, table: str, load: Callable[..., DataFrame]) -> None:
    found = load(root / table).toArrow()
    assert found.schema.names == DeltaTable(str(root / table)).to_pyarrow_table().schema.names
    assert comparable([tuple(row.values()) for row in found.to_pylist()]) == comparable(
        of_arrow(str(root / table))
    )


def test_spark_reads_earlier_versions_chosen_columns_and_filtered_days(
    root: Path, load: Callable[..., DataFrame]
) -> None:
    assert load(root / "merged", version=0).where("balance = 0").count() == 100
    chosen = load(root / "partitioned", columns="day, user")
    assert (chosen.columns, chosen.count()) == (["day", "user"], 15)
    pushed = load(root / "partitioned", pushFilters="true").where("day >= '2026-11-16' AND user <> 'u2'")
    assert {row.user for row in pushed.collect()} == {"u3"}


def test_the_code_of_the_page_runs(
    spark: SparkSession, load: Callable[..., DataFrame], tmp_path: Path
) -> None:
    folder = tmp_path / "tidelog-pipeline" / "tables"
    for day in ("2026-11-15", "2026-11-16"):
        rows = pa.table({"reason": ["login", "swipe", "swipe"], "day": [day] * 3})
        write_deltalake(str(folder / "credits"), rows, mode="append", partition_by=["day"])
    names: dict[str, object] = {"spark": spark}
    text = (PROJECT / "docs" / "tables.md").read_text()
    first = text.count("\n", 0, text.index("## Other readers"))
    last = text.count("\n", 0, text.index("## Where the tables are"))
    run = [block for block in blocks(PROJECT / "docs" / "tables.md") if first < block.line < last]
    for block in run:
        code = block.code.replace("./tidelog-pipeline/tables", str(folder))
        exec(compile("\n" * block.line + code, block.page, "exec"), names)
    assert len(run) == 4
    assert len(names["today"]) == 3  # type: ignore[arg-type]
    assert sorted(names["reasons"]) == [("login", 1), ("swipe", 2)]  # type: ignore[call-overload]
    assert names["before"].count() == 6  # type: ignore[attr-defined]


# -- The source by itself, without Spark's JVM


def source(path: Path | str, **options: str) -> TableDataSource:
    return TableDataSource({"path": str(path), **options})


def planned(path: Path, filters: list[object]) -> Iterator[str]:
    found = source(path)
    reader = found.reader(found.schema())
    assert isinstance(reader, TableReader)
    reader.take_filters(filters)  # type: ignore[arg-type]
    return (file.path for task in reader.partitions() for file in task.files)  # type: ignore[attr-defined]


def test_filters_leave_out_the_files_of_other_days(root: Path) -> None:
    from pyspark.sql import datasource as spark

    def days(*filters: object) -> set[str]:
        return {re.findall("day=([^/]*)", path)[0] for path in planned(root / "partitioned", list(filters))}

    assert days(spark.EqualTo(("day",), "2026-11-15")) == {"2026-11-15"}
    assert days(spark.In(("day",), ("2026-11-14", "2026-11-16"))) == {"2026-11-14", "2026-11-16"}
    after = spark.GreaterThan(("day",), "2026-11-14")
    assert days(after, spark.LessThan(("day",), "2026-11-16")) == {"2026-11-15"}
    everything = days()
    assert len(everything) == 4
    # No filter that cannot be answered leaves a file out.
    assert days(spark.StringContains(("day",), "11"), spark.IsNotNull(("user",))) == everything
    assert days(spark.EqualTo(("day",), "")) == everything


def test_a_filter_on_decimals_leaves_the_files_to_spark(root: Path) -> None:
    from pyspark.sql import datasource as spark

    price = Decimal("1.50")
    for filter in (spark.EqualTo(("price",), price), spark.In(("price",), (price, price + 1))):
        assert len(list(planned(root / "plain", [filter]))) == 2


def test_a_frame_keeps_the_version_of_its_planning(tmp_path: Path) -> None:
    uri = str(tmp_path / "table")
    write_deltalake(uri, pa.table({"a": [1]}))
    found = source(uri)
    reader = found.reader(found.schema())
    write_deltalake(uri, pa.table({"a": [2]}), mode="append")
    [task] = reader.partitions()
    assert [row for batch in reader.read(task) for row in batch.to_pylist()] == [{"a": 1}]


def test_an_empty_table_has_one_task_without_rows(tmp_path: Path) -> None:
    DeltaTable.create(str(tmp_path / "empty"), pa.schema({"a": pa.int64()}))
    found = source(tmp_path / "empty")
    reader = found.reader(found.schema())
    [task] = reader.partitions()
    assert list(reader.read(task)) == []


def test_small_files_share_a_task_and_large_ones_do_not(root: Path) -> None:
    files = live_files(DeltaTable(str(root / "partitioned")))
    assert [len(task) for task in in_tasks(files)] == [15]
    assert [len(task) for task in in_tasks([file.__class__(file.path, 2**26, ()) for file in files])] == [
        1
    ] * 15


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"version": "99"}, "merged"),
        ({"version": "x"}, "expected a number"),
        ({"timestamp": "soon"}, "expected a time such as"),
        ({"version": "1", "timestamp": "2026-11-15T00:00:00Z"}, "not both"),
        ({"columns": "user,nobody"}, "no column nobody; its columns are user, balance"),
        ({"versoin": "1"}, "no option versoin"),
    ],
)
def test_a_wrong_option_is_refused_with_a_sentence(
    root: Path, options: dict[str, str], sentence: str
) -> None:
    with pytest.raises(TableError, match=sentence):
        source(root / "merged", **options).schema()


def test_a_table_of_features_that_the_reader_lacks_is_refused(tmp_path: Path) -> None:
    uri = str(tmp_path / "table")
    write_deltalake(uri, pa.table({"a": [1]}), configuration={"delta.enableDeletionVectors": "true"})
    with pytest.raises(TableError, match="deletionVectors"):
        source(uri).schema()
