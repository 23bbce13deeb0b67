"""Consumers of two kinds read from the follower in their rack, on real brokers."""

from __future__ import annotations

from collections.abc import Iterator

import confluent_kafka
import pytest

from tests.server.scrape import scrape
from tests.support.cluster import ClusterOfBrokers
from tests.support.wait import eventually
from tidelog import Admin, Consumer, NewTopic, Producer
from tidelog.cluster.replica_selector import RACK_AWARE_SELECTOR

LEADER, FOLLOWER = 1, 2
RECORDS = 100
SETTINGS = {"replica.selector.class": RACK_AWARE_SELECTOR, "metrics.listener": "127.0.0.1:0"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterOfBrokers]:
    folder = tmp_path_factory.mktemp("racks")
    with ClusterOfBrokers(folder, 1, {**SETTINGS, "broker.rack": "a"}) as cluster:
        cluster.add(FOLLOWER, {"broker.rack": "b"}).start()
        cluster.await_members()
        yield cluster


def produced(cluster: ClusterOfBrokers, topic: str) -> None:
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.create_topics([NewTopic(topic, replica_assignments={0: [LEADER, FOLLOWER]})])
    with Producer(bootstrap_servers=cluster.bootstrap, acks="all") as producer:
        for sent in [producer.send(topic, b"%d" % number) for number in range(RECORDS)]:
            sent.result(60)


def read_by_ours(cluster: ClusterOfBrokers, topic: str, rack: str) -> None:
    found: list[bytes] = []
    with Consumer(
        bootstrap_servers=cluster.bootstrap, auto_offset_reset="earliest", client_rack=rack
    ) as consumer:
        consumer.assign([(topic, 0)])

        def all_there() -> bool:
            found.extend(record.value or b"" for record in consumer.poll(0.2))
            return len(found) == RECORDS

        eventually(all_there, "all records", 60.0)


def read_by_librdkafka(cluster: ClusterOfBrokers, topic: str, rack: str) -> None:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "nearby",
            "auto.offset.reset": "earliest",
            "client.rack": rack,
        }
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    found: list[bytes] = []

    def all_there() -> bool:
        record = consumer.poll(0.2)
        if record is not None and record.error() is None:
            found.append(record.value() or b"")
        return len(found) == RECORDS

    eventually(all_there, "all records", 60.0, 0)
    consumer.close()


@pytest.mark.parametrize("read", [read_by_ours, read_by_librdkafka])
@pytest.mark.parametrize(("rack", "reader"), [("b", FOLLOWER), ("a", LEADER)])
def test_a_consumer_reads_in_its_rack(
    cluster: ClusterOfBrokers, read: object, rack: str, reader: int
) -> None:
    assert callable(read)
    topic = f"{read.__name__}-{rack}"
    produced(cluster, topic)
    read(cluster, topic, rack)
    sent = {
        broker_id: scrape(broker)("kafka_server_brokertopicmetrics_bytesout_total", topic=topic)
        for broker_id, broker in cluster.brokers.items()
    }
    assert [broker_id for broker_id, size in sent.items() if size > 0] == [reader]
