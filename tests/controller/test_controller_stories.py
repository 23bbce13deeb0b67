"""Brokers crash, sessions expire and answers are lost by seed: afterwards all agree, nothing is missing."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress

import pytest

from tests.controller.controllers import Cluster, Node, simulated
from tidelog.controller.context import ControllerContext
from tidelog.controller.interface import NewPartitions, NewTopic, TopicToDelete
from tidelog.endpoints import Endpoint
from tidelog.errors import BrokerNotAvailable, NotController
from tidelog.metadata import paths
from tidelog.metadata.nodes import BrokerNode, TopicNode
from tidelog.metadata.tree import NoNode, TreeUnavailable

STEPS = 12
BROKERS = (1, 2, 3)


class Story:
    def __init__(self, cluster: Cluster, rng: random.Random) -> None:
        self.cluster = cluster
        self.rng = rng
        self.topics: list[str] = []
        self.made = 0

    async def step(self) -> None:
        steps = (
            self.create,
            self.create_with_a_tool,
            self.grow,
            self.delete,
            self.expire,
            self.restart,
            self.shut_down,
            self.lose_connection,
            self.move,
            self.cut_off,
        )
        await self.rng.choice(steps)()
        await asyncio.sleep(self.rng.random() * self.rng.choice((0.01, 3)))

    async def create(self) -> None:
        count = self.rng.randrange(1, 20)
        names = [f"topic-{self.made + n}" for n in range(count)]
        self.made += count
        new = [NewTopic(name, self.rng.randrange(1, 4), self.rng.randrange(1, 3)) for name in names]
        controller = (await self.cluster.controller()).controller
        try:
            results = await controller.create_topics(new)
        except NotController:
            return  # whether they were created is not known
        self.topics += [result.name for result in results if result.error is None]

    async def delete(self) -> None:
        if self.topics:
            doomed = self.topics.pop(self.rng.randrange(len(self.topics)))
            try:
                await (await self.cluster.controller()).controller.delete_topics([TopicToDelete(doomed)])
            except NotController:
                return

    async def create_with_a_tool(self) -> None:
        """A topic without an id and without states."""
        name = f"topic-{self.made}"
        self.made += 1
        partitions = {index: self.rng.sample(BROKERS, 2) for index in range(3)}
        try:
            await self.any_node().tree.create(paths.topic(name), TopicNode(partitions).encode())
        except TreeUnavailable:
            return
        self.topics.append(name)

    async def grow(self) -> None:
        if self.topics:
            grown = NewPartitions(self.rng.choice(self.topics), 5)
            with suppress(NotController):
                await (await self.cluster.controller()).controller.create_partitions([grown], timeout=3)

    async def shut_down(self) -> None:
        broker_id = self.rng.choice(BROKERS)
        with suppress(NotController, BrokerNotAvailable):
            await (await self.cluster.controller()).controller.controlled_shutdown(broker_id, -1)
        await self.cluster.nodes.pop(broker_id).stop()
        await asyncio.sleep(self.rng.random() * 3)
        await self.cluster.start(broker_id)

    async def move(self) -> None:
        """A broker gets another address; the old one answers for a while."""
        node = self.any_node()
        node.port = self.cluster.next_port()
        self.cluster.network.brokers[node.port] = node.broker
        endpoint = Endpoint("PLAINTEXT", "PLAINTEXT", "elsewhere", node.port)
        with suppress(TreeUnavailable, NoNode):
            await node.store.update_broker(node.broker_id, BrokerNode([endpoint], 0))

    async def cut_off(self) -> None:
        """A broker does not answer the controller, but its session lives on."""
        node = self.any_node()
        node.broker.is_up = False

        def heal() -> None:
            node.broker.is_up = node in self.cluster.nodes.values()

        asyncio.get_running_loop().call_later(self.rng.random() * 4, heal)

    def any_node(self) -> Node:
        return self.rng.choice(list(self.cluster.nodes.values()))

    async def expire(self) -> None:
        node = self.any_node()
        self.cluster.zookeeper.expire(node.client)

    async def restart(self) -> None:
        broker_id = self.rng.choice(BROKERS)
        await self.cluster.crash(broker_id)
        await asyncio.sleep(self.rng.random() * 10)  # before or after its session expires
        await self.cluster.start(broker_id)

    async def lose_connection(self) -> None:
        self.cluster.zookeeper.lose_connection((await self.cluster.controller()).client)


def check(cluster: Cluster, context: ControllerContext, topics: list[str]) -> None:
    assert context.live_broker_ids == set(BROKERS)
    assert not context.topics_to_be_deleted
    assert set(topics) <= context.topics
    assert context.offline_partition_count == 0
    leaders = {partition: state.leader for partition, state in context.partitions.items()}
    assert context.topic_ids.keys() == context.topics == set(cluster.zookeeper.tree.children(paths.TOPICS))
    for broker_id, node in cluster.nodes.items():
        assert not node.broker.forgotten & set(topics)
        assert node.broker.live == set(BROKERS)
        assert node.broker.leaders == leaders
        assert node.broker.leading == {
            partition: state.leader_epoch
            for partition, state in context.partitions.items()
            if state.leader == broker_id
        }
    for partition, state in context.partitions.items():
        _, stat = cluster.zookeeper.tree.get(paths.partition_state(*partition))
        assert stat.version == state.partition_epoch


@pytest.mark.parametrize("seed", range(20))
def test_after_the_faults_all_agree(seed: int) -> None:
    async def main() -> None:
        rng = random.Random(seed)
        async with Cluster(seed=seed) as cluster:
            cluster.zookeeper.loss = rng.choice([0.02, 0.1, 0.3])
            for broker_id in BROKERS:
                await cluster.start(broker_id)
            await cluster.controller()
            story = Story(cluster, rng)
            for _ in range(STEPS):
                await story.step()
            cluster.zookeeper.loss = 0.0
            await asyncio.sleep(20)  # sessions of crashed brokers end
            controller = await cluster.controller()
            await cluster.settle()
            check(cluster, controller.controller.context, story.topics)

    simulated(main())
