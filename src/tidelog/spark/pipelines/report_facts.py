"""The numbers of the report, limited to what a page can show.

A `Reader` counts: directly in local Parquet files, or with Spark elsewhere.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Protocol

EVENT_TABLES = {
    "exposures": "shown",
    "left_swipes": "swiped left",
    "right_swipes": "swiped right",
    "credits": "credit",
    "logins": "signed in",
    "verifications": "verified",
    "installs": "installed",
}
ALERT_TABLES = {"device_alerts": "device-watch", "invite_alerts": "invite-watch"}
ALERTS_SHOWN = 40  # of each rule, the newest
TOP_ADS = 12
TOP_USERS = 12
REASONS_SHOWN = 15
LEAST_ROOM = 30  # minutes
BATCHES_LOOKED_AT = 500  # for failed expectations, the newest
_PLACE = re.compile(r", from byte \d+ on$")  # the position differs from event to event; the reason is one

Row = Mapping[str, object]


class Reader(Protocol):
    """The queries of the report. A table that is missing or empty has no columns and no rows."""

    def columns(self, table: str) -> frozenset[str]: ...

    def per_minute(self, table: str) -> Counter[int]:
        """The number of events (`ts`, milliseconds) in each minute since 1970."""

    def counts(self, table: str, columns: Sequence[str]) -> Counter[tuple[str, ...]]:
        """The number of rows for each combination of values; null counts as ''."""

    def top(self, table: str, columns: Sequence[str], by: str, limit: int, where: Row) -> list[Row]:
        """The rows with the largest `by` among the rows that match `where`."""

    def numbers(self, table: str, column: str) -> list[int]: ...

    def sums(
        self, table: str, by: Sequence[str], columns: Sequence[str]
    ) -> dict[tuple[str, ...], tuple[int, ...]]:
        """For each combination of values of `by` the number of rows and the sums of columns; null is 0."""


@dataclass(frozen=True, slots=True)
class Alert:
    pipeline: str
    rule: str
    subject: str
    window_start: str
    window_end: str
    raised_at: str
    evidence: object
    """The value of a JSON text, or the text itself if it is not JSON."""


@dataclass(frozen=True, slots=True)
class AdSwipes:
    ad: str
    left: int
    right: int


@dataclass(frozen=True, slots=True)
class BadEvents:
    topic: str
    reason: str
    count: int
    sample: bytes | None


@dataclass(frozen=True, slots=True)
class FlowFacts:
    """The counts of all micro-batches of a flow."""

    pipeline: str
    flow: str
    batches: int
    rows_in: int
    rows_out: int
    quarantined: int
    late: int


@dataclass(slots=True)
class Facts:
    """All numbers of the page. `missing` names tables that do not exist or are empty."""

    events: dict[str, Counter[int]] = field(default_factory=dict)
    """By table: events by minute."""
    ads: list[AdSwipes] = field(default_factory=list)
    ad_count: int = 0
    rules: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Alerts by pipeline and rule."""
    alerts: list[Alert] = field(default_factory=list)
    regions: Counter[tuple[str, ...]] = field(default_factory=Counter)
    """Users by country and region."""
    number_types: Counter[tuple[str, ...]] = field(default_factory=Counter)
    balances: list[int] = field(default_factory=list)
    richest: list[Row] = field(default_factory=list)
    days_earned: int = 0
    """The number of users and days with earnings."""
    tasks: Counter[tuple[str, ...]] = field(default_factory=Counter)
    """The tasks of users, by whether they are completed."""
    bad: list[BadEvents] = field(default_factory=list)
    bad_count: int = 0
    bad_reasons: int = 0
    flows: list[FlowFacts] = field(default_factory=list)
    failed: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    """Rows that fail an expectation by pipeline, flow and expectation, in the newest micro-batches."""
    missing: set[str] = field(default_factory=set)

    @property
    def event_count(self) -> int:
        return sum(counts.total() for counts in self.events.values())

    def span(self) -> tuple[int, int] | None:
        """The first and last minute to draw: the range of all events but a few outliers.

        An outlier is farther from the others than these are from each other. So the others fill at least a
        third of the drawing.
        """
        together: Counter[int] = Counter()
        for counts in self.events.values():
            together.update(counts)
        if not together:
            return None
        minutes = sorted(together)
        total, seen = together.total(), 0
        edges: list[int] = []
        for minute in minutes:
            before, seen = seen, seen + together[minute]
            if before <= total * 0.005 < seen or before < total * 0.995 <= seen:
                edges.append(minute)
        low, high = edges[0], edges[-1]
        room = max(LEAST_ROOM, high - low + 1)
        near = [minute for minute in minutes if low - room <= minute <= high + room]
        return near[0], near[-1]


