"""Clients log in by Kerberos at a broker with a keytab."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiokafka
import pytest

import kafka
from tests.other_clients.kerberos import REALM, Realm, login_module, missing
from tests.support.topics import topic_of_test
from tidelog import Admin, Consumer, Producer
from tidelog.clients.errors import SaslAuthenticationFailed
from tidelog.testing import Broker

VALUES = [b"%d" % number for number in range(20)]


@pytest.fixture(scope="module")
def realm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Realm]:
    if (reason := missing()) is not None:
        pytest.skip(reason)
    with Realm(tmp_path_factory.mktemp("kerberos") / "realm") as realm:
        yield realm


@pytest.fixture(scope="module")
def alice(realm: Realm) -> str:
    """The keytab of a user, who has a ticket, too."""
    keytab = realm.keytab("alice")
    realm.log_in("alice", keytab)
    return keytab


def listening(keytab: str, **settings: object) -> Broker:
    """A broker with the keytab; the caller starts and closes it."""
    prefix = "listener.name.kerberos."
    return Broker(
        {
            "listeners": "PLAINTEXT://127.0.0.1:0,KERBEROS://localhost:0",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,KERBEROS:SASL_PLAINTEXT",
            f"{prefix}sasl.enabled.mechanisms": "GSSAPI",
            f"{prefix}gssapi.sasl.jaas.config": login_module(keytab, "kafka/localhost"),
            "sasl.kerberos.service.name": "kafka",
            "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
            "super.users": "User:alice;User:ANONYMOUS",
            "connection.failed.authentication.delay.ms": 20,
        }
        | settings
    )


@pytest.fixture(scope="module")
def service(realm: Realm) -> str:
    """The keytab of the broker."""
    return realm.keytab("kafka/localhost")


@pytest.fixture(scope="module")
def broker(service: str) -> Iterator[Broker]:
    broker = listening(service)
    broker.start()
    yield broker
    broker.close()


@pytest.fixture
def topic(broker: Broker, request: pytest.FixtureRequest) -> str:
    return topic_of_test(broker.address_of("PLAINTEXT"), request.node.name)


def ours(broker: Broker, jaas: str | None = None) -> dict[str, object]:
    found: dict[str, object] = {
        "bootstrap.servers": broker.address_of("KERBEROS"),
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "GSSAPI",
        "sasl.kerberos.service.name": "kafka",
    }
    return found if jaas is None else found | {"sasl.jaas.config": jaas}


def theirs(broker: Broker) -> dict[str, Any]:
    """The settings of kafka-python and aiokafka."""
    return {
        "bootstrap_servers": broker.address_of("KERBEROS"),
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "GSSAPI",
        "sasl_kerberos_service_name": "kafka",
    }


@pytest.mark.parametrize("has_keytab", [True, False], ids=["keytab", "ticket"])
def test_our_clients(broker: Broker, alice: str, topic: str, has_keytab: bool) -> None:
    """The user is the principal's short name: alice may write, and nobody else."""
    settings = ours(broker, login_module(alice, "alice") if has_keytab else None)
    with Producer[bytes, bytes](settings) as producer:
        for value in VALUES:
            producer.send(topic, value).result(30)
    with Consumer[bytes, bytes]({**settings, "group.id": topic, "auto.offset.reset": "earliest"}) as consumer:
        consumer.subscribe([topic])
        found: list[bytes | None] = []
        while len(found) < len(VALUES):
            found += [record.value for record in consumer.poll(30)]
    assert found == VALUES


def test_kafka_python(broker: Broker, alice: str, topic: str) -> None:
    producer = kafka.KafkaProducer(**theirs(broker))
    for value in VALUES:
        producer.send(topic, value)
    producer.flush(30)
    producer.close()
    consumer = kafka.KafkaConsumer(
        topic, **theirs(broker), auto_offset_reset="earliest", consumer_timeout_ms=30_000
    )
    assert [next(consumer).value for _ in VALUES] == VALUES
    consumer.close()


def test_aiokafka(broker: Broker, alice: str, topic: str) -> None:
    async def run() -> list[bytes]:
        async with aiokafka.AIOKafkaProducer(**theirs(broker)) as producer:
            for value in VALUES:
                await producer.send_and_wait(topic, value)
        async with aiokafka.AIOKafkaConsumer(
            topic, **theirs(broker), auto_offset_reset="earliest"
        ) as consumer:
            return [(await consumer.getone()).value for _ in VALUES]

    assert asyncio.run(asyncio.wait_for(run(), 60)) == VALUES


def test_a_ticket_for_other_keys_is_refused(realm: Realm, alice: str, tmp_path: Path) -> None:
    """The service has new keys, and the broker has the keytab of the old ones."""
    old = shutil.copy(realm.keytab("kafka/127.0.0.1"), tmp_path / "old.keytab")
    realm.keytab("kafka/127.0.0.1")
    login = {"listener.name.kerberos.gssapi.sasl.jaas.config": login_module(str(old), "kafka/127.0.0.1")}
    addresses = {"listeners": "PLAINTEXT://127.0.0.1:0,KERBEROS://127.0.0.1:0"}
    broker = listening(str(old), **login, **addresses)
    broker.start()
    try:
        with pytest.raises(SaslAuthenticationFailed), Admin(ours(broker)) as admin:
            admin.describe_cluster()
    finally:
        broker.close()


def test_a_user_without_a_ticket_is_told_so(broker: Broker, realm: Realm, tmp_path: Path) -> None:
    jaas = login_module(str(tmp_path / "no.keytab"), "bob")
    with pytest.raises(SaslAuthenticationFailed, match="GSSAPI"), Admin(ours(broker, jaas)) as admin:
        admin.describe_cluster()


@pytest.mark.parametrize(
    ("rules", "user"),
    [("DEFAULT", "bob"), (f"RULE:[1:$1@$0](.*@{REALM})s/@.*//U,DEFAULT", "BOB")],
)
def test_rules_make_the_name_of_the_user(realm: Realm, service: str, rules: str, user: str) -> None:
    bob = realm.keytab("bob")
    settings = {
        "sasl.kerberos.principal.to.local.rules": rules,
        "super.users": f"User:{user}",
    }
    broker = listening(service, **settings)
    broker.start()
    try:
        with Admin(ours(broker, login_module(bob, "bob"))) as admin:
            assert admin.describe_cluster().controller is not None
    finally:
        broker.close()


def test_a_keytab_that_is_not_there_stops_the_start(realm: Realm, tmp_path: Path) -> None:
    broker = listening(str(tmp_path / "no.keytab"))
    try:
        with pytest.raises(Exception, match="no keys of the service kafka") as refused:
            broker.start()
    finally:
        broker.close()
    assert "gssapi.sasl.jaas.config=[hidden]" in str(refused.value)
