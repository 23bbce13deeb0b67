"""Partitions move to other brokers: no replica leaves before the new ones are in sync."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from tests.controller.controllers import Cluster, Node, simulated
from tidelog.controller.context import ControllerContext
from tidelog.controller.interface import NewPartitions, NewTopic, TopicToDelete
from tidelog.controller.replica_assignment import ReplicaAssignment
from tidelog.controller.states import PartitionAndReplica, ReplicaStatus
from tidelog.errors import (
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    KafkaError,
    NoReassignmentInProgress,
    ReassignmentInProgress,
    UnknownTopicOrPartition,
)
from tidelog.metadata.nodes import PartitionNode, TopicNode, decode_reassignment, encode_reassignment
from tidelog.metadata.state import PartitionState
from tidelog.metadata.tree import Create, NoNode
from tidelog.partitions import TopicPartition
from tidelog.protocol.messages.alter_partition import AlterPartitionRequest
from tidelog.protocol.messages.leader_and_isr import LeaderAndIsrRequest
from tidelog.protocol.messages.stop_replica import StopReplicaRequest

DEMO = TopicPartition("demo", 0)
REQUESTS = "/admin/reassign_partitions"


class Rig:
    """Broker 9 has the controller, the brokers from 1 on have replicas."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    async def start(self, *broker_ids: int) -> Rig:
        await self.cluster.start(9)
        await self.cluster.controller()
        for broker_id in broker_ids:
            await self.cluster.start(broker_id)
        await self.cluster.settle()
        return self

    async def create(self, *assignments: list[int], name: str = "demo") -> None:
        node = await self.cluster.controller()
        topic = NewTopic(name, assignments=list(enumerate(assignments)))
        (result,) = await node.controller.create_topics([topic])
        assert result.error is None
        await self.cluster.settle()

    async def node(self) -> Node:
        return await self.cluster.controller()

    async def reassign(
        self, replicas: Sequence[int] | None, partition: TopicPartition = DEMO, *, fixed: bool = False
    ) -> KafkaError | None:
        node = await self.cluster.controller()
        results = await node.controller.alter_partition_reassignments(
            {partition: replicas}, allow_replication_factor_change=not fixed
        )
        await self.cluster.settle()
        return results[partition]

    async def in_sync(self, isr: list[int], partition: TopicPartition = DEMO) -> int:
        """The leader asks for another ISR; returns the error code."""
        node = await self.cluster.controller()
        context = node.controller.context
        state = context.partitions[partition]
        asked = AlterPartitionRequest.PartitionData(
            partition_index=partition.partition,
            leader_epoch=state.leader_epoch,
            new_isr_with_epochs=[
                AlterPartitionRequest.BrokerState(broker_id=id, broker_epoch=context.broker_epoch(id))
                for id in isr
            ],
            partition_epoch=state.partition_epoch,
        )
        topic = AlterPartitionRequest.TopicData(
            topic_id=context.topic_ids[partition.topic], partitions=[asked]
        )
        request = AlterPartitionRequest(
            broker_id=state.leader, broker_epoch=context.broker_epoch(state.leader), topics=[topic]
        )
        response = await node.controller.alter_partition(request, 3)
        await self.cluster.settle()
        return response.topics[0].partitions[0].error_code

    async def state(self, partition: TopicPartition = DEMO) -> PartitionState:
        """The state at the controller, which is that of the tree."""
        state = (await self.cluster.controller()).controller.context.partitions[partition]
        node = self.topic_node(partition.topic)
        index = partition.partition
        assert node.partitions[index] == state.replicas
        assert (node.adding.get(index, []), node.removing.get(index, [])) == (state.adding, state.removing)
        path = f"/brokers/topics/{partition.topic}/partitions/{index}/state"
        data, stat = self.cluster.zookeeper.tree.get(path)
        written = PartitionNode.decode(data)
        assert (written.leader, written.isr, written.leader_epoch) == (
            state.leader,
            state.isr,
            state.leader_epoch,
        )
        assert stat.version == state.partition_epoch
        return state

    def topic_node(self, topic: str) -> TopicNode:
        return TopicNode.decode(self.cluster.zookeeper.tree.get(f"/brokers/topics/{topic}")[0])

    async def running(self) -> dict[TopicPartition, PartitionState]:
        node = await self.cluster.controller()
        return await node.controller.list_partition_reassignments(None)

    def deleted(self, broker_id: int) -> list[TopicPartition]:
        return self.cluster.nodes[broker_id].broker.deleted

    def last_told(self, broker_id: int) -> LeaderAndIsrRequest.LeaderAndIsrPartitionState:
        received = self.cluster.nodes[broker_id].broker.received
        requests = [request for request in received if isinstance(request, LeaderAndIsrRequest)]
        return requests[-1].topic_states[0].partition_states[0]


