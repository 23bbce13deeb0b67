"""Generated events are the same for the same plan, valid, plausible, and as disturbed as asked."""

from __future__ import annotations

import hashlib
import json
import random
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidelog.spark.pipelines.alerts import RULES
from tidelog.spark.pipelines.days import DAY_MS
from tidelog.spark.pipelines.events import EVENTS
from tidelog.spark.pipelines.generator import BREAKAGES, Generator, Plan, Truth
from tidelog.spark.pipelines.generator_phones import COUNTRIES, country_of, national_number
from tidelog.spark.pipelines.generator_scenes import Cheaters
from tidelog.spark.pipelines.generator_writer import write
from tidelog.testing import Broker

START = 1_790_000_000_000
Event = dict[str, object]


def records(plan: Plan) -> Iterator[tuple[str, str, bytes | None, int]]:
    """Topic, key, value and time of every record."""
    for chunk in Generator(plan).chunks():
        for topic, table in chunk.tables.items():
            columns = (table[name].to_pylist() for name in ("key", "value", "timestamp"))
            for key, value, timestamp in zip(*columns, strict=True):
                yield topic, key, value, timestamp


def events(plan: Plan) -> list[tuple[str, Event, int]]:
    return [(topic, json.loads(value or b""), at) for topic, _, value, at in records(plan)]


def digest(plan: Plan) -> str:
    found = hashlib.sha256()
    for record in records(plan):
        found.update(repr(record).encode())
    return found.hexdigest()


def test_the_same_plan_gives_the_same_bytes_and_another_seed_others() -> None:
    seed = random.randrange(1 << 32)
    cheaters = Cheaters.few(2)
    plan = Plan(20_000, START, seed, late=0.1, broken=0.05, duplicates=0.05, cheaters=cheaters, chunk=3_000)
    other = Plan(
        20_000, START, seed + 1, late=0.1, broken=0.05, duplicates=0.05, cheaters=cheaters, chunk=3_000
    )
    assert digest(plan) == digest(plan), f"seed {seed}"
    assert digest(plan) != digest(other), f"seed {seed}"


def test_every_event_is_good_keyed_by_its_user_and_has_an_id_of_its_own() -> None:
    plan = Plan(30_000, START, 11, cheaters=Cheaters.few(2))
    ids = set()
    for topic, key, value, timestamp in records(plan):
        event = json.loads(value or b"")
        assert EVENTS[topic].check(event) is None
        assert key == event["user_id"]
        assert timestamp == event["ts"]
        assert plan.start <= timestamp < plan.end
        ids.add(event["event_id"])
    assert len(ids) == plan.events


@pytest.mark.parametrize("count", [0, 1, 7, 999, 50_001])
def test_as_many_records_as_asked(count: int) -> None:
    plan = Plan(count, START, 3, broken=0.1, duplicates=0.1, late=0.2, chunk=4_000)
    assert sum(1 for _ in records(plan)) == count


def test_undisturbed_events_come_in_the_order_of_time() -> None:
    latest: dict[str, int] = defaultdict(int)
    for topic, event, _ in events(Plan(30_000, START, 5, chunk=4_000)):
        assert int(str(event["ts"])) >= latest[topic]
        latest[topic] = int(str(event["ts"]))


def test_business_is_plausible() -> None:
    found = events(Plan(60_000, START, 8))
    counts = Counter(topic for topic, _, _ in found)
    swipes = counts["ml_ad_left_slide_log"] + counts["ml_ad_right_slide_log"]
    assert counts["ml_ad_exposure_log"] > swipes > counts["ml_user_login_log"] > counts["ml_invite_log"] > 0
    reasons = Counter(event["reason"] for topic, event, _ in found if topic == "ml_obtain_credit_log")
    assert set(reasons) == {"left_slide", "right_slide", "task", "invite", "adjust"}
    assert reasons["left_slide"] + reasons["right_slide"] < swipes
    assert reasons["invite"] == counts["ml_invite_log"]
    amounts = [event["amount"] for topic, event, _ in found if "amount" in event]
    assert min(amounts) < 0 < max(amounts)  # type: ignore[type-var]


