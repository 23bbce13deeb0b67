"""Kafka's own clients and Spark's connector log in by Kerberos, with TLS and without."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kafka.java_clients import write, write_and_read
from tests.kafka.spark_connector import Connector
from tests.support.kerberos import LISTENERS, Realm, kerberos_broker, login_module, missing
from tests.support.tls_broker import TlsFiles
from tests.support.topics import topic_of_test
from tidelog.testing import Broker

VALUES = [f"{number:02d}" for number in range(20)]


@pytest.fixture(scope="module")
def realm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Realm]:
    if (reason := missing()) is not None:
        pytest.skip(reason)
    with Realm(tmp_path_factory.mktemp("kerberos") / "realm") as realm:
        yield realm


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return TlsFiles(tmp_path_factory.mktemp("keys"))


@pytest.fixture(scope="module")
def alice(realm: Realm) -> str:
    return realm.keytab("alice")


@pytest.fixture(scope="module")
def broker(realm: Realm, files: TlsFiles) -> Iterator[Broker]:
    with kerberos_broker(realm.keytab("kafka/localhost"), files) as broker:
        yield broker


@pytest.fixture
def topic(broker: Broker, request: pytest.FixtureRequest) -> str:
    return topic_of_test(broker.address_of("PLAINTEXT"), request.node.name)


def client(files: TlsFiles, keytab: str, listener: str = "SECURE") -> dict[str, str]:
    return files.client_settings() | {
        "security.protocol": LISTENERS[listener],
        "sasl.mechanism": "GSSAPI",
        "sasl.kerberos.service.name": "kafka",
        "sasl.jaas.config": login_module(keytab, "alice"),
    }


@pytest.mark.parametrize("listener", LISTENERS)
@pytest.mark.parametrize("kind", ["kafka3", "kafka4"])
def test_kafkas_clients_log_in(
    broker: Broker, files: TlsFiles, alice: str, topic: str, tmp_path: Path, kind: str, listener: str
) -> None:
    config = write(tmp_path, client(files, alice, listener))
    write_and_read(kind, broker.address_of(listener), topic, config)


def test_the_connector_of_spark_logs_in(
    broker: Broker, files: TlsFiles, alice: str, topic: str, tmp_path: Path
) -> None:
    options: dict[str, object] = {f"kafka.{name}": value for name, value in client(files, alice).items()}
    options["kafka.bootstrap.servers"] = broker.address_of("SECURE")
    with Connector(tmp_path / "connector") as connector:
        assert connector.write({**options, "topic": topic}, VALUES) == {}
        rows = connector.batch({**options, "subscribe": topic})
        streamed = connector.stream(
            {**options, "subscribe": topic, "startingOffsets": "earliest"}, tmp_path / "checkpoint"
        )
    assert "error" not in rows, rows
    assert isinstance(rows["rows"], list)
    assert len(rows["rows"]) == len(VALUES)
    assert streamed == {"batches": {"0": VALUES}}
