"""A broker that compacts under load: bounded in size, right for every reader, through kills."""

from __future__ import annotations

import random
import threading
from pathlib import Path

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from tests.support.broker import Broker
from tests.support.raw import RawConnection
from tests.support.scale import scale
from tests.support.wait import eventually
from tidelog.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from tidelog.protocol.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

SETTINGS = {
    "log.cleaner.backoff.ms": "20",
    "log.segment.bytes": "1048576",
    "log.segment.delete.delay.ms": "100",
    "log.cleaner.min.cleanable.ratio": "0.1",
}
TOPIC = "compacted"
PARTITION = TopicPartition(TOPIC, 0)


def create(broker: Broker) -> None:
    config = CreateTopicsRequest.CreatableTopicConfig(name="cleanup.policy", value="compact")
    topic = CreateTopicsRequest.CreatableTopic(
        name=TOPIC, num_partitions=1, replication_factor=1, configs=[config]
    )
    connection = RawConnection(broker.address)
    answer = connection.ask(CreateTopicsRequest(topics=[topic]), CreateTopicsResponse, 7)
    assert [result.error_code for result in answer.topics] == [0]
    connection.close()


def set_for_all_brokers(broker: Broker, name: str, value: str) -> None:
    change = IncrementalAlterConfigsRequest.AlterableConfig(name=name, config_operation=0, value=value)
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource(
        resource_type=4, resource_name="", configs=[change]
    )
    connection = RawConnection(broker.address)
    request = IncrementalAlterConfigsRequest(resources=[resource])
    answer = connection.ask(request, IncrementalAlterConfigsResponse, 1)
    assert [result.error_code for result in answer.responses] == [0]
    connection.close()


def read(broker: Broker) -> list[tuple[int, bytes, bytes]]:
    """Everything from the start, as a consumer reads it."""
    consumer = KafkaConsumer(bootstrap_servers=broker.bootstrap, enable_auto_commit=False)
    try:
        consumer.assign([PARTITION])
        consumer.seek_to_beginning(PARTITION)
        end = consumer.end_offsets([PARTITION])[PARTITION]
        found: list[tuple[int, bytes, bytes]] = []
        while consumer.position(PARTITION) < end:
            for records in consumer.poll(timeout_ms=1000).values():
                found += [(record.offset, record.key, record.value) for record in records]
        return found
    finally:
        consumer.close()


def log_size(broker: Broker) -> int:
    sizes = 0
    for path in (broker.data / f"{TOPIC}-0").glob("*.log"):
        try:
            sizes += path.stat().st_size
        except FileNotFoundError:
            continue
    return sizes


def test_a_compacted_topic_under_load_stays_bounded_and_right(tmp_path: Path) -> None:
    with Broker(tmp_path, SETTINGS) as broker:
        create(broker)
        producer = KafkaProducer(bootstrap_servers=broker.bootstrap, acks="all", linger_ms=2)
        rng = random.Random(1)
        newest: dict[bytes, bytes] = {}
        written = 0
        for at in range(scale(30_000, 300_000)):
            key, value = b"key-%d" % rng.randrange(200), b"%d " % at + bytes(400)
            producer.send(TOPIC, key=key, value=value)
            newest[key] = value
            written += len(value)
        producer.flush()
        producer.close()
        eventually(lambda: log_size(broker) < 4 << 20, "the log is small", timeout=60)
        assert written > 10 << 20
        found = read(broker)
        assert {key: value for _, key, value in found} == newest
        assert [offset for offset, _, _ in found] == sorted(offset for offset, _, _ in found)
        # One more pass may be under way; what it leaves is nothing.
        folder = broker.data / f"{TOPIC}-0"
        eventually(lambda: not list(folder.glob("*.cleaned")), "no pass is left over", timeout=20)
        assert "cannot be cleaned" not in broker.log()


def test_killed_while_it_cleans_it_loses_nothing(tmp_path: Path) -> None:
    rng = random.Random(2)
    newest: dict[bytes, bytes] = {}
    settings = {**SETTINGS, "log.cleaner.io.max.bytes.per.second": "30000000"}
    with Broker(tmp_path, settings) as broker:
        create(broker)
        for turn in range(scale(3, 40)):
            producer = KafkaProducer(bootstrap_servers=broker.bootstrap, acks="all", linger_ms=1)
            for at in range(6_000):
                key, value = b"key-%d" % rng.randrange(300), b"%d-%d " % (turn, at) + bytes(400)
                producer.send(TOPIC, key=key, value=value)
                newest[key] = value
            producer.flush()
            producer.close()
            threading.Event().wait(rng.random() * 0.1)  # any moment of a cleaning will do
            broker.kill()
            broker.start()
            assert {key: value for _, key, value in read(broker)} == newest


def test_settings_change_what_the_running_cleaner_does(tmp_path: Path) -> None:
    with Broker(tmp_path, {**SETTINGS, "log.cleaner.backoff.ms": "3600000"}) as broker:
        create(broker)
        producer = KafkaProducer(bootstrap_servers=broker.bootstrap, acks="all")
        for at in range(8_000):
            producer.send(TOPIC, key=b"key-%d" % (at % 10), value=bytes(400))
        producer.flush()
        producer.close()
        assert log_size(broker) > 3 << 20
        set_for_all_brokers(broker, "log.cleaner.backoff.ms", "10")
        eventually(lambda: log_size(broker) < 2 << 20, "the log is compacted", timeout=60)
