"""Kafka's own clients at our listeners with TLS: every mechanism, Java's key stores, and refusals."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, pkcs12

from tests.data.key_stores.record import PASSWORD
from tests.kafka.java_clients import refusal, write, write_and_read
from tests.kafka.spark_connector import Connector
from tests.support.certificates import make_certificate
from tests.support.secured_broker import MECHANISMS, STORES, client_file, secured_broker
from tests.support.tls_broker import TlsFiles, authority
from tests.support.topics import topic_of_test
from tidelog import Producer
from tidelog.testing import Broker

KINDS = ("kafka3", "kafka4")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return TlsFiles(tmp_path_factory.mktemp("keys"))


@pytest.fixture(scope="module")
def broker(files: TlsFiles) -> Iterator[Broker]:
    broker = secured_broker(
        **{
            "listeners": "PLAINTEXT://127.0.0.1:0,LOGIN://127.0.0.1:0,CERTIFICATE://127.0.0.1:0",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,LOGIN:SASL_SSL,CERTIFICATE:SSL",
            "listener.name.certificate.ssl.client.auth": "required",
            "listener.name.certificate.ssl.truststore.type": "PEM",
            "listener.name.certificate.ssl.truststore.location": files.trust,
        }
    )
    yield broker
    broker.close()


@pytest.fixture
def topic(broker: Broker, request: pytest.FixtureRequest) -> str:
    return topic_of_test(broker.address_of("PLAINTEXT"), request.node.name)


def certificate(folder: Path, kind: str, *, expired: bool = False) -> dict[str, str]:
    """Settings with a key store of the kind, PKCS12 or JKS."""
    signed = make_certificate(authority(), "frank", expired=expired)
    store = folder / "client.p12"
    hidden = BestAvailableEncryption(PASSWORD.encode())
    store.write_bytes(
        pkcs12.serialize_key_and_certificates(b"frank", signed.key, signed.certificate, None, hidden)
    )
    if kind == "JKS":
        source, store = store, folder / "client.jks"
        subprocess.run(
            ["keytool", "-importkeystore", "-srckeystore", str(source), "-srcstorepass", PASSWORD,
             "-destkeystore", str(store), "-deststoretype", "JKS", "-deststorepass", PASSWORD, "-noprompt"],
            check=True, capture_output=True,
        )  # fmt: skip
    return {
        "security.protocol": "SSL",
        "ssl.keystore.type": kind,
        "ssl.keystore.location": str(store),
        "ssl.keystore.password": PASSWORD,
        "ssl.key.password": PASSWORD,
        "ssl.truststore.location": str(STORES / "trust.jks"),
        "ssl.truststore.password": PASSWORD,
    }


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_every_mechanism_over_tls(
    broker: Broker, tmp_path: Path, topic: str, kind: str, mechanism: str
) -> None:
    config = client_file(mechanism)
    if kind == "kafka4":
        config["ssl.truststore.location"] = str(STORES / "trust.p12")
    write_and_read(kind, broker.address_of("LOGIN"), topic, write(tmp_path, config))


@pytest.mark.parametrize(("kind", "store"), [("kafka3", "JKS"), ("kafka4", "PKCS12")])
def test_a_certificate_is_the_login(
    broker: Broker, tmp_path: Path, topic: str, kind: str, store: str
) -> None:
    config = write(tmp_path, certificate(tmp_path, store))
    write_and_read(kind, broker.address_of("CERTIFICATE"), topic, config)


def test_an_expired_certificate_is_refused(broker: Broker, tmp_path: Path) -> None:
    config = write(tmp_path, certificate(tmp_path, "PKCS12", expired=True))
    said = refusal(broker.address_of("CERTIFICATE"), config)
    # With TLS 1.3 the client has finished its handshake before the broker checks the certificate.
    assert "Failed to process post-handshake messages" in said


@pytest.mark.parametrize(
    ("mechanism", "words"),
    [("PLAIN", "Invalid username or password"), ("SCRAM-SHA-256", "invalid credentials with SASL mechanism")],
)
def test_a_wrong_password_is_refused(broker: Broker, tmp_path: Path, mechanism: str, words: str) -> None:
    assert words in refusal(broker.address_of("LOGIN"), write(tmp_path, client_file(mechanism, "wrong")))


def test_a_broker_of_another_authority_is_left(broker: Broker, files: TlsFiles, tmp_path: Path) -> None:
    settings = client_file("PLAIN") | {"ssl.truststore.type": "PEM", "ssl.truststore.location": files.trust}
    del settings["ssl.truststore.password"]
    said = refusal(broker.address_of("LOGIN"), write(tmp_path, settings))
    assert "SSL handshake failed" in said


@pytest.fixture(scope="module")
def connector(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connector]:
    with Connector(tmp_path_factory.mktemp("connector")) as connector:
        yield connector


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_the_connector_of_spark_logs_in(
    broker: Broker, connector: Connector, tmp_path: Path, topic: str, mechanism: str
) -> None:
    with Producer[bytes, bytes](bootstrap_servers=broker.address_of("PLAINTEXT")) as producer:
        for number in range(20):
            producer.send(topic, b"%02d" % number)
    options: dict[str, object] = {f"kafka.{name}": value for name, value in client_file(mechanism).items()}
    options |= {"kafka.bootstrap.servers": broker.address_of("LOGIN"), "subscribe": topic}
    rows = connector.batch(options)
    assert "error" not in rows, rows
    assert isinstance(rows["rows"], list)
    assert len(rows["rows"]) == 20
    streamed = connector.stream({**options, "startingOffsets": "earliest"}, tmp_path / "checkpoint")
    assert "error" not in streamed, streamed
    assert streamed["batches"] == {"0": [f"{number:02d}" for number in range(20)]}


@pytest.mark.parametrize(
    ("mechanism", "words"),
    [("PLAIN", "Invalid username or password"), ("SCRAM-SHA-256", "invalid credentials with SASL mechanism")],
)
def test_the_connector_of_spark_is_told_of_a_wrong_password(
    broker: Broker, connector: Connector, topic: str, mechanism: str, words: str
) -> None:
    wrong = client_file(mechanism, "wrong")
    options: dict[str, object] = {f"kafka.{name}": value for name, value in wrong.items()}
    options |= {"kafka.bootstrap.servers": broker.address_of("LOGIN"), "subscribe": topic}
    assert words in str(connector.batch(options)["error"])


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_the_connector_of_spark_writes_with_a_login(
    broker: Broker, connector: Connector, tmp_path: Path, topic: str, mechanism: str
) -> None:
    options: dict[str, object] = {f"kafka.{name}": value for name, value in client_file(mechanism).items()}
    options["kafka.bootstrap.servers"] = broker.address_of("LOGIN")
    copied = topic_of_test(broker.address_of("PLAINTEXT"), f"copied-{mechanism}")
    values = [f"{number:02d}" for number in range(20)]
    assert connector.write({**options, "topic": topic}, values) == {}
    source = {**options, "subscribe": topic, "startingOffsets": "earliest"}
    assert connector.copy(source, {**options, "topic": copied}, tmp_path / "checkpoint") == {}
    for name in (topic, copied):
        rows = connector.batch({**options, "subscribe": name})
        assert "error" not in rows, rows
        assert isinstance(rows["rows"], list)
        assert sorted(bytes.fromhex(row[5]).decode() for row in rows["rows"]) == values
