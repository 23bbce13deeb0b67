"""Settings that Kafka changes while running do change, take effect at once, and are kept over a restart."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.client import BROKER, TOPIC, Client, Produced, batch_of, surprises
from tests.support.broker import Broker
from tests.support.wait import eventually
from tidelog.errors import ErrorCode
from tidelog.protocol.messages.produce import ProduceRequest, ProduceResponse
from tidelog.protocol.offset_specs import EARLIEST
from tidelog.records.batch import Record, build_batch
from tidelog.records.codecs import Codec

CLUSTER = ""
HELLO = b"\0\0\0\x0a\0\x12\0\0\0\0\0\1\xff\xff"  # ApiVersions v0


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    settings = {"log.retention.check.interval.ms": "50", "log.segment.delete.delay.ms": "0"}
    with Broker(tmp_path, settings) as running:
        yield running
        assert surprises(running.log()) == []


@pytest.fixture
def client(broker: Broker) -> Iterator[Client]:
    with Client(broker.address) as connection:
        assert connection.create_topic("t") == 0
        yield connection


def segments(broker: Broker, topic: str = "t") -> list[int]:
    return sorted(int(path.stem) for path in (broker.data / f"{topic}-0").glob("*.log"))


def write(client: Client, count: int, size: int = 1000, topic: str = "t") -> None:
    for _ in range(count):
        assert client.produce(topic, 0, batch_of(b"x" * size)).error == 0


def test_segments_roll_at_the_new_size(broker: Broker, client: Client) -> None:
    write(client, 10)
    assert segments(broker) == [0]
    assert client.set_configs(TOPIC, "t", {"internal.segment.bytes": "2500"}) == 0
    write(client, 4)
    assert segments(broker) == [0, 10, 12]
    assert client.set_configs(TOPIC, "t", {"internal.segment.bytes": None}) == 0
    write(client, 10)
    assert segments(broker) == [0, 10, 12]


def test_segments_roll_after_the_new_time(broker: Broker, client: Client) -> None:
    now = int(time.time() * 1000)
    times = [now - 5000, now - 4000]
    for timestamp in times:
        assert client.produce("t", 0, batch_of(b"x", timestamp=timestamp)).error == 0
    assert client.set_configs(TOPIC, "t", {"segment.ms": "2000"}) == 0
    assert client.produce("t", 0, batch_of(b"x", timestamp=now)).error == 0
    assert segments(broker) == [0, 2]


def test_retention_by_time_and_size_drops_what_it_no_longer_wants(broker: Broker, client: Client) -> None:
    assert client.set_configs(TOPIC, "t", {"internal.segment.bytes": "2500"}) == 0
    old = int(time.time() * 1000) - 2 * 24 * 3_600_000
    for _ in range(6):
        assert client.produce("t", 0, batch_of(b"x" * 1000, timestamp=old)).error == 0
    write(client, 6)
    assert client.offset("t", 0, EARLIEST) == 0
    assert client.set_configs(TOPIC, "t", {"retention.ms": str(24 * 3_600_000)}) == 0
    eventually(lambda: client.offset("t", 0, EARLIEST) == 6, "the old segments go")
    assert client.set_configs(TOPIC, "t", {"retention.bytes": "2000"}) == 0
    eventually(lambda: client.offset("t", 0, EARLIEST) == 10, "all but the last segments go")
    eventually(lambda: segments(broker) == [10], "their files go too")


def test_the_brokers_default_retention_moves_topics_without_one_of_their_own(client: Client) -> None:
    old = int(time.time() * 1000) - 2 * 24 * 3_600_000
    assert client.create_topic("own", 1, {"retention.ms": str(5 * 24 * 3_600_000)}) == 0
    for topic in ("t", "own"):
        assert client.produce(topic, 0, batch_of(b"x", timestamp=old)).error == 0
    assert client.set_configs(BROKER, CLUSTER, {"log.retention.ms": str(24 * 3_600_000)}) == 0
    eventually(lambda: client.offset("t", 0, EARLIEST) == 1, "the old record goes")
    assert client.offset("own", 0, EARLIEST) == 0


def test_the_largest_message_is_what_topic_broker_and_cluster_say_in_this_order(
    broker: Broker, client: Client
) -> None:
    large = batch_of(b"x" * 5000)
    too_large = Produced(ErrorCode.MESSAGE_TOO_LARGE, -1)
    identity = client.broker_id()
    assert client.produce("t", 0, large).error == 0
    assert client.set_configs(BROKER, CLUSTER, {"message.max.bytes": "1000"}) == 0
    assert client.produce("t", 0, large) == too_large
    assert client.set_configs(BROKER, identity, {"message.max.bytes": "10000"}) == 0
    assert client.produce("t", 0, large).error == 0
    assert client.set_configs(TOPIC, "t", {"max.message.bytes": "2000"}) == 0
    assert client.produce("t", 0, large) == too_large
    broker.restart()
    with Client(broker.address) as again:
        assert again.produce("t", 0, large) == too_large
        assert again.set_configs(TOPIC, "t", {"max.message.bytes": None}) == 0
        assert again.produce("t", 0, large).error == 0
        assert again.set_configs(BROKER, identity, {"message.max.bytes": None}) == 0
        assert again.produce("t", 0, large) == too_large
        assert again.set_configs(BROKER, CLUSTER, {"message.max.bytes": None}) == 0
        assert again.produce("t", 0, large).error == 0


def test_times_keys_and_codecs_follow_the_topics_settings(client: Client) -> None:
    def answer() -> ProduceResponse.PartitionProduceResponse:
        data = ProduceRequest.PartitionProduceData(
            index=0, records=build_batch([Record(0, 1000, b"key", b"v" * 2000)])
        )
        topic = ProduceRequest.TopicProduceData(name="t", partition_data=[data])
        request = ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[topic])
        return client.ask(request, ProduceResponse, 9).responses[0].partition_responses[0]

    assert client.set_configs(TOPIC, "t", {"retention.ms": "-1"}) == 0
    assert answer().log_append_time_ms == -1
    assert client.set_configs(TOPIC, "t", {"message.timestamp.type": "LogAppendTime"}) == 0
    assert answer().log_append_time_ms > 1_600_000_000_000
    assert client.set_configs(TOPIC, "t", {"compression.type": "zstd"}) == 0
    assert answer().error_code == 0
    codecs = [stored.header.codec for stored in client.read_all("t", 0)]
    assert codecs == [Codec.NONE, Codec.NONE, Codec.ZSTD]
    assert client.set_configs(TOPIC, "t", {"message.timestamp.type": None}) == 0
    assert client.set_configs(TOPIC, "t", {"message.timestamp.before.max.ms": "1000"}) == 0
    assert answer().error_code == ErrorCode.INVALID_TIMESTAMP
    assert client.set_configs(TOPIC, "t", {"message.timestamp.before.max.ms": None}) == 0
    assert client.set_configs(TOPIC, "t", {"cleanup.policy": "compact"}) == 0
    assert client.produce("t", 0, batch_of(b"no key")).error == ErrorCode.INVALID_RECORD
    assert answer().error_code == 0


def test_a_limit_on_connections_of_an_address_holds_for_the_next_one(broker: Broker, client: Client) -> None:
    def is_served() -> bool:
        with socket.create_connection(broker.address, 10) as sock:
            sock.sendall(HELLO)
            try:
                return sock.recv(4) != b""
            except ConnectionResetError:
                return False

    assert is_served()
    assert client.set_configs(BROKER, CLUSTER, {"max.connections.per.ip": "1"}) == 0
    assert not is_served()
    assert client.set_configs(BROKER, CLUSTER, {"max.connections.per.ip.overrides": "127.0.0.1:5"}) == 0
    assert is_served()
    unset = {"max.connections.per.ip": None, "max.connections.per.ip.overrides": None}
    assert client.set_configs(BROKER, CLUSTER, unset) == 0
    assert is_served()


def test_a_lower_limit_on_all_connections_makes_the_next_one_wait(broker: Broker, client: Client) -> None:
    assert client.set_configs(BROKER, client.broker_id(), {"max.connections": "1"}) == 0
    with socket.create_connection(broker.address, 0.3) as waiting:
        waiting.sendall(HELLO)
        with pytest.raises(TimeoutError):
            waiting.recv(4)
        assert client.set_configs(BROKER, client.broker_id(), {"max.connections": None}) == 0
        waiting.settimeout(10)
        assert len(waiting.recv(4)) == 4


def test_a_setting_that_needs_a_restart_is_refused_and_changes_nothing(client: Client) -> None:
    identity = client.broker_id()
    for name, value in (
        ("log.dirs", "/nowhere"),
        ("num.partitions", "9"),
        ("auto.create.topics.enable", "false"),
    ):
        for entity in (identity, CLUSTER):
            assert client.set_configs(BROKER, entity, {name: value}) == ErrorCode.INVALID_REQUEST
        assert client.config(BROKER, identity, name) != value


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        (TOPIC, "retention.ms", "long"),
        (TOPIC, "cleanup.policy", "burn"),
        (TOPIC, "segment.bytes", "1"),
        (TOPIC, "not.a.setting", "1"),
        (TOPIC, "max.message.bytes", "-1"),
        (BROKER, "log.retention.ms", "long"),
        (BROKER, "message.max.bytes", "-1"),
        (BROKER, "max.connections.per.ip", "many"),
        (BROKER, "compression.type", "rar"),
    ],
)
def test_a_value_that_cannot_be_is_refused_and_changes_nothing(
    client: Client, kind: int, name: str, value: str
) -> None:
    entity = "t" if kind == TOPIC else client.broker_id()
    sound = "flush.messages" if kind == TOPIC else "log.flush.interval.messages"
    # Kafka calls it a bad request where the setting is the broker's.
    wanted = ErrorCode.INVALID_CONFIG if kind == TOPIC else ErrorCode.INVALID_REQUEST
    before = client.config(kind, entity, sound)
    assert client.set_configs(kind, entity, {sound: "3", name: value}) == wanted
    assert client.config(kind, entity, sound) == before
