"""State partitions: what a run asks for, what a checkpoint has, and a change of it that changes no result."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.spark.hands import Hands
from tidelog.config import ConfigError
from tidelog.spark.files import Files
from tidelog.spark.pipelines import run_session, runner, state_partitions
from tidelog.spark.pipelines.declare import Context, Flow, Pipeline, Source, Table, Topic
from tidelog.spark.pipelines.repartition import repartition
from tidelog.spark.pipelines.run_options import Options
from tidelog.spark.pipelines.state import AlreadyRunning, StateFolder
from tidelog.spark.pipelines.state_partitions import (
    DEFAULT,
    SHUFFLE_PARTITIONS,
    CannotRepartition,
    Repartitioned,
    asked_for,
    in_checkpoint,
    in_offset_log,
    session_with,
)
from tidelog.spark.tables import Tables

STORE = "spark.sql.streaming.stateStore.providerClass"
CHANGELOG = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def test_a_run_asks_by_its_settings_and_then_by_sparks() -> None:
    assert asked_for({}, {}) is None
    assert asked_for({"state_partitions": "4"}, {}) == 4
    assert asked_for({"state_partitions": 4}, {SHUFFLE_PARTITIONS: "7"}) == 4
    assert asked_for({}, {SHUFFLE_PARTITIONS: "7"}) == 7
    for wrong in ("0", "-1", "many", "", 2.5, "100001"):
        with pytest.raises(ConfigError, match=r"state_partitions.*a whole number, 1 to 100000"):
            asked_for({"state_partitions": wrong}, {})


@pytest.mark.parametrize("master", ["local[2]", "spark://host:7077", None])
def test_the_number_of_a_new_session_does_not_depend_on_the_master(
    master: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, object] = {}

    class Stop(Exception):
        pass

    def session(app: str, master: str, **conf: object) -> None:
        seen.update(conf)
        raise Stop

    monkeypatch.setattr("tidelog.spark.session.session", session)
    for options, expected in (
        (Options(master=master), DEFAULT),
        (Options(master=master, state_partitions=3), 3),
        (Options(master=master, settings={"state_partitions": "5"}), 5),
        (Options(master=master, spark_conf={SHUFFLE_PARTITIONS: "6"}), 6),
    ):
        with pytest.raises(Stop):
            run_session.new_session(options)
        assert seen[SHUFFLE_PARTITIONS] == str(expected)


def test_an_offset_log_names_the_number() -> None:
    assert in_offset_log('v1\n{"conf":{"spark.sql.shuffle.partitions":"2"}}\n{}') == 2
    for other in (
        "",
        "v1",
        "v1\n{}",
        'v1\n{"conf":{}}',
        "v1\n[]",
        'v1\n{"conf":{"spark.sql.shuffle.partitions":"x"}}',
    ):
        assert in_offset_log(other) is None


def once(rows: DataFrame, context: Context) -> DataFrame:
    return rows.selectExpr("cast(value as string) as word").dropDuplicates(["word"])


def words(topic: str) -> Pipeline:
    seen = Flow("seen", Source((topic,)), (Table("words"), Topic("words-once", key="word")), steps=(once,))
    return Pipeline("words", "Words.", "Words.", lambda settings: (seen,))


def test_results_are_the_same_with_another_number_of_state_partitions(
    spark: SparkSession, hands: Hands, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data, topic = str(tmp_path / "data"), hands.topic(2)
    spark = session_with(spark, 2)
    for name in (STORE, CHANGELOG):
        spark.conf.set(name, run_session.SESSION[name])
    mine, before = words(topic), spark.conf.get(SHUFFLE_PARTITIONS)
    checkpoint = f"{data}/checkpoints/words/seen"

    def run(sent: range, **others: object) -> None:
        hands.produce(topic, sent)
        options = Options(hands.bootstrap, data, trigger="available-now", **others)  # type: ignore[arg-type]
        with runner.start([mine], options, spark=spark) as running:
            running.wait()

    def found() -> tuple[list[int], list[int]]:
        rows = Tables(spark, f"{data}/tables").read("words").collect()
        values = [json.loads(value)["word"] for value in hands.log("words-once")]
        return sorted(int(row.word) for row in rows), sorted(int(value) for value in values)

    run(range(20), state_partitions=3)
    assert in_checkpoint(Files(spark, checkpoint), checkpoint) == 3
    assert spark.conf.get(SHUFFLE_PARTITIONS) == before, "the session of the caller is as it was"
    with caplog.at_level(logging.WARNING, "tidelog.spark"):
        run(range(10, 25), settings={"state_partitions": "5"})
    told = "words/seen keeps its state in 3 partitions, as its checkpoint has them, and not in 5: stop it"
    assert [record.getMessage().partition(" and run `")[0] for record in caplog.records] == [told]
    assert found() == (list(range(25)), list(range(25)))

    place = Options(data=data)
    held = StateFolder(data).claim("words")
    with pytest.raises(AlreadyRunning):
        repartition([mine], 5, place, spark=spark)
    held.close()
    commits = Path(checkpoint) / "commits"
    last = max(
        (entry for entry in commits.iterdir() if entry.name.isdecimal()), key=lambda entry: int(entry.name)
    )
    last.rename(tmp_path / "kept")
    with pytest.raises(
        CannotRepartition, match="last micro-batch of words/seen has not ended: finish it first"
    ):
        repartition([mine], 5, place, spark=spark)
    (tmp_path / "kept").rename(last)
    assert repartition([mine], 5, place, spark=spark) == [Repartitioned("words/seen", 3, 5)]
    assert repartition([mine], 5, place, spark=spark) == [Repartitioned("words/seen", 5, 5)]
    caplog.clear()
    run(range(15, 40), state_partitions=5)
    run(range(40))
    assert caplog.records == []
    assert found() == (list(range(40)), list(range(40))), "what was seen before is remembered"
    assert in_checkpoint(Files(spark, checkpoint), checkpoint) == 5


def test_a_flow_without_state_has_no_number(spark: SparkSession, hands: Hands, tmp_path: Path) -> None:
    topic, data = hands.topic(), str(tmp_path / "data")
    flow = Flow(
        "all", Source((topic,)), (Table("words"),), steps=(lambda rows, context: rows.select("offset"),)
    )
    plain = Pipeline("plain", "Plain.", "Plain.", lambda settings: (flow,))
    hands.produce(topic, ["one"])
    runner.run([plain], bootstrap=hands.bootstrap, data=data, trigger="available-now", spark=spark)
    assert repartition([plain], 4, Options(data=data), spark=spark) == [
        Repartitioned("plain/all", None, None)
    ]


class Refusing:
    """A Spark whose repartitioning fails."""

    @property
    def _streamingCheckpointManager(self) -> Refusing:
        return self

    def repartition(self, checkpoint: str, count: int) -> None:
        raise ValueError("[STATE.UNSUPPORTED] HDFSBackedStateStoreProvider is not supported SQLSTATE: 55019")


def test_a_spark_that_cannot_do_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_partitions, "Files", lambda spark, checkpoint: None)
    monkeypatch.setattr(state_partitions, "in_checkpoint", lambda files, checkpoint: 2)
    monkeypatch.setattr(state_partitions, "batches_in", lambda files, folder: {7})
    with pytest.raises(
        CannotRepartition, match="HDFSBackedStateStoreProvider is not supported;"
    ):
        state_partitions.repartition(Refusing(), "words/seen", "nowhere", 4)  # type: ignore[arg-type]
    with pytest.raises(CannotRepartition, match=r"PySpark 4\.3 can; words/seen keeps its 2$"):
        state_partitions.repartition(object(), "words/seen", "nowhere", 4)  # type: ignore[arg-type]
