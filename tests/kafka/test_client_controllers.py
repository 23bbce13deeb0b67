"""The administrator on the controllers of Kafka 4.3; clients of a broker that collects their metrics."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator

import pytest

from tests.kafka.jars import class_path
from tests.kafka.servers import Kafka4
from tests.support.wait import eventually
from tidelog.clients.admin import Admin, AlterConfigOp, ConfigResource, NewTopic, ResourceType
from tidelog.clients.consumer.blocking import Consumer
from tidelog.clients.producer.blocking import Producer
from tidelog.errors import MismatchedEndpointType, UnsupportedVersion

# Brokers give clients ids when one of their reporters takes metrics of clients.
COLLECTOR = """
import java.util.List;
import java.util.Map;
import org.apache.kafka.common.metrics.KafkaMetric;
import org.apache.kafka.common.metrics.MetricsReporter;
import org.apache.kafka.server.telemetry.ClientTelemetry;
import org.apache.kafka.server.telemetry.ClientTelemetryReceiver;

public class Collector implements MetricsReporter, ClientTelemetry {
    public void init(List<KafkaMetric> metrics) {}
    public void metricChange(KafkaMetric metric) {}
    public void metricRemoval(KafkaMetric metric) {}
    public void configure(Map<String, ?> settings) {}
    public void close() {}
    public ClientTelemetryReceiver clientReceiver() { return (context, payload) -> {}; }
}
"""


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka4]:
    if shutil.which("javac") is None:
        pytest.skip("javac is not on the path")
    folder = tmp_path_factory.mktemp("controllers")
    source = folder / "Collector.java"
    source.write_text(COLLECTOR)
    subprocess.run(["javac", "-nowarn", "-cp", class_path("kafka4"), str(source)], check=True, cwd=folder)
    server = Kafka4(folder / "kafka", folder / "data", {"metric.reporters": "Collector"})
    server.plugins = folder
    server.format()
    with server:
        yield server


@pytest.fixture
def admin(kafka: Kafka4) -> Iterator[Admin]:
    with Admin(bootstrap_controllers=f"127.0.0.1:{kafka.controller_port}") as client:
        yield client


def test_controllers_are_asked_instead_of_brokers(kafka: Kafka4, admin: Admin) -> None:
    described = admin.describe_cluster()
    assert [(node.id, node.port) for node in described.nodes] == [(1, kafka.controller_port)]
    assert described.controller == 1
    quorum = admin.describe_metadata_quorum()
    assert quorum.leader_id == 1
    assert "metadata.version" in admin.describe_features().finalized


def test_controllers_change_topics_and_settings(kafka: Kafka4, admin: Admin) -> None:
    admin.create_topics([NewTopic("by-controller", 2, 1)])
    topic = ConfigResource(ResourceType.TOPIC, "by-controller")
    admin.incremental_alter_configs({topic: [AlterConfigOp("retention.ms", "3600000")]})
    with Admin(bootstrap_servers=kafka.bootstrap) as broker:
        eventually(lambda: "by-controller" in broker.list_topics(), "the broker knows the topic")
        eventually(
            lambda: broker.describe_configs([topic])[topic]["retention.ms"].value == "3600000",
            "the broker knows the setting",
        )


def test_what_controllers_do_not_serve_is_said_in_one_sentence(kafka: Kafka4, admin: Admin) -> None:
    with pytest.raises(UnsupportedVersion) as raised:
        admin.list_topics()
    assert str(raised.value) == f"the broker 127.0.0.1:{kafka.controller_port} does not serve Metadata"


def test_a_broker_is_no_controller_and_a_controller_no_broker(kafka: Kafka4) -> None:
    with (
        Admin(bootstrap_controllers=kafka.bootstrap, default_api_timeout_ms=20_000) as client,
        pytest.raises(MismatchedEndpointType, match="is no controller"),
    ):
        client.describe_metadata_quorum()
    controller = f"127.0.0.1:{kafka.controller_port}"
    with (
        Admin(bootstrap_servers=controller, default_api_timeout_ms=20_000) as client,
        pytest.raises(UnsupportedVersion, match="does not serve Metadata"),
    ):
        client.list_topics()


def test_every_client_has_an_id_that_stays(kafka: Kafka4) -> None:
    settings = {"bootstrap.servers": kafka.bootstrap}
    with Admin(settings) as admin, Producer(settings) as producer, Consumer(settings) as consumer:
        found = [client.client_instance_id(timeout=20) for client in (admin, producer, consumer)]
        again = [client.client_instance_id() for client in (admin, producer, consumer)]
    assert found == again
    assert len(set(found)) == 3
    assert {len(text) for text in found} == {22}