@pytest.mark.parametrize(
    ("before", "target", "replicas", "adding", "removing"),
    [
        ([1, 2], [3, 4], [3, 4, 1, 2], [3, 4], [1, 2]),
        ([1, 2], [2, 3], [2, 3, 1], [3], [1]),
        ([1], [1, 2, 3], [1, 2, 3], [2, 3], []),
        ([1, 2, 3], [2], [2, 1, 3], [], [1, 3]),
        ([1, 2, 3], [3, 2, 1], [3, 2, 1], [], []),
    ],
)
def test_an_assignment_knows_what_is_added_and_removed(
    before: list[int], target: list[int], replicas: list[int], adding: list[int], removing: list[int]
) -> None:
    moving = ReplicaAssignment(before).reassigned_to(target)
    assert moving == ReplicaAssignment(replicas, adding, removing)
    assert (set(moving.origin), moving.target) == (set(before), target)
    assert moving.is_being_reassigned == bool(adding or removing)
    back = moving.reassigned_to(moving.origin)
    assert not back.is_being_reassigned
    assert set(back.replicas) == set(before)


def test_a_partition_moves_when_its_new_replicas_are_in_sync() -> None:
    async def story() -> None:
        async with Cluster() as cluster:
            rig = await Rig(cluster).start(1, 2, 3, 4)
            await rig.create([1, 2])
            before = await rig.state()
            assert await rig.reassign([3, 4]) is None

            moving = await rig.state()
            assert (moving.replicas, moving.adding, moving.removing) == ([3, 4, 1, 2], [3, 4], [1, 2])
            assert (moving.leader, moving.isr) == (1, [1, 2])
            assert moving.leader_epoch == before.leader_epoch + 1
            assert await rig.running() == {DEMO: moving}
            assert [rig.last_told(id).is_new for id in (1, 2, 3, 4)] == [False, False, True, True]
            for broker_id in (1, 2, 3, 4):
                told = rig.last_told(broker_id)
                assert (told.replicas, told.adding_replicas) == ([3, 4, 1, 2], [3, 4])
                assert (told.removing_replicas, told.leader_epoch) == ([1, 2], moving.leader_epoch)

            assert await rig.in_sync([1, 2, 3]) == 0
            assert await rig.running()
            assert rig.deleted(1) == rig.deleted(2) == []

            assert await rig.in_sync([1, 2, 3, 4]) == 0
            moved = await rig.state()
            assert (moved.replicas, moved.adding, moved.removing) == ([3, 4], [], [])
            assert (moved.leader, sorted(moved.isr)) == (3, [3, 4])
            assert moved.leader_epoch > moving.leader_epoch
            assert await rig.running() == {}
            assert rig.deleted(1) == rig.deleted(2) == [DEMO]
            assert rig.deleted(3) == rig.deleted(4) == []
            assert cluster.nodes[3].broker.leading == {DEMO: moved.leader_epoch}
            assert cluster.nodes[4].broker.following == {DEMO}
            assert not cluster.nodes[1].broker.leading
            assert all(node.broker.leaders[DEMO] == 3 for node in cluster.nodes.values())
            context = (await rig.node()).controller.context
            assert set(context.replica_statuses) == {PartitionAndReplica(*DEMO, id) for id in (3, 4)}
            assert not any(context.removed_replicas.values())
            # The removed replicas are fenced by the epoch of the last leader.
            stops = [r for r in cluster.nodes[1].broker.received if isinstance(r, StopReplicaRequest)]
            assert stops[-1].topic_states[0].partition_states[0].leader_epoch == moved.leader_epoch

    simulated(story())


