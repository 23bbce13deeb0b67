"""The start: with the files that Kafka ships and with single settings, and what a person sees of it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.faults.client import BROKER, Client, batch_of
from tests.support.broker import Broker
from tests.support.ports import free_ports
from tests.support.wait import eventually
from tidelog import __version__

# What stands in the files of both versions, comments left out.
COMMON = """
num.network.threads=3
num.io.threads=8
socket.send.buffer.bytes=102400
socket.receive.buffer.bytes=102400
socket.request.max.bytes=104857600
num.partitions=1
num.recovery.threads.per.data.dir=1
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
log.retention.hours=168
log.retention.check.interval.ms=300000
"""

KRAFT = """
process.roles=broker,controller
node.id=1
inter.broker.listener.name=PLAINTEXT
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://:{port},CONTROLLER://:9093
advertised.listeners=PLAINTEXT://localhost:{port},CONTROLLER://localhost:9093
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL
"""

KAFKA_39_ZOOKEEPER = (
    COMMON
    + """
broker.id=0
zookeeper.connect=localhost:2181
zookeeper.connection.timeout.ms=18000
group.initial.rebalance.delay.ms=0
listeners=PLAINTEXT://127.0.0.1:{port}
"""
)
KAFKA_39_KRAFT = (
    COMMON + KRAFT + "controller.quorum.bootstrap.servers=localhost:9093\nlog.segment.bytes=1073741824\n"
)
KAFKA_43 = (
    COMMON
    + KRAFT
    + """
