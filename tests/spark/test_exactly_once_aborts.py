"""Batches none of whose tasks lived to tell the driver anything: the abort ends what they left open."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.spark.decided import Driver, problems, settled, values
from tests.spark.hands import Hands
from tests.spark.killed_sink import KilledSink
from tidelog.spark.exactly_once import ExactlyOnceBatchWriter, ExactlyOnceStreamWriter
from tidelog.spark.ledger import Job
from tidelog.testing import Broker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """Its transactions have no time-out: what nobody ends stays open."""
    with Broker({"transaction.two.phase.commit.enable": "true"}) as broker:
        yield broker


@pytest.fixture
def topic(hands: Hands) -> str:
    return hands.topic(partitions=2)


@pytest.fixture
def beside_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """What Spark tells the Python processes of one application."""
    monkeypatch.setenv("SPARK_LOCAL_DIRS", "/tmp/blockmgr-1")


def stream_writer(driver: Driver) -> ExactlyOnceStreamWriter:
    return ExactlyOnceStreamWriter(driver.options, driver.target)


@pytest.mark.usefixtures("beside_a_driver")
def test_a_stream_aborts_what_tasks_left_that_told_nothing(hands: Hands, topic: str) -> None:
    with Driver(hands, topic, "run-1") as driver:
        writer = stream_writer(driver)
        writer.abort([None, None], 0)  # nobody had begun
        job = Job("query-q", "run-1", 0, False, owner=stream_writer(driver).owner)
        driver.write_all(job, ["a"], ["b"])
        writer.abort([None, None], 0)
        settled(hands, topic)
        driver.commit(job, driver.write_all(job, ["a", "b"]))
        settled(hands, topic)
        writer.ledger().close()
    assert not problems(hands, topic, ["a", "b"])


@pytest.mark.usefixtures("beside_a_driver")
def test_a_stream_that_was_left_behind_does_not_abort_what_the_next_run_writes(
    hands: Hands, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Driver(hands, topic, "run-1") as first, Driver(hands, topic, "run-2") as second:
        writer = stream_writer(first)
        first.write(Job("query-q", "run-1", 0, False, owner=writer.owner), 0, ["a"])
        monkeypatch.setenv("SPARK_LOCAL_DIRS", "/tmp/blockmgr-2")
        job = Job("query-q", "run-2", 0, False, owner=stream_writer(second).owner)
        prepared = second.write_all(job, ["a", "b"])
        writer.abort([None], 0)
        second.commit(job, prepared)
        settled(hands, topic)
        writer.ledger().close()
    assert not problems(hands, topic, ["a", "b"])


@pytest.mark.usefixtures("beside_a_driver")
def test_queries_that_cannot_be_told_apart_are_left_alone(
    hands: Hands, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    with Driver(hands, topic, "run") as driver:
        writer = stream_writer(driver)
        jobs = [Job(f"query-{name}", "run", 0, False, owner=writer.owner) for name in ("q", "r")]
        prepared = [driver.write_all(job, [job.name]) for job in jobs]
        writer.abort([None], 0)
        assert "2 queries of this driver have the same options" in caplog.text
        for job, messages in zip(jobs, prepared, strict=True):
            driver.commit(job, messages)
        settled(hands, topic)
        writer.ledger().close()
    assert not problems(hands, topic, ["query-q", "query-r"])


@pytest.mark.parametrize(("folders", "aborted"), [("/tmp/blockmgr-1", True), ("/tmp/blockmgr-2", False)])
def test_a_named_batch_of_a_query_aborts_what_tasks_of_its_application_left(
    hands: Hands, topic: str, monkeypatch: pytest.MonkeyPatch, folders: str, aborted: bool
) -> None:
    """The run of the query is known to tasks alone; another application may run the query by now."""
    with Driver(hands, topic, "run-1", exactlyOnceName="orders", exactlyOnceBatch="0") as driver:
        monkeypatch.setenv("SPARK_LOCAL_DIRS", "/tmp/blockmgr-1")
        job = ExactlyOnceBatchWriter(driver.options, driver.target).job("run-of-query", "query")
        prepared = driver.write_all(job, ["a"], ["b"])
        monkeypatch.setenv("SPARK_LOCAL_DIRS", folders)
        writer = ExactlyOnceBatchWriter(driver.options, driver.target)
        writer.abort([None, None])
        if aborted:
            settled(hands, topic)
            assert values(hands, topic) == []
        else:
            driver.commit(job, prepared)
            settled(hands, topic)
            assert not problems(hands, topic, ["a", "b"])
        writer.ledger().close()


def killed_writes(frame: DataFrame, hands: Hands, topic: str, **options: str) -> None:
    """Write with tasks that are killed, inside of a streaming query; the write fails."""
    writer = frame.write.format("killed-tidelog").option("kafka.bootstrap.servers", hands.bootstrap)
    given = {"topic": topic, "exactlyOnce": "true", "transactionalIdPrefix": topic, **options}
    writer.options(**given).mode("append").save()


@pytest.mark.parametrize("kind", ["stream", "named batch"])
def test_tasks_that_are_killed_leave_nothing_open(
    spark: SparkSession, hands: Hands, topic: str, tmp_path: Path, kind: str
) -> None:
    spark.dataSource.register(KilledSink)
    source = hands.topic()
    hands.produce(source, range(10))
    rows = hands.read_stream(spark, subscribe=source, startingOffsets="earliest").load().selectExpr("value")
    if kind == "stream":
        writer = rows.writeStream.format("killed-tidelog").option("kafka.bootstrap.servers", hands.bootstrap)
        writer = writer.options(topic=topic, exactlyOnce="true", transactionalIdPrefix=topic)
    else:
        named = {"exactlyOnceName": "orders", "exactlyOnceBatch": "0"}
        writer = rows.writeStream.foreachBatch(lambda frame, _: killed_writes(frame, hands, topic, **named))
    query = (
        writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
    )
    with pytest.raises(Exception, match=r"exited unexpectedly|crashed|EOFException|Python worker"):
        query.awaitTermination()
    assert hands.values(topic, isolation_level="read_uncommitted", seconds=0.2), (
        "the task wrote before it died"
    )
    settled(hands, topic)
    assert values(hands, topic) == []
