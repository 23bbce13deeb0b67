"""Detectors find the cheaters that were planted and nobody else, whatever order events come in.

The seed of what is planted is drawn anew for each run; a failure prints it.
"""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.scale import scale
from tidelog.spark.pipelines import device_watch, invite_watch
from tidelog.spark.pipelines.alerts import (
    IDLE_INVITEES,
    MANY_IN_A_MINUTE,
    MANY_ON_ADDRESS,
    MANY_ON_DEVICE,
    RING,
    RULES,
    SWITCHING,
    Burst,
    Finding,
    Seen,
    newly_found,
    ring_name,
)
from tidelog.spark.pipelines.days import DAY_MS
from tidelog.spark.pipelines.declare import Context, Pipeline
from tidelog.spark.pipelines.event_clock import EventClock, Newest
from tidelog.spark.pipelines.events import (
    EVENTS,
    INSTALLS,
    INVITES,
    LEFT_SWIPES,
    LOGINS,
    TASKS,
    EventSchema,
)
from tidelog.spark.pipelines.generator import Generator, Plan, Truth
from tidelog.spark.pipelines.generator_scenes import Cheaters
from tidelog.spark.pipelines.invitees import Invitees, gathered, stamped, tick, to_text

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, Row, SparkSession

    from tests.spark.hands import Hands
    from tidelog.testing import Broker

MINUTE, HOUR = 60_000, 3_600_000
TODAY = 20_000 * DAY_MS
ENOUGH = 0.95
FOLLOWED = (INVITES.topic, *(schema.topic for schema in invite_watch.ACTIVITY))
ALERT_TOPICS = ("ml_device_alerts", "ml_invite_alerts")
LISTED_AS = {SWITCHING: "accounts", RING: "members", IDLE_INVITEES: "idle_invitees"}
"""Where the evidence names those who were involved."""

Found = Mapping[str, set[str]]
"""Subjects that were reported, by rule."""


def seen(*events: tuple[int, str], day: int = TODAY) -> list[Seen]:
    """Events of a day: minute and who."""
    return [Seen(day + at * MINUTE, f"e{n}", who, "x", True) for n, (at, who) in enumerate(events)]


def scores(truth: Truth, found: Found, rule: str) -> tuple[float, float]:
    """Precision and recall."""
    planted, reported = set(truth.cheaters[rule]), found.get(rule, set())
    hits = len(planted & reported)
    return hits / len(reported) if reported else 1.0, hits / len(planted)


def assert_good(truth: Truth, found: Found, rules: Iterable[str]) -> None:
    for rule in rules:
        precision, recall = scores(truth, found, rule)
        planted, reported = set(truth.cheaters[rule]), found.get(rule, set())
        assert precision >= ENOUGH, f"seed {truth.seed}, {rule}: {reported - planted} did nothing wrong"
        assert recall >= ENOUGH, f"seed {truth.seed}, {rule}: {planted - reported} were missed"
    suspects = {subject for subjects in found.values() for subject in subjects}
    for kind, names in truth.honest.items():
        assert not suspects & set(names), f"seed {truth.seed}: false alarm for {kind}"


# Bursts


def test_a_burst_is_so_many_within_the_window_and_not_one_fewer() -> None:
    burst = Burst(60 * MINUTE, different=3)
    assert list(burst.episodes(seen((0, "a"), (30, "b"), (59, "c"))))
    assert not list(burst.episodes(seen((0, "a"), (30, "b"), (60, "c"))))
    assert not list(burst.episodes(seen((0, "a"), (10, "b"), (20, "a"), (30, "b"))))


def test_switches_are_counted_between_one_event_and_the_next() -> None:
    burst = Burst(60 * MINUTE, different=2, switches=3)
    assert list(burst.episodes(seen((0, "a"), (1, "b"), (2, "a"), (3, "b"))))
    assert not list(burst.episodes(seen((0, "a"), (1, "a"), (2, "b"), (3, "b"), (4, "a"))))


def test_bursts_that_overlap_are_one_episode_and_others_are_not() -> None:
    burst = Burst(10 * MINUTE, different=2)
    found = list(burst.episodes(seen((0, "a"), (5, "b"), (9, "c"), (14, "a"), (100, "a"), (101, "b"))))
    assert [[each.who for each in episode] for episode in found] == [["a", "b", "c", "a"], ["a", "b"]]


def test_an_episode_belongs_to_the_day_it_begins_in() -> None:
    burst = Burst(60 * MINUTE, different=2)
    over_midnight = seen((-10, "a"), (5, "b"), (20, "c"))
    assert burst.first_of_day(over_midnight, TODAY) is None
    assert burst.first_of_day(over_midnight, TODAY - DAY_MS) == over_midnight


