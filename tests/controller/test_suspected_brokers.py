"""A broker that refuses connections leads nothing until it answers again."""

from __future__ import annotations

import asyncio

import pytest

from tests.controller.controllers import Cluster, Node, simulated
from tidelog.cluster.transport import BrokerConnection
from tidelog.controller.interface import NewTopic
from tidelog.endpoints import Endpoint
from tidelog.errors import ErrorCode
from tidelog.metadata.state import PartitionState
from tidelog.partitions import TopicPartition
from tidelog.protocol.message import Message
from tidelog.protocol.messages.alter_partition import AlterPartitionRequest
from tidelog.protocol.messages.leader_and_isr import LeaderAndIsrRequest
from tidelog.protocol.messages.stop_replica import StopReplicaRequest

DEMO, ALONE = TopicPartition("demo", 0), TopicPartition("alone", 0)


async def started(cluster: Cluster, *, host: str | None = "localhost", refuses: bool = True) -> Node:
    """Broker 9 is the controller; demo-0 is on brokers 2, 3 and 1, alone-0 on broker 2."""
    cluster.host = host
    cluster.network.refuses = refuses
    await cluster.start(9)
    controller = await cluster.controller()
    for broker_id in (1, 2, 3):
        await cluster.start(broker_id)
    await cluster.settle()
    topics = [NewTopic("demo", assignments=[(0, [2, 3, 1])]), NewTopic("alone", assignments=[(0, [2])])]
    results = await controller.controller.create_topics(topics)
    assert [result.error for result in results] == [None, None]
    await cluster.settle()
    return controller


def state(node: Node, partition: TopicPartition = DEMO) -> PartitionState:
    return node.controller.context.partitions[partition]


@pytest.mark.parametrize("host", ["localhost", None], ids=["same-host", "other-hosts"])
def test_leaders_move_away_long_before_the_session_expires(host: str | None) -> None:
    async def story() -> None:
        async with Cluster() as cluster:
            node = await started(cluster, host=host)
            broker = cluster.nodes[2].broker
            registered = len(cluster.nodes[2].registrations)
            broker.is_up = False
            began = asyncio.get_running_loop().time()
            await cluster.until(lambda: state(node).leader == 3, "another leader")
            assert asyncio.get_running_loop().time() - began < 1
            await cluster.until(lambda: cluster.nodes[1].broker.leaders[DEMO] == 3, "the others know")
            assert set(state(node).isr) == {1, 3}
            # Nobody else has the records of this one: it keeps its leader and its ISR.
            assert (state(node, ALONE).leader, state(node, ALONE).isr) == (2, [2])
            assert cluster.zookeeper.tree.children("/brokers/ids") == ["1", "2", "3", "9"]

            broker.is_up = True
            await cluster.until(lambda: not node.controller.context.suspected_broker_ids, "its return")
            await cluster.settle()
            assert len(cluster.nodes[2].registrations) == registered
            assert DEMO in broker.following
            assert broker.leading == {ALONE: state(node, ALONE).leader_epoch}
            assert 2 in node.controller.context.live_broker_ids

    simulated(story())


def test_a_suspected_broker_does_not_join_the_isr() -> None:
    async def story() -> None:
        async with Cluster() as cluster:
            node = await started(cluster)
            cluster.nodes[2].broker.is_up = False
            await cluster.until(lambda: state(node).leader == 3, "another leader")
            context = node.controller.context
            asked = AlterPartitionRequest.PartitionData(
                leader_epoch=state(node).leader_epoch,
                partition_epoch=state(node).partition_epoch,
                new_isr_with_epochs=[
                    AlterPartitionRequest.BrokerState(broker_id=id, broker_epoch=context.broker_epoch(id))
                    for id in (1, 2, 3)
                ],
            )
            topic = AlterPartitionRequest.TopicData(topic_id=context.topic_ids["demo"], partitions=[asked])
            request = AlterPartitionRequest(broker_id=3, broker_epoch=context.broker_epoch(3), topics=[topic])
            response = await node.controller.alter_partition(request, 3)
            assert response.topics[0].partitions[0].error_code == ErrorCode.INELIGIBLE_REPLICA

    simulated(story())


