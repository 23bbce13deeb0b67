"""Balances, days and tasks equal a plain computation over the log, whatever comes late, twice or broken."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.spark.app_events import CREDITS, START_MS, App
from tests.spark.hands import Hands
from tidelog.spark.pipelines import runner
from tidelog.spark.pipelines.declare import Context
from tidelog.spark.pipelines.earnings import MOST_STEPS, PIPELINE, counted, progressed
from tidelog.spark.pipelines.settings import resolve
from tidelog.spark.tables import Tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def data(tmp_path: Path) -> str:
    return str(tmp_path / "data")


def texts(spark: SparkSession, data: str, table: str, *columns: str) -> list[tuple[str, ...]]:
    """The rows of a table as texts, sorted."""
    rows = Tables(spark, f"{data}/tables").read(table).select(*columns).collect()
    return sorted(tuple(str(value) for value in row) for row in rows)


def run(spark: SparkSession, hands: Hands, data: str, **settings: object) -> runner.Outcome:
    return runner.run(
        "earnings",
        bootstrap=hands.bootstrap,
        data=data,
        trigger="available-now",
        settings=settings,
        spark=spark,
    )


def test_tables_and_topics_equal_a_computation_over_the_log(
    spark: SparkSession, hands: Hands, data: str
) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    app = App(hands.bootstrap, seed, users=15)
    app.make_topics()
    for _ in range(2):  # the second time restates what the first has written
        app.send(400)
        run(spark, hands, data)
    assert {row[:3] for row in texts(spark, data, "balances", "user_id", "balance", "events")} == {
        row[:3] for row in app.balances()
    }
    assert texts(spark, data, "daily_earnings", "user_id", "day", "earned", "events") == sorted(app.days())
    tasks = texts(spark, data, "task_progress", "user_id", "task_id", "steps_done", "steps", "completed")
    assert tasks == sorted(app.tasks())
    newest: dict[str, dict[str, object]] = {}
    for value in map(json.loads, hands.values("ml_balances")):
        if value["user_id"] in newest:
            assert value["events"] != newest[value["user_id"]]["events"], "written twice"
        if value["events"] > newest.get(value["user_id"], {"events": 0})["events"]:
            newest[value["user_id"]] = value
    assert {(user, str(value["balance"]), str(value["events"])) for user, value in newest.items()} == {
        row[:3] for row in app.balances()
    }
    hurt_by_a_late_event(spark, hands, data, app)


def hurt_by_a_late_event(spark: SparkSession, hands: Hands, data: str, app: App) -> None:
    """An event of months ago restates its day and the balance; an amount that cannot be is left out."""
    for number, amount in enumerate((-1_000, 1 << 62)):
        event = {
            "event_id": f"late-{number}",
            "version": 1,
            "ts": START_MS - 100 * 86_400_000,
            "user_id": "user-1",
            "device_id": "phone",
            "ip": "10.0.0.1",
            "amount": amount,
            "reason": "adjust",
            "ad_id": None,
        }
        value = json.dumps(event).encode()
        hands.send(CREDITS, value, key=b"user-1")
        if amount < 0:
            app.sent[CREDITS].append(value)
    run(spark, hands, data)
    assert {row[:3] for row in app.balances()} == set(
        texts(spark, data, "balances", "user_id", "balance", "events")
    )
    assert texts(spark, data, "daily_earnings", "user_id", "day", "earned", "events") == sorted(app.days())


def test_every_step_of_a_long_task_is_counted_once(spark: SparkSession, data: str) -> None:
    context = Context(spark, resolve([PIPELINE], {})["earnings"], Tables(spark, data))
    steps = [1, 2, 63, 64, 65, 128, 129, 192, 193, 255, 256]
    rows = [("u", "t", step, MOST_STEPS, 5) for step in steps * 2]
    rows += [("u", "t", step, MOST_STEPS, 5) for step in (0, -1, MOST_STEPS + 1)]
    rows += [("v", "t", 3, 2, 5), ("w", "t", 1, 1, 5)]
    frame = spark.createDataFrame(rows, "user_id string, task_id string, step int, steps int, ts long")
    found = counted(progressed(frame, context), context).orderBy("user_id").collect()
    assert [(row.user_id, row.steps_done, row.steps, row.completed) for row in found] == [
        ("u", len(steps), MOST_STEPS, False),
        ("w", 1, 1, True),
    ]


def test_ids_can_be_forgotten_after_days(spark: SparkSession, hands: Hands, data: str) -> None:
    """What is left out is counted, so that nobody has to guess."""
    app = App(hands.bootstrap, 1, users=3)
    app.send(30)
    outcome = run(spark, hands, data, forget_ids_after_days="7")
    assert outcome.pipelines["earnings"].flows["credits"].late_rows_dropped == 0
