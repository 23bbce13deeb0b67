"""Balances, earnings by day and progress of tasks. Every event counts once, however late or often it comes.

Credits are counted by `event_id`: an event that was sent twice counts once. The state is Spark's own,
versioned with the checkpoint: a replayed micro-batch starts from the state before it and gives the same rows.
Rows have absolute values: writing them again changes nothing, and a late event updates them. The state has
one row for each user, for each user and day, for each user and task, and for each event id. The rows of event
ids grow with the log, on the state store's disk, unless `forget_ids_after_days` limits them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tidelog.spark.pipelines.days import day_of
from tidelog.spark.pipelines.declare import (
    Context,
    Flow,
    Pipeline,
    Setting,
    SettingValue,
    Source,
    Step,
    Table,
    Topic,
)
from tidelog.spark.pipelines.event_times import AHEAD, in_time, record_time
from tidelog.spark.pipelines.events import CREDITS, TASKS, EventSchema

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

WORD = 64
MASKS = 4
MOST_STEPS = WORD * MASKS


def sound(schema: EventSchema) -> Step:
    """Drops events that are not valid. `collect` keeps them in its quarantine."""

    def step(rows: DataFrame, context: Context) -> DataFrame:
        return rows.where(schema.spark_error().isNull() & in_time(context))

    return step


def once(rows: DataFrame, context: Context) -> DataFrame:
    """Each event id once, for ever or within a number of days of the log's time."""
    days = context.number("forget_ids_after_days")
    if days == 0:
        return rows.dropDuplicates(["event_id"])
    rows = stamped(rows).withWatermark("timestamp", f"{days} days")
    return rows.dropDuplicatesWithinWatermark(["event_id"])


def stamped(rows: DataFrame) -> DataFrame:
    """The rows with record times of at most now: a record from the future would make all others late."""
    from pyspark.sql import functions as f

    return rows.withColumn("timestamp", f.timestamp_millis(record_time()))


def credited(rows: DataFrame, context: Context) -> DataFrame:
    """Totals of users, and of users by day, from one query: a total is the row without a day."""
    from pyspark.sql import functions as f

    most = context.number("largest_amount")
    day = day_of(f.col("ts"))
    rows = rows.where(f.col("amount").between(-most, most))
    rows = rows.select(
        "user_id", "amount", "ts", f.explode(f.array(f.lit(None).cast("date"), day)).alias("day")
    )
    return rows.groupBy("user_id", "day").agg(
        f.sum("amount").alias("earned"),
        f.count("*").alias("events"),
        f.timestamp_millis(f.max("ts")).alias("last_event_at"),
    )


def totals(rows: DataFrame, context: Context) -> DataFrame:
    from pyspark.sql import functions as f

    wanted = rows.where(f.col("day").isNull())
    return wanted.select("user_id", f.col("earned").alias("balance"), "events", "last_event_at")


def by_day(rows: DataFrame, context: Context) -> DataFrame:
    from pyspark.sql import functions as f

    return rows.where(f.col("day").isNotNull()).select("user_id", "day", "earned", "events", "last_event_at")


def progressed(rows: DataFrame, context: Context) -> DataFrame:
    """The completed steps of a task, as bits: a repeated or late step changes nothing else."""
    from pyspark.sql import functions as f

    step, steps = f.col("step"), f.col("steps")
    rows = rows.where(step.between(1, MOST_STEPS) & steps.between(1, MOST_STEPS) & (step <= steps))
    masks = [f.bit_or(_bit(step, number)).alias(f"mask{number}") for number in range(MASKS)]
    return rows.groupBy("user_id", "task_id").agg(
        *masks, f.max("steps").alias("steps"), f.timestamp_millis(f.max("ts")).alias("updated_at")
    )


def _bit(step: Column, number: int) -> Column:
    """The bit of a step in the mask with this number; 0 if another mask has it."""
    from pyspark.sql import functions as f

    first = number * WORD + 1
    bit = f.call_function("shiftleft", f.lit(1).cast("long"), step - first)
    return f.when(step.between(first, first + WORD - 1), bit).otherwise(f.lit(0).cast("long"))


def counted(rows: DataFrame, context: Context) -> DataFrame:
    from pyspark.sql import functions as f

    done = sum((f.bit_count(f"mask{number}") for number in range(1, MASKS)), f.bit_count("mask0"))
    rows = rows.withColumn("steps_done", done)
    complete = f.col("steps_done") >= f.col("steps")
    return rows.select("user_id", "task_id", "steps_done", "steps", complete.alias("completed"), "updated_at")


def user_and_task(rows: DataFrame, context: Context) -> DataFrame:
    """A key for the topic: only the newest value of a user's task matters."""
    from pyspark.sql import functions as f

    return rows.withColumn("key", f.concat_ws("/", "user_id", "task_id"))


def flows(settings: Mapping[str, SettingValue]) -> tuple[Flow, ...]:
    return (
        Flow(
            "credits",
            Source((CREDITS.topic,), CREDITS.spark_schema(), metadata=("timestamp",)),
            steps=(sound(CREDITS), once, credited),
            sinks=(
                Table("balances", keys=("user_id",), select=totals),
                # By day: a merge reads the files of the days that have changed, and no others.
                Table("daily_earnings", keys=("user_id", "day"), partition_by=("day",), select=by_day),
                Topic("ml_balances", key="user_id", select=totals, compacted=True),
            ),
            output_mode="update",
        ),
        Flow(
            "tasks",
            Source((TASKS.topic,), TASKS.spark_schema(), metadata=("timestamp",)),
            steps=(sound(TASKS), progressed, counted),
            sinks=(
                Table("task_progress", keys=("user_id", "task_id")),
                Topic("ml_task_progress", key="key", select=user_and_task, compacted=True),
            ),
            output_mode="update",
        ),
    )


PIPELINE = Pipeline(
    name="earnings",
    title="Balances, earnings by day and progress of tasks, every event counted once.",
    doc=f"""\
Adds up the credit events of every user, in all and by day, and the completed steps of tasks. An event that is
in the log twice counts once. A late event corrects the balance and its day. Every balance equals the sum over
the whole log. The tables balances (by user), daily_earnings (by user and day) and task_progress (by user and
task) have the newest state. The compacted topics ml_balances and ml_task_progress get every change, in
transactions.

Events that are not JSON, lack a field, have an unknown version or are from the future are not counted. Tasks
have at most {MOST_STEPS} steps. The ids of all events are remembered on the state store's disk, about 100
bytes each.""",
    flows=flows,
    settings=(
        Setting(
            "forget_ids_after_days",
            0,
            "For how many days of the log's time event ids are remembered; 0 is for ever. With a limit, "
            "records that are older than the newest record by more than that are left out.",
            lambda value: 0 <= int(value) <= 36_500,
            "a whole number of days, 0 to 36500",
        ),
        Setting(
            "largest_amount",
            1_000_000_000_000,
            "Events with a larger amount, positive or negative, count as broken.",
            lambda value: 0 < int(value) <= 1_000_000_000_000,
            "a whole number of units, 1 to 1000000000000",
        ),
        AHEAD,
    ),
)
