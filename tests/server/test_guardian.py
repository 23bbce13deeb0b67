"""The session of a killed broker ends at once: its guardian closes it."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.data.key_stores.record import PASSWORD
from tests.kafka.certificates import make_certificates
from tests.support.broker import Broker
from tests.support.cluster import ClusterOfBrokers
from tests.support.ports import free_port
from tests.support.wait import eventually
from tests.support.zookeeper import tls_settings, zookeeper_server
from tidelog import Admin, NewTopic
from tidelog.metadata.zookeeper import ZooKeeperSettings, ZooKeeperTree
from tidelog.server import guardian_process
from tidelog.server.guardian_process import Orders, wait_for_end

STORES = Path(__file__).parent.parent / "data" / "key_stores"

LONG = {"zookeeper.session.timeout.ms": "40000", "zookeeper.connection.timeout.ms": "10000"}
"""A test that waits for the expiry of such a session fails."""

QUICK_SECONDS = 20.0
"""Long enough for processes that start on a busy machine, and far less than the time of such a session."""


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with zookeeper_server(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server.address


class Tree:
    """Looks at the nodes of a ZooKeeper, from a loop of its own."""

    def __init__(self, address: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        connecting = ZooKeeperTree.connect(address, ZooKeeperSettings(), rng=random.Random(2))
        self._tree = asyncio.run_coroutine_threadsafe(connecting, self._loop).result(30)

    def exists(self, path: str) -> bool:
        found = asyncio.run_coroutine_threadsafe(self._tree.exists(path), self._loop).result(30)
        return found is not None

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._tree.close(), self._loop).result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@contextmanager
def looking_at(address: str) -> Iterator[Tree]:
    tree = Tree(address)
    try:
        yield tree
    finally:
        tree.close()


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


class Guarded:
    def __init__(self, node: str, settings: Mapping[str, str]) -> None:
        given = [f"{name}={value}" for name, value in {**LONG, **settings}.items()]
        command = [sys.executable, "-m", "tests.server.guarded_process", node, *given]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        assert self.process.stdout is not None
        self.guardian = int(self.process.stdout.readline())

    def ignores(self, *signals: signal.Signals) -> bool:
        status = Path(f"/proc/{self.guardian}/status").read_text()
        ignored = int(status.split("SigIgn:")[1].split()[0], 16)
        return all(ignored & 1 << (number - 1) for number in signals)

    def guardian_is_gone(self) -> bool:
        return is_gone(self.guardian)

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


@contextmanager
def guarded(node: str, settings: Mapping[str, str]) -> Iterator[Guarded]:
    process = Guarded(node, settings)
    try:
        yield process
    finally:
        process.close()


def test_the_nodes_of_a_killed_process_vanish(zookeeper: str) -> None:
    settings = {"zookeeper.connect": zookeeper}
    with looking_at(zookeeper) as tree, guarded("/killed", settings) as process:
        assert tree.exists("/killed")
        eventually(lambda: process.ignores(signal.SIGTERM), "the beginning of the guardian")
        rollup = Path(f"/proc/{process.guardian}/smaps_rollup").read_text()
        memory = {name: rollup.split(f"{name}:")[1].split()[0] for name in ("Rss", "Pss", "Private_Dirty")}
        print(f"memory of the guardian in KB: {memory}")
        began = time.monotonic()
        os.killpg(process.process.pid, signal.SIGKILL)  # the guardian is in no group of the broker
        eventually(lambda: not tree.exists("/killed"), "the end of the session", QUICK_SECONDS, 0.005)
        print(f"gone after {(time.monotonic() - began) * 1000:.0f} ms")
        eventually(process.guardian_is_gone, "the end of the guardian", QUICK_SECONDS)


def test_signals_of_a_service_do_not_end_the_guardian(zookeeper: str) -> None:
    with looking_at(zookeeper) as tree, guarded("/signals", {"zookeeper.connect": zookeeper}) as process:
        signals = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
        eventually(lambda: process.ignores(*signals), "the beginning of the guardian")
        for number in signals:
            os.kill(process.guardian, number)
        assert not process.guardian_is_gone()
        process.process.kill()
        eventually(lambda: not tree.exists("/signals"), "the end of the session", QUICK_SECONDS, 0.005)


def test_a_stopped_process_keeps_its_session_and_ends_its_guardian(zookeeper: str) -> None:
    with looking_at(zookeeper) as tree, guarded("/stopped", {"zookeeper.connect": zookeeper}) as process:
        process.process.communicate("stop\n")
        assert process.process.returncode == 0
        eventually(process.guardian_is_gone, "the end of the guardian", QUICK_SECONDS)
        assert tree.exists("/stopped")  # the broker itself closes its session


def test_a_session_over_tls_and_with_an_identity_is_closed_as_well(tmp_path: Path) -> None:
    certificates = make_certificates(tmp_path / "certificates", "secret")
    port = free_port()
    server = zookeeper_server(
        tmp_path / "data", tls_settings(port, certificates.server, certificates.authority)
    )
    settings = {
        "zookeeper.connect": f"127.0.0.1:{port}",
        "zookeeper.ssl.client.enable": "true",
        "zookeeper.ssl.enabled.protocols": "TLSv1.2,TLSv1.3",
        "zookeeper.ssl.keystore.location": str(certificates.client),
        "zookeeper.ssl.keystore.type": "PEM",
        "zookeeper.ssl.truststore.location": str(certificates.authority),
        "zookeeper.ssl.truststore.type": "PEM",
        "tidelog.zookeeper.digest": "broker:secret",
    }
    with server, looking_at(server.address) as tree, guarded("/secured", settings) as process:
        assert tree.exists("/secured")
        process.process.kill()
        eventually(lambda: not tree.exists("/secured"), "the end of the session", QUICK_SECONDS, 0.005)


def test_stores_of_java_secure_the_session_and_its_end(tmp_path: Path) -> None:
    port = free_port()
    stores = tls_settings(port, STORES / "server.p12", STORES / "trust.p12")
    for store in ("keyStore", "trustStore"):
        stores |= {f"ssl.{store}.type": "PKCS12", f"ssl.{store}.password": PASSWORD}
    settings = {
        "zookeeper.connect": f"127.0.0.1:{port}",
        "zookeeper.ssl.client.enable": "true",
        "zookeeper.clientCnxnSocket": "org.apache.zookeeper.ClientCnxnSocketNetty",
        "zookeeper.ssl.cipher.suites": "TLS_AES_256_GCM_SHA384",
        "zookeeper.ssl.enabled.protocols": "TLSv1.2,TLSv1.3",
        "zookeeper.ssl.keystore.location": str(STORES / "legacy.p12"),
        "zookeeper.ssl.keystore.password": PASSWORD,
        "zookeeper.ssl.truststore.location": str(STORES / "trust.jks"),
        "zookeeper.ssl.truststore.password": PASSWORD,
    }
    server = zookeeper_server(tmp_path / "data", stores)
    with server, looking_at(server.address) as tree, guarded("/stores", settings) as process:
        assert tree.exists("/stores")
        process.process.kill()
        eventually(lambda: not tree.exists("/stores"), "the end of the session", QUICK_SECONDS, 0.005)


@pytest.mark.parametrize("has_pidfd", [True, False])
@pytest.mark.parametrize("last", [b"", b"stop\n"])
def test_the_end_is_seen_with_and_without_pidfd(
    monkeypatch: pytest.MonkeyPatch, has_pidfd: bool, last: bytes
) -> None:
    if not has_pidfd:
        monkeypatch.delattr(os, "pidfd_open", raising=False)
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    monkeypatch.setattr(guardian_process.os, "getppid", lambda: child.pid)
    source, sink = os.pipe()
    orders = Orders()
    waiting = threading.Thread(target=wait_for_end, args=(orders, source))
    waiting.start()
    os.write(sink, b"hosts a 1 b 2\nsession 5 ab")
    os.write(sink, f"cd\nsession 7 0102\nwatch {child.pid}\n".encode())
    eventually(lambda: orders.watched == child.pid, "the orders")
    os.write(sink, last)
    if not last and has_pidfd:
        os.close(sink)  # not yet the end: the process is the witness
        waiting.join(0.2)
        assert waiting.is_alive()
        child.kill()
    elif not last:
        child.kill()
        os.close(sink)
    waiting.join(10)
    assert not waiting.is_alive()
    child.kill()
    child.wait()
    os.close(source)
    if last:
        os.close(sink)
    assert orders.hosts == [("a", 1), ("b", 2)]
    assert (orders.session_id, orders.password, orders.is_stopped) == (7, b"\x01\x02", bool(last))


def test_a_killed_controller_is_replaced_at_once(tmp_path: Path) -> None:
    with ClusterOfBrokers(tmp_path, 2, LONG) as cluster:
        assert cluster.zookeeper is not None
        controller = cluster.controller
        with looking_at(cluster.zookeeper) as tree:
            path = f"/brokers/ids/{controller}"
            assert tree.exists(path)
            eventually(lambda: children(cluster[controller].pid), "the guardian")
            began = time.monotonic()
            cluster[controller].kill()
            eventually(lambda: not tree.exists(path), "the end of the registration", QUICK_SECONDS, 0.005)
            gone = time.monotonic() - began
            eventually(lambda: tree.exists("/controller"), "the next controller", QUICK_SECONDS, 0.005)
            elected = time.monotonic() - began
            print(f"gone after {gone * 1000:.0f} ms, elected after {elected * 1000:.0f} ms")
        eventually(lambda: cluster.controller != controller, "the brokers know the next controller")


def test_a_broker_that_stops_ends_its_guardian_and_a_setting_turns_it_off(tmp_path: Path) -> None:
    with ClusterOfBrokers(tmp_path, 1, LONG) as cluster:
        (guardian,) = eventually(lambda: children(cluster[1].pid), "the guardian")
        cluster[1].terminate()
        # A broker that stops waits a second for it, which is not long on a busy machine.
        eventually(lambda: is_gone(guardian), "the end of the guardian", QUICK_SECONDS)
        cluster.add(2, {"tidelog.guardian.enable": "false"}).launch()
        cluster[2].await_ready()
        cluster.await_members()  # takes longer than the start of a guardian
        assert children(cluster[2].pid) == []


def children(pid: int) -> list[int]:
    found: list[int] = []
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended
            found += map(int, file.read_text().split())
    return found


def test_without_a_guardian_the_controller_suspects_a_broker_that_refuses_connections(tmp_path: Path) -> None:
    with ClusterOfBrokers(tmp_path, 2, {**LONG, "tidelog.guardian.enable": "false"}) as cluster:
        controller = cluster[cluster.controller]
        other = next(broker for broker in cluster.running if broker is not controller)
        began = time.monotonic()
        other.kill()
        eventually(lambda: "refuses connections" in controller.log(), "the suspicion", QUICK_SECONDS)
        print(f"suspected after {(time.monotonic() - began) * 1000:.0f} ms")


class BrokerOnItsHost(Broker):
    """A broker with an address of its own: the controller takes it for one on another host."""

    def __init__(self, folder: Path, settings: Mapping[str, str]) -> None:
        super().__init__(folder, dict(settings), host=f"127.0.0.{int(settings['broker.id']) + 1}")


class ClusterOnHosts(ClusterOfBrokers):
    broker_class = BrokerOnItsHost


def test_on_another_host_a_second_broker_has_to_be_refused_too(tmp_path: Path) -> None:
    settings = {**LONG, "tidelog.guardian.enable": "false"}
    with ClusterOnHosts(tmp_path, 3, settings, secured=False) as cluster:
        controller = cluster.controller
        victim, other = (broker_id for broker_id in cluster.brokers if broker_id != controller)
        with Admin(bootstrap_servers=cluster[controller].bootstrap) as admin:
            admin.create_topics([NewTopic("moved", replica_assignments={0: [victim, other, controller]})])
            cluster[victim].kill()
            eventually(
                lambda: admin.describe_topics(["moved"])["moved"].partitions[0].leader == other,
                "the next leader",
                QUICK_SECONDS,
                0.02,
            )
        assert f"broker {victim} refuses connections" in cluster[controller].log()
