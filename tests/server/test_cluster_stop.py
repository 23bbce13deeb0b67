"""The stop of a broker of a cluster when ZooKeeper or the controller is gone."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from pathlib import Path

import pytest

from tidelog.clients.async_connection import AsyncConnection
from tidelog.clients.metadata import BrokerNode
from tidelog.clients.security import Security
from tidelog.clients.settings import admin_settings
from tidelog.errors import NetworkException
from tidelog.metadata.async_tree import AsyncTree
from tidelog.metadata.simulated import SimulatedTree, SimulatedZooKeeper
from tidelog.network.loop import BrokerLoop
from tidelog.protocol.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from tidelog.server import broker as broker_module
from tidelog.server.broker import Broker
from tidelog.server.config.broker import BrokerConfig
from tidelog.server.config.cluster import ClusterConfig
from tidelog.server.platform import RealPlatform

BROKER = 4
SECONDS = 30.0


class OnSimulatedZooKeeper(RealPlatform):
    """A broker on this machine, with a ZooKeeper in memory."""

    def __init__(self, loop: BrokerLoop) -> None:
        super().__init__()
        self.rng = random.Random(1)
        self.zookeeper = SimulatedZooKeeper(loop, self.rng)

    async def connect_zookeeper(self, config: ClusterConfig, folder: str) -> AsyncTree:
        return await SimulatedTree.open(self.zookeeper, "broker", rng=self.rng)


def run(story: Coroutine[None, None, None], loop: BrokerLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_until_complete(asyncio.wait_for(story, SECONDS))
    finally:
        loop.close()
        asyncio.set_event_loop(None)


async def connected(broker: Broker) -> AsyncConnection:
    host, _, port = broker.address.rpartition(":")
    settings = admin_settings({"bootstrap.servers": broker.address})
    return await AsyncConnection.open(BrokerNode(1, host, int(port)), settings, Security(settings))


def test_a_stop_does_not_wait_for_a_request_that_waits_for_zookeeper(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_module, "TREE_SECONDS", 0.1, raising=False)
    loop = BrokerLoop(1)
    platform = OnSimulatedZooKeeper(loop)
    settings = {
        "broker.id": "1",
        "log.dirs": str(tmp_path),
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "zookeeper.connect": "simulated:2181",
        "controlled.shutdown.enable": "false",
    }
    broker = Broker(BrokerConfig.load(None, settings), loop, platform)
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource(resource_type=BROKER, resource_name="")

    async def story() -> None:
        await broker.start()
        client = await connected(broker)
        platform.zookeeper.stop()
        request = IncrementalAlterConfigsRequest(resources=[resource])
        asked = asyncio.create_task(client.call(request, IncrementalAlterConfigsResponse))
        await asyncio.sleep(0.1)
        assert not asked.done(), "it waits for ZooKeeper"
        await broker.stop()
        with pytest.raises(NetworkException):
            await asked

    run(story(), loop)
