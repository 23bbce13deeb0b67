"""Three broker processes on a real ZooKeeper, each behind a proxy that cuts its connection.

Faults: `kill`, `stop`, `start`, `pause` and `resume` of a broker, `cut` of its connection to ZooKeeper,
`expire` of its session. `await_agreement` waits until every broker says what the tree says.
"""

from __future__ import annotations

import json
import random
import signal
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from tests.chaos.views import View, cluster_view, tree_view, unserved
from tests.chaos.watch_probes import WatchProbes, data_watches, missing_data_watches, topics_in_tree
from tests.faults.client import surprises
from tests.support.broker import Broker
from tests.support.cluster import ClusterOfBrokers
from tests.support.loop_thread import LoopThread
from tests.support.run_queue import within_own_time
from tests.support.tcp_proxy import TcpProxy
from tests.support.wait import eventually, patience
from tests.support.zookeeper import zookeeper_server
from tidelog.metadata.zookeeper import close_session

BROKERS = (1, 2, 3)
AGREE_SECONDS = 2.0
EXPLAINED = (
    "no replica may lead",  # partitions have one replica: they are offline while its broker is away
    "is online: ",  # the same for a partition that is created meanwhile
    "refused UpdateMetadata with error 11",  # of a controller that has a successor already
    "refused LeaderAndIsr with error 11",
    "refused UpdateMetadata with error 77",  # a broker registered anew, and the controller hears of it next
    "refused LeaderAndIsr with error 77",
    "the ZooKeeper session has expired",
    "refused LeaderAndIsr with error -1",  # the session expired while the broker read a topic's settings
)
"""Parts of the errors in logs that the faults explain. Kafka logs an error in each of these cases, too."""

SETTINGS = {
    "zookeeper.session.timeout.ms": "3000",
    "offsets.topic.num.partitions": "6",
    "transaction.state.log.num.partitions": "6",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
    "group.min.session.timeout.ms": "500",
    "group.consumer.min.session.timeout.ms": "500",
    "group.consumer.session.timeout.ms": "3000",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "300",
    "auto.create.topics.enable": "false",
    "transaction.two.phase.commit.enable": "true",
}


class _ProxiedBrokers(ClusterOfBrokers):
    """Each broker connects to ZooKeeper through its own proxy, and has settings of its own."""

    def __init__(
        self,
        folder: Path,
        own_settings: Mapping[int, Mapping[str, str]],
        settings: Mapping[str, str],
        tree: str,
        secured: bool | None,
    ) -> None:
        super().__init__(folder, len(own_settings), settings, zookeeper="unused:1", secured=secured)
        self._own_settings = own_settings
        self._tree = tree

    @property
    def tree(self) -> str:
        return self._tree

    def add(self, broker_id: int, settings: Mapping[str, str] | None = None) -> Broker:
        return super().add(broker_id, {**self._own_settings[broker_id], **(settings or {})})


