"""Topics are created, grown and deleted over several brokers, also while one of them is down."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

import pytest

from tests.controller.controllers import Cluster, simulated
from tidelog.cluster.metadata_update import FULL_UPDATE, PARTIAL_UPDATE
from tidelog.controller.cluster_controller import ClusterController
from tidelog.controller.interface import NewPartitions, NewTopic, TopicToDelete
from tidelog.errors import (
    InvalidReplicationFactor,
    KafkaError,
    RequestTimedOut,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
)
from tidelog.metadata.nodes import TopicNode, random_id
from tidelog.metadata.paths import ISR_CHANGE_PREFIX, LOG_DIR_EVENT_PREFIX
from tidelog.metadata.state import NO_LEADER
from tidelog.metadata.tree import NoNode, Stat
from tidelog.partitions import TopicPartition
from tidelog.protocol.messages.leader_and_isr import LeaderAndIsrRequest
from tidelog.protocol.messages.update_metadata import UpdateMetadataRequest


async def created(controller: ClusterController, *topics: NewTopic) -> Sequence[KafkaError | None]:
    return [result.error for result in await controller.create_topics(topics)]


def partitions(topic: str, count: int) -> set[TopicPartition]:
    return {TopicPartition(topic, index) for index in range(count)}


def test_a_created_topic_is_led_and_known_everywhere_when_the_call_returns() -> None:
    async def story() -> None:
        async with Cluster(1, 2, 3) as cluster:
            controller = (await cluster.controller()).controller
            (result,) = await controller.create_topics([NewTopic("demo", 6, 2, configs=[("a", "b")])])
            assert result.error is None
            assert (result.num_partitions, result.replication_factor) == (6, 2)
            brokers = [node.broker for node in cluster.nodes.values()]
            assert {partition for broker in brokers for partition in broker.leading} == partitions("demo", 6)
            for broker in brokers:
                assert broker.leaders.keys() == partitions("demo", 6)
                assert len(broker.leading) == 2
            node = await cluster.controller()
            assert await node.store.topic_configs(["demo"]) == {"demo": {"a": "b"}}
            tree = cluster.zookeeper.tree
            topic = TopicNode.decode(tree.get("/brokers/topics/demo")[0])
            assert topic.topic_id == result.topic_id
            state = tree.get("/brokers/topics/demo/partitions/0/state")[0]
            leader = topic.partitions[0][0]
            isr = ",".join(map(str, topic.partitions[0]))
            assert state.decode() == (
                f'{{"controller_epoch":1,"leader":{leader},"version":1,"leader_epoch":0,"isr":[{isr}]}}'
            )

    simulated(story())


def test_refused_topics_do_not_prevent_the_others() -> None:
    async def story() -> None:
        async with Cluster(1, 2) as cluster:
            controller = (await cluster.controller()).controller
            assert await created(controller, NewTopic("old", 1, 1)) == [None]
            errors = await created(
                controller, NewTopic("old", 1, 1), NewTopic("wide", 1, 3), NewTopic("new", 1, 2)
            )
            assert [type(error) for error in errors] == [
                TopicAlreadyExists,
                InvalidReplicationFactor,
                type(None),
            ]
            assert set(controller.context.topics) == {"old", "new"}

    simulated(story())


def test_validation_alone_creates_nothing() -> None:
    async def story() -> None:
        async with Cluster(1, 2) as cluster:
            controller = (await cluster.controller()).controller
            (result,) = await controller.create_topics([NewTopic("demo", 3, 2)], validate_only=True)
            assert (result.error, result.num_partitions) == (None, 3)
            assert not controller.context.topics

    simulated(story())


def test_a_creation_that_takes_long_times_out_and_goes_on() -> None:
    async def story() -> None:
        async with Cluster() as cluster:
            await cluster.start(1)
            node = await cluster.start(2)
            await cluster.settle()
            controller = (await cluster.controller()).controller
            node.broker.is_up = False
            topic = NewTopic("demo", assignments=[(0, [2])])
            (result,) = await controller.create_topics([topic], timeout=0.5)
            assert isinstance(result.error, RequestTimedOut)
            node.broker.is_up = True
            await cluster.until(lambda: node.broker.leading, "the topic")

    simulated(story())


def test_an_answer_waits_only_a_while_for_brokers_without_a_part_in_it() -> None:
    async def story() -> None:
        async with Cluster() as cluster:
            await cluster.start(1)
            node = await cluster.start(2)
            await cluster.settle()
            controller = (await cluster.controller()).controller
            node.broker.is_up = False
            began = asyncio.get_running_loop().time()
            assert await created(controller, NewTopic("demo", assignments=[(0, [1])])) == [None]
            assert asyncio.get_running_loop().time() - began < 2

    simulated(story())


def test_replicas_of_a_partition_are_on_different_racks() -> None:
    async def story() -> None:
        racks = {1: "a", 2: "a", 3: "b", 4: "b"}
        async with Cluster(1, 2, 3, 4, racks=racks) as cluster:
            controller = (await cluster.controller()).controller
            assert await created(controller, NewTopic("demo", 12, 2)) == [None]
            for state in controller.context.partitions.values():
                assert {racks[broker] for broker in state.replicas} == {"a", "b"}

    simulated(story())


def test_partitions_are_added() -> None:
    async def story() -> None:
        async with Cluster(1, 2, 3) as cluster:
            controller = (await cluster.controller()).controller
            assert await created(controller, NewTopic("demo", 2, 1)) == [None]
            results = await controller.create_partitions([NewPartitions("demo", 7), NewPartitions("none", 2)])
            assert results[0].error is None
            assert isinstance(results[1].error, UnknownTopicOrPartition)
            for node in cluster.nodes.values():
                assert node.broker.leaders.keys() == partitions("demo", 7)
            await cluster.settle()
            assert controller.context.partitions.keys() == partitions("demo", 7)

    simulated(story())


def test_topics_and_partitions_that_others_write_are_taken_over() -> None:
    """A Kafka broker creates topics in the tree by itself."""

    async def story() -> None:
        async with Cluster(1, 2, 3) as cluster:
            node = await cluster.controller()
            other = next(each for each in cluster.nodes.values() if each is not node)
            topic = TopicNode({0: [1, 2], 1: [2, 3]}, random_id(cluster.rng))
            await other.tree.create("/brokers/topics/demo", topic.encode())
            await cluster.until(lambda: len(node.broker.leaders) == 2, "the topic")
            topic.partitions[2] = [3, 1]
            await other.tree.set("/brokers/topics/demo", topic.encode())
            await cluster.until(lambda: len(node.broker.leaders) == 3, "the third partition")
            await cluster.settle()
            assert node.broker.leaders == {TopicPartition("demo", n): n + 1 for n in range(3)}

    simulated(story())


def test_a_topic_from_before_topic_ids_gets_one() -> None:
    async def story() -> None:
        async with Cluster(1) as cluster:
            node = await cluster.controller()
            await node.tree.create("/brokers/topics/old", TopicNode({0: [1]}).encode())
            await cluster.until(lambda: node.broker.leaders, "the topic")
            data, _ = cluster.zookeeper.tree.get("/brokers/topics/old")
            assert TopicNode.decode(data).topic_id == node.controller.context.topic_ids["old"]

    simulated(story())


def test_a_deleted_topic_is_gone_from_brokers_and_tree() -> None:
    async def story() -> None:
        async with Cluster(1, 2, 3) as cluster:
            controller = (await cluster.controller()).controller
            assert await created(controller, NewTopic("demo", 3, 3), NewTopic("kept", 1, 1)) == [None, None]
            (result,) = await controller.delete_topics([TopicToDelete("demo")])
            assert result.error is None
            for node in cluster.nodes.values():
                assert node.broker.leaders.keys() == partitions("kept", 1)
            await cluster.until(lambda: "demo" not in controller.context.topics, "the deletion")
            await cluster.settle()
            for node in cluster.nodes.values():
                assert set(node.broker.deleted) == partitions("demo", 3)
            tree = cluster.zookeeper.tree
            for path in ("/brokers/topics/demo", "/config/topics/demo", "/admin/delete_topics/demo"):
                with pytest.raises(NoNode):
                    tree.get(path)
            assert await created(controller, NewTopic("demo", 1, 1)) == [None]

    simulated(story())


def test_a_deletion_waits_for_a_broker_that_is_down() -> None:
    async def story() -> None:
        async with Cluster() as cluster:
            await cluster.start(1)
            await cluster.controller()
            await cluster.start(2)
            await cluster.settle()
            controller = (await cluster.controller()).controller
            assert await created(controller, NewTopic("demo", 2, 2)) == [None]
            await cluster.crash(2)
            await cluster.until(lambda: controller.context.live_broker_ids == {1}, "the crash")
            (result,) = await controller.delete_topics([TopicToDelete("demo")])
            assert result.error is None
            await cluster.settle()
            assert controller.context.topics_ineligible_for_deletion == {"demo"}
            (again,) = await controller.create_topics([NewTopic("demo", 1, 1)])
            assert isinstance(again.error, TopicAlreadyExists)
            node = await cluster.start(2)
            await cluster.until(lambda: "demo" not in controller.context.topics, "the deletion")
            assert set(node.broker.deleted) == partitions("demo", 2)

    simulated(story())


def test_the_next_controller_goes_on_with_a_deletion() -> None:
    async def story() -> None:
        async with Cluster(1, 2, 3) as cluster:
            first = await cluster.controller()
            down = next(broker_id for broker_id in cluster.nodes if broker_id != first.broker_id)
            assert await created(first.controller, NewTopic("demo", 3, 3)) == [None]
            await cluster.crash(down)
            await cluster.until(lambda: len(first.controller.context.live_broker_ids) == 2, "the crash")
            await first.controller.delete_topics([TopicToDelete("demo")])
            await cluster.crash(first.broker_id)
            second = await cluster.controller()
            await cluster.settle()
            assert second.controller.context.topics_to_be_deleted.keys() == {"demo"}
            await cluster.start(down)
            await cluster.start(first.broker_id)
            await cluster.until(lambda: not second.controller.context.topics, "the deletion")
            assert await second.tree.children("/admin/delete_topics") == []

    simulated(story())


def test_marks_of_topics_that_do_not_exist_are_removed() -> None:
    async def story() -> None:
        async with Cluster(1) as cluster:
            node = await cluster.controller()
            await node.tree.create("/admin/delete_topics/nothing")

            def gone() -> bool:
                return not cluster.zookeeper.tree.children("/admin/delete_topics")

            await cluster.until(gone, "the mark")

    simulated(story())


def test_a_thousand_topics_take_few_multis_and_one_request_to_each_broker() -> None:
    async def story() -> None:
        async with Cluster(1, 2, 3) as cluster:
            node = await cluster.controller()
            multis: list[int] = []
            cluster.zookeeper.on_commit = lambda _zxid, _session, operations: multis.append(len(operations))
            for each in cluster.nodes.values():
                each.broker.received.clear()
            topics = [NewTopic(f"topic-{n}", 1, 1) for n in range(1000)]
            results = await node.controller.create_topics(topics)
            assert [result.error for result in results if result.error is not None] == []
            assert len(multis) < 20
            for each in cluster.nodes.values():
                kinds = [type(request) for request in each.broker.received]
                assert kinds.count(LeaderAndIsrRequest) == 1
                assert kinds.count(UpdateMetadataRequest) == 1
                assert len(each.broker.leaders) == 1000

    simulated(story())


def test_nodes_that_cannot_be_read_do_not_stop_the_next_controller(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        async with Cluster(1, 2) as cluster:
            first = await cluster.controller()
            topics = NewTopic("good", 1, 1), NewTopic("half", 2, 1)
            assert await created(first.controller, *topics) == [None, None]
            tree = next(node for node in cluster.nodes.values() if node is not first).tree
            await cluster.settle()
            await tree.create("/brokers/topics/empty")
            await tree.set("/brokers/topics/half/partitions/0/state", b"{}")
            for prefix in (ISR_CHANGE_PREFIX, LOG_DIR_EVENT_PREFIX):
                await tree.create(prefix, b"what?", sequential=True)
            await tree.create("/admin/preferred_replica_election", b"{")
            await cluster.crash(first.broker_id)
            controller = (await cluster.controller()).controller
            await cluster.settle()
            assert controller.epoch == 2
            assert controller.context.topics == {"good", "half"}
            for parent in ("/isr_change_notification", "/log_dir_event_notification"):
                assert await tree.children(parent) == []
            assert await tree.exists("/admin/preferred_replica_election") is None
            assert await created(controller, NewTopic("new", 1, 1)) == [None]
            await tree.set("/brokers/topics/empty", TopicNode({0: [1, 2]}, random_id()).encode())
            await cluster.until(lambda: "empty" in controller.context.topics, "the repaired topic")

    simulated(story())
    for name in ("topics/empty", "half/partitions/0/state", "isr_change_", "log_dir_event_", "preferred_"):
        assert name in caplog.text


def test_topics_that_cannot_be_read_do_not_look_deleted() -> None:
    """Brokers remove the offsets of topics that a full update does not have."""

    async def story() -> None:
        async with Cluster(1, 2) as cluster:
            first = await cluster.controller()
            for name in ("node", "state", "good"):
                assert await created(first.controller, NewTopic(name, 1, 2)) == [None]
            await cluster.settle()
            second = next(node for node in cluster.nodes.values() if node is not first)
            data, _ = await second.tree.get("/brokers/topics/node")
            await second.tree.set("/brokers/topics/node", b"")
            await second.tree.set("/brokers/topics/state/partitions/0/state", b"")
            await cluster.settle()
            second.broker.received.clear()
            await first.tree.delete("/controller")
            await cluster.until(lambda: cluster.epoch_in_tree() == 2, "the next controller")
            controller = (await cluster.controller()).controller
            await cluster.settle()
            update = second.broker.received[0]
            assert isinstance(update, UpdateMetadataRequest)
            assert update.type == PARTIAL_UPDATE
            leaders = {
                topic.topic_name: [partition.leader for partition in topic.partition_states]
                for topic in update.topic_states
            }
            assert leaders.keys() == {"state", "good"}
            assert leaders["state"] == [NO_LEADER]
            assert (await second.tree.get("/brokers/topics/state/partitions/0/state"))[0] == b""

            await second.tree.set("/brokers/topics/node", data)
            await cluster.until(lambda: "node" in controller.context.topics, "the repaired topic")
            await cluster.settle()
            node = await cluster.start(3)
            await cluster.until(lambda: node.broker.received, "what broker 3 is told")
            update = node.broker.received[0]
            assert isinstance(update, UpdateMetadataRequest)
            assert update.type == FULL_UPDATE
            assert {topic.topic_name for topic in update.topic_states} == {"node", "state", "good"}

    simulated(story())


def test_a_topic_without_an_id_gets_one_although_a_tool_writes_its_node_meanwhile() -> None:
    async def story() -> None:
        async with Cluster(1, 2) as cluster:
            node = await cluster.controller()
            tree = cluster.nodes[3 - node.broker_id].tree
            get_all = node.tree.get_all

            async def get_then_grow(paths: Iterable[str]) -> dict[str, tuple[bytes, Stat]]:
                wanted = list(paths)
                found = await get_all(wanted)
                if wanted == ["/brokers/topics/old"] and found[wanted[0]][1].version == 0:
                    await tree.set("/brokers/topics/old", TopicNode({0: [1], 1: [2]}).encode())
                return found

            node.tree.get_all = get_then_grow  # type: ignore[method-assign]
            await tree.create("/brokers/topics/old", TopicNode({0: [1]}).encode())
            await cluster.until(lambda: "old" in node.controller.context.topics, "the topic")
            await cluster.settle()
            topic = TopicNode.decode((await tree.get("/brokers/topics/old"))[0])
            assert topic.topic_id is not None
            assert node.controller.context.topic_ids == {"old": topic.topic_id}
            assert set(node.controller.context.partitions) == partitions("old", 2)
            assert node.broker.leaders.keys() == partitions("old", 2)

    simulated(story())
