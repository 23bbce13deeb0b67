"""Which topics clients ask metadata for: new ones alone, all of them only where that is needed."""

from __future__ import annotations

import asyncio
from itertools import chain

import pytest

from tests.clients.fake_broker import FakeBroker
from tests.support.wait import eventually
from tidelog.clients.backoff import Backoff
from tidelog.clients.consumer.blocking import Consumer
from tidelog.clients.errors import UnknownTopicException
from tidelog.clients.metadata_updates import MetadataUpdates
from tidelog.clients.network import NetworkClient
from tidelog.clients.producer.blocking import Producer
from tidelog.clients.producer.producer import AsyncProducer
from tidelog.clients.repeated_warnings import RepeatedWarnings
from tidelog.clients.settings import consumer_settings

TOPICS = [f"topic-{number:03}" for number in range(200)]
MAX_AGE = 300.0


def asked_names(broker: FakeBroker) -> list[str]:
    assert None not in broker.metadata_topics
    return list(chain.from_iterable(topics or () for topics in broker.metadata_topics))


def test_a_producer_of_many_topics_asks_for_each_once() -> None:
    with FakeBroker() as broker, Producer(bootstrap_servers=broker.bootstrap) as producer:
        futures = [producer.send(topic, b"v") for topic in TOPICS]
        assert [future.result(10).topic for future in futures] == TOPICS
        assert sorted(asked_names(broker)) == TOPICS


def test_topics_that_are_new_together_are_asked_for_together() -> None:
    async def main(broker: FakeBroker) -> None:
        async with AsyncProducer(bootstrap_servers=broker.bootstrap) as producer:
            futures = await asyncio.gather(*(producer.send(topic, b"v") for topic in TOPICS))
            await asyncio.gather(*(future_result(future) for future in futures))

    async def future_result(future: object) -> object:
        return await future  # type: ignore[misc]  # a RecordFuture can be awaited

    with FakeBroker() as broker:
        asyncio.run(main(broker))
        assert sorted(asked_names(broker)) == TOPICS
        assert broker.metadata_requests <= 3


def test_a_consumer_asks_for_many_topics_together_and_then_only_for_new_ones() -> None:
    async def main(broker: FakeBroker) -> None:
        network = NetworkClient(consumer_settings(bootstrap_servers=broker.bootstrap))
        await network.start()
        try:
            network.want(TOPICS)
            for topic in TOPICS:
                await network.topic(topic, timeout=10)
            assert asked_names(broker) == TOPICS
            await network.topic("another", timeout=10)
            assert broker.metadata_topics[-1] == ["another"]
            assert set(network.view.topics) == {*TOPICS, "another"}
            await network.refresh(timeout=10)
            assert broker.metadata_topics[-1] is not None
            assert set(broker.metadata_topics[-1]) == {*TOPICS, "another"}
        finally:
            await network.close()

    with FakeBroker() as broker:
        asyncio.run(main(broker))


def test_a_topic_that_is_missing_is_asked_for_again_alone() -> None:
    async def main(broker: FakeBroker) -> None:
        broker.unknown_topics = {"missing"}
        settings = consumer_settings(
            bootstrap_servers=broker.bootstrap, retry_backoff_ms=5, retry_backoff_max_ms=10
        )
        network = NetworkClient(settings)
        await network.start()
        try:
            network.want(TOPICS)
            waiting = asyncio.create_task(network.topic("missing", timeout=10))
            async with asyncio.timeout(10):
                while broker.metadata_topics.count(["missing"]) < 3:
                    await asyncio.sleep(0)
            broker.unknown_topics.clear()
            assert (await waiting).partitions
            assert sorted(set(asked_names(broker))) == sorted([*TOPICS, "missing"])
            assert asked_names(broker).count(TOPICS[0]) == 1
        finally:
            await network.close()

    with FakeBroker() as broker:
        asyncio.run(main(broker))


def test_topics_that_nothing_was_sent_to_are_forgotten() -> None:
    settings = {"metadata_max_idle_ms": 5000, "metadata_max_age_ms": 100, "retry_backoff_ms": 5}
    with FakeBroker() as broker, Producer(bootstrap_servers=broker.bootstrap, **settings) as producer:
        assert producer.send("old", b"v").result(10).offset == 0
        assert producer.send("new", b"v").result(10).offset == 0
        client = producer._core.client
        client.topics["old"] -= 6.0
        eventually(lambda: "old" not in client.view.topics, "the idle topic is still known")
        eventually(lambda: broker.metadata_topics[-1] == ["new"], "the idle topic is still asked for")
        assert producer.send("old", b"v").result(10).offset == 1


@pytest.fixture
def updates() -> MetadataUpdates:
    made = MetadataUpdates(Backoff(100, 100), MAX_AGE)
    made.start(0.0)
    return made


