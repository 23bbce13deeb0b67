"""Partitions with three replicas, while brokers and controllers come and go by seed.

Every state that the controller writes is checked: only an in-sync replica leads, the ISR is never empty and
grows only when the leader asks, and the leader epoch rises with every other change.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from contextlib import suppress

import pytest

from tests.controller.controllers import Cluster, Node, simulated
from tidelog.controller.interface import NewTopic
from tidelog.errors import BrokerNotAvailable, KafkaError, NotController, StaleBrokerEpoch
from tidelog.metadata import paths
from tidelog.metadata.controller_store import ControllerStore
from tidelog.metadata.nodes import PartitionNode, TopicNode
from tidelog.metadata.state import NO_LEADER, PartitionState, StateUpdates
from tidelog.metadata.tree import TreeUnavailable
from tidelog.partitions import TopicPartition
from tidelog.protocol.election_type import ElectionType
from tidelog.protocol.messages.alter_partition import AlterPartitionRequest

BROKERS = (1, 2, 3, 4)
STEPS = 14
PARTITIONS = [TopicPartition("demo", index) for index in range(4)]


class Checker:
    """Looks at each state before it is written."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.writes = 0
        self.failures: list[str] = []

    def node(self, partition: TopicPartition) -> tuple[PartitionNode, int]:
        data, stat = self.cluster.zookeeper.tree.get(paths.partition_state(*partition))
        return PartitionNode.decode(data), stat.version

    def check(self, partition: TopicPartition, state: PartitionState) -> None:
        before, version = self.node(partition)
        if version != state.partition_epoch:
            return  # the write will be refused
        self.writes += 1
        what = f"{partition}: {before} -> {state}"
        assert state.isr, what
        assert state.leader == NO_LEADER or state.leader in state.isr, what
        assert state.leader == NO_LEADER or state.leader in before.isr, what
        assert len(set(state.isr)) == len(state.isr), what
        if state.leader_epoch == before.leader_epoch:
            assert state.leader == before.leader, what
            assert state.isr != before.isr, what
        else:
            assert state.leader_epoch == before.leader_epoch + 1, what
            assert set(state.isr) <= set(before.isr), what


class Story:
    def __init__(self, cluster: Cluster, rng: random.Random) -> None:
        self.cluster = cluster
        self.rng = rng

    async def step(self) -> None:
        steps = (
            self.follow,
            self.follow,
            self.lag,
            self.reassign,
            self.reassign,
            self.cancel,
            self.prefer,
            self.crash,
            self.shut_down,
            self.expire,
            self.fail_log_dir,
            self.lose_connection,
        )
        with suppress(NotController, BrokerNotAvailable, StaleBrokerEpoch, TreeUnavailable):
            await self.rng.choice(steps)()
        await asyncio.sleep(self.rng.random() * self.rng.choice((0.002, 0.01, 3)))

    async def alter(self, partition: TopicPartition, isr: list[int]) -> None:
        """The leader of a partition asks for another ISR."""
        context = (await self.cluster.controller()).controller.context
        state = context.partitions.get(partition)
        if state is None or state.leader not in self.cluster.nodes:
            return
        asked = AlterPartitionRequest.PartitionData(
            partition_index=partition.partition,
            leader_epoch=state.leader_epoch,
            partition_epoch=state.partition_epoch,
            new_isr_with_epochs=[
                AlterPartitionRequest.BrokerState(
                    broker_id=member, broker_epoch=self.cluster.nodes[member].registrations[-1].epoch
                )
                for member in isr
                if member in self.cluster.nodes and self.cluster.nodes[member].registrations
            ],
        )
        topic = AlterPartitionRequest.TopicData(
            topic_id=context.topic_ids[partition.topic], partitions=[asked]
        )
        leader = self.cluster.nodes[state.leader]
        request = AlterPartitionRequest(
            broker_id=state.leader, broker_epoch=leader.registrations[-1].epoch, topics=[topic]
        )
        node = await self.cluster.controller()
        await node.controller.alter_partition(request, 3)

    async def follow(self) -> None:
        """All live followers of a partition are in sync."""
        for partition in PARTITIONS:
            context = (await self.cluster.controller()).controller.context
            state = context.partitions.get(partition)
            if state is not None:
                failed = {id for id, n in self.cluster.nodes.items() if partition in n.broker.failed_dir}
                added = [id for id in state.replicas if id not in state.isr and id not in failed]
                await self.alter(partition, [*state.isr, *added])

    async def lag(self) -> None:
        partition = self.rng.choice(PARTITIONS)
        state = (await self.cluster.controller()).controller.context.partitions.get(partition)
        if state is not None and len(state.isr) > 1:
            gone = self.rng.choice([member for member in state.isr if member != state.leader] or [0])
            await self.alter(partition, [member for member in state.isr if member != gone])

    async def reassign(self) -> None:
        target = self.rng.sample(BROKERS, self.rng.randrange(1, 4))
        wanted = dict.fromkeys(self.rng.sample(PARTITIONS, 2), target)
        await (await self.cluster.controller()).controller.alter_partition_reassignments(wanted)

    async def cancel(self) -> None:
        controller = (await self.cluster.controller()).controller
        running = await controller.list_partition_reassignments(None)
        await controller.alter_partition_reassignments(dict.fromkeys(running))

    async def prefer(self) -> None:
        await (await self.cluster.controller()).controller.elect_leaders(
            None, ElectionType.PREFERRED, timeout=3
        )

    async def crash(self) -> None:
        broker_id = self.rng.choice(BROKERS)
        await self.cluster.crash(broker_id)
        await asyncio.sleep(self.rng.random() * 12)
        await self.cluster.start(broker_id)

    async def shut_down(self) -> None:
        broker_id = self.rng.choice(BROKERS)
        with suppress(NotController, BrokerNotAvailable):
            await (await self.cluster.controller()).controller.controlled_shutdown(broker_id, -1)
        await self.cluster.nodes.pop(broker_id).stop()
        await asyncio.sleep(self.rng.random() * 3)
        await self.cluster.start(broker_id)

    async def expire(self) -> None:
        self.cluster.zookeeper.expire(self.any_node().client)

    async def lose_connection(self) -> None:
        self.cluster.zookeeper.lose_connection(self.any_node().client)

    async def fail_log_dir(self) -> None:
        node = self.any_node()
        node.broker.failed_dir.add(self.rng.choice(PARTITIONS))
        await node.store.write_log_dir_event(node.broker_id)

    def any_node(self) -> Node:
        return self.rng.choice(list(self.cluster.nodes.values()))


