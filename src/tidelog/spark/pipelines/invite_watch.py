"""invite-watch: finds invitation cheating. Each alert has the broken rule and the evidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tidelog.spark.pipelines.alerts import (
    BY_TIME,
    MANY_IN_A_MINUTE,
    MANY_ON_ADDRESS,
    MANY_ON_DEVICE,
    MOST_DAYS,
    Burst,
    Finding,
    Seen,
    around_days,
    counted,
    evidence,
    hours,
    listed,
    minutes,
    raised,
    sound,
)
from tidelog.spark.pipelines.days import DAY_MS, HOUR_MS
from tidelog.spark.pipelines.declare import (
    Context,
    Flow,
    Pipeline,
    Setting,
    SettingValue,
    Source,
    Table,
    Topic,
)
from tidelog.spark.pipelines.event_times import AHEAD
from tidelog.spark.pipelines.events import (
    INSTALLS,
    INVITES,
    LEFT_SWIPES,
    RIGHT_SWIPES,
    TASKS,
)
from tidelog.spark.pipelines.invitees import Invitees, activity_schema, stamped

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ACTIVITY = (LEFT_SWIPES, RIGHT_SWIPES, TASKS, INSTALLS)
"""The events of a user who is active: seeing an advertisement or a login is not enough."""
LONGEST_RING = 20
"""The number of chains of inviters grows with every step: longer rings are not worth the search."""
MINUTE_MS = 60_000


def bursts(context: Context) -> dict[str, Burst]:
    """The rules that count invitees: on a device, on an address, of an inviter."""
    n = context.number
    return {
        MANY_ON_DEVICE: Burst(n("device_hours") * HOUR_MS, n("device_invitees")),
        MANY_ON_ADDRESS: Burst(n("address_minutes") * MINUTE_MS, n("address_invitees")),
        MANY_IN_A_MINUTE: Burst(n("minute_seconds") * 1_000, n("minute_invitees")),
    }


def invitations(rows: DataFrame, context: Context) -> DataFrame:
    """The invitations of each device, address and inviter around each day."""
    from pyspark.sql import functions as f

    subjects = {
        MANY_ON_DEVICE: f.col("invitee_device_id"),
        MANY_ON_ADDRESS: f.col("invitee_ip"),
        MANY_IN_A_MINUTE: f.col("user_id"),
    }
    cases = [f.struct(f.lit(rule).alias("rule"), who.alias("subject")) for rule, who in subjects.items()]
    seen = sound(rows, INVITES, context).select(
        f.explode(f.array(*cases)).alias("case"),
        "ts",
        "event_id",
        f.col("invitee_id").alias("who"),
        f.col("user_id").alias("other"),
    )
    rules = bursts(context)
    reach = max(burst.window_ms for burst in rules.values())
    cases_seen = around_days(
        seen.select("case.*", "*").drop("case"), reach, context.number("lateness_minutes")
    )
    enough = f.lit(1)
    for rule, burst in rules.items():
        enough = f.when(f.col("rule") == rule, burst.different).otherwise(enough)
    return cases_seen.where(f.size("seen") >= enough)


def alerts(rows: DataFrame, context: Context) -> DataFrame:
    rules = bursts(context)

    def judge(rule: str, subject: str, seen: list[Seen], day: int) -> list[Finding]:
        found = rules[rule].first_of_day(seen, day)
        return [] if found is None else [many(subject, found)]

    return raised(rows, judge)


def many(subject: str, seen: Sequence[Seen]) -> Finding:
    invitees, inviters = {each.who for each in seen}, {each.other for each in seen}
    facts = evidence(
        seen,
        invitee_count=len(invitees),
        invitees=listed(invitees),
        inviter_count=len(inviters),
        inviters=listed(inviters),
    )
    return Finding(subject, seen[0].ts, seen[-1].ts, facts)


def flows(settings: Mapping[str, SettingValue]) -> tuple[Flow, ...]:
    sinks = (Table("invite_alerts", partition_by=("day",)), Topic("ml_invite_alerts", key="subject"))
    return (
        Flow(
            "invitations",
            Source((INVITES.topic,), INVITES.spark_schema(), metadata=("timestamp",), options=BY_TIME),
            steps=(invitations, alerts),
            sinks=sinks,
            output_mode="update",
        ),
        Flow(
            "invitees",
            Source(
                (INVITES.topic, *(schema.topic for schema in ACTIVITY)),
                activity_schema(),
                keep_bad=True,  # their partitions are not silent
                metadata=("topic", "partition", "timestamp"),
            ),
            steps=(stamped,),
            batch_steps=(Invitees(),),
            sinks=sinks,
        ),
    )


def share(value: SettingValue) -> bool:
    return not isinstance(value, str) and 0 < value <= 1


PIPELINE = Pipeline(
    name="invite-watch",
    title="Invitation cheating: farms, bursts, rings and invitees who never act.",
    doc=__doc__
    + """

many-on-device, many-on-address, many-in-a-minute: many different invitees sign up on one device, from one
address, or with the code of one inviter, within a window. The micro-batch that completes a case reports it,
once per rule, subject and episode.
ring: two to `ring_length` users invite each other in a circle within `ring_hours`. The micro-batch with the
invitation that completes it reports it, once for each day on which such a ring begins.
idle-invitees: most invitees of a span of hours do nothing (no swipe, task or install) until the end of the
next span. Each inviter and span is reported when all topics have reached the end of the next span and
`lateness_minutes` more. A partition that is read to its end, and whose newest record is more than
`silent_minutes` older than the newest of all, is not waited for.
All alerts go to the table invite_alerts and to the topic ml_invite_alerts. The table invite_history is the
memory of the last two rules.""",
    flows=flows,
    settings=(
        counted("device_invitees", 5, "The least number of invitees on one device."),
        hours("device_hours", 12, "The window of that rule, in hours."),
        counted("address_invitees", 20, "The least number of invitees from one address."),
        minutes("address_minutes", 60, "The window of that rule, in minutes."),
        counted("minute_invitees", 8, "The least number of invitees of one inviter."),
        counted(
            "minute_seconds", 60, "The window of that rule, in seconds.", most=MOST_DAYS * DAY_MS // 1_000
        ),
        counted("ring_length", 5, "The longest ring that is looked for.", least=2, most=LONGEST_RING),
        hours("ring_hours", 12, "The longest time from a ring's first invitation to its last, in hours."),
        counted("idle_invitees", 6, "The least number of invitees of one inviter and span who do nothing."),
        Setting(
            "idle_share",
            0.8,
            "Their least share of all invitees of that inviter and span.",
            share,
            "above 0, up to 1",
        ),
        hours("idle_hours", 6, "The length of a span, in hours; an invitee has at least this time to act."),
        minutes("lateness_minutes", 60, "How late an event may come and still count."),
        minutes(
            "silent_minutes",
            60,
            "How long a partition without new records delays the decision on idle invitees.",
        ),
        AHEAD,
    ),
)