def test_everything_is_asked_for_when_it_is_old(updates: MetadataUpdates) -> None:
    assert updates.due() == MAX_AGE
    updates.add("a")
    assert updates.due() == 0.0
    update = updates.take(10.0, everything=False)
    assert update.topics == {"a"}
    updates.succeeded(update, (), 10.0)
    # An update of some topics leaves the others as old as they are.
    assert updates.due() == MAX_AGE
    update = updates.take(MAX_AGE, everything=False)
    assert update.topics is None
    updates.succeeded(update, (), MAX_AGE)
    assert updates.due() == 2 * MAX_AGE
    assert updates.full_update == update.number


def test_new_topics_do_not_put_off_those_that_wait(updates: MetadataUpdates) -> None:
    updates.add("missing")
    now = 1.0
    updates.succeeded(updates.take(now, everything=False), ["missing"], now)
    pause_ends = updates.due()
    assert 1.07 <= pause_ends <= 1.13
    asked: list[frozenset[str] | None] = []
    while not any(topics and "missing" in topics for topics in asked):
        now += 0.01
        updates.add(f"new at {now}")
        update = updates.take(now, everything=False)
        asked.append(update.topics)
        updates.succeeded(update, ["missing"] if update.topics and "missing" in update.topics else (), now)
        assert now < 2.0
    assert pause_ends <= now <= pause_ends + 0.02
    assert all(topics is not None and len(topics) == 1 for topics in asked[:-1])


def test_what_failed_is_asked_for_again_after_a_pause(updates: MetadataUpdates) -> None:
    updates.add("a")
    update = updates.take(1.0, everything=False)
    updates.failed(update, 1.0)
    assert updates.due() > 1.0
    again = updates.take(updates.due(), everything=False)
    assert again.topics == {"a"}
    updates.ask_all()
    updates.succeeded(again, (), 2.0)
    assert updates.due() > 2.0
    everything = updates.take(updates.due(), everything=False)
    assert everything.topics is None
    updates.failed(everything, 3.0)
    assert updates.take(4.0, everything=False).topics is None


def test_a_topic_that_came_while_an_answer_was_on_its_way_is_still_new(updates: MetadataUpdates) -> None:
    update = updates.take(MAX_AGE, everything=False)
    updates.add("late")
    updates.succeeded(update, ["late"], MAX_AGE)
    assert updates.due() == 0.0
    assert updates.take(MAX_AGE, everything=False).topics == {"late"}


def test_a_consumer_of_an_unknown_topic_says_so(caplog: pytest.LogCaptureFixture) -> None:
    with FakeBroker() as broker:
        broker.unknown_topics = {"typo"}
        settings = {"retry_backoff_ms": 5, "retry_backoff_max_ms": 10}
        with Consumer("typo", bootstrap_servers=broker.bootstrap, **settings) as consumer:
            consumer.poll(0)
            eventually(lambda: broker.metadata_topics.count(["typo"]) >= 4, "the topic is asked for again")
            with pytest.raises(
                UnknownTopicException, match="topic 'typo' is not in the metadata after 20 ms: UNKN"
            ):
                consumer.partitions_for("typo", 0.02)
    said = [line for line in caplog.messages if "topic" in line]
    assert said == ["topic 'typo' does not exist (UNKNOWN_TOPIC_OR_PARTITION); asking again"]


def test_a_topic_that_is_being_made_is_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    async def main(broker: FakeBroker) -> None:
        broker.unknown_topics = {"new"}
        broker.on_metadata = broker.unknown_topics.clear
        async with AsyncProducer(bootstrap_servers=broker.bootstrap, retry_backoff_ms=5) as producer:
            await (await producer.send("new", b"v"))

    with FakeBroker() as broker:
        asyncio.run(main(broker))
        assert broker.metadata_requests >= 2
    assert not [line for line in caplog.messages if "topic" in line]


def test_a_partition_that_is_not_there_is_said_to_be_missing(caplog: pytest.LogCaptureFixture) -> None:
    with FakeBroker(partitions=2) as broker:
        settings = {"retry_backoff_ms": 5, "retry_backoff_max_ms": 10}
        with Consumer(bootstrap_servers=broker.bootstrap, **settings) as consumer:
            consumer.assign([("t", 9)])
            consumer.seek(("t", 9), 0)
            consumer.poll(0)
            eventually(lambda: broker.metadata_requests >= 4, "it is asked for again")
    said = [line for line in caplog.messages if "t-9" in line]
    assert said == ["t-9 does not exist: its topic has 2 partitions; asking again"]


def test_what_stays_wrong_is_said_again_after_a_while(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    warnings = RepeatedWarnings(lambda: now)
    for _ in range(100):
        now += 1.0
        warnings.say("a", f"a at {now:.0f}")
    assert caplog.messages == ["a at 1", "a at 31", "a at 61", "a at 91"]
    warnings.keep(["b"])
    warnings.say("a", "a is back")
    assert caplog.messages[-1] == "a is back"
