"""Folders that Kafka 4.3 wrote, stopped or killed, are adopted and served as Kafka served them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.kafka.servers import Kafka4
from tests.support.broker import Broker
from tests.support.contents import Contents, Partition, produce, read_with_client, read_with_fetch
from tests.support.raw import RawConnection
from tidelog import Admin, NewTopic
from tidelog.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tidelog.server.adopt import adopt, survey

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
MANY_SEGMENTS = {"index.interval.bytes": "0", "segment.index.bytes": "96"}
SETTINGS: dict[str, dict[str, str]] = {
    **{f"codec-{codec}": MANY_SEGMENTS for codec in CODECS},
    "appendtime": {"message.timestamp.type": "LogAppendTime"},
    "txn": {},
}
PARTITIONS: list[Partition] = [(topic, index) for topic in SETTINGS for index in range(2)]


def fill(bootstrap: str) -> None:
    with Admin(bootstrap_servers=bootstrap) as admin:
        for topic, configs in SETTINGS.items():
            admin.create_topics([NewTopic(topic, num_partitions=2, configs=configs)])
    for codec in CODECS:
        values = [b"%04d" % number * 10 for number in range(300)]
        produce(
            bootstrap,
            {(f"codec-{codec}", index): values for index in range(2)},
            {"compression.type": codec, "batch.num.messages": "10"},
        )
    produce(bootstrap, {("appendtime", index): [b"stamped"] * 20 for index in range(2)})
    transactions(bootstrap)


def transactions(bootstrap: str) -> None:
    """Committed, aborted, and one that stays open when the broker ends."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "adopted"})
    producer.init_transactions(60.0)
    for number, commit in enumerate([True, False, True, False, None]):
        producer.begin_transaction()
        for index in range(2):
            for _ in range(3):
                producer.produce("txn", b"of %d" % number, partition=index)
        producer.flush(30.0)
        if commit is not None:
            (producer.commit_transaction if commit else producer.abort_transaction)(60.0)


class Left:
    """A folder that Kafka left, and what it served before; `ids` are those of its topics."""

    def __init__(self, kafka: Kafka4) -> None:
        self.folder = kafka.data
        self.served = read_with_client(kafka.bootstrap, PARTITIONS)
        self.committed = read_with_client(kafka.bootstrap, PARTITIONS, committed=True)
        self.ids = topic_ids(kafka.bootstrap)
        self.producer_id = new_producer_id(kafka.bootstrap)


def topic_ids(bootstrap: str) -> dict[str, str]:
    with Admin(bootstrap_servers=bootstrap) as admin:
        return {name: topic.topic_id for name, topic in admin.list_topics().items() if name in SETTINGS}


def new_producer_id(bootstrap: str) -> int:
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0)
    with RawConnection(bootstrap) as connection:
        answer = connection.ask(request, InitProducerIdResponse, 4)
    assert answer.error_code == 0
    return answer.producer_id


@pytest.fixture(scope="module", params=["stopped", "killed"])
def left(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Left]:
    target = tmp_path_factory.mktemp(request.param)
    kafka = Kafka4(target / "kafka", target / "broker" / "data")
    kafka.format()
    with kafka:
        fill(kafka.bootstrap)
        left = Left(kafka)
        if request.param == "stopped":
            kafka.stop()
    yield left
    shutil.rmtree(target)


@pytest.fixture(scope="module")
def broker(left: Left) -> Iterator[Broker]:
    adopt(survey([left.folder]))
    with Broker(left.folder.parent) as running:
        yield running


def test_a_client_reads_what_kafka_served(broker: Broker, left: Left) -> None:
    assert read_with_client(broker.bootstrap, PARTITIONS) == left.served


def test_committed_reads_see_what_they_saw(broker: Broker, left: Left) -> None:
    seen = read_with_client(broker.bootstrap, PARTITIONS, committed=True)
    assert {key: found.records for key, found in seen.items()} == {
        key: found.records for key, found in left.committed.items()
    }
    assert seen["txn", 0].offsets != read_with_fetch(broker.bootstrap, ("txn", 0)).offsets


def test_identities_stay(broker: Broker, left: Left) -> None:
    assert topic_ids(broker.bootstrap) == left.ids
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        assert [node.id for node in admin.describe_cluster().nodes] == [1]
    assert new_producer_id(broker.bootstrap) > left.producer_id


def test_production_goes_on(broker: Broker, left: Left, tmp_path: Path) -> None:
    before: dict[Partition, Contents] = left.served
    produce(broker.bootstrap, {partition: [b"one", b"two"] for partition in PARTITIONS})
    broker.restart(kill=True)
    seen = read_with_client(broker.bootstrap, PARTITIONS)
    for partition in PARTITIONS:
        assert seen[partition].records[:-2] == before[partition].records
        assert seen[partition].offsets[-2:] == [before[partition].high, before[partition].high + 1]