def test_the_leader_stays_if_the_target_has_it() -> None:
    async def story() -> None:
        async with Cluster() as cluster:
            rig = await Rig(cluster).start(1, 2, 3)
            await rig.create([1, 2])
            assert await rig.reassign([3, 1]) is None
            assert await rig.in_sync([1, 2, 3]) == 0
            moved = await rig.state()
            assert (moved.replicas, moved.leader, sorted(moved.isr)) == ([3, 1], 1, [1, 3])
            assert rig.last_told(1).replicas == rig.last_told(3).replicas == [3, 1]
            assert rig.deleted(2) == [DEMO]

    simulated(story())


@pytest.mark.parametrize(
    ("before", "target", "deleted"),
    [([1, 2, 3], [2], {1, 3}), ([1, 2, 3], [3, 1, 2], set()), ([1], [1], set())],
)
def test_a_reassignment_without_new_replicas_is_complete_at_once(
    before: list[int], target: list[int], deleted: set[int]
) -> None:
    async def story() -> None:
        async with Cluster() as cluster:
            rig = await Rig(cluster).start(1, 2, 3)
            await rig.create(before)
            assert await rig.reassign(target) is None
            moved = await rig.state()
            assert (moved.replicas, sorted(moved.isr)) == (target, sorted(target))
            assert moved.leader in target
            assert await rig.running() == {}
            assert {id for id in (1, 2, 3) if rig.deleted(id)} == deleted

    simulated(story())


def test_more_replicas_are_added_and_fewer_kept() -> None:
    async def story() -> None:
        async with Cluster() as cluster:
            rig = await Rig(cluster).start(1, 2, 3)
            await rig.create([1])
            assert await rig.reassign([1, 2, 3]) is None
            assert await rig.in_sync([1, 2, 3]) == 0
            assert (await rig.state()).replicas == [1, 2, 3]
            assert isinstance(await rig.reassign([1], fixed=True), InvalidReplicationFactor)
            assert await rig.reassign([1]) is None
            state = await rig.state()
            assert (state.replicas, state.isr) == ([1], [1])
            assert (rig.deleted(2), rig.deleted(3)) == ([DEMO], [DEMO])

    simulated(story())


def test_a_reassignment_is_cancelled() -> None:
    async def story() -> None:
        async with Cluster() as cluster:
            rig = await Rig(cluster).start(1, 2, 3, 4)
            await rig.create([1, 2])
            assert await rig.reassign([3, 4]) is None
            assert await rig.in_sync([1, 2, 3]) == 0
            assert await rig.reassign(None) is None
            state = await rig.state()
            assert (state.replicas, state.adding, state.removing) == ([1, 2], [], [])
            assert (state.leader, state.isr) == (1, [1, 2])
            assert await rig.running() == {}
            assert (rig.deleted(3), rig.deleted(4)) == ([DEMO], [DEMO])
            assert isinstance(await rig.reassign(None), NoReassignmentInProgress)

    simulated(story())


def test_a_running_reassignment_is_replaced() -> None:
    async def story() -> None:
        async with Cluster() as cluster:
            rig = await Rig(cluster).start(1, 2, 3, 4)
            await rig.create([1])
            assert await rig.reassign([2, 3]) is None
            assert await rig.reassign([3, 4]) is None
            moving = await rig.state()
            assert (moving.replicas, moving.adding, moving.removing) == ([3, 4, 1], [3, 4], [1])
            assert rig.deleted(2) == [DEMO]
            assert rig.deleted(3) == []
            assert await rig.in_sync([1, 3, 4]) == 0
            assert (await rig.state()).replicas == [3, 4]

    simulated(story())


def test_what_cannot_be_reassigned_is_refused() -> None:
    async def story() -> None:
        async with Cluster() as cluster:
            rig = await Rig(cluster).start(1, 2)
            await rig.create([1, 2])
            unknown = TopicPartition("demo", 7)
            assert isinstance(await rig.reassign([]), InvalidReplicaAssignment)
            assert isinstance(await rig.reassign([1, 1]), InvalidReplicaAssignment)
            assert isinstance(await rig.reassign([1, -1]), InvalidReplicaAssignment)
            assert isinstance(await rig.reassign([1, 5]), InvalidReplicaAssignment)
            assert isinstance(await rig.reassign([1], unknown), UnknownTopicOrPartition)
            # As in Kafka the replicas are checked first.
            assert isinstance(await rig.reassign([5], unknown), InvalidReplicaAssignment)
            assert isinstance(await rig.reassign(None, unknown), NoReassignmentInProgress)
            assert isinstance(await rig.reassign(None), NoReassignmentInProgress)
            assert (await rig.state()).replicas == [1, 2]

    simulated(story())


