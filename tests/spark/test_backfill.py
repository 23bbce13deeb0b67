"""Days of a table are computed again from the log, beside the stream, without a lost or doubled row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable, Schema

from tests.spark.collected import example
from tests.tables.delta_files import new_log
from tidelog import Admin
from tidelog.spark.pipelines import backfill, collect, events
from tidelog.spark.pipelines.backfill import (
    Backfill,
    Days,
    Outcome,
    backfilled_sinks,
    refuse_other_columns,
    refuse_others,
    refuse_state,
    refuse_unfinished_replay,
)
from tidelog.spark.pipelines.declare import (
    BackfillRefused,
    Context,
    Flow,
    Pipeline,
    Setting,
    Source,
    Table,
    Topic,
)
from tidelog.spark.pipelines.expectations import NotNull
from tidelog.spark.pipelines.query import Place
from tidelog.spark.pipelines.registry import UnknownPipeline
from tidelog.spark.pipelines.replay import Plan, Replays, Selection
from tidelog.spark.pipelines.settings import resolve
from tidelog.spark.tables.delta_log import DeltaLog
from tidelog.spark.tables.errors import TableError
from tidelog.spark.tables.identity import Batch
from tidelog.spark.tables.log_writers import writers_of
from tidelog.spark.tables.maintenance import MaintenanceSettings, TableMaintenance
from tidelog.spark.tables.store import Store
from tidelog.testing.pipelines import PipelineTest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TOPIC = events.CREDITS.topic
FIRST, SECOND = date(2026, 11, 13), date(2026, 11, 14)
DAYS = Days(FIRST, SECOND)


def with_factor(rows: DataFrame, context: Context) -> DataFrame:
    from pyspark.sql import functions as F

    day = F.to_date(F.timestamp_millis("ts")).alias("day")
    return rows.select("event_id", (rows.amount * context.number("factor")).alias("amount"), day)


def flows(settings: object) -> tuple[Flow, ...]:
    source = Source((TOPIC,), events.CREDITS.spark_schema())
    amounts = Flow("amounts", source, (Table("amounts", partition_by=("day",)),), (with_factor,))
    [credits] = [flow for flow in collect.PIPELINE.flows(dict(settings)) if flow.name == "credits"]  # type: ignore[call-overload]
    return amounts, credits


PIPELINE = Pipeline(
    "mine", "title", "doc", flows, (Setting("factor", 1, "a factor"), *collect.PIPELINE.settings)
)


def credit(number: int, day: date = FIRST, **fields: object) -> dict[str, object]:
    ts = int(datetime(day.year, day.month, day.day, 12, tzinfo=UTC).timestamp() * 1000) + number
    return {**example(events.CREDITS), "event_id": f"e-{number}", "ts": ts, "amount": number, **fields}


def filled(
    test: PipelineTest,
    flow: str = "amounts",
    *,
    factor: int = 1,
    days: Days = DAYS,
    pipeline: Pipeline = PIPELINE,
) -> list[Outcome]:
    settings = resolve([pipeline], {"factor": factor})[pipeline.name]
    place = Place(test.broker.bootstrap_servers, test.data, {}, 0)
    return Backfill(pipeline, flow, settings, place, test.spark).run(days)


def amounts(test: PipelineTest) -> dict[str, object]:
    rows = test.table("amounts")
    assert len({row["event_id"] for row in rows}) == len(rows), "no row is doubled"
    return {str(row["event_id"]): row["amount"] for row in rows}


def meanwhile(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Have something happen once between the write of a backfill's files and its commit."""
    real = backfill.write_files

    def write_files(*given: object) -> object:
        written = real(*given)  # type: ignore[arg-type]
        monkeypatch.undo()
        act()
        return written

    monkeypatch.setattr(backfill, "write_files", write_files)


