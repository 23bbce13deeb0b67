"""device-watch: a device that switches accounts again and again within a window."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from tidelog.spark.pipelines.alerts import (
    BY_TIME,
    SWITCHING,
    Burst,
    Finding,
    Seen,
    around_days,
    counted,
    evidence,
    listed,
    minutes,
    raised,
    sound,
)
from tidelog.spark.pipelines.declare import (
    Context,
    Flow,
    Pipeline,
    SettingValue,
    Source,
    Table,
    Topic,
)
from tidelog.spark.pipelines.event_times import AHEAD
from tidelog.spark.pipelines.events import LOGINS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def logins(rows: DataFrame, context: Context) -> DataFrame:
    """The logins of each device around each day, as they grow."""
    from pyspark.sql import functions as f

    seen = sound(rows, LOGINS, context).select(
        f.lit(SWITCHING).alias("rule"),
        f.col("device_id").alias("subject"),
        "ts",
        "event_id",
        f.col("user_id").alias("who"),
        f.col("ip").alias("other"),
    )
    devices = around_days(seen, context.number("window_minutes") * 60_000, context.number("lateness_minutes"))
    return devices.where(f.size("seen") > context.number("switches"))


def alerts(rows: DataFrame, context: Context) -> DataFrame:
    accounts, switches = context.number("accounts"), context.number("switches")
    burst = Burst(context.number("window_minutes") * 60_000, accounts, switches)

    def judge(rule: str, device: str, seen: list[Seen], day: int) -> list[Finding]:
        found = burst.first_of_day(seen, day)
        return [] if found is None else [switching(device, found)]

    return raised(rows, judge)


def switching(device: str, seen: Sequence[Seen]) -> Finding:
    accounts = {login.who for login in seen}
    facts = evidence(
        seen,
        switches=sum(before.who != after.who for before, after in pairwise(seen)),
        account_count=len(accounts),
        accounts=listed(accounts),
        addresses=listed(login.other for login in seen),
    )
    return Finding(device, seen[0].ts, seen[-1].ts, facts)


def flows(settings: Mapping[str, SettingValue]) -> tuple[Flow, ...]:
    return (
        Flow(
            "logins",
            # One watermark for all partitions: those that begin later must not make the others late.
            Source((LOGINS.topic,), LOGINS.spark_schema(), metadata=("timestamp",), options=BY_TIME),
            steps=(logins, alerts),
            sinks=(Table("device_alerts", partition_by=("day",)), Topic("ml_device_alerts", key="subject")),
            output_mode="update",
        ),
    )


PIPELINE = Pipeline(
    name="device-watch",
    title="Devices that switch accounts again and again.",
    doc=__doc__
    + """

Reads the logins. A device is reported if it switches accounts at least `switches` times within the window,
among at least `accounts` accounts. A family's phone has few accounts; the phone of a shop has many, and each
is used once. One alert per device and episode goes to the table device_alerts and the topic ml_device_alerts.
Its evidence has the accounts, addresses, counts and times. A login that arrives more than `lateness_minutes`
after the newest may be ignored once its day is closed.""",
    flows=flows,
    settings=(
        minutes("window_minutes", 60, "The window in which switches are counted."),
        counted("switches", 6, "The least number of account switches within the window."),
        counted("accounts", 4, "The least number of different accounts among them."),
        minutes("lateness_minutes", 60, "How late a login may come and still count."),
        AHEAD,
    ),
)
