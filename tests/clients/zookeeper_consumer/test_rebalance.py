"""A group in ZooKeeper shares partitions, follows changes and keeps its offsets in the tree."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping

import pytest

from tests.clients.zookeeper_consumer.group_world import SESSION_TIMEOUT, GroupWorld, in_world
from tests.support.wait import eventually_async
from tidelog.clients.zookeeper_consumer.connector import AsyncConsumerConnector, Environment
from tidelog.clients.zookeeper_consumer.errors import ConsumerTimeoutException, MessageStreamsExistException
from tidelog.clients.zookeeper_consumer.group_nodes import GroupNodes
from tidelog.clients.zookeeper_consumer.topic_count import Blacklist, ConsumerThreadId, Whitelist
from tidelog.metadata import paths
from tidelog.metadata.nodes import ConsumerNode
from tidelog.partitions import TopicPartition


def test_one_consumer_owns_all_partitions_with_its_threads() -> None:
    async def story(world: GroupWorld) -> None:
        await world.start({"clicks": 3})
        a = world.member("a")
        streams = await a.read({"clicks": 2})
        assert len(streams["clicks"]) == 2
        assert world.owners() == {0: "a-0", 1: "a-0", 2: "a-1"}
        node = world.server.tree.nodes[paths.consumer_id("g", "g_a")]
        assert json.loads(node.data) == {
            "version": 1,
            "subscription": {"clicks": 2},
            "pattern": "static",
            "timestamp": str(world.clock.ms()),
        }
        assert node.owner == a.tree.session_id

    in_world(story)


def test_members_share_the_partitions_and_take_over_from_those_that_leave() -> None:
    async def story(world: GroupWorld) -> None:
        await world.start({"clicks": 4})
        a, b = world.member("a"), world.member("b")
        await a.read({"clicks": 1})
        await b.read({"clicks": 1})
        await world.until_owners({0: "a-0", 1: "a-0", 2: "b-0", 3: "b-0"})
        await a.connector.shutdown()
        await world.until_owners(dict.fromkeys(range(4), "b-0"))

    in_world(story)


def test_a_member_that_dies_is_replaced_when_its_session_ends() -> None:
    async def story(world: GroupWorld) -> None:
        await world.start({"clicks": 2})
        a, b = world.member("a"), world.member("b")
        await a.read({"clicks": 1})
        await b.read({"clicks": 1})
        await world.until_owners({0: "a-0", 1: "b-0"})
        world.server.cut("a")
        await eventually_async(lambda: world.owners() == {0: "b-0", 1: "b-0"}, "b", 2 * SESSION_TIMEOUT)
        world.server.heal("a")

    in_world(story)


def test_new_partitions_new_topics_and_new_brokers_start_a_rebalance() -> None:
    async def story(world: GroupWorld) -> None:
        await world.start({"clicks": 1}, broker=False)
        a = world.member("a")
        await a.read({"clicks": 1, "later": 1})
        assert world.owners() == {}
        await world.start_broker()
        await world.until_owners({0: "a-0"})
        await world.grow_topic("clicks", 3)
        await world.until_owners({0: "a-0", 1: "a-0", 2: "a-0"})
        await world.create_topic("later", 2)
        await world.until_owners({0: "a-0", 1: "a-0"}, "later")
        starts = a.fetchers.starts
        await world.start_broker(2)
        await eventually_async(lambda: a.fetchers.starts > starts, "a rebalance")

    in_world(story)


def test_a_filter_follows_topics_that_are_created() -> None:
    async def story(world: GroupWorld) -> None:
        await world.start({"clicks": 1, "other": 1})
        a, b = world.member("a"), world.member("b")
        await a.read_filter(Whitelist("click.*"))
        await world.until_owners({0: "a-0"})
        await world.create_topic("clicks-eu", 2)
        await world.until_owners({0: "a-0", 1: "a-0"}, "clicks-eu")
        starts = a.fetchers.starts
        await world.create_topic("another", 1)  # it is not selected, and moves nothing
        await b.read_filter(Blacklist("click.*"))
        await world.until_owners({0: "b-0"}, "another")
        assert a.fetchers.starts == starts + 1  # because b joined
        node = world.server.tree.nodes[paths.consumer_id("g", "g_b")]
        assert json.loads(node.data)["pattern"] == "black_list"

    in_world(story)


def test_offsets_are_committed_at_intervals_on_request_and_in_a_rebalance() -> None:
    async def story(world: GroupWorld) -> None:
        await world.start({"clicks": 2})
        a, b = world.member("a", auto_commit_interval_ms=1000), world.member("b")
        (stream,) = (await a.read({"clicks": 1}))["clicks"]
        a.fetchers.deliver("clicks", 0, 40, 3)
        assert [(await anext(stream)).offset for _ in range(2)] == [40, 41]
        assert world.offset(0) is None
        await eventually_async(lambda: world.offset(0) == 42, "the automatic commit")
        assert (await anext(stream)).offset == 42
        await a.connector.commit_offsets()
        assert world.offset(0) == 43
        a.fetchers.deliver("clicks", 1, 7, 2)
        await anext(stream)
        await b.read({"clicks": 1})
        await world.until_owners({0: "a-0", 1: "b-0"})
        assert world.offset(1) == 8
        (info,) = b.fetchers.infos.values()
        assert info.consumed == 8  # b goes on where a was, and gets the record that a did not return

    in_world(story)


def test_a_member_begins_where_the_owner_before_committed_last(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: GroupWorld) -> None:
        await world.start({"clicks": 1})
        claim = GroupNodes.claim

        async def claim_late(
            nodes: GroupNodes, partitions: Mapping[TopicPartition, ConsumerThreadId]
        ) -> bool:
            # Another member commits and releases its partition between two requests of this one.
            await nodes.commit(dict.fromkeys(partitions, 8))
            return await claim(nodes, partitions)

        monkeypatch.setattr(GroupNodes, "claim", claim_late)
        a = world.member("a")
        await a.read({"clicks": 1})
        (info,) = a.fetchers.infos.values()
        assert info.consumed == 8

    in_world(story)


def test_without_automatic_commits_offsets_are_written_on_request_alone() -> None:
    async def story(world: GroupWorld) -> None:
        await world.start({"clicks": 1})
        a = world.member("a", auto_commit_enable="false")
        (stream,) = (await a.read({"clicks": 1}))["clicks"]
        a.fetchers.deliver("clicks", 0, 5)
        await anext(stream)
        await a.connector.shutdown()
        assert world.offset(0) is None

    in_world(story)


def test_records_of_a_partition_that_moved_are_not_returned_any_more() -> None:
    async def story(world: GroupWorld) -> None:
        await world.start({"clicks": 2})
        a, b = world.member("a"), world.member("b")
        (stream,) = (await a.read({"clicks": 1}))["clicks"]
        a.fetchers.deliver("clicks", 1, 0, 5)
        assert (await anext(stream)).offset == 0
        await b.read({"clicks": 1})
        await world.until_owners({0: "a-0", 1: "b-0"})
        a.fetchers.deliver("clicks", 0, 9)
        assert (await anext(stream)).partition == 0

    in_world(story)


def test_a_consumer_whose_session_expired_registers_again() -> None:
    async def story(world: GroupWorld) -> None:
        await world.start({"clicks": 2})
        a, b = world.member("a"), world.member("b")
        await a.read({"clicks": 1})
        await b.read({"clicks": 1})
        await world.until_owners({0: "a-0", 1: "b-0"})
        before = a.tree.session_id
        world.server.expire("a")
        await eventually_async(lambda: a.tree.session_id not in (0, before), "the next session")
        await world.until_owners({0: "a-0", 1: "b-0"})
        assert world.server.tree.nodes[paths.consumer_id("g", "g_a")].owner == a.tree.session_id

    in_world(story)


def test_a_member_with_a_filter_that_only_java_understands_holds_up_its_group_while_it_is_there() -> None:
    async def story(world: GroupWorld) -> None:
        await world.start({"clicks": 2})
        a = world.member("a", rebalance_backoff_ms=100)
        await a.read({"clicks": 1})
        other = ConsumerNode({r"\p{Alpha}+": 1}, "white_list", 0)
        path = paths.consumer_id("g", "g_other")
        await world.cluster.tree.create(path, other.encode(), ephemeral=True)
        await asyncio.sleep(5)  # all attempts fail
        assert world.owners() == {}
        await world.cluster.tree.delete(path)
        await world.until_owners({0: "a-0", 1: "a-0"})

    in_world(story)


@pytest.mark.parametrize("seed", range(5))
def test_lost_connections_leave_one_owner_for_every_partition(seed: int) -> None:
    async def story(world: GroupWorld) -> None:
        await world.start({"clicks": 6})
        names = ["a", "b", "c"]
        for name in names:
            member = world.member(name, rebalance_backoff_ms=100, rebalance_max_retries=50)
            await member.read({"clicks": 1})
            world.server.lose_connection(names[seed % 3])
        await world.grow_topic("clicks", 9)
        world.server.loss = 0.03
        await eventually_async(lambda: len(world.owners()) == 9, "owners", 60.0)
        world.server.loss = 0.0
        expected = {index: f"{names[index // 3]}-0" for index in range(9)}
        await world.until_owners(expected)
        fetched = [partition for member in world.members for partition in member.fetched]
        assert sorted(fetched) == sorted(f"clicks-{index}" for index in range(9))

    in_world(story)


def test_a_stream_without_records_times_out_and_ends_with_the_connector() -> None:
    async def story(world: GroupWorld) -> None:
        await world.start({"clicks": 1})
        a = world.member("a", consumer_timeout_ms=500)
        (stream,) = (await a.read({"clicks": 1}))["clicks"]
        with pytest.raises(ConsumerTimeoutException):
            await anext(stream)
        a.fetchers.deliver("clicks", 0, 0)
        assert (await anext(stream)).offset == 0
        with pytest.raises(MessageStreamsExistException):
            await a.read({"clicks": 1})
        await a.connector.shutdown()
        assert [record async for record in stream] == []

    in_world(story)


def test_a_generated_id_has_the_group_the_host_the_time_and_eight_digits() -> None:
    connector = AsyncConsumerConnector(
        {"zookeeper.connect": "zk:2181", "group.id": "g"}, environment=Environment(host="node1")
    )
    group, rest = connector.consumer_id.split("_")
    host, timestamp, digits = rest.split("-")
    assert (group, host, timestamp.isdecimal(), len(digits)) == ("g", "node1", True, 8)
    int(digits, 16)
