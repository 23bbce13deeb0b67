"""Clients log in by Kerberos at a broker with a keytab, with TLS and without."""

from __future__ import annotations

import asyncio
import glob
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiokafka
import pytest

import kafka
from tests.other_clients.programs import Kcat, OtherClient, Program, Security, Task, build_go
from tests.support.kerberos import LISTENERS, REALM, Realm, kerberos_broker, login_module, missing
from tests.support.tls_broker import TlsFiles
from tests.support.topics import topic_of_test
from tidelog import Admin, Consumer, Producer
from tidelog.clients.errors import SaslAuthenticationFailed
from tidelog.testing import Broker

SASL_MODULE = "/usr/lib/*/sasl2/libgssapiv2.so*"
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


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return TlsFiles(tmp_path_factory.mktemp("keys"))


@pytest.fixture(scope="module")
def service(realm: Realm) -> str:
    """The keytab of the broker."""
    return realm.keytab("kafka/localhost")


@pytest.fixture(scope="module")
def broker(service: str, files: TlsFiles) -> Iterator[Broker]:
    with kerberos_broker(service, files) as broker:
        yield broker


@pytest.fixture
def topic(broker: Broker, request: pytest.FixtureRequest) -> str:
    return topic_of_test(broker.address_of("PLAINTEXT"), request.node.name)


def ours(
    broker: Broker, jaas: str | None = None, *, listener: str = "KERBEROS", files: TlsFiles | None = None
) -> dict[str, object]:
    found: dict[str, object] = {} if files is None else dict(files.client_settings())
    found |= {
        "bootstrap.servers": broker.address_of(listener),
        "security.protocol": LISTENERS[listener],
        "sasl.mechanism": "GSSAPI",
        "sasl.kerberos.service.name": "kafka",
    }
    return found if jaas is None else found | {"sasl.jaas.config": jaas}


def theirs(broker: Broker, listener: str, files: TlsFiles) -> dict[str, Any]:
    """The settings of kafka-python and aiokafka."""
    return {
        "bootstrap_servers": broker.address_of(listener),
        "security_protocol": LISTENERS[listener],
        "ssl_context": files.client_context(),
        "sasl_mechanism": "GSSAPI",
        "sasl_kerberos_service_name": "kafka",
    }


