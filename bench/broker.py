"""The measured broker: started here from a command, or already running."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import machine
from wire import LATEST, Client, WireError

START_TIMEOUT = 120.0
STOP_TIMEOUT = 120.0
# {dir}, {port} and {ready} are filled in; --override NAME=VALUE is added at the end for each setting.
TIDELOG = (
    f"{shlex.quote(sys.executable)} -m tidelog start --override listeners=PLAINTEXT://127.0.0.1:0"
    " --override log.dirs={dir} --ready-file {ready}"
)


class BrokerFailed(Exception):
    """The broker did not start, did not stop, or ended."""


@dataclass(slots=True)
class Broker:
    """A running broker: its address and its process."""

    host: str
    port: int
    pid: int
    data: Path | None = None
    topics: list[str] = field(default_factory=list)

    def client(self) -> Client:
        return Client(self.host, self.port)

    def cpu(self) -> float:
        return machine.cpu_seconds(self.pid)

    def resident_mb(self) -> float:
        return machine.resident_bytes(self.pid) / machine.MEGABYTE

    def topic(self, name: str, partitions: int = 1, **settings: str) -> str:
        """Create a topic with a new name, and wait until all of it can be used."""
        unique = f"{name}-{time.time_ns() // 1000:x}"
        configs = {key.replace("_", "."): value for key, value in settings.items()}
        with self.client() as client:
            client.create_topic(unique, partitions, configs)
        self.topics.append(unique)
        self.await_partitions(unique, partitions)
        return unique

    def await_partitions(self, topic: str, count: int) -> None:
        """Wait until the broker leads every partition and returns its end offset."""
        deadline = time.monotonic() + START_TIMEOUT
        with self.client() as client:
            while any(error for error, _ in client.offsets(topic, range(count), LATEST)):
                if time.monotonic() > deadline:
                    raise BrokerFailed(f"not all of the {count:,} partitions of {topic} can be used")
                time.sleep(0.005)

    def segments(self, topic: str) -> int | None:
        """The number of log files of a topic, if its folder is known."""
        if self.data is None:
            return None
        return sum(1 for _ in self.data.glob(f"**/{topic}-*/*.log"))


Prepare = Callable[[Path, int], str]
"""Called before a start with the data folder and the port. The time of the start does not include it.

Returns the listeners, in place of `{listeners}` in a setting.
"""


class Launcher:
    """Starts the broker's command on its own folder, and stops it again."""

    def __init__(self, command: str, folder: Path, prepare: Prepare | None = None) -> None:
        self.command = command
        self.folder = folder
        self._prepare = prepare
        self._process: subprocess.Popen[bytes] | None = None
        self._log = folder / "broker.log"

    def start(self, settings: Mapping[str, str]) -> tuple[Broker, float]:
        """The broker, and the seconds from starting the process to its first answer."""
        ready, data, port = self.folder / "ready", self.folder / "data", free_port()
        ready.unlink(missing_ok=True)
        data.mkdir(exist_ok=True)
        listeners = f"PLAINTEXT://127.0.0.1:{port}"
        if self._prepare is not None:
            listeners = self._prepare(data, port)
        values = {"dir": str(data), "port": str(port), "ready": str(ready)}
        words = [word.format(**values) for word in shlex.split(self.command)]
        for name, value in settings.items():
            words += ["--override", f"{name}={value.replace('{listeners}', listeners)}"]
        with self._log.open("ab") as log:
            begun = time.monotonic()
            self._process = subprocess.Popen(
                words, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment()
            )
        host = "127.0.0.1"
        while True:
            if self._process.poll() is not None:
                status = self._process.returncode
                raise BrokerFailed(f"the broker ended with status {status}\n{self._log_tail()}")
            if time.monotonic() - begun > START_TIMEOUT:
                self.stop()
                raise BrokerFailed(f"no answer within {START_TIMEOUT:.0f} s\n{self._log_tail()}")
            if "{ready}" in self.command:
                written = ready.read_text() if ready.exists() else ""
                if not written.endswith("\n"):
                    time.sleep(0.001)
                    continue
                host, _, number = written.strip().rpartition(":")
                port = int(number)
            try:
                with Client(host, port) as client:
                    client.api_versions()
            except (OSError, WireError):
                time.sleep(0.005)
                continue
            return Broker(host, port, self._process.pid, data), time.monotonic() - begun

    def stop(self) -> None:
        """Stop the broker cleanly. Raises if that takes too long."""
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise BrokerFailed(f"the broker did not stop within {STOP_TIMEOUT:.0f} s of SIGTERM") from None

    def kill(self) -> None:
        """Kill a broker whose data is not needed any more."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _log_tail(self) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-15:])


@dataclass(slots=True)
class Source:
    """The source of brokers: a command that starts new ones, or the address of one for all scenarios."""

    folder: Path
    command: str = TIDELOG
    attached: Broker | None = None
    prepare: Prepare | None = None

    @contextmanager
    def broker(self, settings: Mapping[str, str] | None = None) -> Iterator[Broker]:
        """A new broker on a folder that is removed afterwards; or the given one, whose topics are removed."""
        if self.attached is not None:
            broker = self.attached
            try:
                yield broker
            finally:
                with broker.client() as client:
                    for topic in broker.topics:
                        client.delete_topic(topic)
                broker.topics.clear()
            return
        with self.launcher() as launcher:
            yield launcher.start(settings or {})[0]

    @contextmanager
    def launcher(self) -> Iterator[Launcher]:
        """A launcher on a new folder, for scenarios that measure starts."""
        folder = Path(tempfile.mkdtemp(prefix="tidelog-bench-", dir=self.folder))
        launcher = Launcher(self.command, folder, self.prepare)
        try:
            yield launcher
        finally:
            launcher.kill()
            shutil.rmtree(folder, ignore_errors=True)


def environment() -> dict[str, str]:
    """The environment of a broker: ours, but Python may keep its bytecode, as an installed broker does.

    A broker that compiles its modules at each start takes twice the CPU to its first answer.
    """
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