def test_tasks_go_on_step_by_step_and_pay_at_the_end() -> None:
    found = events(Plan(60_000, START, 9, chunk=10_000))
    done: dict[tuple[object, object], int] = defaultdict(int)
    completed = 0
    for topic, event, _ in found:
        if topic == "ml_task_log":
            key = event["user_id"], event["task_id"]
            assert event["step"] == done[key] + 1
            done[key] += 1
            completed += event["step"] == event["steps"]
    paid = sum(1 for topic, event, _ in found if event.get("reason") == "task")
    assert completed == paid > 0


def test_late_and_shuffled_events_arrive_after_their_time_and_by_no_more_than_asked() -> None:
    plan = Plan(40_000, START, 4, late=0.1, late_by=300_000, out_of_order=0.2, chunk=5_000)
    delays = [at - int(str(event["ts"])) for _, event, at in events(plan)]
    assert min(delays) >= 0
    assert max(delays) <= 300_000
    late, shuffled = sum(delay > 20_000 for delay in delays), sum(0 < delay <= 20_000 for delay in delays)
    assert 0.06 < late / plan.events < 0.11
    assert 0.15 < shuffled / plan.events < 0.25


def test_nothing_arrives_after_the_end_however_late_it_may_be() -> None:
    """Brokers refuse records from further than an hour in the future, and a run ends now by default."""
    plan = Plan(5_000, START, 4, late=0.5, late_by=4 * DAY_MS, duplicates=0.1, chunk=1_000)
    found = events(plan)
    assert len(found) == 5_000
    assert max(at for _, _, at in found) <= plan.end
    assert all(at >= int(str(event["ts"])) for _, event, at in found)


@pytest.mark.parametrize("users", [1, 2, 3])
def test_a_few_users_are_enough(users: int) -> None:
    found = events(Plan(2_000, START, 5, users=users))
    assert len(found) == 2_000
    assert {event["user_id"] for _, event, _ in found} == {f"u{number}" for number in range(users)}


def test_records_of_a_topic_are_in_the_order_of_arrival() -> None:
    latest: dict[str, int] = defaultdict(int)
    for topic, _, at in events(
        Plan(30_000, START, 6, late=0.2, out_of_order=0.2, duplicates=0.1, chunk=3_000)
    ):
        assert at >= latest[topic]
        latest[topic] = at


def test_duplicates_are_the_same_event_a_second_time() -> None:
    plan = Plan(20_000, START, 2, duplicates=0.1)
    values = Counter(value for _, _, value, _ in records(plan))
    assert sum(count - 1 for count in values.values()) == 2_000
    assert len({json.loads(value or b"")["event_id"] for value in values}) == 18_000


def test_broken_events_are_broken_in_every_way_and_counted() -> None:
    generator = Generator(Plan(20_000, START, 2, broken=0.05))
    bad = 0
    for chunk in generator.chunks():
        for topic, table in chunk.tables.items():
            bad += sum(reason(topic, value) is not None for value in table["value"].to_pylist())
    truth = generator.truth
    assert bad == sum(truth.broken.values()) == 1_000
    assert set(truth.broken) == {way.name for way in BREAKAGES}
    assert sum(truth.events.values()) == 19_000


def reason(topic: str, value: bytes | None) -> str | None:
    try:
        return EVENTS[topic].check(json.loads((value or b"").decode()))
    except ValueError as error:
        return str(error)


def test_planted_cheaters_are_named_by_rule_and_do_what_they_are_named_for() -> None:
    seed = random.randrange(1 << 32)
    plan = Plan(40_000, START, seed, cheaters=Cheaters(1, 2, 3, 4, 5, 6))
    generator = Generator(plan)
    assert [len(generator.truth.cheaters[rule]) for rule in RULES] == [1, 2, 3, 4, 5, 6]
    accounts: dict[object, set[object]] = defaultdict(set)
    invitees: dict[object, set[object]] = defaultdict(set)
    for topic, event, _ in events(plan):
        if topic == "ml_user_login_log":
            accounts[event["device_id"]].add(event["user_id"])
        if topic == "ml_invite_log":
            for subject in (event["invitee_device_id"], event["invitee_ip"], event["user_id"]):
                invitees[subject].add(event["invitee_id"])
    truth = generator.truth.cheaters
    assert all(len(accounts[device]) >= 5 for device in truth["device-switching"]), f"seed {seed}"
    for rule, least in (("many-on-device", 7), ("many-on-address", 26), ("many-in-a-minute", 11)):
        assert all(len(invitees[subject]) >= least for subject in truth[rule]), f"seed {seed}, {rule}"


