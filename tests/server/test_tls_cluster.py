"""Brokers of a cluster talk to each other over TLS: the controller, followers and forwarded requests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.certificates import make_certificate
from tests.support.cluster import ClusterOfBrokers
from tests.support.tls_broker import TlsFiles, authority
from tests.support.wait import eventually
from tidelog import Admin, Consumer, NewTopic, Producer
from tidelog.errors import UnknownTopicOrPartition

SETTINGS = {
    "listeners": "CLIENTS://127.0.0.1:0,BROKERS://127.0.0.1:0,CONTROL://127.0.0.1:0",
    "listener.security.protocol.map": "CLIENTS:PLAINTEXT,BROKERS:SSL,CONTROL:SSL",
    "inter.broker.listener.name": "BROKERS",
    "control.plane.listener.name": "CONTROL",
    "ssl.client.auth": "required",
    "ssl.keystore.type": "PEM",
    "ssl.truststore.type": "PEM",
}


@pytest.fixture
def files(tmp_path: Path) -> TlsFiles:
    return TlsFiles(tmp_path)


@pytest.fixture
def cluster(files: TlsFiles) -> Iterator[ClusterOfBrokers]:
    stores = {"ssl.keystore.location": files.server, "ssl.truststore.location": files.trust}
    with ClusterOfBrokers(files.folder, 2, {**SETTINGS, **stores}) as cluster:
        yield cluster


def in_sync(cluster: ClusterOfBrokers) -> bool:
    try:
        with Admin(bootstrap_servers=cluster.bootstrap) as admin:
            (topic,) = admin.describe_topics(["events"]).values()
    except UnknownTopicOrPartition:
        return False  # the broker was started a moment ago
    return all(len(partition.isr) == 2 for partition in topic.partitions)


def test_brokers_replicate_and_obey_the_controller_over_tls(
    cluster: ClusterOfBrokers, files: TlsFiles
) -> None:
    values = [bytes([n]) * 200_000 for n in range(20)]
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.create_topics([NewTopic("events", 4, 2)])
    with Producer(bootstrap_servers=cluster.bootstrap, acks="all") as producer:
        for value in values:
            producer.send("events", value=value)
        producer.flush()
    eventually(lambda: in_sync(cluster), "both brokers have all partitions")
    files.write("server.pem", make_certificate(authority(), "broker").pem())
    cluster[2].restart()
    eventually(lambda: in_sync(cluster), "the broker that came back with new keys has all partitions", 60.0)
    cluster[1].terminate()
    settings = {"bootstrap.servers": cluster.bootstrap, "group.id": "g", "auto.offset.reset": "earliest"}
    found: list[bytes | None] = []
    with Consumer(settings) as consumer:
        consumer.subscribe(["events"])
        while len(found) < len(values):
            found += [record.value for record in consumer.poll(10.0)]
    assert sorted(found, key=lambda value: value or b"") == values
    for broker in cluster.brokers.values():
        assert "failed authentication" not in broker.log()
