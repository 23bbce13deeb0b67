"""A micro-batch is cut off between a table and the quarantine, and finished by another version of the code.

Each row is in one of the two then, as the first attempt decided. Without decision the finisher decides.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tidelog.spark.pipelines import quarantine
from tidelog.spark.pipelines.batch_counts import BatchCounts
from tidelog.spark.pipelines.checks import Checks
from tidelog.spark.pipelines.declare import Context, Table
from tidelog.spark.pipelines.expectations import Check, Expectation, ExpectationFailed, NotNull, Range, Unique
from tidelog.spark.pipelines.query import Place, write_sink
from tidelog.spark.tables import Tables
from tidelog.spark.tables.delta_log import DeltaLog
from tidelog.spark.tables.errors import ForeignCheckpoint
from tidelog.spark.tables.live_files import LiveFile
from tidelog.spark.tables.maintenance import MaintenanceSettings, TableMaintenance
from tidelog.spark.tables.store import Store
from tidelog.spark.tables.task_reads import frame_of_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

PLACE = Place("none", "none", {}, 1)
BAD = "struct<error: string, raw: binary, partition: int, offset: bigint, timestamp: timestamp>"


class Killed(BaseException):
    """Ends a micro-batch where a kill would."""


@contextmanager
def killed_at_commit_of(table: str) -> Iterator[None]:
    """The process is gone when it is about to commit to this table."""
    real = DeltaLog.attempt

    def attempt(self: DeltaLog, *given: object, **named: object) -> None:
        if self.name == table:
            raise Killed
        real(self, *given, **named)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        patch.setattr(DeltaLog, "attempt", attempt)
        yield


class Data:
    """A data folder, and micro-batches of a flow `mine/orders` on it."""

    def __init__(self, spark: SparkSession, root: Path) -> None:
        self.spark, self.root, self.tables = spark, root, Tables(spark, str(root))

    def context(self) -> Context:
        return Context(self.spark, {}, self.tables, "mine", writer="mine/orders", topics=("orders",))

    def collect(self, *bad: str) -> BatchCounts:
        """Batch 0: the events a, b and c, as a sink that sorts them out. These are bad by its schema."""
        from pyspark.sql import functions as F

        rows = self.spark.createDataFrame([("a",), ("b",), ("c",)], "id string").coalesce(1)
        fields = [F.lit("bad"), F.col("id").cast("binary"), F.lit(0), F.lit(0).cast("long"), F.lit(None)]
        named = [field.alias(name) for field, name in zip(fields, _FIELDS, strict=True)]
        is_bad = F.col("id").isin(*bad) if bad else F.lit(False)
        day = F.to_date(F.lit("2026-11-15")).alias("day")
        marked = rows.select("id", day, F.when(is_bad, F.struct(*named).cast(BAD)).alias(quarantine.BAD))
        context = self.context()
        with quarantine.set_aside(marked, "orders", context, 0) as found:
            if found is not None:
                quarantine.write(found, "orders", context, 0)
        context.counts.settle()
        return context.counts

    def check(self, *expect: Expectation, more: str = "", checkpoint: str = "") -> BatchCounts:
        """Batch 0: rows with the amounts 1, 5 and 5 into a table with these expectations."""
        return self.write(self.amounts(more), *expect, checkpoint=checkpoint)

    def write(
        self, rows: DataFrame, *expect: Expectation, keys: tuple[str, ...] = (), checkpoint: str = ""
    ) -> BatchCounts:
        """Batch 0: these rows into a table with these expectations."""
        context = replace(self.context(), checkpoint=checkpoint)
        write_sink(Table("orders", keys=keys, expect=expect), rows, context, "mine/orders/orders", 0, PLACE)
        return context.counts

    def amounts(self, more: str = "") -> DataFrame:
        rows = "VALUES ('a', 1, timestamp'2026-11-15 12:00:00.123456'), ('b', 5, null), ('b', 5, null)"
        return self.spark.sql(f"SELECT id, n AS amount, at{more} FROM {rows} AS t(id, n, at)").coalesce(1)

    def ids(self) -> list[str]:
        return sorted(row["id"] for row in self.tables.read("orders").collect())

    def quarantined(self) -> list[str]:
        """The ids of quarantined rows."""
        if not self.tables.exists(quarantine.TABLE):
            return []
        raw = [bytes(row["raw"]).decode() for row in self.tables.read(quarantine.TABLE).collect()]
        return sorted(json.loads(text)["id"] if text.startswith("{") else text for text in raw)

    def forget(self, table: str) -> None:
        """Other writers commit until the log of the table has none of the commits before."""
        log, store = self.tables._log(table), self.tables.store.below(table)
        upkeep = TableMaintenance(store, MaintenanceSettings(checkpoint_commits=1, log_versions=1))
        for number in range(3):
            self.tables.write(
                self.tables.read(table).limit(0),
                table,
                writer="other",
                batch=number,
                partition_by=log.snapshot().partition_by,
            )
            upkeep.round()
        assert all(commit.batch.writer == "other" for commit in log.snapshot().commits())


_FIELDS = ("error", "raw", "partition", "offset", "timestamp")


@pytest.fixture
def data(spark: SparkSession, tmp_path: Path) -> Data:
    return Data(spark, tmp_path)


def aside_files(data: Data) -> list[Path]:
    return list((data.root / "orders" / "aside").glob("*"))


@pytest.mark.parametrize("bad_by_now", [(), ("b",), ("a", "c")])
def test_an_event_is_quarantined_as_the_version_decided_that_wrote_the_table(
    data: Data, bad_by_now: tuple[str, ...]
) -> None:
    with killed_at_commit_of("quarantine"):
        data.collect("b")
    assert (data.ids(), data.quarantined()) == (["a", "c"], [])
    assert data.collect(*bad_by_now).quarantined == 1
    assert aside_files(data) == []
    for _ in range(2):
        assert (data.ids(), data.quarantined()) == (["a", "c"], ["b"])
        data.collect(*bad_by_now)


def test_rows_that_wait_are_read_by_tasks_of_the_size_of_their_files(
    data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []

    def read(spark: SparkSession, store: Store, files: Sequence[LiveFile], columns: StructType) -> DataFrame:
        sizes.extend(file.size for file in files)
        return frame_of_files(spark, store, files, columns)

    monkeypatch.setattr("tidelog.spark.tables.tables.spark_reads", lambda spark, store: False)
    monkeypatch.setattr("tidelog.spark.tables.tables.frame_of_files", read)
    for _ in range(2):
        with killed_at_commit_of("quarantine"):
            data.collect("b")
    [file] = aside_files(data)
    assert sizes == [file.stat().st_size] * 2


def test_a_batch_that_was_killed_before_its_waiting_rows_were_deleted_is_finished(data: Data) -> None:
    def killed(*_: object) -> None:
        raise Killed

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        patch.setattr(Tables, "_delete", killed)
        data.collect("b")
    assert len(aside_files(data)) == 1
    assert data.collect("b").quarantined == 1
    assert aside_files(data) == []
    assert (data.ids(), data.quarantined()) == (["a", "c"], ["b"])


def test_an_event_that_was_good_stays_in_its_table_alone(data: Data) -> None:
    data.collect()
    assert data.collect("a").quarantined == 0
    assert (data.ids(), data.quarantined()) == (["a", "b", "c"], [])


def test_without_the_commit_of_the_first_attempt_the_events_are_sorted_out_again(data: Data) -> None:
    with killed_at_commit_of("quarantine"):
        data.collect("b")
    data.forget("orders")
    data.collect("b")
    assert (data.ids(), data.quarantined()) == (["a", "c"], ["b"])


LARGE, LARGE_WARNS = Range("amount", 0, 3, "quarantine"), Range("amount", 0, 3)


@pytest.mark.parametrize(
    "now",
    [(), (LARGE_WARNS,), (Range("amount", 0, 9, "quarantine"),), (Range("amount", 3, 9, "quarantine"),)],
    ids=["none", "warns", "relaxed", "other"],
)
@pytest.mark.parametrize("more", ["", ", cast(null AS string) AS added"], ids=["same", "new column"])
def test_a_row_that_failed_an_expectation_stays_in_the_quarantine_alone(
    data: Data, now: tuple[Expectation, ...], more: str
) -> None:
    with killed_at_commit_of("orders"):
        data.check(LARGE)
    assert data.quarantined() == ["b", "b"]
    counts = data.check(*now, more=more)
    assert (data.ids(), data.quarantined()) == (["a"], ["b", "b"])
    assert (counts.quarantined, counts.sinks) == (2, {"orders": 1})


@pytest.mark.parametrize(
    "column",
    ["map(n, n)", "named_struct('of', array(map(date_add(DATE'2026-11-15', n), map(n / 3, n))))"],
    ids=["map", "nested"],
)
def test_rows_are_told_apart_by_maps_whatever_their_keys_are(data: Data, column: str) -> None:
    query = f"SELECT 'a' AS id, {column} AS found FROM VALUES (1), (2), (3) AS t(n)"
    rows = data.spark.sql(query).coalesce(1)
    with killed_at_commit_of("orders"):
        data.write(rows, Check("small", "to_json(struct(found)) NOT LIKE '%:2}%'", "quarantine"))
    assert data.quarantined() == ["a"]
    data.write(rows)
    left = data.tables.read("orders").selectExpr("to_json(struct(found)) AS text").collect()
    assert sorted(re.findall(r":(\d)}", row["text"]) for row in left) == [["1"], ["3"]]


@pytest.mark.parametrize("now", [(), (Range("amount", 3, 9, "quarantine"),)], ids=["none", "other"])
def test_a_row_stays_in_the_quarantine_when_its_log_no_longer_has_the_commit(
    data: Data, now: tuple[Expectation, ...]
) -> None:
    with killed_at_commit_of("orders"):
        data.check(LARGE)
    data.forget("quarantine")
    data.check(*now)
    assert (data.ids(), data.quarantined()) == (["a"], ["b", "b"])


@pytest.mark.parametrize("gone", ["rows", "column"])
def test_when_the_rows_are_gone_from_the_quarantine_they_are_checked_again(
    data: Data, caplog: pytest.LogCaptureFixture, gone: str
) -> None:
    """Tables of earlier versions have no numbers of micro-batches."""
    with killed_at_commit_of("orders"):
        data.check(LARGE)
    if gone == "rows":
        assert data.tables.delete("quarantine", lambda values: True)
    else:
        old = data.tables.read("quarantine").drop("batch").toArrow()
        shutil.rmtree(data.root / "quarantine")
        context = data.context()
        data.tables.write(
            data.spark.createDataFrame(old),
            "quarantine",
            partition_by=("day",),
            **{**context.written(0), "writer": "mine/orders/expect/orders"},
        )
    data.check(LARGE)
    assert data.ids() == ["a"]
    assert data.quarantined() == ([] if gone == "rows" else ["b", "b"])
    assert "the quarantine has micro-batch 0 of mine/orders/expect/orders without its rows" in caplog.text


def at_positions(data: Data, *rows: str) -> DataFrame:
    """Rows (id, amount, partition, offset)."""
    columns = "id, amount, CAST(partition AS int) AS partition, CAST(offset AS bigint) AS offset"
    values = f"VALUES {', '.join(rows)} AS t(id, amount, partition, offset)"
    return data.spark.sql(f"SELECT {columns} FROM {values}").coalesce(1)


def test_a_row_without_a_position_stays_in_the_quarantine_alone(data: Data) -> None:
    rows = at_positions(data, "('a', 1, 0, 7)", "('b', 5, null, null)", "('c', 5, 0, null)", "('c', 5, 0, 9)")
    with killed_at_commit_of("orders"):
        data.write(rows, LARGE)
    data.write(rows)
    assert (data.ids(), data.quarantined()) == (["a"], ["b", "c", "c"])


@pytest.mark.parametrize("positions", ["before", "now"])
def test_a_row_that_has_its_position_in_one_attempt_alone_stays_in_the_quarantine(
    data: Data, positions: str
) -> None:
    rows = at_positions(data, "('a', 1, 0, 7)", "('b', 5, 0, 8)")
    without = rows.drop("partition", "offset")
    with killed_at_commit_of("orders"):
        data.write(rows if positions == "before" else without, LARGE)
    data.write(without if positions == "before" else rows)
    assert (data.ids(), data.quarantined()) == (["a"], ["b"])


def test_rows_of_a_renamed_column_are_found_by_their_position(
    data: Data, caplog: pytest.LogCaptureFixture
) -> None:
    rows = at_positions(data, "('a', 5, 0, 7)", "('a', 1, 0, 8)", "('a', 5, 0, 9)")
    with killed_at_commit_of("orders"):
        data.write(rows, LARGE)
    data.write(rows.withColumnRenamed("amount", "sum"))
    assert [row["offset"] for row in data.tables.read("orders").collect()] == [8]
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        (("id", "amount * 2 AS amount"), "has 0 of the 2 quarantined rows"),
        (("id",), "lacks columns of the quarantined rows (amount, at)"),
        (("id AS name",), "lacks columns of the quarantined rows (amount, at, id)"),
    ],
)
def test_rows_that_cannot_be_told_from_quarantined_ones_are_warned_of(
    data: Data, caplog: pytest.LogCaptureFixture, columns: tuple[str, ...], words: str
) -> None:
    with killed_at_commit_of("orders"):
        data.check(LARGE)
    data.write(data.amounts().selectExpr(*columns))
    assert f"the replay of micro-batch 0 of mine/orders/expect/orders {words}" in caplog.text


def test_of_equal_rows_one_is_in_the_table_and_the_other_in_the_quarantine(data: Data) -> None:
    with killed_at_commit_of("orders"):
        data.check(Unique("id", action="quarantine"))
    data.check(NotNull("id", "quarantine"))
    assert (data.ids(), data.quarantined()) == (["a", "b"], ["b"])


def test_rows_of_a_table_that_has_the_batch_are_not_quarantined(data: Data) -> None:
    data.check()
    assert data.check(LARGE).quarantined == 0
    assert (data.ids(), data.quarantined()) == (["a", "b", "b"], [])
    assert data.check(Range("amount", 0, 3, "stop")).failed == {LARGE.name: 2}, "the table has the batch"


def test_a_row_that_another_writer_has_added_meanwhile_is_not_lost(data: Data) -> None:
    unique = Unique("id", within="table", action="quarantine")
    with killed_at_commit_of("orders"):
        data.check(unique)
    assert data.quarantined() == ["b"]
    data.tables.write(data.amounts().where("id = 'a'"), "orders", writer="other", batch=0)
    data.check(unique)
    assert (data.ids(), data.quarantined()) == (["a", "a", "b"], ["b"])


def test_a_keyed_table_has_no_row_of_its_quarantine(data: Data) -> None:
    rows = data.spark.sql("SELECT * FROM VALUES ('a', 1), ('b', 5) AS t(id, amount)").coalesce(1)
    earlier = data.spark.sql("SELECT 'b' AS id, 2 AS amount")
    data.tables.write(earlier, "orders", writer="other", batch=0, keys=("id",))
    with killed_at_commit_of("orders"):
        data.write(rows, LARGE, keys=("id",))
    data.write(rows, keys=("id",))
    found = {row["id"]: row["amount"] for row in data.tables.read("orders").collect()}
    assert (found, data.quarantined()) == ({"a": 1, "b": 2}, ["b"])


def test_a_flow_of_two_tables_quarantines_no_row_that_the_first_one_has(data: Data) -> None:
    def run(*expect: Expectation) -> None:
        context = data.context()
        with Checks(expect, tables=("orders", "copies")).applied(data.amounts(), context, 0) as rows:
            for name in ("orders", "copies"):
                write_sink(Table(name), rows, context, "mine/orders", 0, PLACE)

    with killed_at_commit_of("copies"):
        run(NotNull("id", "quarantine"))
    run(LARGE)
    assert (data.ids(), data.quarantined()) == (["a", "b", "b"], [])
    assert data.tables.read("copies").count() == 3


def test_a_batch_is_finished_when_the_log_no_longer_has_its_commit(data: Data) -> None:
    unique = Unique("id", within="table", action="quarantine")
    data.check(unique)
    data.forget("orders")
    for _ in range(2):
        counts = data.check(unique)
        assert counts.failed == {unique.name: 1}
        assert (data.ids(), data.quarantined()) == (["a", "b"], ["b"])


def test_a_batch_is_finished_when_the_files_before_it_are_deleted(data: Data) -> None:
    unique = Unique("id", within="table", action="quarantine")
    data.tables.write(data.amounts().where("id = 'a'"), "orders", writer="other", batch=0)
    data.check(unique)
    assert data.quarantined() == ["a", "b"]
    assert data.tables.delete("orders", lambda values: True)
    for file in (data.root / "orders").glob("*.parquet"):  # as a vacuum does days later
        file.unlink()
    assert data.check(unique).failed == {unique.name: 1}, "a repetition within the micro-batch"
    assert (data.ids(), data.quarantined()) == ([], ["a", "b"])


def test_another_checkpoint_is_refused_only_with_rows_to_quarantine(data: Data) -> None:
    """The flow has quarantined rows in the past, and its table and checkpoint were removed since."""
    with killed_at_commit_of("orders"):
        data.check(LARGE, checkpoint="old")
    for expect in ((), (LARGE_WARNS,)):
        data.check(*expect, checkpoint="new")
        assert data.ids() == ["a", "b", "b"]
    with pytest.raises(ForeignCheckpoint):
        data.check(LARGE, checkpoint="new")


def test_a_stop_still_stops_a_batch_that_only_the_quarantine_has(data: Data) -> None:
    with killed_at_commit_of("orders"):
        data.check(LARGE)
    with pytest.raises(ExpectationFailed):
        data.check(Range("amount", 2, 9, "stop"))
    assert data.quarantined() == ["b", "b"]
