"""LocalCluster: a ZooKeeper and several brokers on this machine, each a process of its own."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

from tidelog.config.internal_topics import internal_topic_settings
from tidelog.metadata.tree import TreeError
from tidelog.security.security_folder import LISTENER, FolderRefused, SecurityFolder
from tidelog.server.child_process import end_with_parent, tool_command
from tidelog.server.zookeeper_process import (
    DEFAULT_PORT,
    ZooKeeperFailed,
    ZooKeeperPortRefused,
    ZooKeeperProcess,
)

HOST = "127.0.0.1"
READY_SECONDS = 60.0
STOP_SECONDS = 60.0
POLL_SECONDS = 0.02
STORED_USERS = "stored-users"
"""In the folder of ZooKeeper: the digest of the users that were stored last."""


class ClusterFailed(Exception):
    """The cluster cannot run; the message says in one line why."""


@dataclass(slots=True, frozen=True)
class LocalClusterOptions:
    """`port` is the port of the first broker, 0 for ports that the system chooses.

    Without `zookeeper_port` ZooKeeper has 2181, or with `port` 0 a port that the system chooses.
    `security` has the keys, users and settings of a cluster with TLS; None for a cluster without.
    """

    brokers: int
    data: Path
    port: int = 9092
    zookeeper_port: int | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    log_level: str | None = None
    security: SecurityFolder | None = None


class BrokerProcess:
    """One `tidelog start` with a folder of its own, which has its data and its log."""

    def __init__(self, broker_id: int, options: LocalClusterOptions, zookeeper: str) -> None:
        self.broker_id = broker_id
        self.folder = options.data / f"broker-{broker_id}"
        self.address: str | None = None
        port = options.port and options.port + broker_id - 1
        # Passwords stay in the file: other users of this machine can see the arguments of a process.
        self._properties = options.security and options.security.broker_properties(broker_id)
        listener = "PLAINTEXT" if options.security is None else LISTENER
        self._settings = {
            "broker.id": str(broker_id),
            "broker.rack": socket.gethostname(),
            "listeners": f"{listener}://{HOST}:{port}",
            "log.dirs": str(self.folder / "data"),
            "zookeeper.connect": zookeeper,
            **internal_topic_settings(options.brokers),
            # The brokers stop together: a leadership that cannot move at once cannot move later either.
            "controlled.shutdown.max.retries": "1",
            **({} if options.security is None else {"advertised.listeners": ""}),
            **options.settings,
        }
        self._log_level = options.log_level
        self._process: subprocess.Popen[bytes] | None = None
        self._ready_file = self.folder / "ready"

    @property
    def log_file(self) -> Path:
        return self.folder / "broker.log"

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while the process runs."""
        return None if self._process is None else self._process.poll()

    def start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._ready_file.unlink(missing_ok=True)
        command = [*tool_command(), "start", "--ready-file", str(self._ready_file)]
        if self._properties is not None:
            command.append(str(self._properties))
        if self._log_level is not None:
            command += ["--log-level", self._log_level]
        for name, value in self._settings.items():
            command += ["--override", f"{name}={value}"]
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C reaches only this process, which stops them in order
                preexec_fn=end_with_parent(),
            )

    def becomes_ready(self) -> bool:
        """Whether the broker answers by now. Raises ClusterFailed if its process has ended."""
        if self.address is None:
            if self.exit_code is not None:
                raise ClusterFailed(self.obituary())
            if self._ready_file.exists() and (text := self._ready_file.read_text().strip()):
                self.address = text
        return self.address is not None

    def obituary(self) -> str:
        """One line about the process that ended: its exit code, its reason and its log file."""
        code = self.exit_code or 0
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        reason = self._refusal()
        return f"broker {self.broker_id} ended with {how}{reason}: see {self.log_file}"

    def _refusal(self) -> str:
        """The line that a broker prints if it cannot start."""
        try:
            lines = self.log_file.read_text(errors="replace").splitlines()
        except OSError:
            return ""
        last = next((line for line in reversed(lines) if line.strip()), "")
        return f" ({last.removeprefix('tidelog: ')})" if last.startswith("tidelog: ") else ""

    def ask_to_stop(self) -> None:
        if self._process is not None and self.exit_code is None:
            self._process.terminate()

    def stop(self) -> None:
        """Stop the broker after it has given up its leaderships. Kill it if that takes too long."""
        self.ask_to_stop()
        if self._process is not None:
            try:
                self._process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()


