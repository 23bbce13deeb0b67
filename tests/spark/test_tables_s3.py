"""Tables on S3 through Spark without Hadoop's jars for S3: tasks write and read the objects with PyArrow."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.s3 import S3, SECRET, s3_server
from tidelog.config import ConfigError
from tidelog.spark.pipelines.declare import Context, Flow, Pipeline, Source, Table
from tidelog.spark.pipelines.run_options import Options
from tidelog.spark.pipelines.runner import start
from tidelog.spark.tables import Tables
from tidelog.spark.tables.errors import Fenced, TableError
from tidelog.spark.tables.store import HOSTED, Store
from tidelog.spark.tables.task_reads import spark_reads

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tests.spark.hands import Hands


@pytest.fixture(scope="module")
def s3(spark: SparkSession) -> Iterator[S3]:
    """A server that the session knows from its Hadoop settings, for the one bucket."""
    with s3_server() as server:
        held = {
            "endpoint": server.endpoint,
            "access.key": server.key,
            "secret.key": server.secret,
            "path.style.access": "true",
        }
        configuration = spark._jsc.hadoopConfiguration()  # type: ignore[union-attr]
        for name, value in held.items():
            configuration.set(f"fs.s3a.bucket.tables.{name}", value)
        yield server
        for name in held:
            configuration.unset(f"fs.s3a.bucket.tables.{name}")


def test_a_store_that_only_the_environment_names_has_its_buckets_in_paths(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hadoop's default for the style is that of AWS, `false`, and nobody has set it."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    assert Store.of(spark, "s3://others/root").options[HOSTED] == "false"
    spark.conf.set("spark.hadoop.fs.s3a.path.style.access", "false")
    try:
        assert Store.of(spark, "s3://others/root").options[HOSTED] == "true"
    finally:
        spark.conf.unset("spark.hadoop.fs.s3a.path.style.access")


def test_batches_are_written_read_merged_and_replayed_once(spark: SparkSession, s3: S3) -> None:
    tables = Tables(spark, "s3a://tables/root")
    assert not spark_reads(spark, tables.store), "this test is about a Spark without hadoop-aws"
    rows = spark.createDataFrame(
        [("u1", 1, "2026-11-15"), ("u2", 2, "2026-11-16")], "user string, amount long, day string"
    )
    for _ in range(2):
        tables.write(rows, "credits", writer="w", batch=0, partition_by=("day",), checkpoint="c")
    assert sorted(map(tuple, tables.read("credits").collect())) == [tuple(row) for row in rows.collect()]
    for batch, amount in ((0, 5), (1, 7)):
        changed = spark.createDataFrame([("u1", amount)], "user string, balance long")
        tables.write(changed, "balances", writer="w", batch=batch, keys=("user",))
    assert [tuple(row) for row in tables.read("balances").collect()] == [("u1", 7)]
    assert tables.names() == ["balances", "credits"]
    plan = tables.read("credits")._jdf.queryExecution().toString()
    assert SECRET not in plan


def test_rows_are_put_aside_and_the_slower_driver_is_refused(spark: SparkSession, s3: S3) -> None:
    tables, slower = Tables(spark, "s3://tables/other"), Tables(spark, "s3://tables/other")
    columns = "id string, wrong struct<reason:string>"
    rows = spark.createDataFrame([("good", None), ("bad", ("why",))], columns)
    with tables.write_aside(rows, "events", writer="w", batch=0, aside="wrong") as aside:
        assert aside.written == 1
        assert aside.rows is not None
        assert [row.reason for row in aside.rows.collect()] == ["why"]
    assert [row.id for row in tables.read("events").collect()] == ["good"]
    more = rows.drop("wrong")
    commit = slower._commit

    def overtaken(*given: object) -> None:
        tables.write(more, "events", writer="w", batch=1)
        commit(*given)  # type: ignore[arg-type]

    slower._commit = overtaken  # type: ignore[method-assign,assignment]
    with pytest.raises(Fenced, match="has batch 1 of w from another driver"):
        slower.write(more, "events", writer="w", batch=1)
    assert tables.read("events").count() == 3


def test_a_wrong_key_or_bucket_is_an_error_without_credentials(spark: SparkSession, s3: S3) -> None:
    absent = Store("s3://nobucket/root", {**Store.of(spark, "s3://tables/x").options})
    with pytest.raises(TableError, match="nobucket") as failed:
        absent.below("t").delta()
        absent.check_commits()
    assert SECRET not in str(failed.value)


def words(rows: DataFrame, context: Context) -> DataFrame:
    return rows.selectExpr("cast(value as string) as word")


def test_a_pipeline_has_its_tables_in_a_bucket_and_its_checkpoints_in_a_folder(
    spark: SparkSession, s3: S3, hands: Hands, tmp_path: Path
) -> None:
    """Without Hadoop's jar for S3, Spark writes no checkpoint there."""
    topic = hands.topic()
    flow = Flow("all", Source((topic,)), (Table("words"),), steps=(words,))
    pipeline = Pipeline("words", "Words.", "Words.", lambda settings: (flow,))
    inside = Options(hands.bootstrap, "s3://tables/pipelines", trigger="available-now")
    beside = replace(inside, checkpoints=str(tmp_path / "here"))

    def run(options: Options) -> None:
        with start([pipeline], options, spark=spark) as running:
            running.wait()

    with pytest.raises(ConfigError, match=r"no file system for s3a here .*: give --checkpoints DIR on a"):
        run(inside)
    for word in ("one", "two"):
        hands.produce(topic, [word])
        run(beside)
    with pytest.raises(ConfigError, match=r"the last run of words had its checkpoints in file:.*/here: give"):
        run(replace(inside, checkpoints=str(tmp_path / "elsewhere")))
    (tmp_path / "here").rename(tmp_path / "elsewhere")
    hands.produce(topic, ["three"])
    run(replace(inside, checkpoints=str(tmp_path / "elsewhere")))
    found = Tables(spark, "s3://tables/pipelines/tables").read("words").collect()
    assert sorted(row.word for row in found) == ["one", "three", "two"]
