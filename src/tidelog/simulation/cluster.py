"""Simulated brokers, each on a host of its own, with the ways in which they end and come back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Final

from tidelog.metadata.paths import CONTROLLER
from tidelog.metadata.simulated import SimulatedZooKeeper
from tidelog.server.broker import Broker
from tidelog.server.config.broker import BrokerConfig
from tidelog.server.run import StartFailed
from tidelog.server.zookeeper_membership import ZooKeeperMembership
from tidelog.simulation.platform import Metadata, SimPlatform, WorldTimers
from tidelog.simulation.process import Process
from tidelog.simulation.world import World

PORT: Final = 9092
LOG_DIR: Final = "/data"
SECOND_LOG_DIR: Final = "/more"
"""Where folders fail, each broker has two: no path of one begins with the other's."""
SETTINGS: Final = {
    "group.initial.rebalance.delay.ms": "100",
    "num.io.threads": "2",
    "num.recovery.threads.per.data.dir": "1",
    "log.dirs": LOG_DIR,
}
CLUSTER_SETTINGS: Final = {
    "zookeeper.connect": "zookeeper:2181",
    "zookeeper.session.timeout.ms": "4000",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "controlled.shutdown.retry.backoff.ms": "500",
}


class SimBroker:
    """A broker of a simulated cluster. `process` is None while it does not run."""

    def __init__(self, world: World, broker_id: int, settings: Mapping[str, str], metadata: Metadata) -> None:
        self.world = world
        self.id = broker_id
        self.name = f"broker {broker_id}"
        self.host = f"broker-{broker_id}"
        self.process: Process | None = None
        self.server: Broker | None = None
        self.is_running = False
        """Whether its start has completed."""
        self.starts = 0
        self.restart_seconds: float | None = None
        """After how long a supervisor starts it again when it has stopped by itself; None is never."""
        self._settings = {
            **SETTINGS,
            "broker.id": str(broker_id),
            "listeners": f"PLAINTEXT://{self.host}:{PORT}",
            **settings,
        }
        self._metadata = metadata
        self._stop: asyncio.Event | None = None

    @property
    def address(self) -> str:
        return f"{self.host}:{PORT}"

    def start(self) -> None:
        """Start, unless it runs; a start that fails for want of others is tried again."""
        if self.process is None:
            self.starts += 1
            self.world.history.add(self.name, f"starts (number {self.starts})")
            self.world.network.power_on(self.host)
            self.process = self.world.start(self.name, self.host, self._main, self._exited)

    async def _main(self, process: Process) -> None:
        config = BrokerConfig(self._settings)
        self.server = broker = Broker(config, process.loop, SimPlatform(process, self._metadata))
        self._stop = stop = asyncio.Event()
        try:
            await broker.start()
        except StartFailed as error:
            self.world.history.add(self.name, f"cannot start: {error}")
            await broker.stop()
            return
        self.is_running = True
        self.world.history.add(self.name, "has started")
        failed = asyncio.ensure_future(broker.failed.wait())
        stopped = asyncio.ensure_future(stop.wait())
        await asyncio.wait([failed, stopped], return_when=asyncio.FIRST_COMPLETED)
        await broker.stop()

    def _exited(self) -> None:
        self.world.history.add(self.name, "has stopped")
        self._forget()
        if self.restart_seconds is not None:
            self.world.after(self.restart_seconds, self.start)

    def _forget(self) -> None:
        self.process = self.server = None
        self.is_running = False

    @property
    def offline_log_dirs(self) -> list[str]:
        """The log folders that a running broker does not use any more."""
        return [] if self.server is None else self.server.offline_log_dirs

    @property
    def suspected_broker_ids(self) -> set[int]:
        """The brokers that this one suspects, as the controller."""
        membership = None if self.server is None else self.server.membership
        candidate = membership.candidate if isinstance(membership, ZooKeeperMembership) else None
        return set() if candidate is None else candidate.context.suspected_broker_ids

    # Faults

    def stop(self) -> None:
        """Ask it to stop cleanly, as SIGTERM does."""
        process, stop = self.process, self._stop
        if process is not None and stop is not None:
            self.world.history.add(self.name, "is asked to stop")
            process.after(0.0, stop.set)

    def kill(self) -> None:
        if self.process is not None:
            self.world.history.add(self.name, "is killed")
            self.world.kill(self.process)
            self._forget()

    def lose_power(self) -> None:
        if self.process is not None:
            self.world.history.add(self.name, "loses its power")
            self.world.lose_power(self.process)
            self._metadata.sessions.pop(self.host, None)  # its file was not synced
            self._forget()

    def pause(self) -> None:
        if self.process is not None and not self.process.is_paused:
            self.world.history.add(self.name, "is paused")
            self.process.pause()

    def resume(self) -> None:
        if self.process is not None and self.process.is_paused:
            self.world.history.add(self.name, "goes on")
            self.process.resume()

    def reset_connections(self) -> None:
        """End every connection, as a firewall or a switch does that forgets them."""
        if self.process is not None:
            self.world.history.add(self.name, "loses its connections")
            for sock in self.world.network.sockets_of(self.process):
                if sock.peer is not None:
                    sock.peer.reset()
                    sock.reset()


class SimCluster:
    """Several simulated brokers; one alone has an embedded tree."""

    def __init__(self, world: World, brokers: int = 1, settings: Mapping[str, str] | None = None) -> None:
        self.world = world
        self.zookeeper: SimulatedZooKeeper | None = None
        given = dict(settings or {})
        if brokers > 1:
            self.zookeeper = SimulatedZooKeeper(WorldTimers(world), world.fork("zookeeper"))
            given = {**CLUSTER_SETTINGS, **given}
        metadata = Metadata(self.zookeeper)
        self.brokers = [SimBroker(world, number, given, metadata) for number in range(1, brokers + 1)]

    @property
    def bootstrap(self) -> str:
        return ",".join(broker.address for broker in self.brokers)

    @property
    def is_running(self) -> bool:
        return all(broker.is_running for broker in self.brokers)

    @property
    def controller(self) -> SimBroker | None:
        """The broker that the tree names as the controller."""
        if self.zookeeper is None or CONTROLLER not in self.zookeeper.tree.nodes:
            return None
        broker_id = json.loads(self.zookeeper.tree.get(CONTROLLER)[0])["brokerid"]
        return next(broker for broker in self.brokers if broker.id == broker_id)

    def start(self) -> None:
        for broker in self.brokers:
            broker.start()
