"""The split brain: members that see different trees at one moment decide differently.

Nobody is in charge, so nobody notices. Claims that collide are tried again after rebalance.backoff.ms, and
partitions have no owner meanwhile. A member that is cut off from ZooKeeper reads on beside its successor.
"""

from __future__ import annotations

import asyncio

import pytest

from tests.clients.zookeeper_consumer.group_world import SESSION_TIMEOUT, GroupWorld, in_world
from tests.support.wait import eventually_async
from tidelog.clients.zookeeper_consumer.errors import ConsumerRebalanceFailedException
from tidelog.metadata import paths


async def registered(world: GroupWorld, name: str) -> None:
    path = paths.consumer_id("g", f"g_{name}")
    await eventually_async(lambda: path in world.server.tree.nodes, f"{name} in the tree", interval=0.0001)


def test_partitions_stay_without_an_owner_until_the_backoff_ends() -> None:
    async def story(world: GroupWorld) -> None:
        await world.start({"clicks": 4})
        a, b = world.member("a"), world.member("b", rebalance_backoff_ms=2000)
        await a.read({"clicks": 1})
        world.server.cut("a", to_server=False)  # a does not see that b joins
        joining = asyncio.create_task(b.read({"clicks": 1}))
        await registered(world, "b")
        began = world.now
        await asyncio.sleep(0.5)
        assert world.owners() == dict.fromkeys(range(4), "a-0")  # b could not claim its half
        world.server.heal("a")
        await eventually_async(lambda: world.owners() == {0: "a-0", 1: "a-0"}, "a releases b's half")
        released = world.now
        assert b.fetched == []
        await joining
        await world.until_owners({0: "a-0", 1: "a-0", 2: "b-0", 3: "b-0"})
        assert world.now - began == pytest.approx(2.0, abs=0.1)
        assert world.now - released > 1.4  # so long nobody read two of four partitions

    in_world(story)


def test_a_consumer_gives_up_while_another_does_not_see_it() -> None:
    async def story(world: GroupWorld) -> None:
        await world.start({"clicks": 2})
        a = world.member("a")
        b = world.member("b", rebalance_backoff_ms=200, rebalance_max_retries=3)
        await a.read({"clicks": 1})
        world.server.cut("a", to_server=False)
        with pytest.raises(ConsumerRebalanceFailedException, match="after 3 retries"):
            await b.read({"clicks": 1})
        assert world.owners() == {0: "a-0", 1: "a-0"}
        world.server.heal("a")
        # a makes room, but b does not try again: the partition has no owner until the group changes.
        await eventually_async(lambda: world.owners() == {0: "a-0"}, "a releases")
        await asyncio.sleep(600.0)
        assert (world.owners(), b.fetched) == ({0: "a-0"}, [])

    in_world(story)


def test_members_with_different_views_claim_the_same_partition() -> None:
    async def story(world: GroupWorld) -> None:
        await world.start({"clicks": 6})
        a, b, c = world.member("a"), world.member("b", rebalance_backoff_ms=2000), world.member("c")
        await a.read({"clicks": 1})
        b_joins = asyncio.create_task(b.read({"clicks": 1}))
        await registered(world, "b")
        world.server.cut("b")  # b is in the tree, and has not looked into it yet
        await eventually_async(lambda: world.owners() == dict.fromkeys(range(3), "a-0"), "a sees b")
        world.server.cut("a", to_server=False)
        await c.read({"clicks": 1})
        assert world.owners() == {0: "a-0", 1: "a-0", 2: "a-0", 4: "c-0", 5: "c-0"}
        # For a the group is {a, b}, and partition 2 is its own. For b it is {a, b, c}, and 2 belongs to b.
        world.server.heal("b")
        await eventually_async(lambda: b.tree.counts["delete"] > 0, "b gives back what it claimed")
        assert world.owners() == {0: "a-0", 1: "a-0", 2: "a-0", 4: "c-0", 5: "c-0"}
        assert b.fetched == []  # and nobody reads partition 3
        world.server.heal("a")
        await b_joins
        await world.until_owners({0: "a-0", 1: "a-0", 2: "b-0", 3: "b-0", 4: "c-0", 5: "c-0"})

    in_world(story)


def test_a_consumer_that_is_cut_off_reads_beside_its_successor() -> None:
    async def story(world: GroupWorld) -> None:
        await world.start({"clicks": 2})
        a, b = world.member("a"), world.member("b")
        (stream_a,) = (await a.read({"clicks": 1}))["clicks"]
        (stream_b,) = (await b.read({"clicks": 1}))["clicks"]
        await world.until_owners({0: "a-0", 1: "b-0"})
        world.server.cut("a")
        await eventually_async(lambda: len(b.fetched) == 2, "b takes over", 2 * SESSION_TIMEOUT)
        assert a.fetched == ["clicks-0"]  # its connections to the brokers are well
        a.fetchers.deliver("clicks", 0, 7)
        b.fetchers.deliver("clicks", 0, 7)
        assert [(await anext(stream)).offset for stream in (stream_a, stream_b)] == [7, 7]
        world.server.heal("a")
        await world.until_owners({0: "a-0", 1: "b-0"})

    in_world(story)
