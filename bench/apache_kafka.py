"""Apache Kafka from its published jars, with the JVM options of Kafka's own script.

Kafka 4.3 is one KRaft node, Kafka 3.9 a broker on ZooKeeper, for clusters. Their settings are the defaults,
except that internal topics have one replica, as one node needs.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

from broker import BrokerFailed, Source, free_port

ROOT = Path(__file__).parent.parent
CLUSTER_ID = "b1CFs5UJTaSbmEhD5iKrHA"
# The JVM options of Kafka's bin/kafka-server-start.sh.
JVM = (
    "-Xms1G -Xmx1G -server -XX:+UseG1GC -XX:MaxGCPauseMillis=20 -XX:InitiatingHeapOccupancyPercent=35"
    " -XX:+ExplicitGCInvokesConcurrent -Djava.awt.headless=true"
)
ONE_NODE = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
}


def class_path(kind: str = "kafka4") -> str:
    """The class path of the jars, which mvn fetches the first time."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.kafka.jars", kind],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    if done.returncode:
        raise BrokerFailed("Apache Kafka needs Java 17 or newer, and mvn to fetch Kafka's jars")
    return done.stdout.strip()


def kafka_source(folder: Path) -> Source:
    """A source that starts Kafka on new folders below `folder`."""
    jars = class_path()

    def prepare(data: Path, port: int) -> str:
        controller = f"127.0.0.1:{free_port()}"
        listeners = f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://{controller}"
        settings = {
            **ONE_NODE,
            "log.dirs": str(data),
            "listeners": listeners,
            "controller.quorum.voters": f"1@{controller}",
        }
        file = data.parent / "server.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        if not (data / "meta.properties").exists():
            format_folder(jars, file)
        return listeners

    command = f"java {JVM} -cp {shlex.quote(jars)} kafka.Kafka {{dir}}/../server.properties"
    return Source(folder, command, prepare=prepare)


def zookeeper_mode_command() -> str:
    """The command that starts a broker of Kafka 3.9 on ZooKeeper. Its settings are overrides."""
    one_replica = "".join(
        f" --override {name}={value}"
        for name, value in ONE_NODE.items()
        if name.startswith(("offsets.", "transaction."))
    )
    return (
        f"java {JVM} -cp {shlex.quote(class_path('kafka3'))} kafka.Kafka /dev/null{one_replica}"
        " --override log.dirs={dir} --override listeners=PLAINTEXT://127.0.0.1:{port}"
    )


def format_folder(jars: str, settings: Path) -> None:
    words = ["java", "-cp", jars, "kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(settings)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BrokerFailed(f"Kafka did not format its folder: {done.stderr.strip()}")
