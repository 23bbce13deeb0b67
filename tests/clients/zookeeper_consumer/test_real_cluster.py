"""The blocking consumer on a real ZooKeeper and a real broker."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.support.cluster import ClusterOfBrokers
from tests.support.wait import eventually
from tidelog import Admin, NewTopic, Producer
from tidelog.clients.zookeeper_consumer.blocking import ConsumerConnector, KafkaStream
from tidelog.clients.zookeeper_consumer.errors import ConsumerTimeoutException
from tidelog.clients.zookeeper_consumer.topic_count import Whitelist
from tidelog.metadata import paths
from tidelog.metadata.zookeeper import ZooKeeperTree

PARTITIONS = 4
FIRST = {b"first-%d" % number for number in range(300)}
SECOND = {b"second-%d" % number for number in range(300)}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterOfBrokers]:
    with ClusterOfBrokers(tmp_path_factory.mktemp("cluster"), 1) as brokers:
        yield brokers


def produce(cluster: ClusterOfBrokers, topic: str, values: set[bytes]) -> None:
    with Producer(bootstrap_servers=cluster.bootstrap) as producer:
        for value in values:
            producer.send(topic, value, value)


def contents(cluster: ClusterOfBrokers, wanted: list[str]) -> dict[str, bytes]:
    """The data of nodes in the tree; missing ones are left out."""

    async def read() -> dict[str, bytes]:
        async with await ZooKeeperTree.connect(str(cluster.zookeeper), rng=random.Random(1)) as tree:
            return {path: data for path, (data, _) in (await tree.get_all(wanted)).items()}

    return asyncio.run(read())


class Reader:
    """Threads that read streams until the connector is shut down."""

    def __init__(self, streams: list[KafkaStream]) -> None:
        self.values: list[bytes] = []
        self._threads = [threading.Thread(target=self._read, args=(stream,)) for stream in streams]
        for thread in self._threads:
            thread.start()

    def _read(self, stream: KafkaStream) -> None:
        for record in stream:
            self.values.append(record.value)

    def join(self) -> None:
        for thread in self._threads:
            thread.join(30.0)
            assert not thread.is_alive()


def test_two_consumers_share_a_topic_and_leave_their_offsets_in_the_tree(cluster: ClusterOfBrokers) -> None:
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.create_topics([NewTopic("clicks", PARTITIONS, 1)])
    produce(cluster, "clicks", FIRST)
    settings = {
        "zookeeper.connect": cluster.zookeeper,
        "group.id": "g",
        "auto.offset.reset": "smallest",
        "rebalance.backoff.ms": 500,
        "rebalance.max.retries": 20,
        "queued.max.message.chunks": 1,
        "max.poll.records": 10,
    }
    with ExitStack() as stack:
        a = stack.enter_context(ConsumerConnector(settings, consumer_id="a"))
        read_by_a = Reader(a.create_message_streams({"clicks": 2})["clicks"])
        stack.callback(read_by_a.join)
        stack.callback(a.shutdown)
        eventually(lambda: set(read_by_a.values) >= FIRST, "a reads what was there", 60.0)
        b = stack.enter_context(ConsumerConnector(settings, consumer_id="b"))
        read_by_b = Reader(b.create_message_streams({"clicks": 2})["clicks"])
        stack.callback(read_by_b.join)
        stack.callback(b.shutdown)
        # Threads a-0 and a-1 come before b-0 and b-1 in the range.
        eventually(lambda: len(a.owned_partitions()) == len(b.owned_partitions()) == 2, "both own half", 60.0)
        owners = {paths.consumer_owner("g", "clicks", index): index for index in range(PARTITIONS)}
        found = contents(cluster, list(owners))
        assert [found[path] for path in owners] == [b"g_a-0", b"g_a-1", b"g_b-0", b"g_b-1"]
        produce(cluster, "clicks", SECOND)
        eventually(lambda: set(read_by_a.values) | set(read_by_b.values) >= SECOND, "both read", 60.0)
        assert read_by_a.values
        assert read_by_b.values
    values = read_by_a.values + read_by_b.values
    assert (len(values), set(values)) == (len(FIRST | SECOND), FIRST | SECOND)
    offsets = contents(cluster, [paths.consumer_offset("g", "clicks", index) for index in range(PARTITIONS)])
    assert sum(map(int, offsets.values())) == len(FIRST | SECOND)
    assert contents(cluster, [paths.consumer_id("g", "g_a"), *owners]) == {}


def test_a_filter_finds_a_topic_that_is_created_later(cluster: ClusterOfBrokers) -> None:
    settings = {"zookeeper.connect": cluster.zookeeper, "group.id": "h", "auto.offset.reset": "smallest"}
    with ConsumerConnector(settings, consumer_timeout_ms=30_000) as connector:
        (stream,) = connector.create_message_streams_by_filter(Whitelist("logins-.*"))
        with Admin(bootstrap_servers=cluster.bootstrap) as admin:
            admin.create_topics([NewTopic("logins-eu", 1, 1)])
        produce(cluster, "logins-eu", {b"hello"})
        assert next(stream).value == b"hello"
    with pytest.raises(StopIteration):
        next(stream)
    with ConsumerConnector(settings, consumer_timeout_ms=1) as connector:
        (stream,) = connector.create_message_streams_by_filter(Whitelist("nothing"))
        with pytest.raises(ConsumerTimeoutException):
            next(stream)
