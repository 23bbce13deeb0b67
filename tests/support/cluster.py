"""Brokers of one cluster, each a process of its own, on a real ZooKeeper."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support import secure
from tests.support.broker import Broker
from tests.support.wait import eventually
from tests.support.zookeeper import zookeeper_server
from tidelog import Admin
from tidelog.errors import KafkaError

# Sessions of dead brokers end quickly, groups form at once, and internal topics are small, with one replica.
CLUSTER_SETTINGS = {
    "zookeeper.session.timeout.ms": "6000",
    "offsets.topic.num.partitions": "8",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.num.partitions": "8",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    "controlled.shutdown.retry.backoff.ms": "500",
}


class ClusterOfBrokers:
    """`with ClusterOfBrokers(tmp_path, 3) as cluster:` starts a ZooKeeper and brokers 1, 2 and 3.

    `cluster[2].kill()`, `cluster[2].restart()` and `cluster[2].terminate()` act on one broker. `settings` are
    overrides of all brokers; `zookeeper` is a running one to use, with a chroot if several clusters share it.
    With `secured` its listeners have TLS and SCRAM, and there are rules that let the tests do everything.
    """

    broker_class: type[Broker] = Broker

    def __init__(
        self,
        folder: Path,
        brokers: int = 3,
        settings: Mapping[str, str] | None = None,
        *,
        zookeeper: str | None = None,
        secured: bool | None = None,
    ) -> None:
        self.folder = folder
        self.settings = {**CLUSTER_SETTINGS, **(settings or {})}
        self.zookeeper = zookeeper
        self.brokers: dict[int, Broker] = {}
        self.secured = secure.is_secured() if secured is None else secured
        self._count = brokers
        self._stack = ExitStack()

    def __getitem__(self, broker_id: int) -> Broker:
        return self.brokers[broker_id]

    @property
    def running(self) -> list[Broker]:
        return [broker for broker in self.brokers.values() if broker.running]

    @property
    def bootstrap(self) -> str:
        """The addresses of the running brokers."""
        return ",".join(broker.bootstrap for broker in self.running)

    def start(self) -> Self:
        if self.zookeeper is None:
            server = self._stack.enter_context(zookeeper_server(self.folder / "zookeeper"))
            self.zookeeper = server.address
        if self.secured:
            secure.add_users(self.tree)
        for broker_id in range(1, self._count + 1):
            self.add(broker_id).launch()
        for broker in self.brokers.values():
            broker.await_ready()
        self.await_members()
        if self.secured:
            secure.allow_everything(self.bootstrap, [broker.bootstrap for broker in self.running])
        return self

    @property
    def tree(self) -> str:
        """The address of ZooKeeper as the tests reach it."""
        assert self.zookeeper is not None
        return self.zookeeper

    def add(self, broker_id: int, settings: Mapping[str, str] | None = None) -> Broker:
        """Another broker of the cluster, not started yet."""
        assert self.zookeeper is not None
        own = {"broker.id": str(broker_id), "zookeeper.connect": self.zookeeper}
        folder = self.folder / f"broker-{broker_id}"
        wanted = {**self.settings, **own, **(settings or {})}
        if self.secured:
            security = secure.broker_settings(broker_id)
            broker = self.broker_class(folder, {**security, **wanted}, protocol=secure.PROTOCOL)
        else:
            broker = self.broker_class(folder, wanted)
        self.brokers[broker_id] = broker
        return self._stack.enter_context(_closed(broker))

    def await_members(self) -> None:
        """Wait until every running broker knows all running brokers and the same controller."""
        expected = {broker.port for broker in self.running}

        def agree() -> bool:
            views = [self.view(broker) for broker in self.running]
            return all(view == views[0] and view[1] == expected and view[0] >= 0 for view in views)

        eventually(agree, "the brokers know each other", 120.0)

    def view(self, broker: Broker) -> tuple[int, set[int]]:
        """The controller and the ports of the live brokers, as a broker says."""
        try:
            security = secure.properties() if self.secured else {}
            with Admin({**security, "bootstrap.servers": broker.bootstrap, "client.id": "view"}) as admin:
                found = admin.describe_cluster()
        except (KafkaError, OSError):
            return -1, set()
        return -1 if found.controller is None else found.controller, {node.port for node in found.nodes}

    @property
    def controller(self) -> int:
        """The id of the active controller."""
        return eventually(
            lambda: next((id for id, _ in map(self.view, self.running) if id >= 0), None), "a controller"
        )

    def close(self) -> None:
        self._stack.close()

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@contextmanager
def _closed(broker: Broker) -> Iterator[Broker]:
    try:
        yield broker
    finally:
        broker.close()
