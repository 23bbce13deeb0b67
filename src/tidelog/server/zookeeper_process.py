"""ZooKeeperProcess: a real ZooKeeper server as a child process, from the jars that PySpark brings."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from tidelog.server.child_process import end_with_parent

DEFAULT_PORT = 2181
MAIN_CLASS = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
INSTALL_PYSPARK = "pip install 'tidelog[spark]'"
INSTALL_JAVA = "apt-get install -y openjdk-17-jre-headless (or brew install openjdk@17), or set JAVA_HOME"

# A metadata store needs little memory. The quick compiler alone halves the time of the start.
JVM_FLAGS = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")

# PySpark has 300 jars, and to open all of them takes a second.
JARS = (
    *("zookeeper-*", "netty-common-*", "netty-handler-4*", "netty-transport-4*", "netty-buffer-*"),
    *("netty-transport-classes-epoll-*", "netty-transport-native-unix-common-*", "netty-tcnative-classes-*"),
    *("netty-codec-*", "netty-resolver-4*", "slf4j-api-*", "log4j-core-*", "log4j-api-*", "log4j-slf4j*"),
    *("metrics-core-*", "snappy-java-*"),
)

PROBE_SECONDS = 2.0
POLL_SECONDS = 0.02
STOP_SECONDS = 10.0
LOG_FILE, CONFIG_FILE, LOCK_FILE = "zookeeper.log", "zoo.cfg", ".lock"


class ZooKeeperFailed(Exception):
    """ZooKeeper cannot run; the message says in one line why, and what to do."""


class ZooKeeperPortRefused(ZooKeeperFailed):
    """ZooKeeper cannot listen on its address; another port may do."""


class ZooKeeperProcess:
    """A standalone ZooKeeper. Call `start`, `wait_ready` and `stop`, or use it as a context manager.

    Its data, its configuration and its log are in `data_dir`. `settings` are further lines of its
    configuration. The process gets no Ctrl-C of the terminal and ends with this process.
    """

    def __init__(
        self,
        data_dir: Path,
        port: int = DEFAULT_PORT,
        host: str = "127.0.0.1",
        *,
        settings: Mapping[str, str] | None = None,
        jvm_flags: tuple[str, ...] = (),
    ) -> None:
        self.data_dir = data_dir
        self.port = port
        self.host = host
        self._settings = dict(settings or {})
        self._jvm_flags = jvm_flags
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """HOST:PORT for clients."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def log_file(self) -> Path:
        return self.data_dir / LOG_FILE

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the process. ZooKeeperFailed without Java or PySpark, or if port or folder cannot be used."""
        java, jars = find_java(), class_path()
        self._check_port()
        with self._locked_folder() as lock, self.log_file.open("ab") as log:
            command = [
                *(java, *JVM_FLAGS, *self._jvm_flags, "-Dorg.apache.logging.log4j.level=WARN"),
                *("-cp", jars, MAIN_CLASS, str(self._write_config())),
            ]
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=end_with_parent(),
                pass_fds=(lock.fileno(),),
            )

    def wait_ready(self, timeout: float = 60.0) -> None:
        """Wait until the server accepts sessions.

        Raises ZooKeeperFailed if it ends, or after `timeout` seconds.
        """
        deadline = time.monotonic() + timeout
        while not self.answers():
            if not self.running:
                raise ZooKeeperFailed(f"ZooKeeper ended while it started: see {self.log_file}")
            if time.monotonic() >= deadline:
                raise ZooKeeperFailed(f"ZooKeeper did not start within {timeout:g} s: see {self.log_file}")
            time.sleep(POLL_SECONDS)

    def answers(self) -> bool:
        """Whether this process accepts sessions. Its port is open before that."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)
        try:
            with socket.create_connection((host, self.port), PROBE_SECONDS) as connection:
                connection.sendall(b"srvr")
                return self.running and connection.recv(64).startswith(b"Zookeeper version")
        except OSError:
            return False

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait until the process ends. Returns its exit code, or None after `timeout` seconds."""
        if self._process is None:
            return None
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None

    def stop(self) -> None:
        """Stop the process. All confirmed changes are on disk."""
        if self._process is not None and self.running:
            self._process.terminate()
            if self.wait(STOP_SECONDS) is None:
                self.kill()

    def kill(self) -> None:
        if self._process is not None and self.running:
            self._process.kill()
            self._process.wait()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, for example SIGSTOP to pause the server."""
        if self._process is not None:
            self._process.send_signal(number)

    def __enter__(self) -> ZooKeeperProcess:
        self.start()
        try:
            self.wait_ready()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def _check_port(self) -> None:
        try:
            family, _, _, _, address = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)[0]
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
        except OSError as error:
            raise ZooKeeperPortRefused(f"cannot listen on {self.address}: {error.strerror}") from None

    def _write_config(self) -> Path:
        settings = {
            "dataDir": str(self.data_dir.absolute()),
            "clientPort": str(self.port),
            "clientPortAddress": self.host,
            "tickTime": "2000",
            "maxClientCnxns": "0",
            "admin.enableServer": "false",
            "4lw.commands.whitelist": "srvr,ruok",
            "autopurge.snapRetainCount": "3",
            "autopurge.purgeInterval": "24",
            **self._settings,
        }
        file = self.data_dir / CONFIG_FILE
        file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        return file.absolute()

    @contextmanager
    def _locked_folder(self) -> Iterator[BinaryIO]:
        """The lock of the folder. The child inherits and keeps it, because ZooKeeper itself locks nothing."""
        try:
            self.data_dir.mkdir(parents=True, exist_ok=True)
            lock = (self.data_dir / LOCK_FILE).open("ab")
        except OSError as error:
            raise ZooKeeperFailed(f"cannot write to {self.data_dir}: {error.strerror}") from None
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise ZooKeeperFailed(f"another ZooKeeper uses {self.data_dir}: stop it first") from None
            yield lock


def find_java() -> str:
    """The java program of JAVA_HOME or of the path. Raises ZooKeeperFailed if there is none."""
    home = os.environ.get("JAVA_HOME")
    program = shutil.which("java", path=f"{home}/bin") if home else shutil.which("java")
    if program is None:
        raise ZooKeeperFailed(f"ZooKeeper needs Java, and none is installed: {INSTALL_JAVA}")
    return program


def class_path() -> str:
    """ZooKeeper's jars in PySpark. Raises ZooKeeperFailed without PySpark."""
    # find_spec does not import PySpark, which takes a while.
    package = importlib.util.find_spec("pyspark")
    if package is None or not package.submodule_search_locations:
        raise ZooKeeperFailed(f"ZooKeeper's jars come with PySpark, which is missing: {INSTALL_PYSPARK}")
    folder = Path(package.submodule_search_locations[0]) / "jars"
    if not any(folder.glob("zookeeper-*.jar")):
        raise ZooKeeperFailed(f"{folder} has no jar of ZooKeeper: {INSTALL_PYSPARK}")
    found = {pattern: sorted(folder.glob(f"{pattern}.jar")) for pattern in JARS}
    if all(found.values()):
        return ":".join(str(jar) for jars in found.values() for jar in jars)
    return f"{folder}/*"  # this PySpark names its jars differently