@pytest.fixture(params=LISTENERS)
def listener(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.mark.parametrize("has_keytab", [True, False], ids=["keytab", "ticket"])
def test_our_clients(
    broker: Broker, files: TlsFiles, alice: str, topic: str, listener: str, has_keytab: bool
) -> None:
    """The user is the principal's short name: alice may write, and nobody else."""
    jaas = login_module(alice, "alice") if has_keytab else None
    settings = ours(broker, jaas, listener=listener, files=files)
    with Producer[bytes, bytes](settings) as producer:
        for value in VALUES:
            producer.send(topic, value).result(30)
    with Consumer[bytes, bytes]({**settings, "group.id": topic, "auto.offset.reset": "earliest"}) as consumer:
        consumer.subscribe([topic])
        found: list[bytes | None] = []
        while len(found) < len(VALUES):
            found += [record.value for record in consumer.poll(30)]
    assert found == VALUES


def test_kafka_python(broker: Broker, files: TlsFiles, alice: str, topic: str, listener: str) -> None:
    settings = theirs(broker, listener, files)
    producer = kafka.KafkaProducer(**settings)
    for value in VALUES:
        producer.send(topic, value)
    producer.flush(30)
    producer.close()
    consumer = kafka.KafkaConsumer(
        topic, **settings, auto_offset_reset="earliest", consumer_timeout_ms=30_000
    )
    assert [next(consumer).value for _ in VALUES] == VALUES
    consumer.close()


def test_aiokafka(broker: Broker, files: TlsFiles, alice: str, topic: str, listener: str) -> None:
    settings = theirs(broker, listener, files)

    async def run() -> list[bytes]:
        async with aiokafka.AIOKafkaProducer(**settings) as producer:
            for value in VALUES:
                await producer.send_and_wait(topic, value)
        async with aiokafka.AIOKafkaConsumer(topic, **settings, auto_offset_reset="earliest") as consumer:
            return [(await consumer.getone()).value for _ in VALUES]

    assert asyncio.run(asyncio.wait_for(run(), 60)) == VALUES


@pytest.fixture(
    scope="module",
    params=[Kcat(), Program("franz", ("go",), build_go), Program("sarama", ("go",), build_go)],
    ids=lambda client: getattr(client, "name", ""),
)
def client(request: pytest.FixtureRequest) -> OtherClient:
    """One with Kerberos: the wheel of confluent-kafka is built without it, and KafkaJS has none."""
    chosen: OtherClient = request.param
    if (reason := chosen.missing()) is not None:
        pytest.skip(reason)
    if chosen.name == "kcat" and not glob.glob(SASL_MODULE):
        pytest.skip("kcat logs in by Kerberos with Debian's libsasl2-modules-gssapi-mit")
    chosen.build()
    return chosen


def test_clients_of_other_languages(
    broker: Broker, files: TlsFiles, realm: Realm, alice: str, topic: str, client: OtherClient
) -> None:
    config = str(realm.folder / "krb5.conf")
    login = Security(files.trust, "GSSAPI", "alice", keytab=alice, realm=REALM, kerberos=config)
    address = broker.address_of("SECURE")
    task = Task(address, topic, mode="plain", partitions=1, count=len(VALUES), security=login)
    client.produce(task)
    read = Task(address, topic, group=f"of-{topic}", count=len(VALUES), members=1, security=login)
    assert [[entry.value for entry in client.consume(read)]] == task.values("plain")


def test_a_ticket_for_other_keys_is_refused(
    realm: Realm, files: TlsFiles, alice: str, tmp_path: Path
) -> None:
    """The service has new keys, and the broker has the keytab of the old ones."""
    old = shutil.copy(realm.keytab("kafka/127.0.0.1"), tmp_path / "old.keytab")
    realm.keytab("kafka/127.0.0.1")
    with (
        kerberos_broker(str(old), files, host="127.0.0.1") as broker,
        pytest.raises(SaslAuthenticationFailed),
        Admin(ours(broker)) as admin,
    ):
        admin.describe_cluster()


def test_a_user_without_a_ticket_is_told_so(broker: Broker, realm: Realm, tmp_path: Path) -> None:
    jaas = login_module(str(tmp_path / "no.keytab"), "bob")
    with pytest.raises(SaslAuthenticationFailed, match="GSSAPI"), Admin(ours(broker, jaas)) as admin:
        admin.describe_cluster()


@pytest.mark.parametrize(
    ("rules", "user"),
    [("DEFAULT", "bob"), (f"RULE:[1:$1@$0](.*@{REALM})s/@.*//U,DEFAULT", "BOB")],
)
def test_rules_make_the_name_of_the_user(
    realm: Realm, files: TlsFiles, service: str, rules: str, user: str
) -> None:
    bob = realm.keytab("bob")
    settings = {
        "sasl.kerberos.principal.to.local.rules": rules,
        "super.users": f"User:{user}",
    }
    jaas = login_module(bob, "bob")
    with kerberos_broker(service, files, **settings) as broker, Admin(ours(broker, jaas)) as admin:
        assert admin.describe_cluster().controller is not None


def test_a_keytab_that_is_not_there_stops_the_start(realm: Realm, files: TlsFiles, tmp_path: Path) -> None:
    broker = kerberos_broker(str(tmp_path / "no.keytab"), files)
    try:
        with pytest.raises(Exception, match="no keys of the service kafka") as refused:
            broker.start()
    finally:
        broker.close()
    assert "gssapi.sasl.jaas.config=[hidden]" in str(refused.value)
