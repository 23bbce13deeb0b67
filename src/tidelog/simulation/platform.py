"""The platform of a simulated broker: the disk of its host, and an embedded tree that survives crashes."""

from __future__ import annotations

import random
import sqlite3

from tidelog.clock import Clock
from tidelog.cluster.worker import Worker
from tidelog.metadata.embedded import EmbeddedTree
from tidelog.metadata.tree import Tree
from tidelog.network.loop import BrokerLoop
from tidelog.simulation.disk import SimulatedDisk
from tidelog.simulation.loop import SimLoop, SimWorker
from tidelog.simulation.process import Process


class SimPlatform:
    """Implements tidelog.server.platform.Platform."""

    def __init__(self, process: Process, trees: dict[str, sqlite3.Connection]) -> None:
        self._process = process
        self._trees = trees
        self.rng: random.Random = process.rng

    @property
    def disk(self) -> SimulatedDisk:
        return self._process.host.disk

    def append_worker(self, loop: BrokerLoop) -> Worker:
        assert isinstance(loop, SimLoop)
        return SimWorker(loop)

    def has_tree(self, folder: str) -> bool:
        return self._process.host.name in self._trees

    def open_tree(self, folder: str, clock: Clock) -> Tree:
        return _KeptTree(self._trees, self._process.host.name, clock)


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
