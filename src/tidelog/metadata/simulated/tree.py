"""SimulatedTree: a client session on a SimulatedZooKeeper."""

from __future__ import annotations

import random
import ssl

from tidelog.metadata.simulated.server import SimulatedZooKeeper
from tidelog.metadata.zookeeper.connect_string import ConnectString
from tidelog.metadata.zookeeper.connection import Connection, ConnectionListener
from tidelog.metadata.zookeeper.settings import ZooKeeperSettings
from tidelog.metadata.zookeeper.tree import ZooKeeperTree


class SimulatedTree(ZooKeeperTree):
    """The real client, on connections in memory: `await SimulatedTree.open(server, "broker-1", rng=rng)`."""

    @classmethod
    async def open(
        cls,
        server: SimulatedZooKeeper,
        client: str,
        *,
        rng: random.Random,
        chroot: str = "",
        settings: ZooKeeperSettings | None = None,
    ) -> SimulatedTree:
        """Connect on the running loop. `client` is the name by which the server finds it for faults."""

        async def connect(
            address: tuple[str, int], tls: ssl.SSLContext | None, listener: ConnectionListener
        ) -> Connection:
            return await server.open(client, listener)

        address = ConnectString((("simulated", 2181),), chroot)
        tree = cls(address, settings or ZooKeeperSettings(), rng, connect)
        await tree._start()
        return tree