def follows(received: list[Message], partition: TopicPartition) -> bool:
    """Whether a broker with these requests fetches the partition: a state that is not newer is refused."""
    epochs, is_followed = (-1, -1), False
    for request in received:
        if isinstance(request, StopReplicaRequest):
            for stopped in request.topic_states:
                indexes = [each.partition_index for each in stopped.partition_states]
                is_followed &= stopped.topic_name != partition.topic or partition.partition not in indexes
        elif isinstance(request, LeaderAndIsrRequest):
            for topic in request.topic_states:
                for wanted in topic.partition_states:
                    newer = (wanted.leader_epoch, wanted.partition_epoch)
                    if (topic.topic_name, wanted.partition_index) == partition and newer > epochs:
                        epochs, is_followed = newer, True
    return is_followed


@pytest.mark.parametrize("times", [1, 2], ids=["in-sync", "out-of-sync"])
def test_a_suspected_broker_that_answers_again_fetches_what_it_follows(times: int) -> None:
    """The second time it has not joined the ISR again: its partitions have the states that it knows."""

    async def story() -> None:
        async with Cluster() as cluster:
            node = await started(cluster)
            context, broker = node.controller.context, cluster.nodes[1].broker
            for _ in range(times):
                broker.is_up = False
                await cluster.until(lambda: context.suspected_broker_ids, "a suspicion")
                await cluster.until(lambda: 1 not in state(node).isr, "a smaller ISR")
                await asyncio.sleep(1)
                broker.is_up = True
                await cluster.until(lambda: not context.suspected_broker_ids, "its return")
                await cluster.settle()
                assert follows(broker.received, DEMO)

    simulated(story())


@pytest.mark.parametrize("host", ["localhost", None], ids=["same-host", "other-hosts"])
@pytest.mark.parametrize("reason", ["time-out", "setting"])
def test_nobody_is_suspected_without_a_refusal(reason: str, host: str | None) -> None:
    async def story() -> None:
        async with Cluster() as cluster:
            cluster.settings.broker_suspicion_enable = reason != "setting"
            node = await started(cluster, host=host, refuses=reason != "time-out")
            before = state(node)
            cluster.nodes[2].broker.is_up = False
            await asyncio.sleep(30)  # of the simulated clock
            assert state(node) == before
            assert not node.controller.context.suspected_broker_ids

    simulated(story())


def test_a_broker_on_another_host_that_refuses_the_controller_alone_is_not_suspected() -> None:
    async def story() -> None:
        async with Cluster() as cluster:
            node = await started(cluster, host=None)
            before = state(node)
            cluster.network.refuses_the_controller.add(2)
            await asyncio.sleep(10)
            others = [cluster.nodes[id].broker.received for id in (1, 3)]
            questions = [each for received in others for each in received if _is_question(each, 2)]
            assert 10 <= len(questions) <= 24, "asked about once a second"
            assert state(node) == before
            assert not node.controller.context.suspected_broker_ids
            cluster.nodes[2].broker.is_up = False  # the others are refused by now
            await cluster.until(lambda: state(node).leader == 3, "another leader")

    simulated(story())


def test_a_broker_that_answers_while_others_are_asked_is_not_suspected() -> None:
    """No answer is to come that would end the suspicion."""

    async def story() -> None:
        async with Cluster() as cluster:
            node = await started(cluster, host=None)
            before = state(node)
            connect = cluster.network.connect

            async def connect_slowly(
                broker_id: int, endpoint: Endpoint, *, timeout: float
            ) -> BrokerConnection:
                if broker_id != 2:
                    await asyncio.sleep(1)
                return await connect(broker_id, endpoint, timeout=timeout)

            cluster.network.connect = connect_slowly  # type: ignore[method-assign]
            for broker_id in (1, 3):
                cluster.nodes[broker_id].broker.refused_by = lambda broker_id: True
            cluster.nodes[2].broker.is_up = False
            topic = NewTopic("waits", assignments=[(0, [2])])
            creation = asyncio.ensure_future(node.controller.create_topics([topic]))
            await cluster.until(lambda: node.controller._active.suspected._inquiries, "questions")  # type: ignore[union-attr]
            cluster.nodes[2].broker.is_up = True
            await creation  # broker 2 has answered
            await asyncio.sleep(10)
            await cluster.settle()
            assert not node.controller.context.suspected_broker_ids
            assert state(node) == before

    simulated(story())


