"""Kafka's own clients and Spark's connector log in by Kerberos over TLS, and are refused as at Kafka 3.9."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kafka.java_clients import refusal, write, write_and_read
from tests.kafka.servers import new_kafka
from tests.kafka.spark_connector import Connector
from tests.support.kerberos import LISTENERS, Realm, kerberos_broker, kerberos_settings, login_module, missing
from tests.support.ports import free_port
from tests.support.tls_broker import TlsFiles
from tests.support.topics import topic_of_test
from tidelog.testing import Broker

VALUES = [f"{number:02d}" for number in range(20)]
REFUSED = "invalid credentials with SASL mechanism GSSAPI"


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


def test_a_ticket_for_other_keys_is_refused_as_at_kafka(
    realm: Realm, files: TlsFiles, alice: str, tmp_path: Path
) -> None:
    """The service gets new keys while the brokers run with a keytab of the old ones."""
    old = str(shutil.copy(realm.keytab("kafka/127.0.0.1"), tmp_path / "old.keytab"))
    config = write(tmp_path, client(files, alice))
    ports = {name: free_port() for name in ("PLAINTEXT", *LISTENERS)}
    settings = kerberos_settings(old, files, host="127.0.0.1", ports=ports)
    with (
        kerberos_broker(old, files, host="127.0.0.1") as broker,
        new_kafka("kafka3", tmp_path / "kafka", settings, port=ports["PLAINTEXT"]),
    ):
        realm.keytab("kafka/127.0.0.1")
        for address in (f"127.0.0.1:{ports['SECURE']}", broker.address_of("SECURE")):
            assert REFUSED in refusal(address, config)
