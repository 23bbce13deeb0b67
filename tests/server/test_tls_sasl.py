"""A SASL_SSL listener encrypts first, then asks who the client is."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer as ConfluentProducer

from tests.support.sasl_broker import PLAIN_MODULE
from tests.support.tls_broker import TlsFiles, tls_broker
from tidelog import Admin
from tidelog.errors import KafkaError
from tidelog.testing import Broker

SETTINGS = {
    "listeners": "PLAINTEXT://127.0.0.1:0,CLIENTS://localhost:0",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CLIENTS:SASL_SSL",
    "listener.name.clients.sasl.enabled.mechanisms": "PLAIN",
    "listener.name.clients.plain.sasl.jaas.config": f'{PLAIN_MODULE} required user_alice="secret";',
    "ssl.client.auth": "required",  # not for SASL_SSL, unless the listener's own setting says so
    "connection.failed.authentication.delay.ms": 10,
}


@pytest.fixture
def files(tmp_path: Path) -> TlsFiles:
    return TlsFiles(tmp_path)


@pytest.fixture
def broker(files: TlsFiles) -> Iterator[Broker]:
    with tls_broker(files, **SETTINGS) as broker:
        broker.create_topic("events")
        yield broker


def settings(broker: Broker, files: TlsFiles, password: str = "secret") -> dict[str, object]:
    jaas = f'{PLAIN_MODULE} required username="alice" password="{password}";'
    return {
        "bootstrap.servers": broker.address_of("CLIENTS"),
        **files.client_settings(),
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": jaas,
    }


def test_a_client_with_the_password_is_served(broker: Broker, files: TlsFiles) -> None:
    with Admin(settings(broker, files)) as admin:
        (node,) = admin.describe_cluster().nodes
    assert f"{node.host}:{node.port}" == broker.address_of("CLIENTS")


def test_librdkafka_is_served(broker: Broker, files: TlsFiles) -> None:
    producer = ConfluentProducer(
        {
            "bootstrap.servers": broker.address_of("CLIENTS"),
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "alice",
            "sasl.password": "secret",
            "ssl.ca.location": files.trust,
        }
    )
    for _ in range(10):
        producer.produce("events", b"x" * 500_000)
    assert producer.flush(30) == 0


def test_a_wrong_password_is_refused(broker: Broker, files: TlsFiles) -> None:
    with pytest.raises(KafkaError), Admin(settings(broker, files, "wrong")) as admin:
        admin.describe_cluster()


def test_the_listener_can_ask_for_a_certificate_too(files: TlsFiles) -> None:
    own = SETTINGS | {"listener.name.clients.ssl.client.auth": "required"}
    with tls_broker(files, **own) as broker:
        keys = {"ssl.keystore.type": "PEM", "ssl.keystore.location": files.client("alice")}
        with Admin({**settings(broker, files), **keys}) as admin:
            assert admin.describe_cluster().nodes
        with pytest.raises((KafkaError, ssl.SSLError)), Admin(settings(broker, files)) as admin:
            admin.describe_cluster(timeout=3.0)
