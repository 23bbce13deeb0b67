"""Topics with three replicas on three real brokers: nothing that was acknowledged is lost with a leader."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pytest

from tests.support.broker import Broker
from tests.support.cluster import ClusterOfBrokers
from tests.support.small_client import Client
from tests.support.wait import eventually
from tests.support.zookeeper import zookeeper_server
from tidelog import Admin, Consumer, NewTopic, Producer
from tidelog.errors import InvalidReplicationFactor
from tidelog.protocol.messages.metadata import MetadataRequest, MetadataResponse
from tidelog.records.batch import iter_batches
from tidelog.server.zookeeper_process import ZooKeeperProcess

SETTINGS = {
    "zookeeper.session.timeout.ms": "6000",
    "replica.lag.time.max.ms": "4000",
    "replica.fetch.backoff.ms": "200",
    "min.insync.replicas": "2",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
}


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperProcess]:
    with zookeeper_server(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


@pytest.fixture
def cluster(tmp_path: Path, zookeeper: ZooKeeperProcess) -> Iterator[ClusterOfBrokers]:
    chroot = f"{zookeeper.address}/{tmp_path.name}"
    with ClusterOfBrokers(tmp_path, 3, SETTINGS, zookeeper=chroot) as brokers:
        yield brokers


def create(cluster: ClusterOfBrokers, name: str, partitions: int = 1, replicas: int = 3) -> None:
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.create_topics([NewTopic(name, partitions, replicas)])


def partition(cluster: ClusterOfBrokers, topic: str) -> MetadataResponse.MetadataResponsePartition:
    """Partition 0, as a broker has it that knows the topic: one that was just started may not."""
    request = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=topic)])

    def known() -> MetadataResponse.MetadataResponsePartition | None:
        for broker in cluster.running:
            with Client(broker.address) as client:
                (found,) = client.raw.ask(request, MetadataResponse, 9).topics
            if found.partitions:
                return found.partitions[0]
        return None

    return eventually(known, "a broker knows the topic")


def await_isr(cluster: ClusterOfBrokers, topic: str, size: int) -> None:
    eventually(lambda: len(partition(cluster, topic).isr_nodes) == size, f"{size} replicas are in sync", 60.0)


def stored(broker: Broker, topic: str) -> bytes:
    """The bytes of partition 0, as far as its batches are whole."""
    data = b"".join(path.read_bytes() for path in sorted((broker.data / f"{topic}-0").glob("*.log")))
    end = 0
    for position, header in iter_batches(data):
        end = position + header.total_size
    return data[:end]


def await_same(cluster: ClusterOfBrokers, topic: str) -> bytes:
    """Wait until all replicas have the same bytes."""

    def same() -> bytes | None:
        found = [stored(broker, topic) for broker in cluster.brokers.values()]
        return found[0] if found[0] and found.count(found[0]) == len(found) else None

    return eventually(same, "the replicas are the same", 30.0)


def produce(cluster: ClusterOfBrokers, topic: str, values: list[bytes], *, compiled: bool) -> None:
    """Produce with acks=all, and wait for all acknowledgements."""
    if not compiled:
        with Producer(bootstrap_servers=cluster.bootstrap, acks="all") as producer:
            for sent in [producer.send(topic, value) for value in values]:
                sent.result(60)
        return
    errors: list[object] = []
    librdkafka = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all"})
    for value in values:
        librdkafka.produce(topic, value, on_delivery=lambda error, _: errors.append(error))
    assert librdkafka.flush(60) == 0
    assert errors == [None] * len(values)


def consume(cluster: ClusterOfBrokers, topic: str, count: int) -> list[bytes]:
    found: list[bytes] = []
    with Consumer(bootstrap_servers=cluster.bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([(topic, 0)])

        def all_there() -> bool:
            found.extend(record.value or b"" for record in consumer.poll(0.2))
            return len(found) >= count

        eventually(all_there, f"{count} records", 60.0)
    return found


@pytest.mark.parametrize("compiled", [False, True])
def test_no_acknowledged_record_is_lost_with_its_leader(cluster: ClusterOfBrokers, compiled: bool) -> None:
    create(cluster, "copied")
    await_isr(cluster, "copied", 3)
    values = [b"first-%d" % number for number in range(300)] + [bytes(200_000)]
    produce(cluster, "copied", values, compiled=compiled)
    await_same(cluster, "copied")

    leader = partition(cluster, "copied").leader_id
    cluster[leader].kill()
    eventually(lambda: partition(cluster, "copied").leader_id not in (-1, leader), "another leader", 60.0)
    more = [b"second-%d" % number for number in range(300)]
    produce(cluster, "copied", more, compiled=compiled)

    cluster[leader].restart()
    await_isr(cluster, "copied", 3)
    last = [b"third-%d" % number for number in range(10)]
    produce(cluster, "copied", last, compiled=compiled)
    assert consume(cluster, "copied", 611) == values + more + last
    await_same(cluster, "copied")


def test_records_that_only_a_dead_leader_had_are_truncated_when_it_is_back(cluster: ClusterOfBrokers) -> None:
    create(cluster, "diverged")
    await_isr(cluster, "diverged", 3)
    committed = [b"committed-%d" % number for number in range(20)]
    produce(cluster, "diverged", committed, compiled=False)
    await_same(cluster, "diverged")
    tail = [b"tail-%d" % number for number in range(5)]
    leader = partition(cluster, "diverged").leader_id
    followers = [broker for id, broker in cluster.brokers.items() if id != leader]
    for broker in followers:
        os.kill(broker.pid, signal.SIGSTOP)
    try:
        with Producer(bootstrap_servers=cluster[leader].bootstrap, acks="1") as producer:
            for value in tail:
                producer.send("diverged", value).result(30)
        cluster[leader].kill()
    finally:
        for broker in followers:
            os.kill(broker.pid, signal.SIGCONT)
    eventually(lambda: partition(cluster, "diverged").leader_id not in (-1, leader), "another leader", 60.0)
    more = [b"more-%d" % number for number in range(20)]
    produce(cluster, "diverged", more, compiled=False)
    assert tail[-1] in stored(cluster[leader], "diverged")
    cluster[leader].restart()
    await_isr(cluster, "diverged", 3)
    same = await_same(cluster, "diverged")
    # An answer with the first of them may have been on its way to a follower.
    kept = [value for value in tail if value in same]
    assert kept == tail[: len(kept)]
    assert len(kept) < len(tail)
    assert consume(cluster, "diverged", 40 + len(kept)) == committed + kept + more
    assert "diverges from its leader" in cluster[leader].log()


def test_committed_offsets_and_transactions_survive_their_coordinator(cluster: ClusterOfBrokers) -> None:
    create(cluster, "grouped")
    produce(cluster, "grouped", [b"%d" % number for number in range(5)], compiled=False)
    settings = {"group_id": "readers", "enable_auto_commit": False, "auto_offset_reset": "earliest"}
    with Consumer(bootstrap_servers=cluster.bootstrap, **settings) as consumer:  # type: ignore[arg-type]
        consumer.subscribe(["grouped"])
        read = 0

        def some() -> bool:
            nonlocal read
            read += len(list(consumer.poll(0.2)))
            return read >= 5

        eventually(some, "the records", 60.0)
        consumer.commit()
    transactional = {"bootstrap_servers": cluster.bootstrap, "transactional_id": "writer"}
    with Producer(**transactional) as producer:  # type: ignore[arg-type]
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("grouped", b"committed").result(30)
        producer.commit_transaction()
    for internal in ("__consumer_offsets", "__transaction_state"):
        assert len(partition(cluster, internal).replica_nodes) == 3
        await_isr(cluster, internal, 3)
    coordinator = partition(cluster, "__consumer_offsets").leader_id
    cluster[coordinator].kill()
    eventually(
        lambda: partition(cluster, "__consumer_offsets").leader_id not in (-1, coordinator), "a leader", 60.0
    )
    with Consumer(bootstrap_servers=cluster.bootstrap, **settings) as consumer:  # type: ignore[arg-type]
        consumer.subscribe(["grouped"])
        found: list[bytes | None] = []

        def one() -> bool:
            found.extend(record.value for record in consumer.poll(0.2))
            return bool(found)

        eventually(one, "the record after the committed offset", 60.0)
        assert found == [b"committed"]


def test_a_topic_has_no_more_replicas_than_there_are_brokers(cluster: ClusterOfBrokers) -> None:
    with pytest.raises(InvalidReplicationFactor):
        create(cluster, "too-many", replicas=4)
