"""The topic of decisions: large decisions in parts, records of older releases, and replicas."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.spark.decided import Driver
from tests.spark.hands import Hands
from tidelog import Consumer, NewTopic
from tidelog.clients.admin import OffsetSpec
from tidelog.clients.producer.transaction_values import PreparedTxnState
from tidelog.errors import InvalidReplicationFactor, UnknownTopicOrPartition
from tidelog.spark import decisions as module
from tidelog.spark.decisions import Decision, Decisions, Holder, IncompleteDecision


@pytest.fixture
def driver(hands: Hands) -> Iterator[Driver]:
    with Driver(hands, hands.topic(), "run") as driver:
        yield driver


def transactions(count: int) -> tuple[PreparedTxnState, ...]:
    prefix = "tidelog-spark-query-8b916161-40c8-4907-8493-4d86a15278bb"
    return tuple(PreparedTxnState(f"{prefix}-g1-p{index}-a0.0", 4000 + index, 7) for index in range(count))


def take(driver: Driver) -> Holder:
    return driver.ledger.decisions.take("query-q", "decision-of-q")


def keys_of(hands: Hands, topic: str) -> set[bytes]:
    """The keys that would be left after a compaction."""
    end = hands.admin.list_offsets({(topic, 0): OffsetSpec.LATEST})[topic, 0].offset
    found: dict[bytes, bytes] = {}
    with Consumer(bootstrap_servers=hands.bootstrap, isolation_level="read_committed") as consumer:
        consumer.assign([(topic, 0)])
        consumer.seek_to_beginning((topic, 0))
        while consumer.position((topic, 0)) < end:
            for record in consumer.poll(timeout=0.2):
                found.pop(record.key, None)
                if record.value is not None:
                    found[record.key] = record.value
    return set(found)


def test_a_decision_on_more_tasks_than_a_record_holds_is_written_in_parts(
    hands: Hands, driver: Driver
) -> None:
    """At 90 bytes for each task 15,000 of them are more than max.message.bytes, 1 MB."""
    decision = Decision("query-q", 1, "run").decided(3, transactions(15_000))
    records = list(decision.records())
    assert sum(len(value) for _, value in records) > 1_048_588
    assert max(len(value) for _, value in records) < 300_000
    with take(driver) as holder:
        holder.write(decision)
    assert driver.ledger.decisions.read() == {"query-q": decision}
    smaller = decision.decided(4, transactions(4_000))
    with take(driver) as holder:
        assert holder.known == decision
        holder.write(smaller)
    assert driver.ledger.decisions.read() == {"query-q": smaller}
    assert len(keys_of(hands, driver.options.decision_topic)) == len(list(smaller.records()))
    with take(driver) as holder:
        holder.write(smaller.ended())
    assert driver.ledger.decisions.read() == {"query-q": smaller.ended()}
    assert keys_of(hands, driver.options.decision_topic) == {b"query-q"}, "parts of what ended are removed"
    with take(driver) as holder:
        holder.forget()
    assert keys_of(hands, driver.options.decision_topic) == set()


def test_the_decision_before_stands_until_all_parts_of_the_next_are_written(driver: Driver) -> None:
    """Whoever takes the name from a driver that died between two parts aborts what it wrote."""
    first = Decision("query-q", 1, "run").decided(0, transactions(6_000))
    second = first.decided(1, transactions(9_000))
    with take(driver) as holder:
        holder.write(first)
    dying = take(driver)
    dying._producer.begin_transaction()
    for key, value in list(second.records())[:-1]:
        dying._producer.send(driver.options.decision_topic, value, key, partition=0)
    dying._producer.flush()
    with take(driver) as holder:
        assert holder.known == first
        holder.write(second)
    dying.close()
    assert driver.ledger.decisions.read() == {"query-q": second}


def test_parts_without_the_record_that_counts_them_are_no_decision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PART_BYTES", 200)
    decision = Decision("query-q", 1, "run").decided(3, transactions(9))
    records = dict(decision.records())
    assert len(records) > 3
    assert Decision.from_records("query-q", records) == decision
    part = next(key for key in records if key != b"query-q")
    with pytest.raises(IncompleteDecision, match="part 1 of"):
        Decision.from_records("query-q", {key: value for key, value in records.items() if key != part})
    earlier = Decision("query-q", 1, "run").decided(2, transactions(1))
    left = {key: value for key, value in records.items() if key != b"query-q"}
    assert Decision.from_records("query-q", {**left, **dict(earlier.records())}) == earlier


def test_records_of_older_releases_are_read(hands: Hands, driver: Driver) -> None:
    driver.ledger.decisions.read()
    old = {
        "version": 1,
        "generation": 3,
        "run": "run-3",
        "past": ["run-2"],
        "batch": 7,
        "transactions": [["id", 1000, 4]],
    }
    hands.send(driver.options.decision_topic, json.dumps(old).encode(), b"query-q", 0)
    wanted = Decision("query-q", 3, "run-3", ("run-2",), 7, (PreparedTxnState("id", 1000, 4),))
    assert driver.ledger.decisions.read() == {"query-q": wanted}


@pytest.mark.parametrize(("brokers", "replicas", "in_sync"), [(1, 1, None), (2, 2, None), (5, 3, "2")])
def test_the_topic_has_three_replicas_where_there_are_as_many_brokers(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, brokers: int, replicas: int, in_sync: str | None
) -> None:
    made: list[NewTopic] = []

    async def count() -> int:
        return brokers

    async def create(topics: list[NewTopic]) -> None:
        made.extend(topics)

    monkeypatch.setattr(driver.ledger.transactions.admin, "broker_count", count)
    monkeypatch.setattr(driver.ledger.transactions.admin, "create_topics", create)
    driver.ledger.decisions._make_topic()
    assert [topic.replication_factor for topic in made] == [replicas]
    assert made[0].configs["cleanup.policy"] == "compact"
    assert made[0].configs.get("min.insync.replicas") == in_sync


def test_a_cluster_that_does_not_replicate_gives_the_topic_its_default(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    admin, asked = driver.ledger.transactions.admin, []
    create = admin.create_topics

    async def count() -> int:
        return 3

    async def refuse_copies(topics: list[NewTopic]) -> None:
        asked.extend(topic.replication_factor for topic in topics)
        if topics[0].replication_factor > 1:
            raise InvalidReplicationFactor("no copies")
        await create(topics)

    monkeypatch.setattr(admin, "broker_count", count)
    monkeypatch.setattr(admin, "create_topics", refuse_copies)
    driver.ledger.decisions.read()
    assert asked == [3, -1]
    assert "has 1 of 3 replicas" in caplog.text


def test_the_replicas_of_a_new_topic_are_counted_once_the_broker_knows_it(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    admin, asked = driver.ledger.transactions.admin, []
    create, describe = admin.create_topics, admin.describe_topics

    async def count() -> int:
        return 3

    async def refuse_copies(topics: list[NewTopic]) -> None:
        if topics[0].replication_factor > 1:
            raise InvalidReplicationFactor("no copies")
        await create(topics)

    async def know_it_late(topics: list[str]) -> object:
        asked.append(topics)
        if len(asked) == 1:
            raise UnknownTopicOrPartition("not yet")
        return await describe(topics)

    monkeypatch.setattr(admin, "broker_count", count)
    monkeypatch.setattr(admin, "create_topics", refuse_copies)
    monkeypatch.setattr(admin, "describe_topics", know_it_late)
    driver.ledger.decisions.read()
    assert "has 1 of 3 replicas" in caplog.text


def test_a_topic_with_fewer_replicas_than_it_could_have_is_warned_of_once(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    driver.ledger.decisions.read()
    assert "replicas" not in caplog.text

    async def count() -> int:
        return 4

    again = Decisions(driver.options.client, driver.options.decision_topic, driver.ledger.transactions)
    monkeypatch.setattr(driver.ledger.transactions.admin, "broker_count", count)
    again.read()
    again.read()
    assert caplog.text.count("has 1 of 3 replicas") == 1
