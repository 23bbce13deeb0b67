"""Tables with a real Spark: tasks write them, frames read them, and the user's session stays as it was.

What needs no Spark is in tests/tables: kills at every step, races of drivers, merges, refusals.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from tests.tables.arrow_rows import without_spark
from tidelog.spark.tables import TableError, Tables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DAYS = ("2026-11-14", "2026-11-15")


def some(spark: SparkSession, first: int, count: int = 6) -> DataFrame:
    day = "date_add(DATE'2026-11-14', int(id % 2)) AS day"
    return spark.range(first, first + count, numPartitions=2).selectExpr("id AS n", day)


def numbers(tables: Tables, **version: object) -> Counter[int]:
    return Counter(row.n for row in tables.read("events", **version).collect())  # type: ignore[arg-type]


def test_batches_are_written_by_tasks_and_read_back(spark: SparkSession, tmp_path: Path) -> None:
    before = dict(spark.conf.getAll)
    tables = Tables(spark, str(tmp_path))
    kinds = some(spark, 0).selectExpr(
        "*",
        "TIMESTAMP'2026-11-15 12:30:00.123456' AS at",
        "array(named_struct('a', n, 'b', 'x')) AS deep",
        "map('k', cast(n AS decimal(10, 2))) AS prices",
        "cast(null AS string) AS nothing",
    )
    tables.write(kinds, "events", writer="a", batch=0, partition_by=("day",))
    tables.write(some(spark, 100), "events", writer="b", batch=0, partition_by=("day",))
    tables.write(some(spark, 200), "events", writer="b", batch=0, partition_by=("day",))  # a replay
    assert dict(spark.conf.getAll) == before, "the session's settings are the user's"
    assert tables.names() == ["events"]
    assert numbers(tables) == Counter([*range(6), *range(100, 106)])
    found = tables.read("events")
    assert found.columns == ["n", "day", "at", "deep", "prices", "nothing"]
    assert found.schema["day"].dataType.simpleString() == "date"
    old = {(row.n, str(row.day), row.at is None) for row in found.collect()}
    assert old >= {(0, DAYS[0], False), (1, DAYS[1], False), (101, DAYS[1], True)}
    written = kinds.orderBy("n").collect()
    assert found.where("at is not null").orderBy("n").collect() == written
    assert sorted(entry.name for entry in (tmp_path / "events").glob("day=*")) == [f"day={d}" for d in DAYS]
    for file in (tmp_path / "events").glob("day=*/*.parquet"):
        assert pq.read_metadata(file).row_group(0).column(0).compression == "ZSTD"
    other_reader = without_spark(tmp_path).delta("events").to_pyarrow_table()
    assert Counter(other_reader.column("n").to_pylist()) == numbers(tables)


def test_spark_reads_only_the_days_and_columns_that_are_asked_for(
    spark: SparkSession, tmp_path: Path
) -> None:
    tables = Tables(spark, str(tmp_path))
    tables.write(some(spark, 0), "events", writer="a", batch=0, partition_by=("day",))
    asked = tables.read("events").where(f"day = DATE'{DAYS[0]}' AND n > 2").select("n")
    plan = asked._jdf.queryExecution().executedPlan().toString()
    assert "PartitionFilters: [isnotnull(day#" in plan
    assert "GreaterThan(n,2)" in plan
    assert "ReadSchema: struct<n:bigint>" in plan
    assert [row.n for row in asked.collect()] == [4]


def test_a_table_at_an_earlier_version_or_before_a_batch(spark: SparkSession, tmp_path: Path) -> None:
    tables = Tables(spark, str(tmp_path))
    for batch in range(3):
        tables.write(some(spark, 10 * batch, 2), "events", writer="a", batch=batch, partition_by=("day",))
    assert tables.read("events", version=0).isEmpty()
    assert numbers(tables, version=1) == Counter([0, 1])
    made = tables.delta("events").history(1)[0]["timestamp"]
    assert numbers(tables, timestamp="2100-01-01T00:00:00Z") == Counter([0, 1, 10, 11, 20, 21]), made
    assert numbers(tables, without=("a", 2)) == Counter([0, 1, 10, 11])
    assert numbers(tables, without=("a", 1)) == Counter([0, 1])
    assert numbers(tables, without=("a", 3)) == numbers(tables)
    assert numbers(tables, without=("b", 0)) == numbers(tables)
    with pytest.raises(TableError, match=r"has no version 9 \(any more\)"):
        tables.read("events", version=9)


def test_later_batches_may_have_more_columns(spark: SparkSession, tmp_path: Path) -> None:
    tables = Tables(spark, str(tmp_path))
    tables.write(some(spark, 0, 2), "events", writer="a", batch=0, partition_by=("day",))
    more = some(spark, 2, 2).selectExpr("*", "'x' AS note")
    tables.write(more, "events", writer="a", batch=1, partition_by=("day",))
    tables.write(some(spark, 4, 2), "events", writer="a", batch=2, partition_by=("day",))
    rows = tables.read("events").orderBy("n").collect()
    assert [row.note for row in rows] == [None, None, "x", "x", None, None]


def test_a_keyed_table_has_one_row_for_each_key(spark: SparkSession, tmp_path: Path) -> None:
    tables = Tables(spark, str(tmp_path))

    def balances(batch: int, **amounts: int) -> None:
        rows = spark.createDataFrame(list(amounts.items()), "user_id string, balance long")
        tables.write(rows, "balances", writer="earnings/balances", batch=batch, keys=("user_id",))

    balances(0, ann=1, ben=2)
    balances(1, ann=10, cat=3)
    seen = {row.user_id: row.balance for row in tables.read("balances").collect()}
    assert seen == {"ann": 10, "ben": 2, "cat": 3}
    before = tables.read("balances", without=("earnings/balances", 1)).collect()
    assert {row.user_id: row.balance for row in before} == {"ann": 1, "ben": 2}


def test_values_of_folders_are_read_back_as_they_were(spark: SparkSession, tmp_path: Path) -> None:
    tables = Tables(spark, str(tmp_path))
    odd = ["a b", "x/y", "p%q", "ü:[*]", "=", None]
    rows = spark.createDataFrame([(value, n) for n, value in enumerate(odd)], "k string, n int")
    tables.write(rows, "plain", writer="w", batch=0, partition_by=("k",))
    tables.write(rows, "keyed", writer="w", batch=0, partition_by=("k",), keys=("k",))
    for name in ("plain", "keyed"):
        assert [row.k for row in tables.read(name).orderBy("n").collect()] == odd


def test_rows_that_are_put_aside_are_computed_once(spark: SparkSession, tmp_path: Path) -> None:
    tables = Tables(spark, str(tmp_path))
    computed = spark.sparkContext.accumulator(0)

    def count(number: int) -> int:
        computed.add(1)
        return number

    from pyspark.sql import functions as F

    counted = F.udf(count, "long").asNondeterministic()
    rows = (
        spark.range(10, numPartitions=2)
        .select(counted("id").alias("n"))
        .selectExpr("n", "IF(n % 3 = 0, named_struct('why', 'three', 'number', n), NULL) AS bad")
    )
    with tables.write_aside(rows, "events", writer="w", batch=0, aside="bad") as aside:
        assert (aside.written, aside.rows is None) == (6, False)
        assert aside.rows is not None
        assert aside.rows.columns == ["why", "number"]
        assert sorted(row.number for row in aside.rows.collect()) == [0, 3, 6, 9]
        assert numbers(tables) == Counter([1, 2, 4, 5, 7, 8])
    assert computed.value == 10
    assert tables.read("events").columns == ["n"]
    assert not list((tmp_path / "events" / "aside").iterdir())
    with tables.write_aside(rows, "events", writer="w", batch=0, aside="bad") as aside:  # a replay
        assert aside.written is None
        assert aside.rows is not None
        assert aside.rows.count() == 4
    good = rows.where("bad IS NULL")
    for number in (6, None):
        with tables.write_aside(good, "events", writer="w", batch=1, aside="bad") as aside:
            assert (aside.written, aside.rows) == (number, None)
    assert numbers(tables) == Counter([1, 2, 4, 5, 7, 8] * 2)


def test_writers_that_make_a_table_at_the_same_time_do_not_mind_each_other(
    spark: SparkSession, tmp_path: Path
) -> None:
    def write(number: int) -> None:
        tables.write(spark.range(number, number + 1).toDF("n"), "events", writer=f"w{number}", batch=0)

    tables = Tables(spark, str(tmp_path))
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    assert numbers(tables) == Counter(range(4))


def test_a_task_that_fails_once_leaves_nothing_in_the_table(spark: SparkSession, tmp_path: Path) -> None:
    tables = Tables(spark, str(tmp_path))
    rows = spark.range(10, numPartitions=2).selectExpr("if(id = 9, raise_error('no'), id) AS n")
    with pytest.raises(Exception, match="no"):
        tables.write(rows, "events", writer="w", batch=0)
    assert numbers(tables) == Counter()
    tables.write(spark.range(10).toDF("n"), "events", writer="w", batch=0)
    assert numbers(tables) == Counter(range(10))


@pytest.mark.parametrize(
    "damage", [Path.unlink, lambda path: path.write_bytes(b"PAR1")], ids=["gone", "broken"]
)
def test_no_setting_of_the_session_leaves_rows_out(
    spark: SparkSession, tmp_path: Path, damage: Callable[[Path], object]
) -> None:
    tables = Tables(spark, str(tmp_path))
    tables.write(some(spark, 0), "events", writer="a", batch=0, partition_by=("day",))
    settings = ("spark.sql.files.ignoreMissingFiles", "spark.sql.files.ignoreCorruptFiles")
    for name in settings:
        spark.conf.set(name, "true")
    try:
        found = tables.read("events")
        damage(next((tmp_path / "events").rglob("*.parquet")))
        with pytest.raises(Exception, match="FAILED_READ_FILE"):
            found.collect()
    finally:
        for name in settings:
            spark.conf.unset(name)
