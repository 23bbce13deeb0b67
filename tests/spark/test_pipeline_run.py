"""Pipelines on a real Spark and a real broker: flows into tables and topics, stops, failures, the tool."""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.spark.hands import Hands
from tests.support.wait import eventually
from tidelog.spark.pipelines import lease, runner, state
from tidelog.spark.pipelines.declare import (
    Context,
    Flow,
    Pipeline,
    Setting,
    Sink,
    Source,
    Step,
    Table,
    Topic,
)
from tidelog.spark.pipelines.lease import Holder
from tidelog.spark.pipelines.reasons import FlowFailed
from tidelog.spark.pipelines.run_options import Options
from tidelog.spark.pipelines.runner import Running
from tidelog.spark.pipelines.state import AlreadyRunning, LeaseLost, StateFolder
from tidelog.spark.pipelines.topics import MissingTopics
from tidelog.spark.tables import Tables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SECONDS = 240.0


class Notes:
    """A sink that notes the batches it was given, and may wait or fail."""

    name = "notes"

    def __init__(self) -> None:
        self.batches: list[tuple[int, int]] = []
        self.entered = threading.Event()
        self.go_on = threading.Event()
        self.go_on.set()
        self.failure: str | None = None

    def write(self, rows: DataFrame, context: Context, flow: str, batch: int) -> None:
        count = rows.count()
        self.entered.set()
        assert self.go_on.wait(SECONDS)
        if self.failure is not None:
            raise ValueError(self.failure)
        self.batches.append((batch, count))


def texts(rows: DataFrame, context: Context) -> DataFrame:
    shout = "upper(cast(value as string))" if context.switch("shout") else "cast(value as string)"
    return rows.selectExpr(f"{shout} as word", "offset", "date'2025-06-15' as day")


def declared(topic: str, *sinks: Sink, name: str = "words", steps: tuple[Step, ...] = (texts,)) -> Pipeline:
    flow = Flow("all", Source((topic,)), sinks, steps=steps)
    return Pipeline(name, "Words.", "Words.", lambda settings: (flow,), (Setting("shout", False, "Loud."),))


@pytest.fixture
def data(tmp_path: Path) -> str:
    return str(tmp_path / "data")


@pytest.fixture(autouse=True)
def no_query_left(spark: SparkSession) -> Iterator[None]:
    yield
    eventually(lambda: not spark.streams.active, "no query runs any more", 30)


def options(hands: Hands, data: str, **others: object) -> Options:
    return Options(hands.bootstrap, data, trigger="0 seconds", **others)  # type: ignore[arg-type]


def test_who_looks_at_a_pipeline_while_it_starts_sees_that_and_its_java_process(
    spark: SparkSession, hands: Hands, data: str
) -> None:
    """Queries of a pipeline run before the last of them was started: a kill may come that early."""
    seen: list[state.PipelineStatus | None] = []

    def look(rows: DataFrame, context: Context) -> DataFrame:
        seen.append(StateFolder(data).read("words"))
        return rows

    words = declared(hands.topic(), Notes(), steps=(look,))
    for _ in range(2):
        runner.run([words], bootstrap=hands.bootstrap, data=data, trigger="available-now", spark=spark)
    assert [each.state for each in seen if each] == [state.STARTING] * 2
    assert all(each is not None and state.process_is_java(each.jvm_pid) for each in seen)


