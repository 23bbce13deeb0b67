"""The tables of all five pipelines, computed from the log by plain Python.

Events may come twice, broken and out of order. They may be late by less than the detectors' lateness.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, TypeAlias, cast

from tests.spark.collected import AHEAD_MS, load
from tests.spark.readers import Expected
from tests.spark.test_rings import recomputed as rings
from tidelog import Consumer
from tidelog.spark.pipelines import device_watch, invite_watch
from tidelog.spark.pipelines.alerts import IDLE_INVITEES, RING, SWITCHING, Burst, Seen
from tidelog.spark.pipelines.collect import QUARANTINE
from tidelog.spark.pipelines.days import DAY_MS, HOUR_MS
from tidelog.spark.pipelines.declare import Context, Pipeline
from tidelog.spark.pipelines.event_clock import EventClock, Newest
from tidelog.spark.pipelines.events import (
    CREDITS,
    EVENTS,
    INVITES,
    LOGINS,
    LOGS,
    TASKS,
    VERIFICATIONS,
    EventSchema,
)
from tidelog.spark.pipelines.region import place_of
from tidelog.spark.pipelines.settings import resolve

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidelog.spark.tables import Tables

Event: TypeAlias = dict[str, object]
MINUTE_MS = 60_000
TABLES = {
    "collect": (*(schema.table for schema in LOGS), QUARANTINE),
    "earnings": ("balances", "daily_earnings", "task_progress"),
    "region": ("user_regions",),
    "device-watch": ("device_alerts",),
    "invite-watch": ("invite_alerts",),
}
PIPELINES = tuple(TABLES)
FOLLOWED = (INVITES, *invite_watch.ACTIVITY)
ENVELOPE = ("version", "ts", "user_id")
"""The fields without which invite-watch does not follow an event."""


@dataclass(frozen=True, slots=True)
class Logged:
    """A record of the log, and its event if it is a JSON object."""

    schema: EventSchema
    partition: int
    offset: int
    at: int
    value: bytes | None
    event: Event | None

    @property
    def good(self) -> bool:
        return self.event is not None and self.schema.check(self.event) is None and self.in_time

    @property
    def followed(self) -> bool:
        """Whether the few fields are good that invite-watch reads to follow invitees."""
        fields = tuple(field for field in self.schema.fields if field.name in ENVELOPE)
        few = EventSchema(self.schema.topic, self.schema.table, "", fields, self.schema.version)
        invitee = None if self.event is None else self.event.get("invitee_id")
        return self.event is not None and few.check(self.event) is None and isinstance(invitee, str | None)

    @property
    def ts(self) -> int:
        assert self.event is not None
        ts = self.event["ts"]
        assert isinstance(ts, int)
        return ts

    @property
    def in_time(self) -> bool:
        return self.ts - self.at <= AHEAD_MS

    def text(self, name: str) -> str:
        assert self.event is not None
        return str(self.event[name])

    def number(self, name: str) -> int:
        assert self.event is not None
        value = self.event[name]
        assert isinstance(value, int)
        return value


def read_log(bootstrap: str) -> list[Logged]:
    """Every record of every topic of events."""
    found: list[Logged] = []
    with Consumer(bootstrap_servers=bootstrap, isolation_level="read_committed") as consumer:
        keys = [(topic, partition) for topic in EVENTS for partition in (0, 1)]
        consumer.assign(keys)
        consumer.seek_to_end(*keys)
        ends = {key: consumer.position(key) for key in keys}
        consumer.seek_to_beginning(*keys)
        while any(consumer.position(key) < ends[key] for key in keys):
            for record in consumer.poll(timeout=10):
                event = load(record.value)
                schema = EVENTS[record.topic]
                place = (record.partition, record.offset, record.timestamp)
                found.append(Logged(schema, *place, record.value, event))
    return found


def recomputed(bootstrap: str, *pipelines: str) -> dict[str, Expected]:
    """The rows of the tables of these pipelines, or of all, from the log alone."""
    wanted = {table for name in pipelines or PIPELINES for table in TABLES[name]}
    return {table: rows for table, rows in _recomputed(bootstrap).items() if table in wanted}


def _recomputed(bootstrap: str) -> dict[str, Expected]:
    log = read_log(bootstrap)
    by_topic: dict[str, list[Logged]] = {topic: [] for topic in EVENTS}
    for logged in log:
        by_topic[logged.schema.topic].append(logged)
    return {
        **collected(by_topic),
        **earned(once(by_topic[CREDITS.topic])),
        "task_progress": progressed(once(by_topic[TASKS.topic])),
        "user_regions": located(once(by_topic[VERIFICATIONS.topic])),
        "device_alerts": alert_ids(switching(by_topic[LOGINS.topic])),
        "invite_alerts": alert_ids([*invited(by_topic[INVITES.topic]), *followed(by_topic)]),
    }


def once(log: Iterable[Logged]) -> list[Logged]:
    """The good events, each id once."""
    found: dict[str, Logged] = {}
    for logged in log:
        if logged.good:
            found.setdefault(logged.text("event_id"), logged)
    return list(found.values())


def day_of(ts: int) -> date:
    return datetime.fromtimestamp(ts // 1_000, UTC).date()


def moment(ts: int) -> datetime:
    return datetime.fromtimestamp(ts // 1_000, UTC).replace(microsecond=ts % 1_000 * 1_000)


def collected(by_topic: dict[str, list[Logged]]) -> dict[str, Expected]:
    found: dict[str, Expected] = {}
    bad: list[tuple[object, ...]] = []
    for schema in LOGS:
        rows: list[tuple[object, ...]] = []
        for logged in by_topic[schema.topic]:
            if logged.good:
                assert logged.event is not None
                rows.append((*map(logged.event.get, schema.names), day_of(logged.ts)))
            else:
                bad.append((schema.topic, logged.partition, logged.offset, logged.value))
        found[schema.table] = Expected.of((*schema.names, "day"), rows)
    found[QUARANTINE] = Expected.of(("topic", "partition", "offset", "raw"), bad)
    return found


def earned(credits: list[Logged]) -> dict[str, Expected]:
    totals: dict[str, list[Logged]] = defaultdict(list)
    days: dict[tuple[str, date], list[Logged]] = defaultdict(list)
    for logged in credits:
        totals[logged.text("user_id")].append(logged)
        days[logged.text("user_id"), day_of(logged.ts)].append(logged)

    def summed(events: list[Logged]) -> tuple[object, ...]:
        amount = sum(logged.number("amount") for logged in events)
        return amount, len(events), moment(max(logged.ts for logged in events))

    columns = ("user_id", "balance", "events", "last_event_at")
    by_day = ("user_id", "day", "earned", "events", "last_event_at")
    return {
        "balances": Expected.of(columns, ((user, *summed(events)) for user, events in totals.items())),
        "daily_earnings": Expected.of(by_day, ((*key, *summed(events)) for key, events in days.items())),
    }


def progressed(tasks: list[Logged]) -> Expected:
    done: dict[tuple[str, str], list[Logged]] = defaultdict(list)
    for logged in tasks:
        if 1 <= logged.number("step") <= logged.number("steps"):
            done[logged.text("user_id"), logged.text("task_id")].append(logged)

    def progress(events: list[Logged]) -> tuple[object, ...]:
        steps = max(logged.number("steps") for logged in events)
        count = len({logged.number("step") for logged in events})
        return count, steps, count >= steps, moment(max(logged.ts for logged in events))

    columns = ("user_id", "task_id", "steps_done", "steps", "completed", "updated_at")
    return Expected.of(columns, ((*key, *progress(events)) for key, events in done.items()))


def located(verifications: list[Logged]) -> Expected:
    newest: dict[str, Logged] = {}
    for logged in sorted(verifications, key=lambda one: (one.ts, one.text("event_id"))):
        assert logged.event is not None
        if logged.event["ok"]:
            newest[logged.text("user_id")] = logged

    def row(user: str, logged: Logged) -> tuple[object, ...]:
        assert logged.event is not None
        country = logged.event.get("country")
        return user, *place_of(logged.text("phone"), str(country) if country else None), moment(logged.ts)

    columns = ("user_id", "country", "region", "number_type", "reason", "updated_at")
    return Expected.of(columns, (row(user, logged) for user, logged in newest.items()))


Alert: TypeAlias = tuple[str, str, str]
"""Rule, subject and episode."""


def alert_ids(alerts: Iterable[Alert]) -> Expected:
    """When an alert is raised, and by which events, depends on the micro-batches. Its id does not."""
    return Expected(("alert_id",), Counter({("/".join(alert),): 1 for alert in alerts}))


def settings_of(pipeline: Pipeline) -> Context:
    """The default settings of a pipeline, as its steps read them."""
    held = resolve([pipeline], {})[pipeline.name]
    return Context(cast("SparkSession", None), held, cast("Tables", None))


def bursts(rule: str, burst: Burst, seen: dict[str, list[Seen]]) -> Iterator[Alert]:
    for subject, events in seen.items():
        for day in {event.ts // DAY_MS for event in events}:
            if burst.first_of_day(sorted(events), day * DAY_MS):
                yield rule, subject, str(day_of(day * DAY_MS))


def switching(log: list[Logged]) -> list[Alert]:
    number = settings_of(device_watch.PIPELINE).number
    burst = Burst(number("window_minutes") * MINUTE_MS, number("accounts"), number("switches"))
    seen: dict[str, list[Seen]] = defaultdict(list)
    for logged in once(log):
        if logged.in_time:
            event = Seen(logged.ts, logged.text("event_id"), logged.text("user_id"), logged.text("ip"), True)
            seen[logged.text("device_id")].append(event)
    return list(bursts(SWITCHING, burst, seen))


def invited(log: list[Logged]) -> Iterator[Alert]:
    """The rules that count invitees."""
    columns = ("invitee_device_id", "invitee_ip", "user_id")
    rules = invite_watch.bursts(settings_of(invite_watch.PIPELINE))
    for (rule, burst), column in zip(rules.items(), columns, strict=True):
        seen: dict[str, list[Seen]] = defaultdict(list)
        for logged in once(log):
            if logged.in_time:
                who, inviter = logged.text("invitee_id"), logged.text("user_id")
                event = Seen(logged.ts, logged.text("event_id"), who, inviter, True)
                seen[logged.text(column)].append(event)
        yield from bursts(rule, burst, seen)


def followed(by_topic: dict[str, list[Logged]]) -> Iterator[Alert]:
    """Rings, and inviters whose invitees do nothing."""
    context = settings_of(invite_watch.PIPELINE)
    log = [one for schema in FOLLOWED for one in by_topic[schema.topic] if one.followed and one.in_time]
    edges = [
        (logged.text("user_id"), logged.text("invitee_id"), logged.ts)
        for logged in log
        if logged.schema is INVITES and logged.event and logged.event.get("invitee_id")
    ]
    among = [edge for edge in edges if edge[0] != edge[1]]
    for name, day in rings(among, context.number("ring_length"), context.number("ring_hours") * HOUR_MS):
        yield RING, name, str(day_of(day * DAY_MS))
    yield from idle(context, edges, log, watermark(context, by_topic))


def idle(
    context: Context, edges: list[tuple[str, str, int]], log: list[Logged], watermark: int
) -> Iterator[Alert]:
    length = context.number("idle_hours") * HOUR_MS
    first: dict[tuple[int, str], tuple[int, str]] = {}
    for inviter, invitee, ts in edges:
        key = ts // length, invitee
        first[key] = min(first.get(key, (ts, inviter)), (ts, inviter))
    acted: dict[tuple[int, str], int] = {}
    for logged in log:
        if logged.schema is not INVITES:
            for span in (logged.ts // length, logged.ts // length - 1):
                key = span, logged.text("user_id")
                acted[key] = max(acted.get(key, 0), logged.ts)
    idle_of: dict[tuple[int, str], list[bool]] = defaultdict(list)
    for (span, invitee), (ts, inviter) in first.items():
        idle_of[span, inviter].append(acted.get((span, invitee), -1) < ts)
    share = context.fraction("idle_share")
    for (span, inviter), found in idle_of.items():
        enough = sum(found) >= max(context.number("idle_invitees"), share * len(found))
        if enough and (span + 2) * length <= watermark:
            hour = span * length % DAY_MS // HOUR_MS
            yield IDLE_INVITEES, inviter, f"{day_of(span * length)}T{hour:02d}"


def watermark(context: Context, by_topic: dict[str, list[Logged]]) -> int:
    """The time that all partitions have reached when everything is read."""
    newest: dict[tuple[str, int], Newest] = {}
    for schema in FOLLOWED:
        for logged in by_topic[schema.topic]:
            key = schema.topic, logged.partition
            at = Newest(logged.ts if logged.followed and logged.in_time else -1, logged.at)
            newest[key] = at.with_later(newest.get(key, at))
    lateness, silent = context.number("lateness_minutes"), context.number("silent_minutes")
    return EventClock(lateness * MINUTE_MS, silent * MINUTE_MS).advance(newest, ())
