"""Apache Kafka as a process: 3.9 with a ZooKeeper on any folder, 4.3 on a folder of its own."""

from __future__ import annotations

import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.kafka.jars import JAVA, class_path, run_tool
from tests.support.ports import free_port
from tests.support.wait import eventually
from tidelog import Admin
from tidelog.errors import KafkaError

START_SECONDS = 120.0
ONE_BROKER = {
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "3",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
}

# For 3.9; 4.3 prints errors by itself.
LOG_WARNINGS = """log4j.rootLogger=WARN, console
log4j.appender.console=org.apache.log4j.ConsoleAppender
log4j.appender.console.layout=org.apache.log4j.PatternLayout
log4j.appender.console.layout.ConversionPattern=%p %c: %m%n
"""


class JavaServer:
    """`with` starts it and ends it; what it prints is in `<name>.log` of its folder."""

    kind = "kafka3"
    name = "server"
    main_class = ""
    heap = "-Xmx256m"
    plugins: Path | None = None
    """A folder with classes of a test's own."""

    def __init__(self, folder: Path, port: int = 0) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.port = port or free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def log_file(self) -> Path:
        return self.folder / f"{self.name}.log"

    def warnings(self) -> list[str]:
        """What it complained of, in lines that start with their level."""
        lines = self.log_file.read_text(errors="replace").splitlines()
        return [line for line in lines if line.startswith(("WARN ", "ERROR ", "FATAL "))]

    def settings(self) -> dict[str, str]:
        raise NotImplementedError

    def answers(self) -> bool:
        """Whether it does what it is for."""
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def write_settings(self) -> Path:
        path = self.folder / f"{self.name}.properties"
        path.write_text("".join(f"{name}={value}\n" for name, value in self.settings().items()))
        return path

    def start(self) -> Self:
        loudness = self.folder / "log4j.properties"
        loudness.write_text(LOG_WARNINGS)
        arguments = [
            *JAVA,
            self.heap,
            f"-Dlog4j.configuration=file:{loudness}",
            "-cp",
            class_path(self.kind) if self.plugins is None else f"{class_path(self.kind)}:{self.plugins}",
            self.main_class,
            str(self.write_settings()),
        ]
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                arguments, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, cwd=self.folder
            )

        def ready() -> bool:
            assert self._process is not None
            assert self._process.poll() is None, f"it ended:\n{self.log_file.read_text()[-4000:]}"
            return self.answers()

        try:
            eventually(ready, f"{self.name} answers", START_SECONDS, 0.1)
        except BaseException:
            self.kill()
            raise
        return self

    def stop(self) -> int:
        """As an operator stops it; the exit code."""
        assert self._process is not None
        self._process.terminate()
        return self._process.wait(START_SECONDS)

    def kill(self) -> None:
        if self._process is not None and self.running:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()

    def pause(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def restart(self, *, kill: bool) -> None:
        if kill:
            self.kill()
        else:
            self.stop()
        self.start()

    def surprises(self) -> list[str]:
        """Nothing: what Kafka complains of is not ours to judge."""
        return []

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()


class ZooKeeper(JavaServer):
    name = "zookeeper"
    main_class = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
    heap = "-Xmx128m"

    def answers(self) -> bool:
        """Whether it serves: its port is open before, and until then another's connection may have it."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), 2.0) as connection:
                connection.sendall(b"srvr")
                return connection.recv(4096).startswith(b"Zookeeper version")
        except OSError:
            return False

    def forget_brokers(self) -> None:
        """Delete what ends with the sessions of brokers, so that a killed one may come back."""
        from kazoo.client import KazooClient

        client = KazooClient(self.bootstrap)
        client.start(timeout=START_SECONDS)
        try:
            names = client.get_children("/brokers/ids") if client.exists("/brokers/ids") else []
            for path in (*(f"/brokers/ids/{name}" for name in names), "/controller"):
                if client.exists(path):
                    client.delete(path)
        finally:
            client.stop()
            client.close()

    def settings(self) -> dict[str, str]:
        return {
            "dataDir": str(self.folder / "zookeeper"),
            "clientPort": str(self.port),
            "clientPortAddress": "127.0.0.1",
            "admin.enableServer": "false",
        }


class Kafka(JavaServer):
    """What both versions share. `awaited` are topics that it must know before it counts as started."""

    name = "kafka"
    main_class = "kafka.Kafka"
    heap = "-Xmx512m"

    def __init__(self, folder: Path, data: Path, extra: Mapping[str, str] | None = None) -> None:
        super().__init__(folder)
        self.data = data
        self.extra = dict(extra or {})
        self.awaited: frozenset[str] = frozenset()

    def answers(self) -> bool:
        try:
            with Admin(bootstrap_servers=self.bootstrap, default_api_timeout_ms=5000, retries=0) as admin:
                admin.connect(timeout=2.0)
                if admin.describe_cluster().controller is None:
                    return False
                topics = set(admin.list_topics(list_internal=True))
                return topics >= self.awaited and all(
                    partition.leader is not None
                    for topic in admin.describe_topics(topics).values()
                    for partition in topic.partitions
                )
        except (KafkaError, OSError):
            return False


class Kafka3(Kafka):
    kind = "kafka3"

    def __init__(
        self, folder: Path, data: Path, zookeeper: ZooKeeper, extra: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(folder, data, extra)
        self.zookeeper = zookeeper

    def settings(self) -> dict[str, str]:
        return {
            "listeners": f"PLAINTEXT://{self.bootstrap}",
            "zookeeper.connect": self.zookeeper.bootstrap,
            # A busy machine must not look like a broker that is gone.
            "zookeeper.session.timeout.ms": "40000",
            "log.dirs": str(self.data),
            **ONE_BROKER,
            **self.extra,
        }

    def kill(self) -> None:
        """And what ends with its session is gone at once, not when ZooKeeper gives the session up."""
        was_running = self.running
        super().kill()
        if was_running and self.zookeeper.running:
            self.zookeeper.forget_brokers()


class Kafka4(Kafka):
    kind = "kafka4"

    def __init__(self, folder: Path, data: Path, extra: Mapping[str, str] | None = None) -> None:
        super().__init__(folder, data, extra)
        self.controller_port = free_port()

    def settings(self) -> dict[str, str]:
        controller = f"127.0.0.1:{self.controller_port}"
        return {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@{controller}",
            "listeners": f"PLAINTEXT://{self.bootstrap},CONTROLLER://{controller}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": str(self.data),
            **ONE_BROKER,
            **self.extra,
        }

    def format(self) -> None:
        """A new cluster on an empty folder."""
        settings = str(self.write_settings())
        done = run_tool(
            self.kind, "kafka.tools.StorageTool", "format", "-t", "b1CFs5UJTaSbmEhD5iKrHA", "-c", settings
        )
        assert done.returncode == 0, done.stderr


@contextmanager
def new_kafka(
    kind: str, folder: Path, settings: Mapping[str, str] | None = None, *, port: int = 0
) -> Iterator[Kafka]:
    """A running Kafka of a kind, kafka3 with its own ZooKeeper, on an empty folder.

    `port` is where it is asked whether it answers, if the settings have listeners of their own.
    """
    if kind == Kafka4.kind:
        kafka4 = Kafka4(folder / "kafka", folder / "data", settings)
        kafka4.port = port or kafka4.port
        kafka4.format()
        with kafka4:
            yield kafka4
        return
    with ZooKeeper(folder / "zookeeper") as zookeeper:
        kafka3 = Kafka3(folder / "kafka", folder / "data", zookeeper, settings)
        kafka3.port = port or kafka3.port
        with kafka3:
            yield kafka3