def test_the_truth_survives_its_json() -> None:
    truth = Generator(Plan(5_000, START, 1, cheaters=Cheaters.few(1))).truth
    assert Truth.from_json(truth.to_json()) == truth


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"late": 1.5}, "late is 1.5; expected a fraction from 0 to 1"),
        ({"events": -1}, "events is -1; expected at least 0"),
        ({"broken": 0.5, "duplicates": 0.5}, "leave less than a tenth"),
        ({"users": 100, "devices": 30}, "30 devices for 100 users: at most three users share one"),
    ],
)
def test_an_impossible_plan_is_refused(settings: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Plan(**{"events": 100, "start": START, **settings})  # type: ignore[arg-type]


def test_too_few_events_for_the_cheaters_are_refused() -> None:
    with pytest.raises(ValueError, match="the planted cheaters alone need"):
        Generator(Plan(50, START, 1, cheaters=Cheaters.few(2)))


def test_phone_numbers_are_valid_ones_of_their_country() -> None:
    import phonenumbers

    seen = set()
    for user in random.sample(range(10_000_000), 2_000):
        country = country_of(user)
        number = national_number(user, country)
        found = phonenumbers.parse(f"+{country.code}{number}")
        assert phonenumbers.is_valid_number(found), (user, number)
        assert phonenumbers.region_code_for_number(found) == country.region, (user, number)
        assert phonenumbers.parse(country.trunk + number, country.region) == found, (user, number)
        seen.add(country.region)
    assert seen == {country.region for country in COUNTRIES}


# With a broker


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


def generate(broker: Broker, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tidelog", "generate", "--bootstrap-server", broker.bootstrap_servers]
    return subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=120, check=False)


def test_the_tool_writes_events_into_topics_that_it_makes(broker: Broker, tmp_path: Path) -> None:
    from tidelog import Consumer

    truth_file = tmp_path / "truth.json"
    done = generate(
        broker,
        *("--events", "5000", "--seed", "17", "--start", "2026-03-01T00:00", "--partitions", "3"),
        *(
            "--cheaters",
            "1",
            "--rings",
            "0",
            "--broken",
            "0.01",
            "--truth",
            str(truth_file),
            "--output",
            "json",
        ),
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["written"] == 5_000
    assert sorted(report["topics_created"]) == sorted(EVENTS)
    truth = Truth.from_json(truth_file.read_text())
    assert (truth.seed, truth.end - truth.start) == (17, DAY_MS)
    assert len(truth.cheaters["idle-invitees"]) == 1
    assert truth.cheaters["ring"] == []
    with Consumer(bootstrap_servers=broker.bootstrap_servers) as consumer:
        keys = [(topic, partition) for topic in EVENTS for partition in range(3)]
        assert sum(consumer.end_offsets(keys).values()) == 5_000


def test_events_at_a_rate_happen_now_and_take_their_time(broker: Broker) -> None:
    done = generate(broker, "--events", "300", "--rate", "300", "--output", "json")
    report = json.loads(done.stdout)
    assert report["written"] == 300
    assert 0.9 < report["seconds"] < 30
    assert report["end"] - report["start"] == 1_000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--span", "soon"), "'soon' is not a duration"),
        (("--start", "tomorrow"), "'tomorrow' is not a time"),
        (("--start", "live"), "--start live needs --rate"),
        (("--late", "2"), "--late"),
        (("--events", "10", "--rings", "9"), "the planted cheaters alone need"),
        (("--partitions", "0"), "--partitions is 0; it must be at least 1"),
        (("--truth", "no/such/folder/truth.json"), "the folder no/such/folder does not exist"),
    ],
)
def test_wrong_flags_end_with_1_and_a_reason(
    broker: Broker, arguments: tuple[str, ...], message: str
) -> None:
    done = generate(broker, *arguments)
    assert done.returncode == 1
    assert message in done.stderr


def test_writing_from_python_gives_the_truth(broker: Broker) -> None:
    truth = write(Plan(2_000, START, 1, cheaters=Cheaters(rings=1)), broker.bootstrap_servers)
    assert sum(truth.events.values()) == 2_000
    assert len(truth.cheaters["ring"]) == 1
