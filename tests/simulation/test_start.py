"""What clients hear of a broker that starts in a cluster, before the controller has told it anything."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from tidelog.clients.async_connection import AsyncConnection
from tidelog.clients.metadata import BrokerNode
from tidelog.clients.security import Security
from tidelog.clients.settings import admin_settings
from tidelog.errors import KafkaError
from tidelog.protocol.message import Message
from tidelog.protocol.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from tidelog.protocol.messages.metadata import MetadataRequest, MetadataResponse
from tidelog.simulation.cluster import PORT, SimBroker, SimCluster
from tidelog.simulation.process import Process
from tidelog.simulation.world import World

QUESTIONS: list[tuple[Message, type[MetadataResponse] | type[DescribeClusterResponse]]] = [
    (MetadataRequest(topics=[]), MetadataResponse),
    (DescribeClusterRequest(), DescribeClusterResponse),
]


class Asker:
    """Asks a broker for the brokers of its cluster, again and again, over new connections."""

    def __init__(self, broker: SimBroker) -> None:
        self.answers: list[Sequence[object]] = []
        self.refused = 0
        self._node = BrokerNode(broker.id, broker.host, PORT)
        self._settings = admin_settings({"bootstrap.servers": broker.address})

    async def main(self, _: Process) -> None:
        while True:
            for request, answer in QUESTIONS:
                await self._ask(request, answer)
            await asyncio.sleep(0.001)

    async def _ask(
        self, request: Message, answer: type[MetadataResponse] | type[DescribeClusterResponse]
    ) -> None:
        try:
            connection = await AsyncConnection.open(
                self._node, self._settings, Security(self._settings), timeout=1.0
            )
            answered = await connection.call(request, answer, timeout=20.0)
            connection.close("it is answered")
        except KafkaError:
            self.refused += 1
        else:
            self.answers.append(answered.brokers)


@pytest.mark.parametrize("seed", range(3))
def test_a_broker_that_starts_tells_no_client_that_there_are_no_brokers(seed: int) -> None:
    with World(seed).running() as world:
        cluster = SimCluster(world, 3)
        cluster.start()
        assert world.run(30.0, lambda: cluster.is_running)
        broker = cluster.brokers[seed]
        asker = Asker(broker)
        world.start("asker", "client", asker.main)
        for _ in range(4):
            broker.kill()
            world.run(1.0)
            broker.start()
            assert world.run(30.0, lambda: cluster.is_running)
            seen = len(asker.answers)
            assert world.run(30.0, lambda: len(asker.answers) > seen + 10)  # noqa: B023
        assert all(asker.answers)


def test_a_broker_without_a_controller_lets_clients_go_elsewhere() -> None:
    with World(1).running() as world:
        cluster = SimCluster(world, 3)
        cluster.start()
        assert world.run(30.0, lambda: cluster.is_running)
        first, *others = cluster.brokers
        first.kill()
        world.run(1.0)
        # No controller reaches it: neither one of the others, nor itself.
        for other in others:
            other.kill()
        world.network.cut(first.host, first.host)
        first.start()
        assert world.run(30.0, lambda: first.is_running)
        asker = Asker(first)
        world.start("asker", "client", asker.main)
        world.run(20.0)
        assert asker.refused
        assert not asker.answers


@pytest.mark.parametrize("seed", range(2))
def test_a_session_that_expires_during_the_start_does_not_end_the_broker(seed: int) -> None:
    with World(seed).running() as world:
        cluster = SimCluster(world, 3)
        cluster.start()
        assert world.run(30.0, lambda: cluster.is_running)
        zookeeper = cluster.zookeeper
        assert zookeeper is not None
        broker = cluster.brokers[seed]
        began = False
        for moment in range(0, 90, 5):
            broker.kill()
            world.run(1.0)
            broker.start()
            world.run(moment / 1000)
            began = began or broker.is_running
            zookeeper.expire(broker.host)
            assert world.run(30.0, lambda: cluster.is_running), f"after {moment} ms"
        assert began, "the last moments come after the start"