def test_a_flow_fills_a_table_and_a_topic_goes_on_where_it_was_and_does_not_begin_anew(
    spark: SparkSession, hands: Hands, data: str, caplog: pytest.LogCaptureFixture
) -> None:
    topic, out = hands.topic(2), "words-out"
    hands.produce(topic, ["one", "two"])
    words = declared(topic, Table("words", partition_by=("day",)), Topic(out, key="word", compacted=True))

    def run() -> runner.Outcome:
        return runner.run(
            [words],
            bootstrap=hands.bootstrap,
            data=data,
            trigger="available-now",
            settings={"shout": "true"},
            spark=spark,
        )

    first = run()
    hands.produce(topic, ["three"], partition=1)
    second = run()
    assert (first.rows, second.rows) == (2, 1)
    assert second.pipelines["words"].flows["all"].lag == 0
    tables = Tables(spark, f"{data}/tables")
    assert sorted(row.word for row in tables.read("words").collect()) == ["ONE", "THREE", "TWO"]
    values = [json.loads(value) for value in hands.values(out)]
    assert sorted(value["word"] for value in values) == ["ONE", "THREE", "TWO"]
    assert values[0].keys() == {"word", "offset", "day"}
    from tidelog.clients.admin import ConfigResource, ResourceType

    resource = ConfigResource(ResourceType.TOPIC, out)
    settings = hands.admin.describe_configs([resource])[resource]
    assert next(each.value for each in settings.values() if each.name == "cleanup.policy") == "compact"
    status = StateFolder(data).read("words")
    assert status is not None
    assert (status.state, status.pid) == ("stopped", os.getpid())
    commit = tables.delta("words").history(1)[0]["tidelog"]
    assert json.loads(commit["offsets"]) == {topic: {"0": [2, 2], "1": [0, 1]}}

    shutil.rmtree(f"{data}/checkpoints/words")
    with pytest.raises(
        FlowFailed, match=r"words has words/all up to batch 1 from the checkpoint .*Put the old"
    ):
        run()
    assert "words/all begins anew" in caplog.text
    assert f"{out} has records already" in caplog.text
    assert tables.read("words").count() == len(hands.values(out)) == 3, (
        "the topic did not get the batch either"
    )


def test_the_position_of_a_flow_is_that_of_a_consumer_group(
    spark: SparkSession, hands: Hands, data: str
) -> None:
    topic = hands.topic()
    hands.produce(topic, ["one", "two", "three"])
    notes = Notes()
    with runner.start([declared(topic, notes, name="seen")], options(hands, data), spark=spark) as running:

        def committed() -> bool:
            running.turn()
            found = hands.admin.list_consumer_group_offsets(["pipeline-seen-all"])["pipeline-seen-all"]
            offset = found.get((topic, 0))
            return offset is not None and offset.offset == 3

        eventually(committed, "the group shows the position", SECONDS, 0.2)
        running.stop()
        running.wait()


def test_a_stop_ends_the_batch_that_is_being_written_and_begins_no_other(
    spark: SparkSession, hands: Hands, data: str
) -> None:
    topic, notes = hands.topic(), Notes()
    hands.produce(topic, ["one", "two"])
    notes.go_on.clear()
    words = declared(topic, notes)
    with runner.start([words], options(hands, data), spark=spark) as running:
        eventually(notes.entered.is_set, "a batch is written", SECONDS)
        with pytest.raises(AlreadyRunning, match="words already runs on this data folder"):
            runner.start([words], options(hands, data), spark=spark)
        hands.produce(topic, ["three"])
        StateFolder(data).request_stop("words")
        for _ in range(20):
            assert running.turn(), "it waits for the batch"
        assert running.pipelines[0].status.state == state.STOPPING
        notes.go_on.set()
        outcome = running.wait()
    assert outcome.stopped_cleanly
    assert notes.batches == [(0, 2)]
    runner.run([words], bootstrap=hands.bootstrap, data=data, trigger="available-now", spark=spark)
    assert notes.batches == [(0, 2), (1, 1)], "nothing was lost and nothing came twice"


def test_a_driver_whose_lease_was_taken_writes_nothing_more(
    spark: SparkSession, hands: Hands, data: str
) -> None:
    topic, notes = hands.topic(), Notes()
    hands.produce(topic, ["one"])
    words = declared(topic, notes)
    with runner.start([words], options(hands, data), spark=spark) as running:
        held = running.pipelines[0].claim.lease
        eventually(lambda: running.turn() and notes.batches, "a batch is written", SECONDS, 0.05)
        other = Holder("beta", 71, 0.0, "another kernel")
        assert lease._commit(held.leases._table(), "words", held.epoch + 1, other)
        hands.produce(topic, ["two"])
        with pytest.raises(LeaseLost, match="words was taken over by process 71 on beta since 1970-01-01"):
            running.wait()
    assert notes.batches == [(0, 1)]
    written = StateFolder(data).files.read("words.json")
    assert written is not None
    assert json.loads(written)["state"] == "running", "the status is that of the other driver"