def test_a_day_is_replaced_while_the_stream_goes_on(
    tidelog_pipeline: PipelineTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    test = tidelog_pipeline
    test.run(PIPELINE, {TOPIC: [credit(1), credit(2), credit(3, SECOND), "not JSON"]})
    # A late event of the same day comes with the next batch, during the backfill.
    meanwhile(monkeypatch, lambda: test.run(PIPELINE, {TOPIC: [credit(4)]}, {"factor": 10}))
    assert filled(test, factor=10) == [Outcome("amounts", 2, 2)]
    assert amounts(test) == {"e-1": 10, "e-2": 20, "e-3": 3, "e-4": 40}
    assert filled(test, factor=10) == [Outcome("amounts", 3, 3)], "again: the same rows"
    test.run(PIPELINE, {TOPIC: [credit(5)]}, {"factor": 10})
    assert amounts(test) == {"e-1": 10, "e-2": 20, "e-3": 3, "e-4": 40, "e-5": 50}

    def killed() -> None:
        raise KeyboardInterrupt

    meanwhile(monkeypatch, killed)
    with pytest.raises(KeyboardInterrupt):
        filled(test, factor=7)
    assert amounts(test)["e-1"] == 10, "a backfill that was killed has changed nothing"

    assert filled(test, "credits") == [Outcome("credits", 4, 4)]
    events = sorted(str(row["event_id"]) for row in test.table("credits"))
    assert events == ["e-1", "e-2", "e-3", "e-4", "e-5"]

    meanwhile(monkeypatch, lambda: filled(test, factor=2))
    with pytest.raises(TableError, match=r"backfill/mine/amounts/.* has changed table amounts during"):
        filled(test, factor=3)
    assert amounts(test)["e-1"] == 2
    refuses_a_log_that_is_too_short(test)


def refuses_a_log_that_is_too_short(test: PipelineTest) -> None:
    from tidelog import TopicPartition

    with Admin(bootstrap_servers=test.broker.bootstrap_servers) as admin:
        admin.delete_records({TopicPartition(TOPIC, 0): 1})
    before = amounts(test)
    with pytest.raises(BackfillRefused, match="no longer reaches back to a day before 2026-11-13"):
        filled(test)
    assert amounts(test) == before


def test_collected_events_are_neither_lost_nor_in_two_tables(
    tidelog_pipeline: PipelineTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    test = tidelog_pipeline
    now = datetime.now(UTC)
    soon = credit(3, ts=int(now.timestamp() * 1000) + 30 * 60_000)
    days = Days(FIRST, now.date() + timedelta(days=2))
    collecting = replace(PIPELINE, name="collect")
    test.run(collecting, {TOPIC: [credit(1), credit(2, version=100), soon]}, {"ahead_minutes": 0})

    def backfilled() -> list[Outcome]:
        return filled(test, "credits", days=days, pipeline=collecting)

    def collected() -> list[str]:
        return sorted(str(row["event_id"]) for row in test.table("credits"))

    def killed(replays: Replays, plan: Plan, table: str, staged: Store) -> None:
        raise KeyboardInterrupt

    with pytest.raises(BackfillRefused, match=r"1 quarantined events .* are good by now: run"):
        backfilled()
    monkeypatch.setattr(Replays, "_add", killed)
    with pytest.raises(KeyboardInterrupt):
        Replays(test.data).run(Selection(0))
    monkeypatch.undo()
    with pytest.raises(BackfillRefused, match=r"replay .* has not ended and adds 1 events to table credits"):
        backfilled()
    assert collected() == ["e-1"], "the other one is in the plan of the replay alone"
    assert Replays(test.data).run(Selection(0)).replayed == 0, "it has finished the one before it"
    assert backfilled() == [Outcome("credits", 2, 2)]
    assert collected() == ["e-1", "e-3"]
    DeltaTable(str(Path(test.data, "tables", "quarantine"))).delete()
    with pytest.raises(BackfillRefused, match=r"1 events .* are bad by the present schema and not in the"):
        backfilled()
    assert collected() == ["e-1", "e-3"]


def test_rows_of_a_flow_whose_commits_the_log_no_longer_has_are_seen(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    place = Store.of(None, log.uri)
    upkeep = TableMaintenance(place, MaintenanceSettings(checkpoint_commits=1, log_versions=1))
    for writer in ("other/flow", "replay/first", "replay/second"):
        log.commit(log.snapshot(), Batch(writer, 0))
        upkeep.round()
    assert {commit.batch.writer for commit in log.snapshot().commits()} == {"replay/first", "replay/second"}
    writers = writers_of(place, log.snapshot())
    with pytest.raises(BackfillRefused, match="table amounts has rows of other/flow, too"):
        refuse_others("amounts", writers, "mine/amounts")
    refuse_others("amounts", writers, "other/flow")


def test_events_of_a_replay_that_was_interrupted_are_not_computed_as_well(tmp_path: Path) -> None:
    data = str(tmp_path)
    replays = Replays(data)
    (tmp_path / "replays" / "1-killed").mkdir(parents=True)
    replays._record(Plan("1-killed", 1.0, {"credits": 1_204}))
    with pytest.raises(
        BackfillRefused, match=r"replay 1-killed has not ended and adds 1,204 events to table cr"
    ):
        refuse_unfinished_replay(Replays(data), "credits")
    refuse_unfinished_replay(Replays(data), "logins")
    replays._forget("1-killed")
    refuse_unfinished_replay(Replays(data), "credits")


def test_rows_with_other_columns_than_the_table_are_refused(tmp_path: Path) -> None:
    from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

    log = DeltaLog(str(tmp_path / "amounts"))
    was = StructType([StructField("event_id", StringType()), StructField("amount", LongType())])
    snapshot = log.create(Schema.from_json(was.json()))
    required = StructType([StructField("amount", LongType(), False)])
    refuse_other_columns(snapshot, required, "mine/amounts")
    for kind in (StringType(), IntegerType()):
        with pytest.raises(
            TableError, match=r"column amount is long in table amounts and (string|integer) in"
        ):
            refuse_other_columns(snapshot, StructType([StructField("amount", kind)]), "mine/amounts")
    with pytest.raises(BackfillRefused, match="table amounts has no column paid: run mine/amounts with the"):
        refuse_other_columns(snapshot, StructType([StructField("paid", LongType())]), "mine/amounts")


def test_what_cannot_be_computed_by_itself_is_refused() -> None:
    source = Source((TOPIC,))
    for flow, words in (
        (Flow("a", source, (Table("t", keys=("id",)),)), "table t has keys"),
        (Flow("a", source, (Table("t"),)), "table t is not partitioned by day alone"),
        (Flow("a", source, (Topic("t", "id"),)), "flow a writes no table by day"),
        (
            Flow("a", source, (Table("t", partition_by=("day",), expect=(NotNull("a", "stop"),)),)),
            "expectations that quarantine or stop",
        ),
    ):
        with pytest.raises(BackfillRefused, match=words):
            backfilled_sinks(flow)
    plain = Flow("a", source, (Table("t", partition_by=("day",)),))
    assert backfilled_sinks(plain) == list(plain.sinks)
    refuse_state(plain, False)
    with pytest.raises(BackfillRefused, match="keeps state"):
        refuse_state(plain, True)
    with pytest.raises(BackfillRefused, match="keeps state"):
        refuse_state(Flow("a", source, plain.sinks, output_mode="update"), False)
    with pytest.raises(BackfillRefused, match="batch steps"):
        refuse_state(Flow("a", source, plain.sinks, batch_steps=(lambda rows, context, batch: rows,)), False)
    with pytest.raises(BackfillRefused, match="flow a has expectations that quarantine or stop"):
        refuse_state(Flow("a", source, plain.sinks, expect=(NotNull("a", "quarantine"),)), False)
    warns = Table("t", partition_by=("day",), expect=(NotNull("a"),))
    assert backfilled_sinks(Flow("a", source, (warns,))) == [warns], "only counted"
    refuse_state(Flow("a", source, (warns,), expect=(NotNull("a"),)), False)
    with pytest.raises(BackfillRefused, match="no day from 2026-11-14 up to 2026-11-13"):
        Days(SECOND, FIRST)


def test_an_unknown_flow_is_named(tidelog_pipeline: PipelineTest) -> None:
    tidelog_pipeline.broker.start()
    with pytest.raises(UnknownPipeline, match="mine has no flow none; there are amounts, credits"):
        filled(tidelog_pipeline, "none")
    with pytest.raises(BackfillRefused, match="there is no table amounts yet: run mine/amounts first"):
        filled(tidelog_pipeline)
