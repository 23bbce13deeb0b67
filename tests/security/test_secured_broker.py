"""Our clients and tools at our broker over SASL_SSL, with stores of keytool on both sides."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.data.key_stores.record import PASSWORD
from tests.support.secured_broker import MECHANISMS, SECRET, STORES, client_file, secured_broker
from tidelog import Admin, Consumer, Producer, TopicPartition
from tidelog.cli.main import main
from tidelog.clients.errors import SslAuthenticationException
from tidelog.errors import SaslAuthenticationFailed
from tidelog.testing import Broker


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    # Kafka's brokers refuse a second login within a second.
    broker = secured_broker(listener_name_login_connections_max_reauth_ms=1500)
    yield broker
    broker.close()


@pytest.fixture
def address(broker: Broker) -> str:
    return broker.address_of("LOGIN")


def settings(address: str, mechanism: str, secret: str = SECRET, **given: object) -> dict[str, object]:
    client = {name.replace(".", "_"): value for name, value in client_file(mechanism, secret).items()}
    return {**client, "bootstrap_servers": address, **given}


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_every_mechanism_logs_in(address: str, mechanism: str) -> None:
    client, topic = settings(address, mechanism), mechanism.lower()
    with Producer(**client) as producer:
        producer.send(topic, b"v").result(30)
    with Consumer(**client, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        assert [record.value for record in consumer.poll(30)] == [b"v"]
    with Admin(**client) as admin:
        assert topic in admin.list_topics()


def test_a_session_is_renewed_and_no_request_fails(address: str) -> None:
    with Producer(**settings(address, "SCRAM-SHA-256"), linger_ms=0) as producer:
        end = time.monotonic() + 60
        while producer.metrics()["successful-authentication-total"] < 4 and time.monotonic() < end:
            producer.send("renewed", b"v").result(10)
        metrics = producer.metrics()
    assert metrics["successful-authentication-total"] >= 4
    assert metrics["record-retry-total"] == 0
    assert metrics["connection-creation-total"] <= 2


def test_what_is_wrong_is_refused_at_once(address: str) -> None:
    for mechanism in ("PLAIN", "SCRAM-SHA-512"):
        with (
            pytest.raises(SaslAuthenticationFailed),
            Producer(**settings(address, mechanism, "a wrong one")) as producer,
        ):
            producer.send("never", b"v").result(30)
    stranger = {"ssl_truststore_location": str(STORES / "other.pem"), "ssl_truststore_password": None}
    with (
        pytest.raises(SslAuthenticationException, match="verify failed"),
        Admin(**settings(address, "PLAIN", **stranger)) as admin,
    ):
        admin.list_topics()


@pytest.mark.parametrize(
    "tool",
    [
        ("topics", "--list"),
        ("configs", "--describe", "--topic", "tooled"),
        (
            "producer-perf-test",
            "--topic",
            "tooled",
            "--num-records",
            "5",
            "--record-size",
            "9",
            "--throughput",
            "-1",
        ),
        ("console-consumer", "--topic", "tooled", "--from-beginning", "--max-messages", "1"),
        ("replica-verification", "--topics-include", "tooled", "--once"),
    ],
    ids=lambda tool: tool[0],
)
def test_a_tool_takes_the_file_of_a_java_client(address: str, tmp_path: Path, tool: tuple[str, ...]) -> None:
    with Producer(**settings(address, "PLAIN")) as producer:
        producer.send("tooled", b"v").result(30)
    file = tmp_path / "client.properties"
    file.write_text("\n".join(f"{name}={value}" for name, value in client_file("SCRAM-SHA-512").items()))
    name, *flags = tool
    where = ["--bootstrap-server", address, "--command-config", str(file)]
    result = CliRunner().invoke(main, [name, *where, *flags])
    assert result.exit_code == 0, result.output
    assert SECRET not in result.output
    assert PASSWORD not in result.output
