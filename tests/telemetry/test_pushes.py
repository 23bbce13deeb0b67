"""Clients that push: librdkafka, our own ids, and the tool that subscribes them, on a running broker."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.faults.client import surprises
from tests.support.broker import Broker
from tests.support.ports import free_ports
from tests.support.raw import RawConnection
from tests.support.wait import eventually
from tests.telemetry.protobuf import gauge, metrics_data, point
from tidelog import Admin, Producer
from tidelog.cli.main import main
from tidelog.errors import UnsupportedVersion
from tidelog.protocol.messages.get_telemetry_subscriptions import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
)
from tidelog.protocol.messages.push_telemetry import PushTelemetryRequest, PushTelemetryResponse


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    settings = {"metrics.listener": f"127.0.0.1:{free_ports(1)[0]}", "telemetry.max.bytes": "100000"}
    with Broker(tmp_path_factory.mktemp("telemetry"), settings) as running:
        yield running
        assert surprises(running.log()) == []


def tool(broker: Broker, *arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(main, ["client-metrics", "--bootstrap-server", broker.bootstrap, *arguments])
    assert result.exit_code == code, result.output
    return result.output


def scraped(broker: Broker) -> str:
    with urllib.request.urlopen(f"http://{broker.settings['metrics.listener']}/metrics") as answer:
        return str(answer.read(), "utf-8")


def test_the_tool_prints_what_kafkas_tool_prints(broker: Broker) -> None:
    """The lines are those that kafka-client-metrics of 4.3 printed for the same calls."""
    assert (
        tool(
            broker,
            "--alter",
            "--name",
            "s1",
            "--metrics",
            "a.,b.",
            "--interval",
            "1000",
            "--match",
            "client_id=c.*",
        )
        == "Altered client metrics config for s1.\n"
    )
    assert tool(broker, "--list") == "s1\n"
    assert tool(broker, "--describe", "--name", "s1") == (
        "Client metrics configs for s1 are:\n  interval.ms=1000\n  match=client_id=c.*\n  metrics=a.,b.\n"
    )
    assert (
        tool(broker, "--alter", "--name", "s1", "--interval", "") == "Altered client metrics config for s1.\n"
    )
    assert json.loads(tool(broker, "--describe", "--output", "json"))["s1"]["interval.ms"] == "300000"
    assert (
        tool(broker, "--describe", "--name", "nope")
        == "The client metric resource nope doesn't exist and doesn't have dynamic config.\n"
    )
    for name in ("s1", "nope"):
        assert tool(broker, "--delete", "--name", name) == f"Deleted client metrics config for {name}.\n"
    assert tool(broker, "--list") == ""
    assert "100 to 3600000" in tool(broker, "--alter", "--name", "x", "--interval", "5", code=1)
    for wrong in ([], ["--alter"], ["--delete"], ["--list", "--name", "x"], ["--list", "--metrics", "x"],
                  ["--alter", "--name", "x", "--generate-name"]):  # fmt: skip
        tool(broker, *wrong, code=1)


def test_librdkafka_pushes_and_its_numbers_are_shown_while_it_lives(broker: Broker) -> None:
    confluent_kafka = pytest.importorskip("confluent_kafka")
    tool(
        broker, "--alter", "--name", "rd", "--metrics", "*", "--interval", "100", "--match", "client_id=rd-.*"
    )
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap, "client.id": "rd-1"})
    producer.produce("pushed", b"value")
    producer.flush(10)
    eventually(
        lambda: "kafka_client_producer_connection_creation_total{" in scraped(broker),
        "the numbers of librdkafka are among the metrics",
    )
    assert 'client_id="rd-1"' in scraped(broker)
    del producer  # closes it, with a last push
    eventually(lambda: 'client_id="rd-1"' not in scraped(broker), "the last push removes the numbers")


def test_a_push_over_the_limit_is_refused_and_a_small_one_is_shown(broker: Broker) -> None:
    tool(
        broker,
        "--alter",
        "--name",
        "raw",
        "--metrics",
        "my.",
        "--interval",
        "100",
        "--match",
        "client_id=raw",
    )
    for metrics, error in (
        (bytes(100_001), 118),
        (b"\0garbage", 87),
        (metrics_data(gauge("my.x", point(7))), 0),
    ):
        with RawConnection(broker.address) as connection:
            told = connection.ask(GetTelemetrySubscriptionsRequest(), GetTelemetrySubscriptionsResponse, 0)
            assert told.requested_metrics == ["my."]
            assert told.telemetry_max_bytes == 100_000
            push = PushTelemetryRequest(
                client_instance_id=told.client_instance_id,
                subscription_id=told.subscription_id,
                metrics=metrics,
            )
            assert connection.ask(push, PushTelemetryResponse, 0).error_code == error
    assert "kafka_client_my_x{" in scraped(broker)


def test_our_clients_get_an_id(broker: Broker) -> None:
    with (
        Producer(bootstrap_servers=broker.bootstrap) as producer,
        Admin(bootstrap_servers=broker.bootstrap) as admin,
    ):
        first = producer.client_instance_id(timeout=10)
        assert first == producer.client_instance_id(timeout=10)
        assert first != admin.client_instance_id(timeout=10)


def test_without_a_metrics_listener_clients_are_not_invited(tmp_path: Path) -> None:
    """As in Kafka without a reporter that takes metrics of clients."""
    with (
        Broker(tmp_path) as broker,
        Admin(bootstrap_servers=broker.bootstrap) as admin,
        pytest.raises(UnsupportedVersion),
    ):
        admin.client_instance_id(timeout=10)