logins = st.lists(st.tuples(st.integers(0, 300), st.sampled_from("abcde")), max_size=40)


@given(logins, st.integers(1, 60), st.integers(1, 4), st.integers(0, 5))
def test_episodes_are_what_a_look_at_every_window_finds(
    events: list[tuple[int, str]], minutes: int, different: int, switches: int
) -> None:
    ordered = sorted(seen(*events))
    covered: set[int] = set()
    for right in range(len(ordered)):
        inside = [n for n in range(right + 1) if ordered[right].ts - ordered[n].ts < minutes * MINUTE]
        names = [ordered[n].who for n in inside]
        changes = sum(one != other for one, other in pairwise(names))
        if len(set(names)) >= different and changes >= switches:
            covered.update(inside)
    burst = Burst(minutes * MINUTE, different, switches)
    found = [each for episode in burst.episodes(ordered) for each in episode]
    assert found == [ordered[n] for n in sorted(covered)]


@given(logins, st.randoms(use_true_random=False))
def test_an_alert_is_raised_in_one_batch_only_and_is_the_same_however_events_come(
    events: list[tuple[int, str]], chance: random.Random
) -> None:
    burst = Burst(60 * MINUTE, different=3, switches=3)

    def judge(rule: str, subject: str, found: list[Seen], day: int) -> list[Finding]:
        episode = burst.first_of_day(found, day)
        return [] if episode is None else [Finding(subject, episode[0].ts, episode[-1].ts, "")]

    at_once = newly_found(judge, SWITCHING, "d", sorted(seen(*events)), TODAY)
    arrivals = [each._replace(new=False) for each in seen(*events)]
    chance.shuffle(arrivals)
    raised: list[Finding] = []
    known: list[Seen] = []
    while arrivals:
        batch = [arrivals.pop() for _ in range(min(len(arrivals), chance.randint(1, 8)))]
        now = sorted([*known, *(each._replace(new=True) for each in batch)])
        first, replayed = (newly_found(judge, SWITCHING, "d", now, TODAY) for _ in range(2))
        assert first == replayed
        raised += first
        known += batch
    assert [finding.subject for finding in raised] == [finding.subject for finding in at_once]


def test_the_name_of_a_ring_does_not_depend_on_where_it_begins() -> None:
    assert ring_name(["b", "c", "a"]) == ring_name(["c", "a", "b"]) == "a>b>c"


# The steps, on the rows of a whole day at once


