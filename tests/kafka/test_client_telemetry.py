"""Kafka's own clients push their metrics to us, and Kafka's tool subscribes them."""

from __future__ import annotations

import threading
import urllib.request
from pathlib import Path

from tests.faults.client import surprises
from tests.kafka.jars import run_tool
from tests.support.broker import Broker
from tests.support.ports import free_ports
from tests.support.wait import eventually

METRICS_TOOL = "org.apache.kafka.tools.ClientMetricsCommand"
PRODUCER = "org.apache.kafka.tools.VerifiableProducer"


def test_a_java_producer_pushes_and_its_numbers_are_shown(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_ports(1)[0]}"
    with Broker(tmp_path, {"metrics.listener": address}) as broker:
        subscribed = run_tool(
            "kafka4", METRICS_TOOL, "--bootstrap-server", broker.bootstrap, "--alter", "--name", "java",
            "--metrics", "org.apache.kafka.producer.", "--interval", "100",
        )  # fmt: skip
        assert subscribed.returncode == 0, subscribed.stdout + subscribed.stderr
        producer = threading.Thread(
            target=run_tool,
            args=("kafka4", PRODUCER, "--bootstrap-server", broker.bootstrap, "--topic", "pushed",
                  "--max-messages", "100", "--throughput", "20"),
        )  # fmt: skip
        producer.start()

        def shown() -> bool:
            with urllib.request.urlopen(f"http://{address}/metrics") as answer:
                return "\nkafka_client_producer_connection_creation_total{" in str(answer.read(), "utf-8")

        try:
            eventually(shown, "the numbers of the Java producer are among the metrics")
        finally:
            producer.join(120)
        assert surprises(broker.log()) == []
