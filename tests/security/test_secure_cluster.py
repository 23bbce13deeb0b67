"""A cluster with TLS, SCRAM and ACLs: passwords, certificates, rules and quotas change while clients run, and
a broker is killed. Nothing that was acknowledged is lost, and nothing is there twice.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.faulty_cluster import EXPLAINED
from tests.faults.client import surprises
from tests.security.secured_clients import (
    COPY,
    MAY_COMMIT,
    MAY_READ,
    MAY_READ_IN_GROUP,
    MAY_WRITE,
    PARTITIONS,
    RULES,
    TOPIC,
    USER,
    Cast,
    await_login,
    ended,
    finish,
    set_and_remove_quota,
    set_password,
    take_rule_away_and_back,
)
from tests.security.served_certificates import serial_of
from tests.support import secure
from tests.support.cluster import ClusterOfBrokers
from tests.support.raw import RawConnection
from tests.support.scale import scale
from tests.support.wait import eventually, patience
from tidelog import Admin, NewTopic
from tidelog.errors import KafkaError
from tidelog.protocol.messages.metadata import MetadataRequest, MetadataResponse
from tidelog.security.certificate_renewal import CertificateRenewal
from tidelog.security.security_folder import ADMIN_USER

SETTINGS = {
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "min.insync.replicas": "2",
    "group.min.session.timeout.ms": "500",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "300",
    "auto.create.topics.enable": "false",
    "connection.failed.authentication.delay.ms": "20",
}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterOfBrokers]:
    with ClusterOfBrokers(tmp_path, 3, SETTINGS, secured=True) as running:
        yield running


@pytest.fixture
def admin(cluster: ClusterOfBrokers) -> Iterator[Admin]:
    settings = {"bootstrap.servers": cluster.bootstrap, "default.api.timeout.ms": 60_000}
    with Admin({**settings, **secure.properties(ADMIN_USER)}) as admin:
        admin.create_topics([NewTopic(topic, PARTITIONS, 3) for topic in (TOPIC, COPY)])
        admin.create_acls(RULES)
        yield admin


def change_certificates(cluster: ClusterOfBrokers) -> None:
    """New keys of the same authority, which the brokers find by themselves. Open connections stay."""
    opened = [RawConnection(broker.bootstrap) for broker in cluster.running]
    try:
        before = {broker.bootstrap: serial_of(broker) for broker in cluster.running}
        CertificateRenewal(secure.security_folder().path).renew(days=1)
        for broker in cluster.running:
            eventually(
                lambda broker=broker: serial_of(broker) != before[broker.bootstrap],
                f"{broker.bootstrap} has its new certificate",
                patience(20.0),
            )
        for connection in opened:
            assert connection.ask(MetadataRequest(topics=None), MetadataResponse, 9).brokers
    finally:
        for connection in opened:
            connection.close()


def isr_sizes(admin: Admin) -> list[int]:
    try:
        return [len(partition.isr) for partition in admin.describe_topics([TOPIC])[TOPIC].partitions]
    except KafkaError:
        return []


def kill_and_restart(cluster: ClusterOfBrokers, admin: Admin, cast: Cast, broker_id: int) -> None:
    cluster[broker_id].kill()
    cast.go_on()
    cluster[broker_id].start()
    cluster.await_members()
    eventually(lambda: isr_sizes(admin) == [3] * PARTITIONS, "all replicas are in sync", patience(30.0))
    cast.go_on()


def unexplained(cluster: ClusterOfBrokers) -> list[str]:
    logs = [log.read_text() for log in cluster.folder.glob("broker-*/broker-*.log")]
    return [line for log in logs for line in surprises(log, EXPLAINED)]


def test_security_changes_while_clients_run(cluster: ClusterOfBrokers, admin: Admin) -> None:
    passwords = [f"word-{number}" for number in range(scale(2, 4))]
    addresses = [broker.bootstrap for broker in cluster.running]
    set_password(admin, USER, passwords[0])
    await_login(addresses, USER, passwords[0])
    casts = [Cast(cluster.bootstrap, 0, passwords[0])]
    casts[0].start()
    with ended(casts):
        _change_everything(cluster, admin, passwords, casts)


def _change_everything(
    cluster: ClusterOfBrokers, admin: Admin, passwords: list[str], casts: list[Cast]
) -> None:
    addresses = [broker.bootstrap for broker in cluster.running]
    casts[0].go_on()
    for number, (old, new) in enumerate(itertools.pairwise(passwords), 1):
        set_password(admin, USER, new)
        await_login(addresses, USER, new, old)
        casts[-1].go_on()  # on the connections that they have
        cast = Cast(cluster.bootstrap, number, new)
        casts[-1].stop()
        casts.append(cast)
        cast.start()
        cast.go_on()
        change_certificates(cluster)
        cast.go_on()
        assert not cast.throttled() > 0
        take_rule_away_and_back(admin, cast, MAY_WRITE, cast.writers)
        take_rule_away_and_back(admin, cast, MAY_READ, [*cast.readers, cast.copier])
        take_rule_away_and_back(admin, cast, MAY_READ_IN_GROUP, cast.group_readers)
        take_rule_away_and_back(admin, cast, MAY_COMMIT, [cast.copier])
        set_and_remove_quota(admin, cast)
        victims = [cluster.controller] if scale(1, 0) else list(cluster.brokers)
        for victim in victims:
            kill_and_restart(cluster, admin, cast, victim)
    finish(cluster.bootstrap, casts)
    assert unexplained(cluster) == []