class LocalCluster:
    """`start` yields each broker when it answers; `wait` watches over them; `stop` ends brokers first."""

    def __init__(self, options: LocalClusterOptions) -> None:
        self._options = options
        port = options.zookeeper_port or (DEFAULT_PORT if options.port else _free_port())
        self.zookeeper = ZooKeeperProcess(options.data / "zookeeper", port, HOST)
        self.brokers: list[BrokerProcess] = []
        self._named: set[int] = set()

    @property
    def bootstrap(self) -> str:
        return ",".join(broker.address for broker in self.brokers if broker.address is not None)

    def start(self) -> Iterator[BrokerProcess]:
        """Raises ClusterFailed if ZooKeeper or a broker cannot start; the caller calls `stop` then, too."""
        try:
            self.zookeeper.start()
            self.zookeeper.wait_ready()
        except ZooKeeperPortRefused as error:
            raise ClusterFailed(f"ZooKeeper {error}; choose another port with --zookeeper-port") from None
        except (ZooKeeperFailed, OSError) as error:
            raise ClusterFailed(str(error)) from None
        self._store_users()
        for broker_id in range(1, self._options.brokers + 1):
            broker = self._broker(broker_id)
            self.brokers.append(broker)
            try:
                broker.start()
            except OSError as error:
                raise ClusterFailed(f"broker {broker_id} cannot be started: {error}") from None
        waiting = list(self.brokers)
        deadline = time.monotonic() + READY_SECONDS
        while waiting:
            for broker in [broker for broker in waiting if broker.becomes_ready()]:
                waiting.remove(broker)
                yield broker
            if time.monotonic() >= deadline:
                slow = waiting[0]
                raise ClusterFailed(
                    f"broker {slow.broker_id} did not answer within {READY_SECONDS:g} s: see {slow.log_file}"
                )
            time.sleep(POLL_SECONDS)

    def _broker(self, broker_id: int) -> BrokerProcess:
        try:
            return BrokerProcess(broker_id, self._options, self.zookeeper.address)
        except FolderRefused as error:
            raise ClusterFailed(str(error)) from None

    def _store_users(self) -> None:
        """Store the users in the tree: brokers log in to each other from the start.

        The same users are stored once: a password that was changed, or a user who was removed, stays so.
        """
        if self._options.security is None:
            return
        from tidelog.server.cluster_users import store_users

        stored = self.zookeeper.data_dir / STORED_USERS
        try:
            users = self._options.security.users()
            digest = sha256(json.dumps(users, sort_keys=True).encode()).hexdigest()
            if stored.exists() and stored.read_text() == digest:
                return
            store_users(self.zookeeper.address, users)
            stored.write_text(digest)
        except (FolderRefused, TreeError, OSError) as error:
            raise ClusterFailed(f"the users of {self._options.security.path}: {error}") from None

    def wait(self, lost: Callable[[BrokerProcess], None]) -> None:
        """Call `lost` for each broker that ends. ClusterFailed if ZooKeeper ends, or the last broker."""
        while True:
            if not self.zookeeper.running:
                raise ClusterFailed(f"ZooKeeper ended: see {self.zookeeper.log_file}")
            self.name_ended(lost)
            if len(self._named) == len(self.brokers):
                raise ClusterFailed("no broker is left")
            time.sleep(POLL_SECONDS * 5)

    def name_ended(self, lost: Callable[[BrokerProcess], None]) -> None:
        """Call `lost` for each broker that ended since the last call."""
        for broker in self.brokers:
            if broker.exit_code is not None and broker.broker_id not in self._named:
                self._named.add(broker.broker_id)
                lost(broker)

    def stop(self) -> None:
        """Stop the brokers one after the other, the newest first, then ZooKeeper.

        Without ZooKeeper, the brokers stop at the same time: no leadership can move, and each waits a while
        for that.
        """
        if not self.zookeeper.running:
            for broker in self.brokers:
                broker.ask_to_stop()
        for broker in reversed(self.brokers):
            broker.stop()
        self.zookeeper.stop()


def brokers_for_this_machine() -> int:
    """One broker for each core that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port