def test_a_cancellation_that_would_lose_records_is_refused() -> None:
    """The new replica is the only one in sync: without it the partition would have no clean leader."""

    async def story() -> None:
        async with Cluster() as cluster:
            rig = await Rig(cluster).start(1, 2, 3)
            await rig.create([1])
            assert await rig.reassign([2, 3]) is None
            assert await rig.in_sync([1, 2]) == 0
            await cluster.crash(1)
            await cluster.until(lambda: 1 not in _context(cluster).live_broker_ids, "the crash")
            await cluster.settle()
            assert (await rig.state()).isr == [2]
            assert isinstance(await rig.reassign(None), InvalidReplicaAssignment)
            assert await rig.running()
            assert await rig.in_sync([2, 3]) == 0
            assert (await rig.state()).replicas == [2, 3]

    simulated(story())


def _context(cluster: Cluster) -> ControllerContext:
    return next(n.controller.context for n in cluster.nodes.values() if n.controller.is_active)


def test_a_broker_that_was_down_deletes_the_replica_when_it_is_back() -> None:
    async def story() -> None:
        async with Cluster() as cluster:
            rig = await Rig(cluster).start(1, 2, 3)
            await rig.create([1, 2])
            await cluster.crash(2)
            await cluster.until(lambda: 2 not in _context(cluster).live_broker_ids, "the crash")
            await cluster.settle()
            assert await rig.reassign([1, 3]) is None
            assert await rig.in_sync([1, 3]) == 0
            assert (await rig.state()).replicas == [1, 3]
            await cluster.start(2)
            await cluster.until(lambda: rig.deleted(2), "the deletion")
            assert rig.deleted(2) == [DEMO]
            await cluster.settle()
            assert not any(_context(cluster).removed_replicas.values())

    simulated(story())


@pytest.mark.parametrize("complete_before", [False, True])
def test_the_next_controller_goes_on(complete_before: bool) -> None:
    async def story() -> None:
        async with Cluster() as cluster:
            rig = await Rig(cluster).start(1, 2, 3)
            await rig.create([1])
            assert await rig.reassign([2, 3]) is None
            if complete_before:
                # The new replicas are in sync, and the controller dies before it notices.
                tree = cluster.nodes[1].tree
                path = "/brokers/topics/demo/partitions/0/state"
                data, _ = await tree.get(path)
                node = PartitionNode.decode(data)
                node.isr = [1, 2, 3]
                await cluster.crash(9)
                await tree.set(path, node.encode())
            else:
                await cluster.crash(9)
            await cluster.controller()
            await cluster.settle()
            if not complete_before:
                assert DEMO in await rig.running()
                assert await rig.in_sync([1, 2, 3]) == 0
            state = await rig.state()
            assert (state.replicas, state.adding, state.removing) == ([2, 3], [], [])
            assert state.leader in (2, 3)
            assert rig.deleted(1) == [DEMO]

    simulated(story())


@pytest.mark.parametrize("turns", range(0, 120, 4))
def test_a_controller_that_dies_in_the_middle_leaves_nothing_undone(turns: int) -> None:
    async def story() -> None:
        async with Cluster() as cluster:
            rig = await Rig(cluster).start(1, 2, 3, 4)
            await rig.create([1, 2])
            assert await rig.reassign([3, 4]) is None
            alter = asyncio.ensure_future(rig.in_sync([1, 2, 3, 4]))
            for _ in range(turns):
                await asyncio.sleep(0.0002)
            await cluster.crash(9)
            await asyncio.wait([alter])
            alter.exception()
            await cluster.controller()
            await cluster.settle()
            state = await rig.state()
            if state.adding:
                assert await rig.in_sync([1, 2, 3, 4]) == 0
                state = await rig.state()
            assert (state.replicas, state.adding, state.removing) == ([3, 4], [], [])
            assert state.leader in (3, 4)
            assert sorted(state.isr) == [3, 4]
            for broker_id in (1, 2):
                assert not cluster.nodes[broker_id].broker.leading

    simulated(story())