class Day:
    """A generated day as data frames, by topic."""

    def __init__(self, spark: SparkSession, seed: int, events: int, each: int) -> None:
        self._spark = spark
        generator = Generator(Plan(events, TODAY, seed, cheaters=Cheaters.few(each), duplicates=0.02))
        self._events: dict[str, list[tuple[dict[str, object], int]]] = defaultdict(list)
        """The events of each topic in the order of their arrival, and the time of that."""
        for chunk in generator.chunks():
            for topic in (LOGINS.topic, *FOLLOWED):
                table = chunk.tables[topic]
                for value, at in zip(table["value"].to_pylist(), table["timestamp"].to_pylist(), strict=True):
                    self._events[topic].append((json.loads(value), at))
        self.truth = generator.truth

    def rows(self, schema: EventSchema) -> DataFrame:
        from pyspark.sql import functions as f
        from pyspark.sql.types import LongType, StringType, StructType

        events = [
            (*(event.get(name) for name in EVENTS[schema.topic].names), schema.topic, at)
            for event, at in self._events[schema.topic]
        ]
        kind = StructType([*schema.spark_schema()]).add("topic", StringType()).add("at", LongType())
        return self._spark.createDataFrame(events, kind).withColumn("timestamp", f.timestamp_millis("at"))

    def batches(self, count: int, late_topic: str = "", silent_topic: str = "") -> list[DataFrame]:
        """The same part of what is left of each topic and partition, as the source takes it.

        A late topic begins at noon; a silent one has no record after two o'clock in the morning.
        """
        import pyarrow as pa
        from pyspark.sql import functions as f

        begin = {late_topic: TODAY + 12 * HOUR}
        end = {silent_topic: TODAY + 2 * HOUR}
        parts: list[list[tuple[object, ...]]] = [[] for _ in range(count)]
        for topic in FOLLOWED:
            kept = [
                (event, at)
                for event, at in self._events[topic]
                if begin.get(topic, 0) <= at < end.get(topic, at + 1)
            ]
            for number, (event, at) in enumerate(kept):
                fields = (event["version"], event["ts"], event["user_id"], event.get("invitee_id"))
                partition = len(str(event["user_id"])) % 2
                row = (*fields, topic, partition, at, (TODAY + 9 * DAY_MS) * 1_000)
                parts[number * count // len(kept)].append(row)
        names = ["version", "ts", "user_id", "invitee_id", "topic", "partition", "at", "now"]
        tables = (pa.table(list(map(list, zip(*part, strict=True))), names) for part in parts)
        frames = map(self._spark.createDataFrame, tables)
        times = {"timestamp": f.timestamp_millis("at"), "_error": f.lit(None).cast("string")}
        return [frame.withColumns(times) for frame in frames]


@pytest.fixture(scope="module")
def day(spark: SparkSession) -> Day:
    return Day(spark, random.randrange(1 << 32), 30_000, 6)


def context(spark: SparkSession, pipeline: Pipeline, **settings: int) -> Context:
    from tidelog.spark.tables import Tables

    values = {setting.name: setting.default for setting in pipeline.settings}
    return Context(spark, {**values, **settings}, Tables(spark, "unused"))


def devices_found(spark: SparkSession, day: Day, **settings: int) -> Found:
    given = context(spark, device_watch.PIPELINE, **settings)
    rows = device_watch.logins(day.rows(device_watch.LOGINS), given)
    return by_rule(device_watch.alerts(rows, given).collect())


def invitations_found(spark: SparkSession, day: Day, **settings: int) -> Found:
    given = context(spark, invite_watch.PIPELINE, **settings)
    rows = invite_watch.invitations(day.rows(invite_watch.INVITES), given)
    return by_rule(invite_watch.alerts(rows, given).collect())


def invitees_found(spark: SparkSession, batches: Sequence[DataFrame], folder: Path) -> Found:
    """The alerts of batches, of which some are done again after a failure, by a new process."""
    from tidelog.spark.tables import Tables

    def unread(batch: int) -> list[tuple[str, int]]:
        assert batch == number
        return [(topic, part) for topic in FOLLOWED for part in (0, 1)] if batch < last else grown

    last, grown = len(batches) - 1, list[tuple[str, int]]()
    tables = Tables(spark, str(folder))
    given = context(spark, invite_watch.PIPELINE)
    given = replace(given, tables=tables, writer="invite-watch/invitees", unread=unread)
    step, found = Invitees(), []
    for number, rows in enumerate(batches):
        alerts = step(rows, given, number).collect()
        if number in (1, last):
            grown = [(TASKS.topic, 0)]  # since the first attempt the log has more records
            step = Invitees()
            again = step(rows, given, number).collect()
            assert sorted(again) == sorted(alerts)
        found += alerts
    return by_rule(found)


def by_rule(alerts: Sequence[Row]) -> Found:
    assert len({alert.alert_id for alert in alerts}) == len(alerts)
    found = defaultdict(set)
    for alert in alerts:
        found[alert.rule].add(alert.subject)
    return found


def test_devices_that_switch_are_told_from_families_and_shops(spark: SparkSession, day: Day) -> None:
    assert_good(day.truth, devices_found(spark, day), [SWITCHING])


def test_with_thresholds_that_are_off_device_watch_is_not_good(spark: SparkSession, day: Day) -> None:
    """What the measure is worth: a detector that is too keen, or too mild, does not pass it."""
    with pytest.raises(AssertionError, match=r"did nothing wrong|false alarm"):
        assert_good(day.truth, devices_found(spark, day, accounts=2, switches=2), [SWITCHING])
    with pytest.raises(AssertionError, match="were missed"):
        assert_good(day.truth, devices_found(spark, day, switches=30), [SWITCHING])


def test_farms_bursts_and_rings_are_told_from_families_offices_and_chains(
    spark: SparkSession, day: Day
) -> None:
    rules = [MANY_ON_DEVICE, MANY_ON_ADDRESS, MANY_IN_A_MINUTE]
    assert_good(day.truth, invitations_found(spark, day), rules)


def test_rings_and_idle_invitees_are_found_when_topics_begin_late_or_end_early(
    spark: SparkSession, day: Day, tmp_path: Path
) -> None:
    batches = day.batches(4, late_topic=TASKS.topic, silent_topic=INSTALLS.topic)
    assert_good(day.truth, invitees_found(spark, batches, tmp_path), [RING, IDLE_INVITEES])


def test_with_a_clock_that_does_not_wait_for_slow_topics_idle_invitees_are_missed(
    spark: SparkSession, day: Day, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fault of one watermark for all topics: the topic that begins at noon makes the others late."""

    def hasty(self: EventClock, batch: Mapping[tuple[str, int], Newest], unread: object) -> int:
        newest = max(found.event for found in batch.values())
        self.watermark = max(self.watermark, newest - self.lateness_ms)
        return self.watermark

    monkeypatch.setattr(EventClock, "advance", hasty)
    found = invitees_found(spark, day.batches(4, late_topic=TASKS.topic), tmp_path)
    with pytest.raises(AssertionError, match=r"were missed|did nothing wrong|false alarm"):
        assert_good(day.truth, found, [RING, IDLE_INVITEES])


def test_with_thresholds_that_are_off_invite_watch_is_not_good(spark: SparkSession, day: Day) -> None:
    keen = invitations_found(spark, day, device_invitees=2, address_invitees=8, minute_invitees=3)
    mild = invitations_found(spark, day, device_invitees=50, address_invitees=90, minute_invitees=50)
    for rule in (MANY_ON_DEVICE, MANY_ON_ADDRESS, MANY_IN_A_MINUTE):
        with pytest.raises(AssertionError, match=r"did nothing wrong|false alarm"):
            assert_good(day.truth, keen, [rule])
    for rule in (MANY_ON_DEVICE, MANY_ON_ADDRESS, MANY_IN_A_MINUTE):
        with pytest.raises(AssertionError, match=f"seed {day.truth.seed}, {rule}"):
            assert_good(day.truth, mild, [rule])


def test_a_partition_with_bad_events_alone_holds_the_decision_back_as_long_as_it_has_more(
    spark: SparkSession, hands: Hands
) -> None:
    """A partition that nobody had seen would count as one without records, and its events would be late."""
    from pyspark.sql import functions as f

    from tidelog.spark.pipelines.query import Place, source_options

    topic = hands.topic(2, {"retention.ms": "-1"})
    swipe = {"event_id": "e", "version": 1, "ts": TODAY + 13 * HOUR, "user_id": "u", "device_id": "d"}
    hands.send(topic, json.dumps(swipe).encode(), partition=0, timestamp_ms=TODAY + 13 * HOUR)
    for minute, value in enumerate((b"not JSON", b'{"version": 1}', None, b"{}")):
        hands.send(topic, value, partition=1, timestamp_ms=TODAY + 2 * HOUR + minute * MINUTE)
    [_, flow] = invite_watch.PIPELINE.flows({})
    options = source_options(replace(flow.source, topics=(topic,)), Place(hands.bootstrap, "", {}, 0))
    given = context(spark, invite_watch.PIPELINE)
    rows = stamped(spark.read.format("tidelog").options(**options).load(), given)
    clock = EventClock(HOUR, HOUR)
    ticks = gathered(rows, given, 0, 0).withColumn("unread", f.lit(to_text([(topic, 1)]))).toArrow()
    tick(clock, ticks)
    assert clock.newest[topic, 1] == Newest(-1, TODAY + 2 * HOUR + 3 * MINUTE)
    assert clock.watermark == TODAY + HOUR + 3 * MINUTE


# The pipelines


def forget_last_commits(checkpoints: Path) -> None:
    """As if the driver had been killed when the last micro-batch was written, but before Spark noted it."""
    for commits in checkpoints.glob("*/*/commits"):
        batches = sorted(int(path.name) for path in commits.iterdir() if path.name.isdigit())
        for path in (commits / str(batches[-1]), commits / f".{batches[-1]}.crc"):
            path.unlink(missing_ok=True)


def beginning_late(table: pa.Table, begin: int) -> pa.Table:
    """The records of a topic from a time on."""
    import pyarrow.compute as pc

    return table.filter(pc.greater_equal(table["timestamp"], begin))


def test_pipelines_find_every_kind_of_cheater_across_a_restart_and_a_replay(
    spark: SparkSession, broker: Broker, hands: Hands, tmp_path: Path
) -> None:
    """Late, shuffled, duplicate and broken events in small batches, and a topic that begins at noon.

    The second run begins with the last batch of the first.
    """
    from tidelog import Producer
    from tidelog.spark.pipelines.generator_writer import Writer
    from tidelog.spark.pipelines.run_options import Options
    from tidelog.spark.pipelines.runner import start
    from tidelog.spark.tables import Tables

    seed = random.randrange(1 << 32)
    plan = Plan(
        events=scale(40_000, 1_000_000),
        start=TODAY,
        seed=seed,
        late=0.05,
        late_by=20 * MINUTE,
        out_of_order=0.1,
        duplicates=0.02,
        broken=0.01,
        cheaters=Cheaters.few(scale(6, 40)),
        chunk=scale(5_000, 125_000),
    )
    bootstrap, data = broker.bootstrap_servers, str(tmp_path / "data")
    Writer(plan, {"bootstrap.servers": bootstrap}).create_topics(2)
    generator = Generator(plan)
    chunks = list(generator.chunks())
    cut = len(chunks) - random.Random(seed).randint(1, 2)  # after noon
    at_noon = random.Random(seed).choice([LEFT_SWIPES, TASKS, INSTALLS]).topic
    options = Options(
        bootstrap,
        data,
        trigger="available-now",
        max_offsets_per_trigger=scale(4_000, 100_000),
    )
    for part in (chunks[:cut], chunks[cut:]):
        with Producer(bootstrap_servers=bootstrap) as producer:
            for chunk in part:
                for topic, table in chunk.tables.items():
                    begin = TODAY + 12 * HOUR if topic == at_noon else 0
                    producer.send_arrow(beginning_late(table, begin), topic).result(60)
        for name in ("device-watch", "invite-watch"):
            with start([name], options, spark=spark) as running:
                running.wait()
        forget_last_commits(tmp_path / "data" / "checkpoints")

    tables = Tables(spark, f"{data}/tables")
    alerts = [*tables.read("device_alerts").collect(), *tables.read("invite_alerts").collect()]
    assert_good(generator.truth, by_rule(alerts), RULES)
    told = [json.loads(value) for topic in ALERT_TOPICS for value in hands.values(topic)]
    assert sorted(each["alert_id"] for each in told) == sorted(alert.alert_id for alert in alerts), (
        f"seed {seed}"
    )
    for alert in alerts:
        assert alert.window_start <= alert.window_end
        assert alert.day == alert.window_start.date()
        assert len(json.loads(alert.evidence)[LISTED_AS.get(alert.rule, "invitees")]) >= 2


def login(device: str, user: int, ts: int) -> bytes:
    who = {"user_id": f"{device}-user-{user}", "device_id": device, "ip": "10.0.0.1", "method": "code"}
    return json.dumps({"event_id": f"{device}-{ts}", "version": 1, "ts": ts, **who}).encode()


def devices_of_late_partition(
    spark: SparkSession, hands: Hands, data: str, options: Mapping[str, str]
) -> set[str]:
    """Three days of logins in one partition, with a cheater each day, and a day a week later in the other."""
    from tidelog.spark.pipelines.run_options import Options
    from tidelog.spark.pipelines.runner import start
    from tidelog.spark.tables import Tables

    topic = hands.topic(2, {"retention.ms": "-1"})
    for day in range(3):
        for number in range(60):
            ts = TODAY + day * DAY_MS + number * 20 * MINUTE
            hands.send(topic, login(f"honest-{number}", 0, ts), partition=0, timestamp_ms=ts)
            if number in range(40, 50):
                ts += MINUTE
                hands.send(topic, login(f"cheater-{day}", number % 5, ts), partition=0, timestamp_ms=ts)
            if day == 2:
                ts += 7 * DAY_MS
                hands.send(topic, login(f"other-{number}", 0, ts), partition=1, timestamp_ms=ts)
    (flow,) = device_watch.flows({})
    source = replace(flow.source, topics=(topic,), options=options)
    flow = replace(flow, source=source, sinks=flow.sinks[:1])  # the table
    pipeline = replace(device_watch.PIPELINE, flows=lambda settings: (flow,))
    limited = Options(
        hands.bootstrap,
        data,
        trigger="available-now",
        settings={"window_minutes": 240},
        max_offsets_per_trigger=60,
    )
    with start([pipeline], limited, spark=spark) as running:
        running.wait()
    return {row.subject for row in Tables(spark, f"{data}/tables").read("device_alerts").collect()}


def test_a_partition_that_begins_later_makes_no_login_of_another_one_late(
    spark: SparkSession, hands: Hands, tmp_path: Path
) -> None:
    (flow,) = device_watch.flows({})
    found = devices_of_late_partition(spark, hands, str(tmp_path / "data"), flow.source.options)
    assert found == {"cheater-0", "cheater-1", "cheater-2"}


@pytest.mark.long
def test_without_the_order_of_time_later_cheaters_are_missed(
    spark: SparkSession, hands: Hands, tmp_path: Path
) -> None:
    """The first micro-batch has logins of a week later: from the third on all others are late."""
    found = devices_of_late_partition(spark, hands, str(tmp_path / "data"), {})
    assert "cheater-2" not in found
