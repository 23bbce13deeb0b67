"""Platform: the disk, random numbers and processes of a machine, beside the loop with clock, sockets and
threads.

Brokers run on the real platform. The simulation has a platform with simulated disks and a seed.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from tidelog.clock import Clock
from tidelog.cluster.worker import ThreadWorker, Worker
from tidelog.metadata.tree import Tree
from tidelog.network.loop import BrokerLoop
from tidelog.storage.disk import Disk, RealDisk

if TYPE_CHECKING:
    from tidelog.metadata.async_tree import AsyncTree
    from tidelog.server.config.cluster import ClusterConfig


class SessionGuardian(Protocol):
    async def stop(self) -> None:
        """Stop the guardian when the process stops normally. Its session is closed, or expires."""


class Platform(Protocol):
    @property
    def disk(self) -> Disk:
        """The file system of the log folders."""

    @property
    def rng(self) -> random.Random:
        """The random numbers of decisions, and of fetch sessions, which nobody may guess."""

    def append_worker(self, loop: BrokerLoop) -> Worker:
        """A worker for the appends of large produce requests."""

    def has_tree(self, folder: str) -> bool:
        """Whether a log folder has an embedded tree."""

    def open_tree(self, folder: str, clock: Clock) -> Tree:
        """The embedded tree of a log folder, created if it is missing. Raises TreeUnavailable."""

    async def connect_zookeeper(self, config: ClusterConfig, folder: str) -> AsyncTree:
        """A ZooKeeper session for the broker with this log folder. Raises TreeUnavailable or StartFailed."""

    def guard_session(self, config: ClusterConfig, tree: AsyncTree) -> SessionGuardian | None:
        """End the session of `connect_zookeeper` when this process dies; None if nothing can do that."""


class RealPlatform:
    def __init__(self) -> None:
        self.disk = RealDisk()
        # Of the system: what a client sees of it tells nothing about what the next client gets.
        self.rng = random.SystemRandom()

    def append_worker(self, loop: BrokerLoop) -> Worker:
        return ThreadWorker("tidelog-append", loop.post)

    def has_tree(self, folder: str) -> bool:
        from tidelog.metadata.embedded_tree import FILE_NAME

        return (Path(folder) / FILE_NAME).exists()

    def open_tree(self, folder: str, clock: Clock) -> Tree:
        from tidelog.metadata.embedded_tree import FILE_NAME, EmbeddedTree

        return EmbeddedTree(Path(folder) / FILE_NAME, clock)

    async def connect_zookeeper(self, config: ClusterConfig, folder: str) -> AsyncTree:
        from tidelog.server.zookeeper_connection import connect_zookeeper

        return await connect_zookeeper(config, folder, self.rng)

    def guard_session(self, config: ClusterConfig, tree: AsyncTree) -> SessionGuardian | None:
        from tidelog.metadata.zookeeper import ZooKeeperTree
        from tidelog.server.guardian import Guardian

        if not isinstance(tree, ZooKeeperTree):
            return None
        guardian = Guardian(config, tree)
        guardian.start()
        return guardian
