"""A broker that is stopped or killed while clients write comes back with everything that it acknowledged."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.clients import CODECS, AioKafka, Confluent, KafkaPython, Message
from tests.support.broker import Broker
from tests.support.own_cluster import AnyBroker, any_broker, one_broker_only
from tests.support.scale import scale
from tests.support.topics import topic_configs
from tests.support.wait import eventually
from tidelog import Admin, NewTopic

pytestmark = pytest.mark.skipif(
    "TIDELOG_TEST_BOOTSTRAP" in os.environ, reason="only a broker of our own may be killed"
)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[AnyBroker]:
    with any_broker(tmp_path / "broker") as broker:
        yield broker


class SteadyProducer:
    """An idempotent producer that numbers its records and remembers which of them were acknowledged."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        import confluent_kafka

        self.topic = topic
        self.sent = 0
        self.acknowledged: set[int] = set()
        self.failed: list[str] = []
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 1,
                "reconnect.backoff.ms": 10,
                "reconnect.backoff.max.ms": 50,
                "retry.backoff.ms": 20,
                "delivery.timeout.ms": 120_000,
            }
        )

    def send(self, count: int) -> None:
        for _ in range(count):
            number = self.sent
            self.sent += 1

            def delivered(error: object, _message: object, number: int = number) -> None:
                if error is None:
                    self.acknowledged.add(number)
                else:
                    self.failed.append(str(error))

            self._producer.produce(self.topic, value=b"%d" % number, partition=0, on_delivery=delivered)
        self._producer.poll(0)

    def wait_for_more(self, count: int) -> None:
        """Until so many more records are acknowledged than now."""
        goal = len(self.acknowledged) + count

        def enough() -> bool:
            self._producer.poll(0.01)
            return len(self.acknowledged) >= goal

        eventually(enough, f"{goal} acknowledged records", timeout=60, interval=0)

    def flush(self) -> None:
        assert self._producer.flush(60) == 0


def test_kills_lose_nothing_that_was_acknowledged_and_flushed(broker: AnyBroker) -> None:
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        admin.create_topics(
            [NewTopic("durable", 1, configs={"flush.messages": "1", "segment.bytes": "1048576"})]
        )
    producer = SteadyProducer(broker.bootstrap, "durable")
    for _ in range(scale(4, 40)):
        producer.send(300)
        producer.wait_for_more(100)
        producer.send(300)  # some of these are under way when it dies
        broker.restart(kill=True)
    producer.flush()
    assert not producer.failed
    assert len(producer.acknowledged) == producer.sent
    # Each record once and in order, although many were sent again: the producer's state came back too.
    values = [message.value for message in Confluent().consume(broker.bootstrap, "durable", producer.sent)]
    assert values == [b"%d" % number for number in range(producer.sent)]
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        assert list(admin.list_topics()) == ["durable"]


def test_a_clean_stop_keeps_everything_and_producers_go_on(broker: AnyBroker) -> None:
    messages = [Message(b"k%d" % i, b"v" * i, (("n", b"%d" % i),), 1000 + i) for i in range(200)]
    for codec in CODECS:
        Confluent().produce(broker.bootstrap, f"codec-{codec}", messages, codec=codec)
    producer = SteadyProducer(broker.bootstrap, "steady")
    producer.send(100)
    producer.wait_for_more(100)
    assert broker.terminate() == 0
    broker.restart()
    producer.send(100)
    producer.flush()
    for reader in (Confluent(), KafkaPython(), AioKafka()):
        for codec in CODECS:
            got = reader.consume(broker.bootstrap, f"codec-{codec}", len(messages))
            assert [(m.content(), m.timestamp) for m in got] == [(m.content(), m.timestamp) for m in messages]
    values = [message.value for message in Confluent().consume(broker.bootstrap, "steady", 200)]
    assert values == [b"%d" % number for number in range(200)]


def test_topics_and_their_ids_survive_a_kill(broker: AnyBroker) -> None:
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        for number in range(5):
            admin.create_topics(
                [NewTopic(f"t{number}", number + 1, configs={"retention.ms": f"{number + 1}000"})]
            )
        admin.delete_topics(["t3"])
        before = admin.describe_topics(["t0", "t1", "t2", "t4"])
    broker.restart(kill=True)
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        assert list(admin.list_topics(list_internal=True)) == ["t0", "t1", "t2", "t4"]
        after = admin.describe_topics(["t0", "t1", "t2", "t4"])
        assert [(t.topic_id, len(t.partitions)) for t in after.values()] == [
            (t.topic_id, len(t.partitions)) for t in before.values()
        ]
        assert topic_configs(admin, "t4")["retention.ms"] == "5000"


@one_broker_only("a broker alone owns the folder")
def test_a_second_broker_on_the_same_folder_is_refused_with_the_reason(
    broker: AnyBroker, tmp_path: Path
) -> None:
    second = Broker(tmp_path / "second", {"log.dirs": str(broker.data)})
    try:
        second.launch()
        assert second.wait(20) != 0
        assert str(broker.data) in second.log()
        assert "Traceback" not in second.log()
    finally:
        second.close()
    Confluent().produce(broker.bootstrap, "unharmed", [Message(None, b"still here")])