def gather(tables: Reader) -> Facts:
    facts = Facts()
    for table in (*EVENT_TABLES, *ALERT_TABLES, "user_regions", "balances", "quarantine"):
        if not tables.columns(table):
            facts.missing.add(table)
    facts.events = {table: tables.per_minute(table) for table in EVENT_TABLES if table not in facts.missing}
    _gather_ads(facts, tables)
    _gather_alerts(facts, tables)
    if "user_regions" not in facts.missing:
        facts.regions = tables.counts("user_regions", ["country", "region"])
        facts.number_types = tables.counts("user_regions", ["number_type"])
    if "balances" not in facts.missing:
        facts.balances = tables.numbers("balances", "balance")
        facts.richest = tables.top(
            "balances", ["user_id", "balance", "events", "last_event_at"], "balance", TOP_USERS, {}
        )
    if tables.columns("daily_earnings"):
        facts.days_earned = tables.counts("daily_earnings", ["day"]).total()
    if tables.columns("task_progress"):
        facts.tasks = tables.counts("task_progress", ["completed"])
    _gather_bad(facts, tables)
    _gather_quality(facts, tables)
    return facts


def _gather_ads(facts: Facts, tables: Reader) -> None:
    left = tables.counts("left_swipes", ["ad_id"]) if "left_swipes" not in facts.missing else Counter()
    right = tables.counts("right_swipes", ["ad_id"]) if "right_swipes" not in facts.missing else Counter()
    both = left + right
    facts.ad_count = len(both)
    facts.ads = [AdSwipes(ad[0], left[ad], right[ad]) for ad, _ in both.most_common(TOP_ADS)]


def _gather_alerts(facts: Facts, tables: Reader) -> None:
    columns = ["rule", "subject", "window_start", "window_end", "raised_at", "evidence"]
    for table, pipeline in ALERT_TABLES.items():
        if table in facts.missing:
            continue
        for (rule,), count in tables.counts(table, ["rule"]).items():
            facts.rules[pipeline, rule] = count
            for row in tables.top(table, columns, "raised_at", ALERTS_SHOWN, {"rule": rule}):
                facts.alerts.append(_alert(pipeline, row))


def _alert(pipeline: str, row: Row) -> Alert:
    return Alert(
        pipeline,
        text(row["rule"]),
        text(row["subject"]),
        text(row["window_start"]),
        text(row["window_end"]),
        text(row["raised_at"]),
        evidence_of(row["evidence"]),
    )


def evidence_of(value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        found: object = json.loads(value)
    except ValueError:
        return value
    return found


def _gather_bad(facts: Facts, tables: Reader) -> None:
    if "quarantine" in facts.missing:
        return
    errors = tables.counts("quarantine", ["topic", "error"])
    reasons: Counter[tuple[str, str]] = Counter()
    examples: dict[tuple[str, str], str] = {}
    for (topic, error), count in errors.most_common():
        kind = (topic, _PLACE.sub("", error))
        reasons[kind] += count
        examples.setdefault(kind, error)
    facts.bad_count, facts.bad_reasons = reasons.total(), len(reasons)
    for (topic, reason), count in reasons.most_common(REASONS_SHOWN):
        where = {"topic": topic, "error": examples[topic, reason]}
        found = tables.top("quarantine", ["raw"], "offset", 1, where)
        raw = found[0]["raw"] if found else None
        facts.bad.append(BadEvents(topic, reason, count, raw if isinstance(raw, bytes) else None))


def _gather_quality(facts: Facts, tables: Reader) -> None:
    if not tables.columns("batch_metrics"):
        return
    found = tables.sums("batch_metrics", ["pipeline", "flow"], ["rows_in", "rows_out", "quarantined", "late"])
    for (pipeline, flow), (batches, rows_in, rows_out, quarantined, late) in sorted(found.items()):
        facts.flows.append(FlowFacts(pipeline, flow, batches, rows_in, rows_out, quarantined, late))
    columns = ["pipeline", "flow", "expectations"]
    for row in tables.top("batch_metrics", columns, "started", BATCHES_LOOKED_AT, {}):
        failed = row["expectations"]
        for name, count in failed if isinstance(failed, list) else ():
            if count:
                facts.failed[text(row["pipeline"]), text(row["flow"]), str(name)] += count


def text(value: object) -> str:
    """A value of a table as text; times are in UTC to the second."""
    if value is None:
        return ""
    if isinstance(value, datetime):
        moment = value.astimezone(UTC) if value.tzinfo else value
        return moment.strftime("%Y-%m-%d %H:%M:%S")
    return str(value)
