"""Expectations of rows: what is counted, what goes to the quarantine, what stops a micro-batch."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tidelog.spark.pipelines.batch_counts import BatchCounts
from tidelog.spark.pipelines.checks import Checks
from tidelog.spark.pipelines.declare import Context, Flow, Pipeline, Source, Table
from tidelog.spark.pipelines.expectations import (
    Check,
    Expectation,
    ExpectationFailed,
    Matches,
    NotNull,
    OneOf,
    Range,
    Unique,
    mistake,
)
from tidelog.spark.pipelines.query import Place, write_sink
from tidelog.spark.pipelines.registry import UnknownPipeline, check_flows
from tidelog.spark.tables import Tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COLUMNS = "id STRING, amount BIGINT, kind STRING, day STRING"
DAY = "2026-11-13"
PLACE = Place("none", "none", {}, 1)


class Batches:
    """Micro-batches of rows into one table, as a flow writes them."""

    def __init__(self, spark: SparkSession, root: Path, *expect: Expectation, keys: tuple[str, ...] = ()):
        self.spark, self.tables = spark, Tables(spark, str(root))
        self.sink = Table("orders", keys=keys, partition_by=("day",), expect=expect)
        self.counts = BatchCounts()

    def write(self, batch: int, *rows: tuple[str | None, int | None, str | None, str]) -> BatchCounts:
        frame = self.spark.createDataFrame(list(rows), COLUMNS).coalesce(1)
        context = Context(self.spark, {}, self.tables, "mine", writer="mine/orders", topics=("orders",))
        write_sink(self.sink, frame, context, "mine/orders/orders", batch, PLACE)
        return context.counts

    def ids(self) -> list[str | None]:
        return sorted((row["id"] for row in self.tables.read("orders").collect()), key=str)

    def quarantined(self) -> list[tuple[str, dict[str, object]]]:
        if not self.tables.exists("quarantine"):
            return []
        return [(row["error"], json.loads(row["raw"])) for row in self.tables.read("quarantine").collect()]


def test_warnings_are_counted_while_the_rows_are_written(spark: SparkSession, tmp_path: Path) -> None:
    batches = Batches(
        spark,
        tmp_path,
        NotNull("id"),
        Range("amount", 0, 100),
        OneOf("kind", ("a", "b")),
        Matches("id", "o-[0-9]+"),
        Check("paid", "kind <> 'b' OR amount > 0"),
        Unique("id"),
    )
    counts = batches.write(
        0,
        ("o-1", 5, "a", DAY),
        ("o-1", 101, "a", DAY),
        ("xo-2", 100, "c", DAY),
        (None, None, None, DAY),
        (None, None, None, DAY),  # a row without a key is no duplicate
        ("o-3", 0, "b", DAY),
        ("o-4\n", 1, "a", DAY),
    )
    assert counts.failed == {
        "not_null(id)": 2,
        "range(amount, 0, 100)": 1,
        "one_of(kind)": 1,
        "matches(id)": 2,
        "paid": 1,
        "unique(id, batch)": 1,
    }
    assert (counts.sinks, counts.quarantined) == ({"orders": 7}, 0)
    assert batches.ids() == [None, None, "o-1", "o-1", "o-3", "o-4\n", "xo-2"]
    assert batches.tables.read("orders").columns == ["id", "amount", "kind", "day"]


def test_rows_that_fail_go_to_the_quarantine_with_the_reason(spark: SparkSession, tmp_path: Path) -> None:
    batches = Batches(
        spark, tmp_path, NotNull("id", "quarantine"), Range("amount", 0, None, "quarantine"), NotNull("kind")
    )
    rows = [("o-1", 5, None, DAY), ("o-2", -5, "a", DAY), (None, -1, "a", DAY)]
    for _ in range(2):  # the second time is a replay
        counts = batches.write(0, *rows)
        assert batches.ids() == ["o-1"]
        assert sorted(batches.quarantined(), key=str) == [
            ("table orders expects not_null(id) and range(amount, 0, )", _row(None, -1, "a")),
            ("table orders expects range(amount, 0, )", _row("o-2", -5, "a")),
        ]
        assert counts.failed == {"not_null(id)": 1, "range(amount, 0, )": 2, "not_null(kind)": 1}
        assert (counts.sinks, counts.quarantined) == ({"orders": 1}, 2)
        assert counts.reasons.total() == 2
    batches.write(1, ("o-4", 1, "a", DAY))
    assert len(batches.quarantined()) == 2


def _row(id: str | None, amount: int, kind: str) -> dict[str, object]:
    return {"id": id, "amount": amount, "kind": kind, "day": DAY}


def test_stop_writes_nothing_and_names_the_expectation(spark: SparkSession, tmp_path: Path) -> None:
    batches = Batches(spark, tmp_path, Range("amount", 0, 10, "stop"), NotNull("id", "quarantine"))
    batches.write(0, ("o-1", 1, "a", DAY))
    with pytest.raises(ExpectationFailed, match=r"table orders expects range\(amount, 0, 10\) \(2 rows\)"):
        batches.write(1, ("o-2", 11, "a", DAY), (None, 12, "a", DAY), ("o-3", 1, "a", DAY))
    assert (batches.ids(), batches.quarantined()) == (["o-1"], [])
    batches.write(1, ("o-2", 10, "a", DAY))
    assert batches.ids() == ["o-1", "o-2"]


def test_unique_within_a_day_sees_the_table_before_the_batch(spark: SparkSession, tmp_path: Path) -> None:
    batches = Batches(spark, tmp_path, Unique("id", within="day", action="quarantine"))
    other = "2026-11-14"
    batches.write(0, ("o-1", 1, "a", DAY), ("o-1", 2, "a", other))
    again = [("o-1", 3, "a", DAY), ("o-2", 4, "a", DAY), ("o-2", 5, "a", DAY), ("o-3", 6, "a", other)]
    for _ in range(2):  # the second time is a replay, which does not find its own rows
        counts = batches.write(1, *again)
        assert counts.failed == {"unique(id, day)": 2}
        assert batches.ids() == ["o-1", "o-1", "o-2", "o-3"]
        assert Counter(row["id"] for _, row in batches.quarantined()) == {"o-1": 1, "o-2": 1}
    kept = {row["amount"] for row in batches.tables.read("orders").collect()}
    away = {row["amount"] for _, row in batches.quarantined()}
    assert kept | away == {1, 2, 3, 4, 5, 6}, "no row is lost or in both"
    assert not kept & away


def test_unique_within_the_table_of_a_key(spark: SparkSession, tmp_path: Path) -> None:
    batches = Batches(spark, tmp_path, Unique(("id", "kind"), within="table"), keys=("id", "kind", "day"))
    batches.write(0, ("o-1", 1, "a", DAY))
    counts = batches.write(1, ("o-1", 1, "a", "2026-11-14"), ("o-1", 1, "b", DAY), (None, 1, "b", DAY))
    assert counts.failed == {"unique(id, kind, table)": 1}


def test_rows_that_have_maps_can_be_unique(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.sql(
        "SELECT id, map('k', n) AS parts, array(map('k', n)) AS deep"
        " FROM VALUES ('a', 1), ('a', 2), ('b', 1) AS t(id, n)"
    )
    context = Context(spark, {}, Tables(spark, str(tmp_path)), "mine", writer="mine/orders")
    with Checks((Unique("id"),)).applied(rows, context, 0) as checked:
        assert len(checked.collect()) == 3
    context.counts.settle()
    assert context.counts.failed == {"unique(id, batch)": 1}


def test_bad_events_of_a_flow_are_not_checked(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.createDataFrame(
        [("o-1", None), (None, "no JSON"), (None, None)], "id STRING, _error STRING"
    ).coalesce(1)
    context = Context(spark, {}, Tables(spark, str(tmp_path)), "mine", writer="mine/orders")
    with Checks((NotNull("id"),)).applied(rows, context, 0) as checked:
        assert checked.count() == 3
    context.counts.settle()
    assert context.counts.failed == {"not_null(id)": 1}


def test_rows_that_no_write_computed_are_counted_by_themselves(spark: SparkSession) -> None:
    counts = BatchCounts()
    rows = spark.range(7)
    counts.written(rows, "orders")
    counts.settle()
    counts.wrote("others", None, lambda: rows)
    counts.wrote("others", 3, lambda: rows)
    assert counts.sinks == {"orders": 7, "others": 10}


def test_reasons_are_counted_without_what_differs_from_event_to_event(spark: SparkSession) -> None:
    counts = BatchCounts()
    errors = ["version 7 is unknown", "version 123 is unknown", "not JSON, from byte 17 on", "not JSON"]
    rows = spark.createDataFrame([(error,) for error in errors], "error STRING")
    counts.set_aside(rows).collect()
    counts.settle()
    assert counts.reasons == {"version # is unknown": 2, "not JSON": 2}
    assert counts.quarantined == 4


def test_a_wrong_declaration_of_an_expectation_is_refused() -> None:
    assert mistake((NotNull("a"), NotNull("a")), ()) == "two expectations are named not_null(a)"
    assert "'ignore' is none of warn" in str(mistake((NotNull("a", "ignore"),), ()))  # type: ignore[arg-type]
    assert "within to be one of" in str(mistake((Unique("a", "week"),), ()))  # type: ignore[arg-type]
    assert 'partitioned by "day"' in str(mistake((Unique("a", "day"),), ()))
    assert mistake((Unique("a", "day"), Unique("a")), ("day",)) is None
    flow = Flow("all", Source(("orders",)), (Table("a"),), expect=(Unique("a", "table"),))
    with pytest.raises(UnknownPipeline, match=r"flow all of mine: .* declare it on the table"):
        check_flows(Pipeline("mine", "", "", lambda settings: (flow,)), (flow,))
