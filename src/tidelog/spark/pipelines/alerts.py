"""Shared parts of the detectors: the names of their rules, valid events, bursts within a window, and alerts.

A rule raises one alert for each subject and episode. An episode begins with a burst: a number of events
within a window. Bursts that overlap the episode belong to it, and so do later bursts of the same day (UTC).
The id is made of rule, subject and day, so the same events give the same ids in any order of arrival.

The events of a subject around a day are one value in the state of a native aggregation, until the watermark
has passed them. Each event is marked with the micro-batch that it came in. So the batch that completes a
burst raises the alert at once, no later batch raises it again, and a replayed batch does the same.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

from tidelog.spark.pipelines.days import DAY_MS, HOUR_MS, day_of
from tidelog.spark.pipelines.declare import Context, Setting, SettingValue
from tidelog.spark.pipelines.event_times import in_time

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row

    from tidelog.spark.pipelines.events import EventSchema

SWITCHING = "device-switching"
MANY_ON_DEVICE = "many-on-device"
MANY_ON_ADDRESS = "many-on-address"
MANY_IN_A_MINUTE = "many-in-a-minute"
RING = "ring"
IDLE_INVITEES = "idle-invitees"
RULES = (SWITCHING, MANY_ON_DEVICE, MANY_ON_ADDRESS, MANY_IN_A_MINUTE, RING, IDLE_INVITEES)

DAY_MINUTES = 1_440
MOST_DAYS = 30
"""The longest window: the state has an event once for every day that a window reaches."""
MOST = 1_000_000_000
"""The highest threshold."""
LISTED = 50
"""The evidence of an alert lists up to this many names; a count has the number of all."""
BY_TIME = {"maxOffsetsBy": "time"}
"""An option of sources: the micro-batches of a backlog take the records of all partitions in time order."""
FINDINGS = "array<struct<subject string, first bigint, last bigint, evidence string>>"


def counted(name: str, default: int, doc: str, *, least: int = 1, most: int = MOST) -> Setting:
    """A setting with a whole number in a range."""

    def within(value: SettingValue) -> bool:
        return not isinstance(value, str) and least <= value <= most

    return Setting(name, default, doc, within, f"a whole number, {least} to {most}")


def minutes(name: str, default: int, doc: str) -> Setting:
    return counted(name, default, doc, most=MOST_DAYS * DAY_MINUTES)


def hours(name: str, default: int, doc: str) -> Setting:
    return counted(name, default, doc, most=MOST_DAYS * 24)


class Seen(NamedTuple):
    """An event for a rule: who acted, and on whom or with what."""

    ts: int
    event_id: str
    who: str
    other: str
    new: bool
    """Whether it came in this micro-batch."""


class Finding(NamedTuple):
    subject: str
    first: int
    last: int
    evidence: str


Judge = Callable[[str, str, list[Seen], int], list[Finding]]
"""Takes the rule, the subject, its events by time and the day's first millisecond; returns the findings."""


@dataclass(frozen=True, slots=True)
class Burst:
    """A minimum of different `who`, and of changes between them, within a window."""

    window_ms: int
    different: int
    switches: int = 0

    def episodes(self, seen: Sequence[Seen]) -> Iterator[Sequence[Seen]]:
        """The events of each run of overlapping bursts. `seen` has to be sorted by time."""
        within: Counter[str] = Counter()
        left = switches = 0
        begin = end = -1
        for right, event in enumerate(seen):
            switches += right > left and seen[right - 1].who != event.who
            within[event.who] += 1
            while event.ts - seen[left].ts >= self.window_ms:
                gone = seen[left].who
                within[gone] -= 1
                if not within[gone]:
                    del within[gone]
                left += 1
                switches -= seen[left].who != gone
            if len(within) < self.different or switches < self.switches:
                continue
            if end < left:
                if begin >= 0:
                    yield seen[begin : end + 1]
                begin = left
            end = right
        if begin >= 0:
            yield seen[begin : end + 1]

    def first_of_day(self, seen: Sequence[Seen], day: int) -> Sequence[Seen] | None:
        """The first episode that begins in a day."""
        return next((found for found in self.episodes(seen) if 0 <= found[0].ts - day < DAY_MS), None)