controller.quorum.bootstrap.servers=localhost:9093
log.segment.bytes=1073741824
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
"""
)
NOT_SERVED = {"process.roles", "controller.quorum.bootstrap.servers", "num.network.threads"}


def written(folder: Path, text: str) -> tuple[Path, int]:
    (port,) = free_ports(1)
    path = folder / "server.properties"
    path.write_text(text.replace("{port}", str(port)))
    return path, port


def given(properties: Path) -> Broker:
    """A broker that takes its listeners from the file, where the others are told theirs."""
    broker = Broker(properties.parent, properties=properties)
    lines = properties.read_text().splitlines()
    broker.settings["listeners"] = next(
        line.split("=", 1)[1] for line in lines if line.startswith("listeners=")
    )
    return broker


def warnings(broker: Broker) -> list[str]:
    return [line for line in broker.log().splitlines() if " level=warn " in line]


@pytest.mark.parametrize("text", [KAFKA_39_KRAFT, KAFKA_43], ids=["3.9", "4.3"])
def test_the_file_that_kafka_ships_starts_a_broker(tmp_path: Path, text: str) -> None:
    properties, port = written(tmp_path, text)
    with given(properties) as broker, Client(("127.0.0.1", port)) as client:
        assert client.broker_id() == "1"
        client.create_topic("t")
        assert client.produce("t", 0, batch_of(b"v")).error == 0
        assert client.config(BROKER, "1", "num.io.threads") == "8"
        lines = warnings(broker)
        for name in NOT_SERVED:
            assert len([line for line in lines if name in line]) == 1, f"one line for {name}: {lines}"
        (opened,) = [line for line in lines if "is open to other machines" in line]
        assert "PLAINTEXT://" in opened
        assert len(lines) == len(NOT_SERVED) + 1, lines
        assert "CONTROLLER" in broker.log(), "the listener that is left out is named"


def test_a_zookeeper_that_does_not_answer_is_named_in_one_line(tmp_path: Path) -> None:
    text = KAFKA_39_ZOOKEEPER.replace("localhost:2181", "127.0.0.1:1").replace("18000", "300")
    properties, _ = written(tmp_path, text)
    broker = given(properties)
    broker.launch()
    assert broker.wait() == 1
    (line,) = [line for line in broker.log().splitlines() if line.startswith("tidelog: ")]
    assert "no ZooKeeper answered at 127.0.0.1:1" in line
    assert not (broker.data / "meta.properties").exists()


def test_without_its_zookeeper_the_same_file_starts_a_broker(tmp_path: Path) -> None:
    text = KAFKA_39_ZOOKEEPER.replace("zookeeper.connect=localhost:2181\n", "")
    properties, port = written(tmp_path, text)
    with given(properties) as broker, Client(("127.0.0.1", port)) as client:
        assert client.broker_id() == "0"
        names = ["zookeeper.connection.timeout.ms", "num.network.threads"]
        lines = warnings(broker)
        assert len(lines) == len(names), lines
        for name in names:
            assert len([line for line in lines if name in line]) == 1


def test_the_command_line_goes_before_the_file(tmp_path: Path) -> None:
    properties, port = written(tmp_path, KAFKA_43)
    broker = given(properties)
    broker.settings |= {"num.partitions": "3", "node.id": "9"}
    with broker, Client(("127.0.0.1", port)) as client:
        assert client.broker_id() == "9"
        assert client.config(BROKER, "9", "num.partitions") == "3"


def start(*arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tidelog", "start", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=30, check=False)


def overridden(settings: Iterable[str]) -> list[str]:
    return [argument for setting in settings for argument in ("--override", setting)]


@pytest.mark.parametrize(
    ("settings", "status", "words"),
    [
        (["num.partitions"], 2, ["num.partitions", "name=value"]),
        (["=5"], 2, ["name=value"]),
        (["num.partitions=many"], 1, ["num.partitions", "many"]),
        (["num.partitions=0"], 1, ["num.partitions", "0"]),
        (["listeners=PLAINTEXT:127.0.0.1"], 1, ["listeners", "PLAINTEXT:127.0.0.1"]),
        (["log.cleanup.policy=burn"], 1, ["log.cleanup.policy", "burn"]),
        (["offsets.topic.replication.factor=3"], 1, ["offsets.topic.replication.factor", "3"]),
        (
            ["zookeeper.connect=localhost:2181", "process.roles=broker"],
            1,
            ["process.roles", "zookeeper.connect"],
        ),
        (["tidelog.log.level=LOUD"], 1, ["tidelog.log.level", "LOUD"]),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_setting_that_cannot_be_is_refused_by_name_and_value(
    tmp_path: Path, settings: list[str], status: int, words: list[str]
) -> None:
    ended = start(*overridden(settings), cwd=tmp_path)
    assert ended.returncode == status
    assert ended.stdout == ""
    for word in words:
        assert word in ended.stderr
    assert "Traceback" not in ended.stderr
    assert list(tmp_path.iterdir()) == [], "nothing was made"


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    ended = start("no-such.properties", cwd=tmp_path)
    assert ended.returncode == 2
    assert "no-such.properties" in ended.stderr


def test_an_unknown_setting_warns_and_names_what_was_probably_meant(tmp_path: Path) -> None:
    with Broker(tmp_path, {"num.partition": "3"}) as broker:
        (line,) = warnings(broker)
        assert "num.partition" in line
        assert "num.partitions" in line


def test_the_first_screen_says_where_it_is_and_how_to_use_it(tmp_path: Path) -> None:
    with Broker(tmp_path, {"broker.id": "5"}) as broker:
        # The broker answers a moment before it prints.
        eventually(lambda: "Ctrl-C" in broker.log(), "the first screen is there")
        screen = [line for line in broker.log().splitlines() if not line.startswith("ts=")]
        text = "\n".join(screen)
        assert f"tidelog {__version__}: broker 5 is running" in text
        assert f"listens on  {broker.bootstrap}" in text
        assert str(broker.data) in text
        assert f"kcat -b {broker.bootstrap}" in text
        assert len(screen) <= 24, "it fits on a screen"
        (command,) = [line.split("make a topic", 1)[1].split() for line in screen if "make a topic" in line]
        made = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
        assert made.returncode == 0, made.stderr
        with Client(broker.address) as client:
            assert "demo" in client.partitions(), "the command on the screen works as it stands"
