"""A cluster of Kafka 3.9 and our brokers, with either as its controller."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kafka.servers import ONE_BROKER, Kafka3, ZooKeeper
from tests.support.broker import Broker
from tests.support.small_client import Client
from tests.support.wait import eventually
from tidelog import Admin, Consumer, NewTopic, Producer
from tidelog.clients.connection import Connection
from tidelog.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse

pytestmark = pytest.mark.kafka

VALUES = [b"%d" % number for number in range(100)]
NOT_CONTROLLER = 41


@pytest.fixture
def zookeeper(tmp_path: Path) -> Iterator[ZooKeeper]:
    with ZooKeeper(tmp_path / "zookeeper") as server:
        yield server


def ours(folder: Path, zookeeper: ZooKeeper) -> Broker:
    """Broker 1."""
    settings = {"broker.id": "1", "zookeeper.connect": zookeeper.bootstrap, **INTERNAL}
    return Broker(folder / "ours", settings)


def theirs(folder: Path, zookeeper: ZooKeeper) -> Kafka3:
    """Broker 2."""
    return Kafka3(folder / "kafka", folder / "kafka-data", zookeeper, {"broker.id": "2"})


INTERNAL = {
    "offsets.topic.num.partitions": ONE_BROKER["offsets.topic.num.partitions"],
    "transaction.state.log.num.partitions": ONE_BROKER["transaction.state.log.num.partitions"],
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
}


def features(bootstrap: str) -> dict[str, int]:
    host, _, port = bootstrap.rpartition(":")
    with Connection(host, int(port)) as connection:
        request = ApiVersionsRequest(client_software_name="test", client_software_version="1")
        answer = connection.call(request, ApiVersionsResponse)
    return {feature.name: feature.max_version_level for feature in answer.finalized_features}


def use(bootstrap: str, topic: str) -> None:
    """Create a topic on both brokers, write to it in transactions, and read it in a group."""
    with Admin(bootstrap_servers=bootstrap) as admin:
        admin.create_topics([NewTopic(topic, 4, 1)])
        eventually(
            lambda: (
                sorted(
                    partition.leader or 0 for partition in admin.describe_topics([topic])[topic].partitions
                )
                == [1, 1, 2, 2]
            ),
            "both lead partitions",
            30.0,
        )
    for number in range(3):  # ids with several coordinators
        with Producer(bootstrap_servers=bootstrap, transactional_id=f"{topic}-{number}") as producer:
            producer.init_transactions()
            producer.begin_transaction()
            for value in VALUES:
                producer.send(topic, b"%d-%s" % (number, value), value)
            producer.commit_transaction()
    found: set[bytes] = set()
    with Consumer(
        topic,
        bootstrap_servers=bootstrap,
        group_id=f"readers-of-{topic}",
        auto_offset_reset="earliest",
        isolation_level="read_committed",
    ) as consumer:

        def enough() -> bool:
            found.update(record.value or b"" for record in consumer.poll(0.2))
            return len(found) == 3 * len(VALUES)

        eventually(enough, "all records", 60.0, 0)


def test_our_broker_serves_under_a_controller_of_kafka(tmp_path: Path, zookeeper: ZooKeeper) -> None:
    with theirs(tmp_path, zookeeper) as kafka, ours(tmp_path, zookeeper) as broker:
        with Admin(bootstrap_servers=broker.bootstrap) as admin:
            eventually(lambda: len(admin.describe_cluster().nodes) == 2, "it knows both", 30.0)
            assert admin.describe_cluster().controller == 2
        use(f"{broker.bootstrap},{kafka.bootstrap}", "theirs")
        assert features(broker.bootstrap) == {}, "Kafka 3.9 has no features: nobody may use them"
        with Client(broker.address) as client:
            assert client.create("nowhere") == NOT_CONTROLLER, "Kafka takes requests from clients only"


def test_a_broker_of_kafka_serves_under_our_controller(tmp_path: Path, zookeeper: ZooKeeper) -> None:
    with ours(tmp_path, zookeeper) as broker:
        eventually(lambda: features(broker.bootstrap).get("transaction.version") == 2, "alone all is on")
        with theirs(tmp_path, zookeeper) as kafka:
            with Admin(bootstrap_servers=kafka.bootstrap) as admin:
                eventually(lambda: len(admin.describe_cluster().nodes) == 2, "it knows both", 30.0)
                assert admin.describe_cluster().controller == 1
            eventually(lambda: features(broker.bootstrap) == {}, "the features are off", 30.0)
            use(f"{broker.bootstrap},{kafka.bootstrap}", "ours")
