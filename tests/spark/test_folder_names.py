"""Folders whose names are patterns to Spark: tables in them are read and written by name."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.spark.collected import example
from tidelog.spark.pipelines import events
from tidelog.spark.pipelines.declare import Context, Flow, Pipeline, Source, Table
from tidelog.spark.tables import Tables
from tidelog.testing.pipelines import PipelineTest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PATTERNS = ["data[1]", "a*b", "{x}", "q?x"]


@pytest.mark.parametrize("name", PATTERNS)
def test_tables_are_in_the_folder_of_the_name(spark: SparkSession, tmp_path: Path, name: str) -> None:
    tables = Tables(spark, str(tmp_path / name))
    rows = spark.sql(
        "SELECT id, date'2026-11-15' AS day, kind, if(id = 2, struct('bad' AS why), null) AS _bad"
        " FROM VALUES (1, 'a'), (2, 'é'), (3, 'é') AS t(id, kind)"
    )
    by = ("day", "kind")  # Spark reads a folder with codes of UTF-8 in its name by itself
    with tables.write_aside(rows, "events", writer="w", batch=0, partition_by=by, aside="_bad") as aside:
        assert aside.rows is not None
        assert [row["why"] for row in aside.rows.collect()] == ["bad"]
    assert sorted(row["id"] for row in tables.read("events").collect()) == [1, 3]
    tables.write(rows.select("id", "kind"), "states", writer="w", batch=0, keys=("id",))
    tables.write(rows.selectExpr("id", "'b' AS kind"), "states", writer="w", batch=1, keys=("id",))
    assert {row["kind"] for row in tables.read("states").collect()} == {"b"}
    assert {row["kind"] for row in tables.read("states", version=1).collect()} == {"a", "é"}
    source = spark.read.format("tidelog-table").load(str(tmp_path / name / "states"))
    assert source.count() == 3
    assert [path.name for path in tmp_path.iterdir()] == [name]


def by_day(rows: DataFrame, context: Context) -> DataFrame:
    from pyspark.sql import functions as F

    return rows.select("event_id", F.to_date(F.timestamp_millis("ts")).alias("day"))


SOURCE = Source((events.CREDITS.topic,), events.CREDITS.spark_schema())
FLOW = Flow("ids", SOURCE, (Table("ids", partition_by=("day",)),), (by_day,))
PIPELINE = Pipeline("mine", "title", "doc", lambda settings: (FLOW,))


def test_a_pipeline_has_its_checkpoints_in_the_folder_of_the_name(
    spark: SparkSession, tmp_path: Path
) -> None:
    test = PipelineTest(spark, tmp_path / "{x}[1]*")
    try:
        for number in range(2):
            credit = {**example(events.CREDITS), "event_id": f"e-{number}"}
            test.run(PIPELINE, {events.CREDITS.topic: [credit]})
        assert sorted(str(row["event_id"]) for row in test.table("ids")) == ["e-0", "e-1"]
    finally:
        test.close()
    assert [path.name for path in tmp_path.iterdir()] == ["{x}[1]*"]
