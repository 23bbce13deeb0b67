"""A cluster with TLS, SCRAM and ACLs: passwords, certificates, rules and quotas change while clients run, and
a broker is killed. Nothing that was acknowledged is lost, and nothing is there twice.
"""

from __future__ import annotations

import itertools
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509

from tests.chaos.faulty_cluster import EXPLAINED, patience
from tests.chaos.writer import check_writes
from tests.faults.client import surprises
from tests.security.running_clients import (
    ConfluentReader,
    ConfluentWriter,
    OurReader,
    OurWriter,
    Progress,
    Reader,
    Writer,
    await_denied,
    await_progress,
)
from tests.support import secure
from tests.support.broker import Broker
from tests.support.cluster import ClusterOfBrokers
from tests.support.raw import RawConnection
from tests.support.scale import scale
from tests.support.wait import eventually
from tidelog import Admin, Consumer, NewTopic, TopicPartition
from tidelog.clients.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclResourceType,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from tidelog.clients.errors import SaslAuthenticationFailed
from tidelog.errors import KafkaError
from tidelog.protocol.messages.metadata import MetadataRequest, MetadataResponse
from tidelog.security.certificate_renewal import CertificateRenewal
from tidelog.security.security_folder import ADMIN_USER, LOGIN_MODULE

TOPIC, PARTITIONS = "orders", 3
USER = "alice"
SETTINGS = {
    "offsets.topic.replication.factor": "3",
    "min.insync.replicas": "2",
    "group.min.session.timeout.ms": "500",
    "auto.create.topics.enable": "false",
    "connection.failed.authentication.delay.ms": "20",
}
MAY_WRITE = AclBinding(AclResourceType.TOPIC, TOPIC, f"User:{USER}", AclOperation.WRITE)
MAY_READ = AclBinding(AclResourceType.TOPIC, TOPIC, f"User:{USER}", AclOperation.READ)
RULES = [MAY_WRITE, MAY_READ, AclBinding(AclResourceType.GROUP, "readers", f"User:{USER}", AclOperation.READ)]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterOfBrokers]:
    with ClusterOfBrokers(tmp_path, 3, SETTINGS, secured=True) as running:
        yield running


@pytest.fixture
def admin(cluster: ClusterOfBrokers) -> Iterator[Admin]:
    settings = {"bootstrap.servers": cluster.bootstrap, "default.api.timeout.ms": 60_000}
    with Admin({**settings, **secure.properties(ADMIN_USER)}) as admin:
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3)])
        admin.create_acls(RULES)
        yield admin


class Cast:
    """The clients of one password: two producers and two members of a group."""

    def __init__(self, cluster: ClusterOfBrokers, generation: int, password: str) -> None:
        jaas = f'{LOGIN_MODULE} required username="{USER}" password="{password}";'
        ours = {
            **secure.properties(),
            "sasl.jaas.config": jaas,
            "bootstrap.servers": cluster.bootstrap,
            "client.id": f"ours-{generation}",
        }
        theirs = {
            **secure.confluent_settings(),
            "sasl.username": USER,
            "sasl.password": password,
            "bootstrap.servers": cluster.bootstrap,
        }
        self.our_writer = OurWriter(f"our writer {generation}", TOPIC, PARTITIONS, ours)
        their_writer = ConfluentWriter(f"their writer {generation}", TOPIC, PARTITIONS, theirs)
        self.writers: list[Writer] = [self.our_writer, their_writer]
        self.readers: list[Reader] = [
            OurReader(f"our reader {generation}", TOPIC, ours),
            ConfluentReader(f"their reader {generation}", TOPIC, theirs),
        ]

    @property
    def everyone(self) -> list[Progress]:
        return [*self.writers, *self.readers]

    def start(self) -> None:
        for client in (*self.writers, *self.readers):
            client.start()

    def stop(self) -> None:
        for client in (*self.writers, *self.readers):
            client.stop()


def go_on(cast: Cast) -> None:
    await_progress(cast.everyone, patience(30.0))


def set_password(admin: Admin, password: str) -> None:
    admin.alter_user_scram_credentials(
        [UserScramCredentialUpsertion(USER, password, ScramMechanism.SCRAM_SHA_512, 4096)]
    )


def logs_in(broker: Broker, password: str) -> bool:
    jaas = f'{LOGIN_MODULE} required username="{USER}" password="{password}";'
    settings = {**secure.properties(), "sasl.jaas.config": jaas, "bootstrap.servers": broker.bootstrap}
    try:
        with Admin(settings) as admin:
            admin.describe_cluster(timeout=30)
    except SaslAuthenticationFailed:
        return False
    return True


def change_password(cluster: ClusterOfBrokers, admin: Admin, old: str, new: str) -> None:
    set_password(admin, new)
    for broker in cluster.running:
        eventually(lambda broker=broker: logs_in(broker, new), f"{broker.bootstrap} takes the new password")
        assert not logs_in(broker, old), f"{broker.bootstrap} takes the old password"


def serial(broker: Broker) -> int:
    """The serial number of the certificate that a new connection gets."""
    context = ssl.create_default_context(cafile=str(secure.security_folder().path / "ca.pem"))
    with socket.create_connection(broker.address, 20) as plain, context.wrap_socket(
        plain, server_hostname=broker.host
    ) as connection:
        found = connection.getpeercert(binary_form=True)
    assert found is not None
    return x509.load_der_x509_certificate(found).serial_number