class FaultyCluster:
    """`with FaultyCluster(tmp_path) as cluster` starts ZooKeeper, proxies and three brokers."""

    explained: tuple[str, ...] = EXPLAINED

    def __init__(
        self, folder: Path, settings: Mapping[str, str] | None = None, *, secured: bool | None = None
    ) -> None:
        """`secured` as for ClusterOfBrokers."""
        self.folder = folder
        self._secured = secured
        self.server = zookeeper_server(folder / "zookeeper", {"4lw.commands.whitelist": "*"})
        self.slowest_agreement = 0.0
        self._settings = {**SETTINGS, **(settings or {})}
        self._loop = LoopThread()
        self._stack = ExitStack()
        self._proxies: dict[int, TcpProxy] = {}
        self._chance = random.Random(0)

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def _start(self) -> None:
        self._stack.callback(self._loop.close)
        self._stack.callback(self.server.stop)
        self.server.__enter__()
        for broker_id in BROKERS:
            proxy = TcpProxy("127.0.0.1", self.server.port)
            self._proxies[broker_id] = self._loop.run(proxy.__aenter__())
            self._stack.callback(lambda proxy=proxy: self._loop.run(proxy.__aexit__()))  # type: ignore[misc]
        own_settings = {
            broker_id: {"zookeeper.connect": proxy.address, **self.own_settings(broker_id)}
            for broker_id, proxy in self._proxies.items()
        }
        self.kazoo = KazooClient(self.server.address, timeout=30.0)
        self._stack.callback(self._close_kazoo)
        self.kazoo.start()
        self._probes = WatchProbes(self.kazoo, self._soon)
        self.brokers = _ProxiedBrokers(
            self.folder, own_settings, self._settings, self.server.address, self._secured
        )
        self._stack.callback(self._close_brokers)
        self.brokers.start()

    def _close_kazoo(self) -> None:
        self.kazoo.stop()
        self.kazoo.close()

    def _close_brokers(self) -> None:
        for broker in self.brokers.running:
            broker.process.send_signal(signal.SIGCONT)
        self.brokers.close()

    def own_settings(self, broker_id: int) -> Mapping[str, str]:
        """The settings of one broker."""
        return {}

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def __getitem__(self, broker_id: int) -> Broker:
        return self.brokers[broker_id]

    @property
    def bootstrap(self) -> str:
        """The addresses of all brokers, also of those that are down."""
        return ",".join(self[broker_id].bootstrap for broker_id in BROKERS)

    @property
    def running(self) -> list[int]:
        return [broker_id for broker_id in BROKERS if self[broker_id].running]

    # --- faults

    def kill(self, broker_id: int) -> None:
        self[broker_id].kill()

    def stop(self, broker_id: int) -> None:
        assert self[broker_id].terminate(patience(30.0)) == 0, self[broker_id].log()[-3000:]

    def start(self, broker_id: int) -> None:
        self[broker_id].start()

    def pause(self, broker_id: int) -> None:
        self[broker_id].process.send_signal(signal.SIGSTOP)

    def resume(self, broker_id: int) -> None:
        self[broker_id].process.send_signal(signal.SIGCONT)

    def cut(self, broker_id: int) -> None:
        """Reset the connection to ZooKeeper, and wait until the broker has a new one."""
        proxy = self._proxies[broker_id]
        before = proxy.accepted
        self._loop.call(proxy.cut)
        eventually(lambda: proxy.accepted > before, f"broker {broker_id} connects again", patience(10.0))

    def hold(self, broker_id: int) -> None:
        """Let nothing pass between the broker and ZooKeeper until `release`."""
        self._loop.call(self._proxies[broker_id].hold)

    def release(self, broker_id: int) -> None:
        self._loop.call(self._proxies[broker_id].release)

    def expire(self, broker_id: int) -> None:
        """End the session as ZooKeeper does when it times out, and wait until the broker has a new one."""
        session_id, password = self._session(broker_id)

        def expired() -> bool:
            # The broker may win the connection back before the session is closed.
            self._loop.run(close_session(self.server.address, session_id, password, rng=self._chance))
            return self._session(broker_id)[0] != session_id

        eventually(expired, f"broker {broker_id} has a new session", patience(10.0), 0.1)

    def _session(self, broker_id: int) -> tuple[int, bytes]:
        found = json.loads((self[broker_id].data / "__zookeeper-session.json").read_text())
        return found["id"], bytes.fromhex(found["password"])

    # --- what the tree says

    def registered(self) -> list[int]:
        return sorted(int(name) for name in self.kazoo.get_children("/brokers/ids"))

    def controller(self) -> int | None:
        """The broker in /controller."""
        try:
            return int(json.loads(self.kazoo.get("/controller")[0])["brokerid"])
        except NoNodeError:
            return None

    def await_controller(self) -> int:
        return eventually(self.controller, "a controller", patience(20.0))

    def controller_epoch(self) -> int:
        return int(self.kazoo.get("/controller_epoch")[0])

    # --- what must hold after a fault

    def await_agreement(self) -> None:
        """Every running broker is registered; soon each says what the tree says, and serves what it leads."""
        running = self.running
        eventually(
            lambda: self.registered() == running and self.controller() in running,
            f"brokers {running} are registered and one is the controller",
            patience(15.0),
        )
        last: dict[int, View | None] = {}

        def agree() -> bool:
            wanted = tree_view(self.kazoo)
            last.clear()
            last.update({broker_id: cluster_view(self[broker_id].address) for broker_id in running})
            return all(view == wanted for view in last.values())

        try:
            took = self._soon(agree, "every broker says what the tree says")
        except AssertionError as error:
            error.add_note(f"the tree: {tree_view(self.kazoo)}\nthe brokers: {last}")
            raise
        self.slowest_agreement = max(self.slowest_agreement, took)
        self._soon(lambda: self._unserved() == [], "leaders serve their partitions")

    def _soon(self, probe: Callable[[], bool], what: str) -> float:
        """Wait for what has to happen within two seconds; time that the processes wait for a core is free."""
        pids = [self[broker_id].pid for broker_id in self.running]
        if self.server.pid is not None:
            pids.append(self.server.pid)
        return within_own_time(probe, what, AGREE_SECONDS, pids)

    def _unserved(self) -> list[str]:
        wanted = tree_view(self.kazoo)
        if wanted is None:
            return ["the tree is changing"]
        return [
            problem
            for broker_id in self.running
            for problem in unserved(self[broker_id].address, broker_id, wanted)
        ]

    def check_watches(self) -> None:
        """Every broker watches the controller and the settings, and the controller watches all it has to."""

        def missing() -> dict[int, list[str]]:
            by_session = data_watches(self.server.port)
            found = {id: by_session.get(self._session(id)[0], set()) for id in self.running}
            return missing_data_watches(
                found, self.await_controller(), topics_in_tree(self.kazoo), self.running
            )

        self._soon(lambda: missing() == {}, "all watches are set")
        self._probes.probe({broker_id: self[broker_id].address for broker_id in self.running})

    def logs(self) -> dict[int, list[str]]:
        """What the processes of each broker printed, one after the other."""
        return {
            broker_id: [
                file.read_text(errors="replace")
                for file in sorted(
                    self[broker_id].folder.glob("broker-*.log"), key=lambda file: int(file.stem[7:])
                )
            ]
            for broker_id in BROKERS
        }

    def surprises(self) -> list[str]:
        """Errors in the logs that no fault explains."""
        return [
            f"broker {broker_id}: {line}"
            for broker_id, texts in self.logs().items()
            for text in texts
            for line in surprises(text, self.explained)
        ]