def _is_question(request: Message, broker_id: int) -> bool:
    return isinstance(request, StopReplicaRequest) and request.refusing_broker_id == broker_id


def test_a_broker_alone_with_the_controller_is_not_suspected_on_another_host() -> None:
    async def story() -> None:
        async with Cluster() as cluster:
            node = await started(cluster, host=None)
            for broker_id in (1, 3):
                await cluster.crash(broker_id)
            await cluster.until(lambda: node.controller.context.live_broker_ids == {2, 9}, "two are left")
            cluster.nodes[2].broker.is_up = False
            await asyncio.sleep(10)
            assert not node.controller.context.suspected_broker_ids

    simulated(story())


def test_only_one_broker_is_suspected_at_a_time() -> None:
    async def story() -> None:
        async with Cluster() as cluster:
            node = await started(cluster)
            cluster.nodes[2].broker.is_up = False
            await cluster.until(lambda: state(node).leader == 3, "another leader")
            cluster.nodes[3].broker.is_up = False
            await asyncio.sleep(10)
            assert node.controller.context.suspected_broker_ids == {2}
            assert state(node).leader == 3
            cluster.nodes[2].broker.is_up = True
            await cluster.until(lambda: node.controller.context.suspected_broker_ids == {3}, "the next one")
            await cluster.until(lambda: state(node).leader == 1, "the last in-sync replica")

    simulated(story())


def test_no_unclean_leader_is_elected_on_a_suspicion() -> None:
    """The suspected broker has all records, and broker 1, which lacks some, is the only other one."""

    async def story() -> None:
        async with Cluster() as cluster:
            cluster.settings.unclean_leader_election_enable = True
            node = await started(cluster)
            topic = NewTopic("two", assignments=[(0, [2, 1])])
            await node.controller.create_topics([topic])
            two = TopicPartition("two", 0)
            await cluster.crash(1)  # its session ends: only broker 2 stays in sync
            await cluster.until(lambda: 1 not in node.controller.context.live_broker_ids, "the crash")
            await cluster.settle()
            assert state(node, two).isr == [2]
            cluster.nodes[2].broker.is_up = False
            await cluster.until(lambda: node.controller.context.suspected_broker_ids == {2}, "suspicion")
            await cluster.start(1)
            await cluster.until(lambda: 1 in node.controller.context.live_broker_ids, "broker 1")
            await cluster.crash(3)  # elects for every partition whose leader is not online
            await cluster.until(lambda: 3 not in node.controller.context.live_broker_ids, "broker 3")
            await asyncio.sleep(1)
            assert (state(node, two).leader, state(node, two).isr) == (2, [2])
            await cluster.crash(2)  # now it is certain
            await cluster.until(lambda: state(node, two).leader == 1, "the unclean leader")

    simulated(story())


@pytest.mark.parametrize("comes_back", [True, False])
def test_a_suspected_broker_whose_session_ends_is_dead(comes_back: bool) -> None:
    async def story() -> None:
        async with Cluster() as cluster:
            node = await started(cluster)
            cluster.nodes[2].broker.is_up = False
            await cluster.until(lambda: state(node).leader == 3, "another leader")
            await cluster.crash(2)
            context = node.controller.context
            if comes_back:
                again = await cluster.start(2)  # waits until its last registration is gone
                await cluster.until(lambda: DEMO in again.broker.following, "the follower")
                await cluster.until(lambda: 2 in context.live_broker_ids, "its return")
            else:
                await cluster.until(lambda: 2 not in context.live_or_shutting_down_brokers, "its end")
                assert state(node, ALONE).leader == -1
            assert not context.suspected_broker_ids

    simulated(story())