def test_a_new_replica_whose_broker_dies_goes_on_when_it_is_back() -> None:
    async def story() -> None:
        async with Cluster() as cluster:
            rig = await Rig(cluster).start(1, 2)
            await rig.create([1])
            assert await rig.reassign([2]) is None
            await cluster.crash(2)
            await cluster.until(lambda: 2 not in _context(cluster).live_broker_ids, "the crash")
            await cluster.settle()
            assert DEMO in await rig.running()
            node = await cluster.start(2)
            await cluster.until(lambda: DEMO in node.broker.following, "the follower")
            await cluster.settle()
            assert await rig.in_sync([1, 2]) == 0
            state = await rig.state()
            assert (state.replicas, state.leader, state.isr) == ([2], 2, [2])
            status = _context(cluster).replica_status(PartitionAndReplica(*DEMO, 2))
            assert status is ReplicaStatus.ONLINE

    simulated(story())


def test_a_topic_is_deleted_after_its_reassignment() -> None:
    async def story() -> None:
        async with Cluster() as cluster:
            rig = await Rig(cluster).start(1, 2)
            await rig.create([1], [1])
            assert await rig.reassign([2]) is None
            assert await rig.reassign([2], TopicPartition("demo", 1)) is None
            node = await rig.node()
            (result,) = await node.controller.delete_topics([TopicToDelete("demo")])
            assert result.error is None
            await cluster.settle()
            assert isinstance(await rig.reassign([1]), UnknownTopicOrPartition)
            assert "demo" in cluster.zookeeper.tree.children("/brokers/topics")
            assert await rig.in_sync([1, 2]) == 0
            assert "demo" in cluster.zookeeper.tree.children("/brokers/topics")
            assert await rig.in_sync([1, 2], TopicPartition("demo", 1)) == 0
            await cluster.until(
                lambda: "demo" not in cluster.zookeeper.tree.children("/brokers/topics"), "the deletion"
            )
            assert await rig.running() == {}

    simulated(story())


def test_a_topic_whose_reassignment_lost_its_leader_is_deleted() -> None:
    """No leader is elected for a topic that is being deleted, so that its reassignment cannot complete."""

    async def story() -> None:
        async with Cluster() as cluster:
            rig = await Rig(cluster).start(1, 2)
            await rig.create([1])
            assert await rig.reassign([2]) is None
            node = await rig.node()
            (result,) = await node.controller.delete_topics([TopicToDelete("demo")])
            assert result.error is None
            await cluster.crash(1)
            await cluster.until(lambda: 1 not in _context(cluster).live_broker_ids, "the crash")
            await cluster.settle()
            assert "demo" in cluster.zookeeper.tree.children("/brokers/topics")
            await cluster.start(1)
            await cluster.until(
                lambda: "demo" not in cluster.zookeeper.tree.children("/brokers/topics"), "the deletion"
            )
            assert await rig.running() == {}

    simulated(story())


@pytest.mark.parametrize("dead", [None, 3])
def test_a_topic_being_reassigned_gets_no_partitions(dead: int | None) -> None:
    """The reason is the same if fewer brokers live than the partition has replicas while it moves."""

    async def story() -> None:
        async with Cluster() as cluster:
            rig = await Rig(cluster).start(1, 2, 3)
            await rig.create([1, 2])
            assert await rig.reassign([2, 3, 9]) is None
            if dead is not None:
                await cluster.crash(dead)
                await cluster.until(lambda: dead not in _context(cluster).live_broker_ids, "the crash")
            node = await rig.node()
            (result,) = await node.controller.create_partitions([NewPartitions("demo", 2)])
            assert isinstance(result.error, ReassignmentInProgress)

    simulated(story())


# --- /admin/reassign_partitions


