"""Brokers join, crash, restart, change and stop: leaders move, and every broker is told."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from tests.controller.controllers import Cluster, Node, simulated
from tidelog.cluster.metadata_update import FULL_UPDATE
from tidelog.controller.interface import NewTopic, TopicToDelete
from tidelog.controller.request_batch import LeaderAndIsrResponseReceived
from tidelog.endpoints import Endpoint
from tidelog.errors import (
    BrokerNotAvailable,
    ElectionNotNeeded,
    ErrorCode,
    PreferredLeaderNotAvailable,
    StaleBrokerEpoch,
    UnknownTopicOrPartition,
)
from tidelog.metadata.nodes import BrokerNode
from tidelog.metadata.state import NO_LEADER, BrokerRegistration, PartitionState
from tidelog.metadata.tree import Watch
from tidelog.partitions import TopicPartition
from tidelog.protocol.election_type import ElectionType
from tidelog.protocol.messages.leader_and_isr import LeaderAndIsrRequest
from tidelog.protocol.messages.update_metadata import UpdateMetadataRequest

DEMO = TopicPartition("demo", 0)


async def create(cluster: Cluster, *assignments: list[int], name: str = "demo") -> None:
    controller = (await cluster.controller()).controller
    topic = NewTopic(name, assignments=list(enumerate(assignments)))
    (result,) = await controller.create_topics([topic])
    assert result.error is None


def state_of(node: Node, partition: TopicPartition = DEMO) -> PartitionState:
    return node.controller.context.partitions[partition]


async def controller_on(cluster: Cluster, broker_id: int, *others: int) -> Node:
    """Start a broker, which becomes the controller, and then the others."""
    await cluster.start(broker_id)
    node = await cluster.controller()
    assert node.broker_id == broker_id
    for other in others:
        await cluster.start(other)
    if others:
        await cluster.settle()
    return node


def test_a_new_broker_is_told_everything_before_it_leads_anything() -> None:
    async def story() -> None:
        async with Cluster(1, 2) as cluster:
            await create(cluster, [1], [2])
            node = await cluster.start(3)
            await cluster.until(lambda: len(node.broker.leaders) == 2, "the partitions at broker 3")
            first = node.broker.received[0]
            assert isinstance(first, UpdateMetadataRequest)
            assert first.type == FULL_UPDATE
            assert {broker.id for broker in first.live_brokers} == {1, 2, 3}
            await cluster.settle()
            for other in cluster.nodes.values():
                assert other.broker.live == {1, 2, 3}

    simulated(story())


def test_a_new_controller_elects_the_leaders_that_are_missing_before_anything_else() -> None:
    async def story() -> None:
        async with Cluster(1) as cluster:
            await cluster.controller()
            await cluster.start(2)
            await cluster.start(3)
            await cluster.settle()
            await create(cluster, [1, 2, 3], [3, 2, 1])
            await cluster.settle()
            told = {node.broker_id: len(node.broker.received) for node in cluster.nodes.values()}
            await cluster.crash(1)
            await cluster.controller()
            await cluster.settle()
            node = cluster.nodes[2]
            update, elected = node.broker.received[told[2] : told[2] + 2]
            assert isinstance(update, UpdateMetadataRequest)
            assert isinstance(elected, LeaderAndIsrRequest)
            (topic,) = elected.topic_states
            assert [(one.partition_index, one.leader) for one in topic.partition_states] == [(0, 2)]

    simulated(story())


def test_a_replicated_partition_gets_another_leader_when_a_broker_crashes() -> None:
    async def story() -> None:
        async with Cluster() as cluster:
            controller = await controller_on(cluster, 1, 2, 3)
            await create(cluster, [2, 3])
            assert (state_of(controller).leader, state_of(controller).isr) == (2, [2, 3])
            await cluster.crash(2)
            await cluster.until(lambda: state_of(controller).leader == 3, "another leader")
            await cluster.settle()
            assert state_of(controller).isr == [3]
            assert cluster.nodes[3].broker.leading == {DEMO: state_of(controller).leader_epoch}
            assert cluster.nodes[1].broker.leaders == {DEMO: 3}
            assert cluster.nodes[1].broker.live == {1, 3}

    simulated(story())


def test_a_partition_with_one_replica_is_offline_until_its_broker_is_back() -> None:
    async def story() -> None:
        async with Cluster() as cluster:
            controller = await controller_on(cluster, 1, 2)
            await create(cluster, [2])
            await cluster.crash(2)
            await cluster.until(lambda: state_of(controller).leader == NO_LEADER, "no leader")
            await cluster.settle()
            assert state_of(controller).isr == [2]
            assert controller.controller.context.offline_partition_count == 1
            assert cluster.nodes[1].broker.leaders == {DEMO: NO_LEADER}
            node = await cluster.start(2)
            await cluster.until(lambda: node.broker.leading, "broker 2 leads again")
            await cluster.settle()
            assert node.broker.leading == {DEMO: 2}
            assert cluster.nodes[1].broker.leaders == {DEMO: 2}
            assert controller.controller.context.offline_partition_count == 0

    simulated(story())


def test_a_broker_that_restarts_within_its_session_fails_first_and_starts_second() -> None:
    async def story() -> None:
        async with Cluster() as cluster:
            controller = await controller_on(cluster, 1, 2, 3)
            await create(cluster, [2, 3])
            before = cluster.nodes[2]
            # One registration replaces the other before the controller looks.
            controller_events = controller.controller.events
            held = asyncio.Event()
            waiting = asyncio.ensure_future(
                controller_events.call(controller_events.state, "Hold", held.wait)
            )
            await before.crash()
            cluster.zookeeper.expire(before.client)
            node = await cluster.start(2)
            held.set()
            await waiting
            await cluster.until(lambda: node.broker.live, "the new broker 2")
            await cluster.settle()
            assert state_of(controller).leader == 3
            assert state_of(controller).isr == [3]
            assert DEMO in node.broker.following
            assert controller.controller.context.broker_epoch(2) == node.registrations[-1].epoch

    simulated(story())


def test_a_controller_that_restarts_leaves_the_in_sync_replicas_that_were_written_before() -> None:
    """Nobody saw it leave: its successor finds it registered. It may have lost what it had not flushed."""

    async def story() -> None:
        async with Cluster() as cluster:
            before = await controller_on(cluster, 1)
            others = [await cluster.start(2), await cluster.start(3)]
            await cluster.settle()
            await create(cluster, [1, 2, 3])
            held = asyncio.Event()
            waiting = [
                asyncio.ensure_future(
                    node.controller.events.call(node.controller.events.state, "Hold", held.wait)
                )
                for node in others
            ]
            await before.crash()
            cluster.zookeeper.expire(before.client)
            returned = await cluster.start(1)
            held.set()
            await asyncio.gather(*waiting)
            await cluster.until(lambda: returned.broker.live, "the new broker 1")
            await cluster.settle()
            state = state_of(await cluster.controller())
            assert (state.leader, state.isr) == (2, [2, 3])
            assert DEMO in returned.broker.following
            led = [
                request for request in returned.broker.received if isinstance(request, LeaderAndIsrRequest)
            ]
            leaders = {
                part.leader
                for request in led
                for topic in request.topic_states
                for part in topic.partition_states
            }
            assert leaders == {2}

    simulated(story())


def test_the_first_broker_of_a_whole_cluster_that_restarts_leads() -> None:
    """No member of the ISR was there all the time: none is taken out for having been away."""

    async def story() -> None:
        async with Cluster() as cluster:
            nodes = [await controller_on(cluster, 1), await cluster.start(2)]
            await cluster.settle()
            await create(cluster, [2, 1])
            for node in nodes:
                await cluster.crash(node.broker_id)
                cluster.zookeeper.expire(node.client)
            await cluster.start(2)
            await cluster.settle()
            state = state_of(await cluster.controller())
            assert (state.leader, state.isr) == (2, [2])

    simulated(story())


def test_changed_addresses_reach_all_brokers() -> None:
    async def story() -> None:
        async with Cluster(1, 2, 3) as cluster:
            node = cluster.nodes[2]
            other = Endpoint("CLIENTS", "PLAINTEXT", "elsewhere", 1234)
            registered = node.registrations[-1]
            await node.store.update_broker(2, BrokerNode([*registered.endpoints, other], 0))

            def told(node: Node) -> bool:
                updates = [each for each in node.broker.received if isinstance(each, UpdateMetadataRequest)]
                points = {
                    point.listener
                    for live in updates[-1].live_brokers
                    if live.id == 2
                    for point in live.endpoints
                }
                return "CLIENTS" in points

            await cluster.until(lambda: all(map(told, cluster.nodes.values())), "the new address")

    simulated(story())


def test_a_broker_without_replicas_leaves_although_other_partitions_are_offline() -> None:
    async def story() -> None:
        async with Cluster() as cluster:
            await controller_on(cluster, 1)
            for broker_id in (2, 3):
                await cluster.start(broker_id)
            await cluster.settle()
            await create(cluster, [2])
            await cluster.crash(2)
            await cluster.until(lambda: cluster.nodes[1].broker.live == {1, 3}, "broker 2 left")
            await cluster.settle()
            await cluster.crash(3)  # no election follows, so nothing but its absence is to be told
            await cluster.until(lambda: cluster.nodes[1].broker.live == {1}, "broker 3 left")

    simulated(story())


def test_a_broker_that_moves_gets_the_requests_that_waited_for_it() -> None:
    async def story() -> None:
        async with Cluster() as cluster:
            controller = await controller_on(cluster, 1)
            node = await cluster.start(2)
            await cluster.settle()
            await create(cluster, [2])
            del cluster.network.brokers[node.port]
            node.broker.is_up = False  # its old address does not answer any more
            await controller.controller.delete_topics([TopicToDelete("demo")], timeout=1.0)
            node.broker.is_up = True
            node.port = cluster.next_port()
            cluster.network.brokers[node.port] = node.broker
            moved = Endpoint("PLAINTEXT", "PLAINTEXT", "elsewhere", node.port)
            await node.store.update_broker(2, BrokerNode([moved], 0))
            await cluster.until(lambda: node.broker.deleted == [DEMO], "the log is deleted")
            await cluster.until(lambda: not controller.controller.context.topics, "the topic is deleted")

    simulated(story())


def test_a_broker_that_moves_before_the_controller_watches_it_is_reached() -> None:
    async def story() -> None:
        async with Cluster() as cluster:
            controller = await controller_on(cluster, 1)
            read_brokers = controller.store.read_brokers

            async def read_then_move(
                watch: Watch | None = None, *, watch_each: Watch | None = None
            ) -> dict[int, BrokerRegistration]:
                found = await read_brokers(watch, watch_each=watch_each)
                if 2 in found:
                    controller.store.read_brokers = read_brokers  # type: ignore[method-assign]
                    cluster.nodes[2].port = cluster.next_port()
                    moved = Endpoint("PLAINTEXT", "PLAINTEXT", "elsewhere", cluster.nodes[2].port)
                    await controller.store.update_broker(2, BrokerNode([moved], 0))
                return found

            controller.store.read_brokers = read_then_move  # type: ignore[method-assign]
            node = await cluster.start(2)
            await cluster.until(lambda: node.broker.live == {1, 2}, "broker 2 is told")

    simulated(story())


def test_a_broker_that_gets_the_listener_of_the_controller_is_told_everything() -> None:
    async def story() -> None:
        async with Cluster() as cluster:
            await controller_on(cluster, 1)
            node = await cluster.start(2)
            await cluster.settle()
            registered = node.registrations[-1]
            other = Endpoint("CLIENTS", "PLAINTEXT", "elsewhere", 1234)
            await node.store.update_broker(2, BrokerNode([other], 0))
            await cluster.settle()
            await create(cluster, [2, 1])
            assert node.broker.leaders == {}
            await node.store.update_broker(2, BrokerNode([other, *registered.endpoints], 0))
            await cluster.until(lambda: DEMO in node.broker.following, "broker 2 follows")
            assert node.broker.leaders == {DEMO: 1}

    simulated(story())


def test_a_controlled_shutdown_moves_leaders_and_leaves_those_without_a_choice() -> None:
    async def story() -> None:
        async with Cluster() as cluster:
            controller = await controller_on(cluster, 1, 2, 3)
            await create(cluster, [2, 3], [3, 2])
            await create(cluster, [2], name="alone")
            epoch = cluster.nodes[2].registrations[-1].epoch
            with pytest.raises(StaleBrokerEpoch):
                await controller.controller.controlled_shutdown(2, epoch - 1)
            with pytest.raises(BrokerNotAvailable):
                await controller.controller.controlled_shutdown(9, -1)
            assert await controller.controller.controlled_shutdown(2, epoch) == []
            await cluster.settle()
            partitions = [DEMO, TopicPartition("demo", 1), TopicPartition("alone", 0)]
            states = [state_of(controller, partition) for partition in partitions]
            assert [state.leader for state in states] == [3, 3, 2]
            assert [state.isr for state in states] == [[3], [3], [2]]
            assert set(cluster.nodes[3].broker.leading) == set(partitions[:2])

    simulated(story())


def test_leaders_that_cannot_move_remain() -> None:
    async def story() -> None:
        async with Cluster() as cluster:
            controller = await controller_on(cluster, 1, 2, 3)
            await create(cluster, [2, 3])
            await cluster.crash(3)
            await cluster.until(lambda: state_of(controller).isr == [2], "the smaller ISR")
            assert await controller.controller.controlled_shutdown(2, -1) == [DEMO]

    simulated(story())


def test_a_failed_log_folder_takes_its_partitions_offline() -> None:
    async def story() -> None:
        async with Cluster() as cluster:
            controller = await controller_on(cluster, 1, 2, 3)
            await create(cluster, [2, 3], [2, 3])
            cluster.nodes[2].broker.failed_dir = {DEMO}
            await cluster.nodes[2].store.write_log_dir_event(2)
            await cluster.until(lambda: state_of(controller).leader == 3, "another leader")
            await cluster.settle()
            assert state_of(controller, TopicPartition("demo", 1)).leader == 2
            assert await controller.tree.children("/log_dir_event_notification") == []
            updates = [e for e in controller.broker.received if isinstance(e, UpdateMetadataRequest)]
            offline = [
                partition.offline_replicas
                for update in updates
                for topic in update.topic_states
                for partition in topic.partition_states
                if partition.partition_index == 0
            ]
            assert offline[-1] == [2]

    simulated(story())


def test_leaders_are_elected_on_request() -> None:
    async def story() -> None:
        async with Cluster() as cluster:
            controller = await controller_on(cluster, 1, 2, 3)
            await create(cluster, [2, 3])
            await cluster.crash(2)
            await cluster.until(lambda: state_of(controller).leader == 3, "another leader")
            await cluster.settle()
            unknown = TopicPartition("nowhere", 0)
            results = await controller.controller.elect_leaders([DEMO, unknown], ElectionType.PREFERRED)
            assert isinstance(results[DEMO], PreferredLeaderNotAvailable)
            assert isinstance(results[unknown], UnknownTopicOrPartition)
            await cluster.start(2)
            await cluster.settle()
            joined = replace(state_of(controller), isr=[3, 2], controller_epoch=1)
            controller.controller.context.put_partition(DEMO, joined)
            assert await controller.controller.elect_leaders([DEMO], ElectionType.PREFERRED) == {DEMO: None}
            assert state_of(controller).leader == 2
            assert DEMO in cluster.nodes[2].broker.leading
            again = await controller.controller.elect_leaders(None, ElectionType.PREFERRED)
            assert isinstance(again[DEMO], ElectionNotNeeded)

    simulated(story())


def test_leadership_returns_to_the_preferred_replica_by_itself() -> None:
    async def story() -> None:
        async with Cluster() as cluster:
            cluster.settings.leader_imbalance_check_interval_seconds = 30.0
            controller = await controller_on(cluster, 1, 2, 3)
            await create(cluster, [2, 3])
            await cluster.crash(2)
            await cluster.until(lambda: state_of(controller).leader == 3, "another leader")
            await cluster.start(2)
            await cluster.settle()
            controller.controller.context.put_partition(DEMO, replace(state_of(controller), isr=[3, 2]))
            await cluster.until(lambda: state_of(controller).leader == 2, "the preferred leader")

    simulated(story())


def test_other_settings_that_change_do_not_put_off_the_check_of_the_balance() -> None:
    async def story() -> None:
        async with Cluster() as cluster:
            cluster.settings.leader_imbalance_check_interval_seconds = 30.0
            controller = await controller_on(cluster, 1, 2, 3)
            await create(cluster, [2, 3])
            await cluster.crash(2)
            await cluster.until(lambda: state_of(controller).leader == 3, "another leader")
            await cluster.start(2)
            await cluster.settle()
            controller.controller.context.put_partition(DEMO, replace(state_of(controller), isr=[3, 2]))
            for partitions in range(10):
                controller.controller.update_settings(replace(cluster.settings, num_partitions=partitions))
                await asyncio.sleep(10)
            assert state_of(controller).leader == 2

    simulated(story())


def test_the_next_controller_tells_all_brokers_about_all_partitions() -> None:
    async def story() -> None:
        async with Cluster(1, 2, 3) as cluster:
            first = await cluster.controller()
            await create(cluster, [1, 2, 3], [2, 3, 1], [3, 1, 2])
            await cluster.crash(first.broker_id)
            second = await cluster.controller()
            await cluster.settle()
            for node in cluster.nodes.values():
                requests = [
                    request
                    for request in node.broker.received
                    if request.controller_id == second.broker_id  # type: ignore[attr-defined]
                ]
                kinds = [type(request) for request in requests]
                assert kinds.index(UpdateMetadataRequest) < kinds.index(LeaderAndIsrRequest)
                # A broker that missed a deletion learns of it. One without topics would lose its offsets.
                told = requests[kinds.index(UpdateMetadataRequest)]
                assert isinstance(told, UpdateMetadataRequest)
                assert told.type == FULL_UPDATE
                assert [len(topic.partition_states) for topic in told.topic_states] == [3]
                assert first.broker_id not in node.broker.leaders.values()
                assert len(node.broker.leaders) == 3

    simulated(story())


def test_an_answer_of_a_broker_that_left_does_not_count_for_its_successor() -> None:
    async def story() -> None:
        async with Cluster() as cluster:
            cluster.settings.auto_leader_rebalance_enable = False  # it would elect in the end
            controller = await controller_on(cluster, 1, 2)
            await create(cluster, [2])
            await cluster.settle()
            events, active = controller.controller.events, controller.controller._active
            assert active is not None
            held = asyncio.Event()
            waiting = asyncio.ensure_future(events.call(events.state, "Hold", held.wait))
            before = cluster.nodes[2]
            # The answer was on its way when the broker left: its log folder failed, and it was replaced.
            epoch = controller.controller.context.broker_epoch(2)
            late = LeaderAndIsrResponseReceived(2, epoch, 0, {DEMO: ErrorCode.KAFKA_STORAGE_ERROR})
            await cluster.crash(2)
            cluster.zookeeper.expire(before.client)
            await cluster.until(lambda: events.queue_size, "the change of brokers in the queue")
            active._answered(late)
            held.set()
            await waiting
            await cluster.settle()
            node = await cluster.start(2)
            await cluster.until(lambda: DEMO in node.broker.leading, "broker 2 leads again")
            active._answered(late)
            await cluster.settle()
            assert state_of(controller).leader == 2

    simulated(story())


def test_an_answer_about_a_deleted_topic_does_not_count_for_the_next_one_of_that_name() -> None:
    async def story() -> None:
        async with Cluster() as cluster:
            controller = await controller_on(cluster, 1)
            await create(cluster, [1])
            active = controller.controller._active
            assert active is not None
            await controller.controller.delete_topics([TopicToDelete("demo")])
            await cluster.settle()
            context = controller.controller.context
            assert not context.topics
            errors = {DEMO: int(ErrorCode.KAFKA_STORAGE_ERROR)}
            active._answered(LeaderAndIsrResponseReceived(1, context.broker_epoch(1), 0, errors))
            await cluster.settle()
            await create(cluster, [1])
            assert state_of(controller).leader == 1

    simulated(story())


def test_a_replica_that_finds_room_leads_again_and_is_deleted() -> None:
    """Its log could not be created: the broker asks for its states again when there may be room."""

    async def story() -> None:
        async with Cluster(9) as cluster:
            controller = await cluster.controller()
            await cluster.start(2)
            await cluster.settle()
            broker, store = cluster.nodes[2].broker, cluster.nodes[2].store
            topics = {TopicPartition(name, 0) for name in ("stays", "goes")}
            broker.failed_dir = set(topics)
            context = controller.controller.context
            await controller.controller.create_topics(
                [NewTopic(name, assignments=[(0, [2])]) for name, _ in sorted(topics)], timeout=5.0
            )
            await cluster.settle()
            assert {context.partitions[partition].leader for partition in topics} == {-1}
            await controller.controller.delete_topics([TopicToDelete("goes")], timeout=5.0)
            await cluster.settle()
            assert "goes" in context.topics
            broker.failed_dir.clear()
            await store.write_log_dir_event(2)
            await cluster.until(lambda: "goes" not in context.topics, "the deletion")
            assert context.partitions["stays", 0].leader == 2

    simulated(story())