def in_order(events: Iterable[Row], now: int) -> list[Seen]:
    """The events by time, each once. An event that came twice counts from its first arrival."""
    found: dict[str, Seen] = {}
    for event in events:
        seen = Seen(event.ts, event.event_id, event.who, event.other, event.came == now)
        before = found.get(seen.event_id)
        if before is None or before.new:
            found[seen.event_id] = seen
    return sorted(found.values())


def newly_found(judge: Judge, rule: str, subject: str, seen: list[Seen], day: int) -> list[Finding]:
    """The findings that depend on events of this micro-batch."""
    found = judge(rule, subject, seen, day)
    if not found:
        return []
    before = {finding.subject for finding in judge(rule, subject, [e for e in seen if not e.new], day)}
    return [finding for finding in found if finding.subject not in before]


def evidence(seen: Sequence[Seen], **facts: object) -> str:
    """Facts and the times of an alert's events, as JSON."""
    times = {"first": iso(seen[0].ts), "last": iso(seen[-1].ts), "events": len(seen)}
    return json.dumps({**facts, **times}, ensure_ascii=False, separators=(",", ":"))


def listed(names: Iterable[str]) -> list[str]:
    return sorted(set(names))[:LISTED]


def iso(ts: int) -> str:
    return datetime.fromtimestamp(ts / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def ring_name(members: Sequence[str]) -> str:
    """The members of a ring in the order of their invitations, starting with the smallest name."""
    first = members.index(min(members))
    return ">".join([*members[first:], *members[:first]])


# On Spark


def sound(rows: DataFrame, schema: EventSchema, context: Context) -> DataFrame:
    """Events of a known version with a plausible time."""
    return rows.where(schema.spark_error().isNull() & in_time(context))


def batch_time() -> Column:
    """The start of the micro-batch in microseconds, the same in a replay."""
    from pyspark.sql import functions as f

    return f.unix_micros(f.current_timestamp())


def around_days(rows: DataFrame, reach_ms: int, lateness_minutes: int) -> DataFrame:
    """The events of each rule and subject from `reach_ms` before a day until `reach_ms` after it.

    Takes the columns rule, subject, ts, event_id, who and other. Returns rule, subject, the day's first
    millisecond, `seen` and `now`, each time an event is added. The output mode has to be update.
    """
    from pyspark.sql import functions as f

    reach = -(-reach_ms // 60_000)
    length, offset = DAY_MINUTES + 2 * reach, -reach % DAY_MINUTES
    days = f.window("time", f"{length} minutes", f"{DAY_MINUTES} minutes", f"{offset} minutes")
    now = batch_time()
    gathered = (
        rows.withColumn("time", f.timestamp_millis("ts"))
        .withWatermark("time", f"{lateness_minutes} minutes")
        .withColumn("came", now)
        .groupBy("rule", "subject", days.alias("days"))
        .agg(f.collect_list(f.struct("ts", "event_id", "who", "other", "came")).alias("seen"))
    )
    day = f.unix_millis("days.start") + reach * 60_000
    return gathered.select("rule", "subject", day.alias("day_ms"), "seen", now.alias("now"))


def raised(rows: DataFrame, judge: Judge) -> DataFrame:
    """The alerts that the newest events of `around_days` cause."""
    from pyspark.sql import functions as f

    def find(rule: str, subject: str, seen: list[Row], day: int, now: int) -> list[Finding]:
        return newly_found(judge, rule, subject, in_order(seen, now), day)

    found = f.udf(find, FINDINGS, useArrow=False)("rule", "subject", "seen", "day_ms", "now")
    each = rows.select("rule", "now", f.explode(found).alias("found"))
    return as_alerts(each.select("rule", "now", "found.*"))


def as_alerts(rows: DataFrame, *, hourly: bool = False) -> DataFrame:
    """Alerts from the columns rule, subject, first, last, evidence, now. An episode is a day or an hour."""
    from pyspark.sql import functions as f

    day = day_of(f.col("first"))
    hour = f.format_string("T%02d", f.floor(f.col("first") % DAY_MS / HOUR_MS))
    episode = f.concat(day, hour) if hourly else day
    return rows.select(
        f.concat_ws("/", "rule", "subject", episode).alias("alert_id"),
        "rule",
        "subject",
        f.timestamp_millis("first").alias("window_start"),
        f.timestamp_millis("last").alias("window_end"),
        f.timestamp_micros("now").alias("raised_at"),
        "evidence",
        day.alias("day"),
    )