def _requests(cluster: Cluster) -> dict[tuple[str, int], list[int]] | None:
    try:
        return decode_reassignment(cluster.zookeeper.tree.get(REQUESTS)[0])
    except NoNode:
        return None


def test_a_tool_asks_by_a_node_which_shrinks_as_partitions_move() -> None:
    async def story() -> None:
        async with Cluster() as cluster:
            rig = await Rig(cluster).start(1, 2)
            await rig.create([1], [1])
            other = TopicPartition("demo", 1)
            wanted = {DEMO: [2], other: [1, 2], TopicPartition("missing", 0): [1]}
            await cluster.nodes[2].tree.multi([Create(REQUESTS, encode_reassignment(wanted))])
            await cluster.until(lambda: _requests(cluster) == {DEMO: [2], other: [1, 2]}, "the refusal")
            await cluster.settle()
            assert set(await rig.running()) == {DEMO, other}
            assert await rig.in_sync([1, 2]) == 0
            assert _requests(cluster) == {other: [1, 2]}
            assert await rig.in_sync([1, 2], other) == 0
            assert _requests(cluster) is None
            assert ((await rig.state()).replicas, (await rig.state(other)).replicas) == ([2], [1, 2])
            # The next request is seen as well.
            await cluster.nodes[2].tree.multi([Create(REQUESTS, encode_reassignment({other: [2]}))])
            await cluster.until(lambda: _requests(cluster) is None, "the next request")
            await cluster.settle()
            assert (await rig.state(other)).replicas == [2]

    simulated(story())


@pytest.mark.parametrize("data", [b"no JSON", b'{"version":1,"partitions":[]}'])
def test_a_node_that_asks_for_nothing_holds_up_no_reassignment(data: bytes) -> None:
    async def story() -> None:
        async with Cluster() as cluster:
            rig = await Rig(cluster).start(1, 2)
            await rig.create([1])
            await cluster.nodes[2].tree.create(REQUESTS, data)
            await cluster.settle()
            assert await rig.reassign([1, 2]) is None
            assert _requests(cluster) is None
            await cluster.nodes[2].tree.create(REQUESTS, data)
            assert await rig.in_sync([1, 2]) == 0
            assert (await rig.state()).replicas == [1, 2]
            assert await rig.running() == {}
            assert _requests(cluster) is None

    simulated(story())


def test_a_request_replaces_that_of_the_node() -> None:
    async def story() -> None:
        async with Cluster() as cluster:
            rig = await Rig(cluster).start(1, 2, 3)
            await rig.create([1])
            await cluster.nodes[2].tree.multi([Create(REQUESTS, encode_reassignment({DEMO: [2]}))])
            await cluster.until(lambda: _context(cluster).partitions_being_reassigned, "the beginning")
            await cluster.settle()
            assert await rig.reassign([3]) is None
            assert _requests(cluster) is None
            assert (await rig.state()).adding == [3]

    simulated(story())


def test_the_next_controller_takes_over_the_node_of_a_tool() -> None:
    async def story() -> None:
        async with Cluster() as cluster:
            rig = await Rig(cluster).start(1, 2)
            await rig.create([1])
            await cluster.crash(9)
            await cluster.nodes[2].tree.multi([Create(REQUESTS, encode_reassignment({DEMO: [2]}))])
            await cluster.controller()
            await cluster.settle()
            assert DEMO in await rig.running()
            before = await rig.state()
            assert await rig.in_sync([1, 2]) == 0
            assert (await rig.state()).replicas == [2]
            assert _requests(cluster) is None
            assert before.adding == [2]

    simulated(story())


def test_many_partitions_move_in_few_writes() -> None:
    async def story() -> None:
        async with Cluster() as cluster:
            rig = await Rig(cluster).start(1, 2)
            await rig.create(*([1] for _ in range(500)))
            node = await rig.node()
            wanted = {TopicPartition("demo", index): [1, 2] for index in range(500)}
            before = len(cluster.nodes[2].broker.received)
            results = await node.controller.alter_partition_reassignments(wanted)
            assert set(results.values()) == {None}
            await cluster.settle()
            told = cluster.nodes[2].broker.received[before:]
            assert sum(isinstance(each, LeaderAndIsrRequest) for each in told) == 1
            assert len(await rig.running()) == 500

    simulated(story())
