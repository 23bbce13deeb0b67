"""Apache Cassandra 5 as a process, from its published jars, for tests that are marked `cassandra`.

The jars are fetched once, by name, with mvn into .cache/cassandra/; TIDELOG_CASSANDRA_JARS names a folder
that has them already. `python -m tests.cassandra.server` fetches them, or says in one line what is missing.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from tests.support.ports import free_port
from tests.support.wait import eventually

VERSION = "5.0.5"
CACHE = Path(__file__).parent.parent.parent / ".cache" / "cassandra"
START_SECONDS = 180.0

_POM = f"""<project><modelVersion>4.0.0</modelVersion><groupId>tests</groupId><artifactId>tests</artifactId>
<version>1</version><dependencies><dependency><groupId>org.apache.cassandra</groupId>
<artifactId>cassandra-all</artifactId><version>{VERSION}</version></dependency></dependencies></project>"""

# What Cassandra reaches for inside Java 17.
_OPENED = (
    *("java.base/java.lang", "java.base/java.lang.module", "java.base/java.net", "java.base/java.io"),
    *("java.base/java.nio", "java.base/java.util", "java.base/java.util.concurrent", "java.base/sun.nio.ch"),
    *("java.base/java.util.concurrent.atomic", "java.base/jdk.internal.loader", "java.base/jdk.internal.ref"),
    *("java.base/jdk.internal.reflect", "java.base/jdk.internal.math", "java.base/jdk.internal.module"),
    *("java.base/jdk.internal.util.jar", "jdk.management/com.sun.management.internal"),
)
_EXPORTED = (
    *("java.base/jdk.internal.misc", "java.base/java.lang.ref", "java.base/sun.nio.ch", "java.sql/java.sql"),
    *("java.management.rmi/com.sun.jmx.remote.internal.rmi", "java.rmi/sun.rmi.registry"),
    *("java.rmi/sun.rmi.server", "jdk.unsupported/sun.misc"),
)

_SETTINGS = """cluster_name: tests
num_tokens: 1
partitioner: org.apache.cassandra.dht.Murmur3Partitioner
data_file_directories: [{data}/data]
commitlog_directory: {data}/commitlog
saved_caches_directory: {data}/saved_caches
hints_directory: {data}/hints
cdc_raw_directory: {data}/cdc
commitlog_sync: periodic
commitlog_sync_period: 10000ms
seed_provider:
  - class_name: org.apache.cassandra.locator.SimpleSeedProvider
    parameters: [{{seeds: "127.0.0.1:{storage_port}"}}]
listen_address: 127.0.0.1
storage_port: {storage_port}
rpc_address: 127.0.0.1
native_transport_port: {port}
endpoint_snitch: SimpleSnitch
"""


def missing() -> str | None:
    """What has to be installed before a Cassandra can run, None where nothing is missing."""
    if shutil.which("java") is None:
        return "Java 17 is not installed: java is not on the path"
    if not _complete() and shutil.which("mvn") is None:
        return "Cassandra's jars are not here and cannot be fetched: mvn is not on the path"
    return None


def _folder() -> Path:
    given = os.environ.get("TIDELOG_CASSANDRA_JARS")
    return Path(given) if given else CACHE / VERSION


def _complete() -> bool:
    return (_folder() / ".complete").exists()


def _fetch() -> None:
    folder = _folder()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pom.xml").write_text(_POM)
    command = ["mvn", "-q", "-B", "-f", str(folder / "pom.xml"), "dependency:copy-dependencies"]
    subprocess.run([*command, f"-DoutputDirectory={folder}"], check=True, timeout=900)
    (folder / ".complete").touch()


class Cassandra:
    """`with` starts one on the loopback address and ends it; killed and started again, it keeps its data."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.port = free_port()
        self._storage_port = free_port()
        self._jmx_port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def log_file(self) -> Path:
        return self.folder / "cassandra.log"

    def start(self) -> Self:
        reason = missing()
        if reason is not None:
            pytest.skip(reason)
        if not _complete():
            _fetch()
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                self._command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.folder
            )
        try:
            eventually(self._answers, "Cassandra answers", START_SECONDS, 0.2)
        except BaseException:
            self.kill()
            raise
        return self

    def _command(self) -> list[str]:
        data = self.folder / "data"
        settings = self.folder / "cassandra.yaml"
        settings.write_text(_SETTINGS.format(data=data, port=self.port, storage_port=self._storage_port))
        inside = [text for name in _OPENED for text in ("--add-opens", f"{name}=ALL-UNNAMED")]
        inside += [text for name in _EXPORTED for text in ("--add-exports", f"{name}=ALL-UNNAMED")]
        properties = {
            "jdk.attach.allowAttachSelf": "true",
            "cassandra.config": f"file://{settings}",
            "cassandra.storagedir": str(data),
            "cassandra-foreground": "yes",
            "cassandra.jmx.local.port": str(self._jmx_port),
            # One node: there is nobody to wait for.
            "cassandra.skip_wait_for_gossip_to_settle": "0",
            "cassandra.ring_delay_ms": "100",
        }
        given = [f"-D{name}={value}" for name, value in properties.items()]
        heap = ["-Xms768m", "-Xmx768m", "-XX:+UseSerialGC"]
        main_class = "org.apache.cassandra.service.CassandraDaemon"
        return ["java", *heap, *inside, *given, "-cp", f"{_folder()}/*", main_class]

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, f"it ended:\n{self.log_file.read_text(errors='replace')[-4000:]}"
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def kill(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()


def main() -> int:
    reason = missing()
    if reason is not None:
        print(f"the tests with Cassandra cannot run: {reason}", file=sys.stderr)
        return 1
    if not _complete():
        print(f"fetching the jars of Apache Cassandra {VERSION}", file=sys.stderr)
        try:
            _fetch()
        except subprocess.SubprocessError as error:
            print(f"the jars of Apache Cassandra {VERSION} could not be fetched: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
