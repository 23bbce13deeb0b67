"""The platform of a simulated broker: the disk of its host, and an embedded tree or a ZooKeeper session."""

from __future__ import annotations

import asyncio
import random
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tidelog.clock import Clock
from tidelog.cluster.worker import Worker
from tidelog.metadata.async_tree import AsyncTree, SessionEvent
from tidelog.metadata.embedded_tree import EmbeddedTree
from tidelog.metadata.simulated import SimulatedTree, SimulatedZooKeeper
from tidelog.metadata.tree import Tree
from tidelog.network.loop import BrokerLoop
from tidelog.server.config.cluster import ClusterConfig
from tidelog.server.zookeeper_connection import zookeeper_settings
from tidelog.simulation.disk import SimulatedDisk
from tidelog.simulation.loop import SimLoop, SimWorker
from tidelog.simulation.process import Process

if TYPE_CHECKING:
    from tidelog.simulation.world import World


class WorldTimers:
    """The time of a server that has no process of its own."""

    def __init__(self, world: World) -> None:
        self._world = world

    def call_later(self, delay: float, callback: Callable[[], None], /) -> None:
        self._world.after(delay, callback)

    def time(self) -> float:
        return self._world.now

    def is_closed(self) -> bool:
        return False


@dataclass(slots=True)
class Metadata:
    """Where the metadata of a simulated cluster is: in a ZooKeeper, or in a tree on each host."""

    zookeeper: SimulatedZooKeeper | None = None
    trees: dict[str, sqlite3.Connection] = field(default_factory=dict)
    sessions: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    """The ZooKeeper session that the broker of a host has noted beside its logs."""


class SimPlatform:
    """Implements tidelog.server.platform.Platform."""

    def __init__(self, process: Process, metadata: Metadata) -> None:
        self._process = process
        self._metadata = metadata
        self.rng: random.Random = process.rng

    @property
    def disk(self) -> SimulatedDisk:
        return self._process.host.disk

    def append_worker(self, loop: BrokerLoop) -> Worker:
        assert isinstance(loop, SimLoop)
        return SimWorker(loop)

    def has_tree(self, folder: str) -> bool:
        return self._process.host.name in self._metadata.trees

    def open_tree(self, folder: str, clock: Clock) -> Tree:
        return _KeptTree(self._metadata.trees, self._process.host.name, clock)

    async def connect_zookeeper(self, config: ClusterConfig, folder: str) -> SimulatedTree:
        server, host = self._metadata.zookeeper, self._process.host.name
        assert server is not None
        tree = await SimulatedTree.open(server, host, rng=self.rng, settings=zookeeper_settings(config))
        self._close_old_session(server, host)

        def note(event: SessionEvent) -> None:
            if event is SessionEvent.CONNECTED:
                self._metadata.sessions[host] = (tree.session_id, tree.session_password)

        note(SessionEvent.CONNECTED)
        tree.listen(note)
        await asyncio.sleep(0)
        return tree

    def guard_session(self, config: ClusterConfig, tree: AsyncTree) -> None:
        """A killed process leaves its session: runs meet the expiry, which takes longer."""

    def _close_old_session(self, server: SimulatedZooKeeper, host: str) -> None:
        """End the session that the last process of this host has noted, as a real start does."""
        session_id, password = self._metadata.sessions.get(host, (0, b""))
        session = server.sessions.get(session_id)
        if session is not None and session.password == password:
            server.end_session(session_id)


class _KeptTree(EmbeddedTree):
    """An embedded tree in memory. Every change was synced, so a host that loses its power keeps it."""

    def __init__(self, kept: dict[str, sqlite3.Connection], host: str, clock: Clock) -> None:
        self._kept = kept
        self._host = host
        super().__init__(":memory:", clock)

    def _connect(self) -> sqlite3.Connection:
        if self._host not in self._kept:
            self._kept[self._host] = sqlite3.connect(":memory:", isolation_level=None)
        return self._kept[self._host]

    def _disconnect(self) -> None:
        """The next start of the broker finds the tree again."""
