"""One phone whose clock is wrong by years makes no event of others late, and stays nobody's newest one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from tidelog.spark.pipelines import alerts, device_watch, earnings, invite_watch, region
from tidelog.spark.pipelines.days import DAY_MS
from tidelog.spark.pipelines.declare import Context, Pipeline
from tidelog.spark.pipelines.event_clock import EventClock, Newest
from tidelog.spark.pipelines.invitees import gathered, stamped, tick, to_text
from tidelog.spark.pipelines.settings import resolve
from tidelog.spark.tables import Tables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

HOUR, TODAY, YEAR_2099 = 3_600_000, 20_000 * DAY_MS, 4_070_908_800_000
COLUMNS = "event_id string, ts long, at long"
EVENTS = [
    ("right", TODAY, TODAY),
    ("late", TODAY - DAY_MS, TODAY),
    ("a bit ahead", TODAY + HOUR, TODAY),
    ("ahead", TODAY + HOUR + 1, TODAY),
    ("without a timestamp", TODAY, -1),
    ("years ahead", YEAR_2099, TODAY),
    ("with its record", YEAR_2099, YEAR_2099),
]
GOOD = ["right", "late", "a bit ahead", "without a timestamp"]


def rows(spark: SparkSession) -> DataFrame:
    from pyspark.sql import functions as f

    columns = {
        "version": f.lit(1),
        "user_id": f.lit("u"),
        "ok": f.lit(True),
        "phone": f.lit("+8613912345678"),
        "country": f.lit(None).cast("string"),
        "invitee_id": f.lit(None).cast("string"),
        "topic": f.lit("ml_task_log"),
        "partition": f.lit(0),
        "_error": f.lit(None).cast("string"),
        "timestamp": f.timestamp_millis("at"),
    }
    return spark.createDataFrame(EVENTS, COLUMNS).withColumns(columns)


def context(spark: SparkSession, pipeline: Pipeline, **settings: object) -> Context:
    return Context(spark, resolve([pipeline], settings)[pipeline.name], Tables(spark, "unused"))


@pytest.mark.parametrize(
    ("pipeline", "step"),
    [
        (device_watch.PIPELINE, lambda rows, given: alerts.sound(rows, device_watch.LOGINS, given)),
        (invite_watch.PIPELINE, lambda rows, given: alerts.sound(rows, invite_watch.INVITES, given)),
        (region.PIPELINE, region.sound),
        (earnings.PIPELINE, earnings.sound(earnings.CREDITS)),
        (earnings.PIPELINE, earnings.sound(earnings.TASKS)),
    ],
    ids=["device-watch", "invite-watch", "region", "credits", "tasks"],
)
def test_events_from_the_future_are_left_out(
    spark: SparkSession, pipeline: Pipeline, step: Callable[[DataFrame, Context], DataFrame]
) -> None:
    found = [row.event_id for row in step(rows(spark), context(spark, pipeline)).collect()]
    assert found == GOOD
    day = step(rows(spark), context(spark, pipeline, ahead_minutes=1_440)).collect()
    assert [row.event_id for row in day] == [*GOOD[:3], "ahead", GOOD[3]]


def test_flows_that_leave_events_out_read_the_times_of_records() -> None:
    flows = [flow for each in (region, earnings, device_watch, invite_watch) for flow in each.flows({})]
    assert all("timestamp" in flow.source.metadata for flow in flows)


def test_the_newest_verification_is_not_one_of_the_future(spark: SparkSession) -> None:
    given = context(spark, region.PIPELINE)
    [row] = region.newest(region.sound(rows(spark), given), given).collect()
    assert row["last"]["event_id"] == "a bit ahead"


def test_ids_are_not_forgotten_because_of_a_record_of_the_future(spark: SparkSession) -> None:
    from pyspark.sql import functions as f

    times = earnings.stamped(rows(spark)).select(f.unix_millis("timestamp").alias("ms")).collect()
    found = [row["ms"] for row in times]
    assert found[:4] == [TODAY] * 4
    assert TODAY < found[4] == found[6] < YEAR_2099, "without a timestamp, or with one of the future: now"


def test_the_clock_of_a_partition_is_not_moved_into_the_future(spark: SparkSession) -> None:
    from pyspark.sql import functions as f

    given = context(spark, invite_watch.PIPELINE)
    history = gathered(stamped(rows(spark).where("at > 0"), given), given, 0, 0)
    clock = EventClock(HOUR, HOUR)
    tick(clock, history.withColumn("unread", f.lit(to_text([]))).toArrow())
    assert clock.newest == {("ml_task_log", 0): Newest(TODAY + HOUR, TODAY)}
    assert clock.watermark == TODAY