def test_a_stop_does_not_wait_for_ever(spark: SparkSession, hands: Hands, data: str) -> None:
    topic, notes = hands.topic(), Notes()
    hands.produce(topic, ["one"])
    notes.go_on.clear()
    words = declared(topic, notes)
    before = spark.conf.get("spark.sql.streaming.stopTimeout")
    spark.conf.set("spark.sql.streaming.stopTimeout", "1000")
    try:
        with runner.start([words], options(hands, data, stop_seconds=0.1), spark=spark) as running:
            eventually(notes.entered.is_set, "a batch is written", SECONDS)
            running.stop()
            outcome = running.wait()
    finally:
        notes.go_on.set()
        spark.conf.set("spark.sql.streaming.stopTimeout", str(before))
    assert not outcome.stopped_cleanly


def test_a_failed_flow_names_itself_and_stops_the_others(
    spark: SparkSession, hands: Hands, data: str
) -> None:
    topic, bad, good = hands.topic(), Notes(), Notes()
    hands.produce(topic, ["one"])
    bad.failure = "the shelf is full"
    both = [declared(topic, bad, name="bad"), declared(topic, good, name="good")]
    with (
        runner.start(both, options(hands, data), spark=spark) as running,
        pytest.raises(FlowFailed, match=r"flow all of pipeline bad failed: the shelf is full\. Nothing"),
    ):
        running.wait()
    told = StateFolder(data).read("bad")
    assert told is not None
    assert (told.state, told.error is not None) == ("failed", True)
    assert told.flows["all"].state == "failed"
    other = StateFolder(data).read("good")
    assert other is not None
    assert other.state == "stopped"
    bad.failure = None
    runner.run(both[:1], bootstrap=hands.bootstrap, data=data, trigger="available-now", spark=spark)
    assert bad.batches == [(0, 1)], "the batch that failed is done at the next start"


def test_a_step_that_cannot_be_planned_names_its_flow(spark: SparkSession, hands: Hands, data: str) -> None:
    def wrong(rows: DataFrame, context: Context) -> DataFrame:
        return rows.select("no_such_column")

    topic = hands.topic()
    with pytest.raises(FlowFailed, match=r"flow all of pipeline words failed: .*no_such_column"):
        runner.start([declared(topic, Notes(), steps=(wrong,))], options(hands, data), spark=spark)
    assert not StateFolder(data).runs("words")


def test_topics_that_are_read_have_to_be_there(spark: SparkSession, hands: Hands, data: str) -> None:
    words = declared("not-there", Notes())
    with pytest.raises(MissingTopics, match=r"topic not-there is not on .*--create --topic not-there"):
        runner.start([words], options(hands, data), spark=spark)
    with runner.start([words], options(hands, data, create_topics=True), spark=spark) as running:
        assert "not-there" in hands.admin.list_topics()
        running.stop()
        running.wait()


def test_one_of_several_pipelines_can_be_stopped(spark: SparkSession, hands: Hands, data: str) -> None:
    topic, first, second = hands.topic(), Notes(), Notes()
    hands.produce(topic, ["one"])
    both = [declared(topic, first, name="first"), declared(topic, second, name="second")]
    with runner.start(both, options(hands, data), spark=spark) as running:

        def until(done: bool) -> bool:
            running.turn()
            return done

        eventually(lambda: until(bool(first.batches and second.batches)), "both have begun", SECONDS, 0.05)
        StateFolder(data).request_stop("first")
        eventually(lambda: until(running.pipelines[0].ended), "the first ends", SECONDS, 0.05)
        hands.produce(topic, ["two"])
        eventually(lambda: until(len(second.batches) == 2), "the second goes on", SECONDS, 0.05)
        assert [each.status.state for each in running.pipelines] == ["stopped", "running"]
        running.stop()
        running.wait()
    assert first.batches == [(0, 1)]


def test_numbers_of_a_run_add_up(spark: SparkSession, hands: Hands, data: str) -> None:
    topic, notes = hands.topic(), Notes()
    hands.produce(topic, range(25))
    seen: list[int] = []

    def each_turn(running: Running) -> None:
        seen.append(sum(flow.rows for flow in running.flows(running.pipelines[0]).values()))

    available = Options(hands.bootstrap, data, trigger="available-now", max_offsets_per_trigger=4)
    with runner.start([declared(topic, notes)], available, spark=spark) as running:
        outcome = running.wait(each_turn=each_turn)
    assert sum(count for _, count in notes.batches) == outcome.rows == seen[-1] == 25
    assert outcome.pipelines["words"].flows["all"].batch == len(notes.batches) - 1 == 6
