"""A cluster to measure: a ZooKeeper and several brokers, started by the same command as a single broker."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from broker import Broker, BrokerFailed, Launcher, Source, free_port
from suite import Skipped
from wire import Client, ClusterView

from tidelog.server.zookeeper_process import ZooKeeperFailed, ZooKeeperProcess

BROKERS = 3
SETTLE_TIMEOUT = 120.0
SESSION_TIMEOUT_MS = "6000"


class Cluster:
    """Brokers by their ids, each with the launcher that stops it and starts it again."""

    def __init__(self, source: Source, zookeeper: str) -> None:
        self.zookeeper = zookeeper
        self.brokers: dict[int, Broker] = {}
        self._launchers: dict[int, Launcher] = {}
        self._source = source
        self._stack = ExitStack()

    def add(self, broker_id: int) -> None:
        self._launchers[broker_id] = self._stack.enter_context(self._source.launcher())
        self.start(broker_id)

    def start(self, broker_id: int) -> float:
        """Seconds from starting the process to its first answer."""
        settings = {
            "broker.id": str(broker_id),
            "zookeeper.connect": self.zookeeper,
            "zookeeper.session.timeout.ms": SESSION_TIMEOUT_MS,
        }
        self.brokers[broker_id], seconds = self._launchers[broker_id].start(settings)
        return seconds

    def stop(self, broker_id: int) -> None:
        del self.brokers[broker_id]
        self._launchers[broker_id].stop()

    def kill(self, broker_id: int) -> None:
        del self.brokers[broker_id]
        self._launchers[broker_id].kill()

    def close(self) -> None:
        self._stack.close()

    def cpu(self) -> float:
        return sum(broker.cpu() for broker in self.brokers.values())

    @property
    def controller(self) -> int:
        with next(iter(self.brokers.values())).client() as client:
            return client.cluster([]).controller

    def client_of_controller(self) -> Client:
        return self.brokers[self.controller].client()

    def await_all(self, is_reached: Callable[[ClusterView], bool], topics: list[str] | None) -> None:
        """Wait until the metadata of every broker is as wanted."""
        deadline = time.monotonic() + SETTLE_TIMEOUT
        for broker in self.brokers.values():
            with broker.client() as client:
                while not is_reached(client.cluster(topics)):
                    if time.monotonic() > deadline:
                        raise BrokerFailed(f"not all brokers knew the change after {SETTLE_TIMEOUT:.0f} s")
                    time.sleep(0.01)

    def await_members(self) -> None:
        """Wait until all brokers know each other and the controller."""
        ids = set(self.brokers)
        self.await_all(lambda view: view.brokers.keys() == ids and view.controller in ids, [])

    def await_leaders(self, count: int, topics: list[str] | None = None) -> None:
        """Wait until all brokers know the leaders of that many partitions."""
        self.await_all(lambda view: sum(leader >= 0 for leader in view.leaders.values()) >= count, topics)

    def await_in_sync(self, count: int, replicas: int, topics: list[str] | None = None) -> None:
        """Wait until all brokers know that many partitions whose replicas are all in sync."""
        self.await_all(
            lambda view: sum(in_sync >= replicas for in_sync in view.in_sync.values()) >= count, topics
        )

    def topic(self, name: str, partitions: int, replicas: int = 1) -> str:
        with self.client_of_controller() as client:
            client.create_topic(name, partitions, replicas=replicas)
        self.await_leaders(partitions, [name])
        self.await_in_sync(partitions, replicas, [name])
        return name

    def leader(self, topic: str) -> Broker:
        """The broker that leads the first partition of a topic."""
        with self.client_of_controller() as client:
            return self.brokers[client.cluster([topic]).leaders[topic, 0]]

    def topic_on(self, name: str, broker_id: int) -> str:
        with self.client_of_controller() as client:
            client.create_topic_on(name, broker_id)
        self.await_leaders(1, [name])
        return name


@contextmanager
def cluster_of(source: Source, brokers: int = BROKERS) -> Iterator[Cluster]:
    """A new ZooKeeper and new brokers. Their folders are removed afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="tidelog-bench-zookeeper-", dir=source.folder))
    try:
        with ZooKeeperProcess(folder, free_port()) as zookeeper:
            cluster = Cluster(source, zookeeper.address)
            try:
                for broker_id in range(1, brokers + 1):
                    cluster.add(broker_id)
                cluster.await_members()
                yield cluster
            finally:
                cluster.close()
    except ZooKeeperFailed as error:
        raise Skipped(str(error)) from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)