@pytest.mark.parametrize("seed", range(40))
def test_no_election_loses_records_and_every_reassignment_ends(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        rng = random.Random(seed)
        async with Cluster(*BROKERS, seed=seed) as cluster:
            checker = Checker(cluster)
            write = ControllerStore.update_partition_states

            async def checked(
                store: ControllerStore, states: Mapping[TopicPartition, PartitionState]
            ) -> StateUpdates:
                for partition, state in states.items():
                    try:
                        checker.check(partition, state)
                    except AssertionError as error:  # the controller would only log it
                        checker.failures.append(str(error))
                return await write(store, states)

            monkeypatch.setattr(ControllerStore, "update_partition_states", checked)
            controller = (await cluster.controller()).controller
            assignments = [(p.partition, rng.sample(BROKERS, 3)) for p in PARTITIONS]
            (result,) = await controller.create_topics([NewTopic("demo", assignments=assignments)])
            assert result.error is None
            story = Story(cluster, rng)
            for _ in range(STEPS):
                await story.step()
            await _heal(cluster, story)
            assert checker.failures == []
            assert checker.writes > 5
            await _check_end(cluster, checker)

    simulated(story())


async def _heal(cluster: Cluster, story: Story) -> None:
    """All brokers are up with good folders, and all followers are in sync."""
    for broker_id in BROKERS:  # a restart repairs failed folders
        await cluster.nodes.pop(broker_id).stop()
        await cluster.start(broker_id)
        await cluster.controller()
        await cluster.settle()
    for _ in range(3):
        with suppress(NotController, KafkaError):
            await story.follow()
        await cluster.settle()


async def _check_end(cluster: Cluster, checker: Checker) -> None:
    node = await cluster.controller()
    assert await node.controller.list_partition_reassignments(None) == {}
    context = node.controller.context
    topic = TopicNode.decode(cluster.zookeeper.tree.get(paths.topic("demo"))[0])
    assert (topic.adding, topic.removing) == ({}, {})
    for partition in PARTITIONS:
        written, version = checker.node(partition)
        state = context.partitions[partition]
        assert topic.partitions[partition.partition] == state.replicas
        assert (written.leader, written.isr) == (state.leader, state.isr)
        assert version == state.partition_epoch
        assert set(state.isr) == set(state.replicas), partition
        for broker_id, other in cluster.nodes.items():
            assert other.broker.leaders[partition] == state.leader
            leads = other.broker.leading.get(partition)
            assert (leads == state.leader_epoch) if broker_id == state.leader else (leads is None)
            follows = broker_id in state.replicas and broker_id != state.leader
            assert (partition in other.broker.following) == follows
    assert context.offline_partition_count == 0
    expected = sum(s.leader != s.replicas[0] for s in context.partitions.values())
    assert context.preferred_replica_imbalance_count == expected
