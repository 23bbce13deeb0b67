"""What Kafka's own programs do at a broker with a file of client settings: write, read, be refused."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from subprocess import CompletedProcess

from tests.kafka.jars import run_tool

COUNT = 100
QUICK_SECONDS = 60.0  # a Java program starts within some seconds


def write(folder: Path, settings: Mapping[str, str]) -> str:
    path = folder / "client.properties"
    path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    return str(path)


def write_and_read(kind: str, address: str, topic: str, config: str) -> None:
    sent = run_tool(
        kind,
        "org.apache.kafka.tools.ProducerPerformance",
        *("--topic", topic, "--num-records", str(COUNT), "--record-size", "100", "--throughput", "-1"),
        *("--producer.config", config, "--producer-props", f"bootstrap.servers={address}"),
    )
    assert f"{COUNT} records sent" in sent.stdout, sent.stdout + sent.stderr
    read = run_tool(
        kind,
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *("--bootstrap-server", address, "--topic", topic, "--consumer.config", config),
        *("--from-beginning", "--max-messages", str(COUNT), "--timeout-ms", "60000"),
    )
    assert f"Processed a total of {COUNT} messages" in read.stderr, read.stdout + read.stderr


def list_topics(address: str, config: str) -> str:
    """The names of the topics."""
    done = _run_topics(address, config)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def refusal(address: str, config: str) -> str:
    """The words of Kafka's tool for topics when it is not let in."""
    begun = time.monotonic()
    done = _run_topics(address, config)
    assert done.returncode != 0, done.stdout
    assert time.monotonic() - begun < QUICK_SECONDS, done.stdout + done.stderr
    return done.stdout + done.stderr


def _run_topics(address: str, config: str) -> CompletedProcess[str]:
    tool = "org.apache.kafka.tools.TopicCommand"
    return run_tool("kafka4", tool, "--bootstrap-server", address, "--command-config", config, "--list")