def change_certificates(cluster: ClusterOfBrokers) -> None:
    """New keys of the same authority, which the brokers find by themselves. Open connections stay."""
    opened = [RawConnection(broker.bootstrap) for broker in cluster.running]
    try:
        before = {broker.bootstrap: serial(broker) for broker in cluster.running}
        CertificateRenewal(secure.security_folder().path).renew(days=1)
        for broker in cluster.running:
            eventually(
                lambda broker=broker: serial(broker) != before[broker.bootstrap],
                f"{broker.bootstrap} has its new certificate",
                patience(20.0),
            )
        for connection in opened:
            assert connection.ask(MetadataRequest(topics=None), MetadataResponse, 9).brokers
    finally:
        for connection in opened:
            connection.close()


def take_rule_away_and_back(admin: Admin, cast: Cast, rule: AclBinding, refused: list[Progress]) -> None:
    """The other rule of the topic lets everyone still see it."""
    admin.delete_acls([AclBindingFilter(rule.resource_type, rule.name, rule.principal, rule.operation)])
    await_denied(refused, patience(30.0))
    admin.create_acls([rule])
    go_on(cast)


def throttled(cast: Cast) -> float:
    return cast.our_writer.producer.metrics().get("produce-throttle-time-max", 0.0)


def set_and_remove_quota(admin: Admin, cast: Cast) -> None:
    entity = (("user", USER),)
    assert not throttled(cast) > 0
    admin.alter_client_quotas({entity: {"producer_byte_rate": 300.0}})
    eventually(lambda: throttled(cast) > 0, "the producer is throttled", patience(30.0))
    admin.alter_client_quotas({entity: {"producer_byte_rate": None}})
    go_on(cast)


def isr_sizes(admin: Admin) -> list[int]:
    try:
        return [len(partition.isr) for partition in admin.describe_topics([TOPIC])[TOPIC].partitions]
    except KafkaError:
        return []


def kill_and_restart(cluster: ClusterOfBrokers, admin: Admin, cast: Cast, broker_id: int) -> None:
    cluster[broker_id].kill()
    go_on(cast)
    cluster[broker_id].start()
    cluster.await_members()
    eventually(lambda: isr_sizes(admin) == [3] * PARTITIONS, "all replicas are in sync", patience(30.0))
    go_on(cast)


def written(cluster: ClusterOfBrokers) -> dict[tuple[str, int], list[str]]:
    """All records of the topic by partition."""
    found: dict[tuple[str, int], list[str]] = {(TOPIC, index): [] for index in range(PARTITIONS)}
    settings = {"bootstrap.servers": cluster.bootstrap, **secure.properties()}
    with Consumer[bytes, bytes](settings) as consumer:
        partitions = [TopicPartition(TOPIC, index) for index in range(PARTITIONS)]
        consumer.assign(partitions)
        consumer.seek_to_beginning(*partitions)
        ends = consumer.end_offsets(partitions)

        def all_read() -> bool:
            for record in consumer.poll(1.0):
                found[record.topic, record.partition].append((record.value or b"").decode())
            return all(consumer.position(partition) >= ends[partition] for partition in partitions)

        eventually(all_read, "all is read", patience(30.0))
    return found


def unexplained(cluster: ClusterOfBrokers) -> list[str]:
    logs = [log.read_text() for log in cluster.folder.glob("broker-*/broker-*.log")]
    return [line for log in logs for line in surprises(log, EXPLAINED)]


def test_security_changes_while_clients_run(cluster: ClusterOfBrokers, admin: Admin) -> None:
    passwords = [f"word-{number}" for number in range(scale(2, 4))]
    set_password(admin, passwords[0])
    for broker in cluster.running:
        eventually(lambda broker=broker: logs_in(broker, passwords[0]), "alice is known")
    casts = [Cast(cluster, 0, passwords[0])]
    casts[0].start()
    go_on(casts[0])
    for number, (old, new) in enumerate(itertools.pairwise(passwords), 1):
        change_password(cluster, admin, old, new)
        go_on(casts[-1])  # on the connections that they have
        casts.append(Cast(cluster, number, new))
        casts[-1].start()
        casts[-2].stop()
        go_on(casts[-1])
        change_certificates(cluster)
        go_on(casts[-1])
        take_rule_away_and_back(admin, casts[-1], MAY_WRITE, [*casts[-1].writers])
        take_rule_away_and_back(admin, casts[-1], MAY_READ, [*casts[-1].readers])
        set_and_remove_quota(admin, casts[-1])
        victims = [cluster.controller] if scale(1, 0) else list(cluster.brokers)
        for victim in victims:
            kill_and_restart(cluster, admin, casts[-1], victim)
    acknowledged: dict[tuple[str, int], list[str]] = {}
    for writer in casts[-1].writers:
        writer.stop()
    for cast in casts:
        for writer in cast.writers:
            for partition, values in writer.acknowledged.items():
                acknowledged.setdefault(partition, []).extend(values)
    wanted = {value for values in acknowledged.values() for value in values}
    readers = [reader for cast in casts for reader in cast.readers]
    eventually(
        lambda: wanted <= set().union(*(set(reader.read) for reader in readers)),
        "the group has read every acknowledged record",
        patience(30.0),
    )
    for reader in casts[-1].readers:
        reader.stop()
    found = written(cluster)
    for cast in casts:
        for writer in cast.writers:
            assert check_writes(writer.acknowledged, found) == []
    assert unexplained(cluster) == []
