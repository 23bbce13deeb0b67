"""Members get partitions with a replica in their rack, as far as shares stay even."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from tests.support.scale import scale
from tidelog.clients.consumer.assignors import (
    Assignment,
    Assignor,
    CooperativeStickyAssignor,
    Counts,
    Member,
    RangeAssignor,
    RoundRobinAssignor,
    StickyAssignor,
    read_assignment,
    sticky_user_data,
    subscription_bytes,
)
from tidelog.clients.consumer.classic_group import ClassicGroup
from tidelog.clients.consumer.membership import MembershipContext
from tidelog.clients.consumer.racks import Racks, ReplicaRacks, replica_racks
from tidelog.clients.metadata import BrokerNode, ClusterView, PartitionView, TopicView
from tidelog.clients.network import NetworkClient
from tidelog.clients.settings import consumer_settings
from tidelog.partitions import TopicPartition
from tidelog.protocol.messages.join_group import JoinGroupResponse

DATA = Path(__file__).parents[1] / "data"
NEAR = [RangeAssignor, StickyAssignor, CooperativeStickyAssignor]


def members(*racks: str | None, topics: str = "t") -> list[Member]:
    return [Member(f"m{index}", frozenset(topics), rack=rack) for index, rack in enumerate(racks)]


def replicas(**topics: Sequence[str]) -> dict[TopicPartition, frozenset[str]]:
    """Racks of the replicas by topic, a letter each: `t=["ab", "b"]`."""
    return {
        TopicPartition(topic, index): frozenset(racks)
        for topic, places in topics.items()
        for index, racks in enumerate(places)
    }


def counts_of(where: ReplicaRacks) -> dict[str, int]:
    counts: dict[str, int] = {}
    for place in where:
        counts[place.topic] = counts.get(place.topic, 0) + 1
    return counts


def near(assignor: type[Assignor], group: Sequence[Member], where: ReplicaRacks) -> dict[str, list[str]]:
    given = assignor().assign_near(group, counts_of(where), where)
    return {member: [str(partition) for partition in partitions] for member, partitions in given.items()}


def far_ones(group: Sequence[Member], given: Assignment, where: ReplicaRacks) -> int:
    racks = {member.id: member.rack for member in group}
    return sum(
        racks[member_id] is not None and racks[member_id] not in where[partition]
        for member_id, partitions in given.items()
        for partition in partitions
    )


@pytest.mark.parametrize("assignor", NEAR, ids=lambda kind: kind.name)
def test_every_member_gets_what_is_in_its_rack(assignor: type[Assignor]) -> None:
    where = replicas(t=["b", "a", "c", "a", "b", "c"])
    given = near(assignor, members("a", "b", "c"), where)
    assert given == {"m0": ["t-1", "t-3"], "m1": ["t-0", "t-4"], "m2": ["t-2", "t-5"]}


@pytest.mark.parametrize("assignor", NEAR, ids=lambda kind: kind.name)
def test_even_shares_come_before_near_replicas(assignor: type[Assignor]) -> None:
    where = replicas(t=["a", "a", "a", "b"])
    given = near(assignor, members("a", "b"), where)
    assert [len(given["m0"]), len(given["m1"])] == [2, 2]
    assert "t-3" in given["m1"]


@pytest.mark.parametrize("assignor", NEAR, ids=lambda kind: kind.name)
@pytest.mark.parametrize(
    ("racks", "places"),
    [
        ((None, None), ["a", "b", "a"]),
        (("x", "y"), ["a", "b", "a"]),
        (("a", "b"), ["ab", "ab", "ab"]),
        (("a", "b"), ["", "", ""]),
        (("", ""), ["a", "b", "a"]),
    ],
    ids=["members without", "other racks", "replicas everywhere", "brokers without", "empty names"],
)
def test_racks_that_make_no_difference_change_nothing(
    assignor: type[Assignor], racks: tuple[str | None, ...], places: list[str]
) -> None:
    where = replicas(t=places)
    group = members(*racks)
    assert assignor().assign_near(group, {"t": 3}, where) == assignor().assign(group, {"t": 3})
    assert not Racks({member.id: member.rack for member in group}, where)


def test_range_gives_members_without_a_rack_what_comes_first() -> None:
    where = replicas(t=["b", "b", "a", "a"])
    assert near(RangeAssignor, members(None, "a"), where) == {"m0": ["t-0", "t-1"], "m1": ["t-2", "t-3"]}
    assert near(RangeAssignor, members("a", None), where) == {"m0": ["t-2", "t-3"], "m1": ["t-0", "t-1"]}


def test_range_keeps_the_same_partitions_of_like_topics_together() -> None:
    """Partition 1 of both has a replica in b, and partition 0 in a; that of 2 fits nobody for both topics."""
    where = replicas(t=["a", "b", "a"], u=["a", "b", "b"])
    given = near(RangeAssignor, members("b", "a", topics="tu"), where)
    assert given == {"m0": ["t-1", "t-2", "u-1", "u-2"], "m1": ["t-0", "u-0"]}


def test_range_looks_at_topics_of_different_sizes_one_by_one() -> None:
    where = replicas(t=["b", "a"], u=["a", "b", "a"])
    given = near(RangeAssignor, members("a", "b", topics="tu"), where)
    assert given == {"m0": ["t-1", "u-0", "u-2"], "m1": ["t-0", "u-1"]}


def test_range_deals_out_as_kafkas_java_client_does() -> None:
    cases = json.loads((DATA / "range_racks.json").read_text())
    assert len(cases) > 30
    for case in cases:
        group = [
            Member(name, frozenset(topics), rack=rack) for name, (rack, topics) in case["members"].items()
        ]
        assert near(RangeAssignor, group, replicas(**case["replicas"])) == case["given"]


def test_round_robin_does_not_look_at_racks() -> None:
    where = replicas(t=["b", "a"])
    assert near(RoundRobinAssignor, members("a", "b"), where) == {"m0": ["t-0"], "m1": ["t-1"]}


def test_an_assignor_of_ones_own_need_not_know_of_racks() -> None:
    class Own(Assignor):
        def assign(self, members: Sequence[Member], counts: Counts) -> Assignment:
            return {"m0": [TopicPartition("t", 0)]}

    assert Own().assign_near(members("a"), {"t": 1}, replicas(t=["a"])) == {"m0": [("t", 0)]}


def again(group: Sequence[Member], given: Assignment, generation: int) -> list[Member]:
    """The same members, who tell what they have."""
    return [
        Member(
            member.id,
            member.topics,
            owned=frozenset(given[member.id]),
            generation=generation,
            user_data=sticky_user_data(given[member.id], generation),
            rack=member.rack,
        )
        for member in group
    ]


def test_sticky_members_swap_what_they_have_for_what_is_near() -> None:
    had = {"m0": [TopicPartition("t", 0), TopicPartition("t", 1)], "m1": [TopicPartition("t", 2)]}
    where = replicas(t=["a", "b", "a"])
    given = StickyAssignor().assign_near(again(members("a", "b"), had, 1), {"t": 3}, where)
    assert given == {"m0": [("t", 0), ("t", 2)], "m1": [("t", 1)]}


def test_cooperative_members_give_up_first_what_another_is_nearer_to() -> None:
    had = {"m0": [TopicPartition("t", 0)], "m1": [TopicPartition("t", 1)]}
    where = replicas(t=["b", "a"])
    group = members("a", "b")
    first = CooperativeStickyAssignor().assign_near(again(group, had, 1), {"t": 2}, where)
    assert first == {"m0": [], "m1": []}
    second = CooperativeStickyAssignor().assign_near(again(group, first, 2), {"t": 2}, where)
    assert second == {"m0": [("t", 1)], "m1": [("t", 0)]}


def some_group(chance: random.Random, *, alike: bool) -> tuple[list[Member], ReplicaRacks]:
    where = replicas(
        **{
            f"t{topic}": [
                "".join(chance.sample("abc", chance.randrange(1, 4))) for _ in range(chance.randrange(1, 9))
            ]
            for topic in range(chance.randrange(1, 4))
        }
    )
    topics = sorted(counts_of(where))
    return [
        Member(
            f"m{index}",
            frozenset(topics if alike else chance.sample(topics, chance.randrange(1, len(topics) + 1))),
            rack=chance.choice(["a", "b", "c", None]),
        )
        for index in range(chance.randrange(1, 6))
    ], where


@pytest.mark.parametrize("alike", [True, False], ids=["alike", "different"])
@pytest.mark.parametrize("assignor", NEAR, ids=lambda kind: kind.name)
def test_racks_cost_nothing_else(assignor: type[Assignor], alike: bool) -> None:
    """Everything is given once to one who wants it, shares are as even, and fewer partitions are far."""
    before = after = 0
    for seed in range(scale(60, 1000)):
        group, where = some_group(random.Random(seed), alike=alike)
        counts = counts_of(where)
        plain, given = assignor().assign(group, counts), assignor().assign_near(group, counts, where)
        wanted = {place for place in where if any(place.topic in member.topics for member in group)}
        taken = [partition for partitions in given.values() for partition in partitions]
        assert len(taken) == len(set(taken)), seed
        assert set(taken) == wanted, seed
        for member in group:
            assert {partition.topic for partition in given[member.id]} <= member.topics, seed
        for topic in counts if assignor is RangeAssignor else ():
            assert sizes(plain, topic) == sizes(given, topic), seed
        if assignor is not RangeAssignor and alike:
            assert sizes(plain) == sizes(given), seed
        before += far_ones(group, plain, where)
        after += far_ones(group, given, where)
    assert after < before * 0.7


def sizes(given: Assignment, topic: str | None = None) -> list[int]:
    return sorted(
        sum(topic in (None, partition.topic) for partition in partitions) for partitions in given.values()
    )


@pytest.mark.parametrize("alike", [True, False], ids=["alike", "different"])
@pytest.mark.parametrize("assignor", [StickyAssignor, CooperativeStickyAssignor], ids=lambda kind: kind.name)
def test_what_was_dealt_out_stays(assignor: type[Assignor], alike: bool) -> None:
    """Otherwise a group of cooperative members would go on rebalancing for ever."""
    for seed in range(scale(60, 1000)):
        chance = random.Random(seed)
        group, where = some_group(chance, alike=alike)
        counts = counts_of(where)
        places = sorted(where)
        chance.shuffle(places)
        had: Assignment = {member.id: [] for member in group}
        for place in places:  # however it was before
            takers = [member.id for member in group if place.topic in member.topics]
            if takers:
                had[chance.choice(takers)].append(place)
        given = had
        for generation in range(1, 4):
            given = assignor().assign_near(again(group, given, generation), counts, where)
        assert assignor().assign_near(again(group, given, 4), counts, where) == given, seed
        taken = {partition for partitions in given.values() for partition in partitions}
        assert len(taken) == sum(len(partitions) for partitions in had.values()), seed


def test_many_partitions_are_dealt_out_at_once() -> None:
    where = replicas(t=["abc"[index % 3] for index in range(scale(900, 9000))])
    group = members(*("cab"[index % 3] for index in range(30)))
    given = StickyAssignor().assign_near(group, counts_of(where), where)
    assert far_ones(group, given, where) == 0


def test_racks_of_replicas_are_read_from_the_metadata() -> None:
    view = ClusterView()
    view.nodes = {1: BrokerNode(1, "h", 1, "a"), 2: BrokerNode(2, "h", 2, "b"), 3: BrokerNode(3, "h", 3)}
    view.topics["t"] = TopicView(
        "t",
        bytes(16),
        False,
        {0: PartitionView(0, 1, 0, [1, 2], [1]), 1: PartitionView(1, 3, 0, [3, 9], [3])},
    )
    assert replica_racks(view, ["t", "unknown"]) == replicas(t=["ab", ""])


def crossed(view: ClusterView) -> None:
    """Two brokers in two racks, each with one partition: the first partition in the second rack."""
    view.nodes = {1: BrokerNode(1, "h", 1, "a"), 2: BrokerNode(2, "h", 2, "b")}
    places = {0: PartitionView(0, 2, 0, [2], [2]), 1: PartitionView(1, 1, 0, [1], [1])}
    view.topics["t"] = TopicView("t", bytes(16), False, places)


def test_the_leader_of_a_group_deals_out_by_racks_and_again_when_replicas_move() -> None:
    async def main() -> None:
        settings = consumer_settings(bootstrap_servers="127.0.0.1:1", group_id="g", client_rack="a")
        client = NetworkClient(settings, allow_auto_create=False)
        await client.start()
        around = SimpleNamespace(
            client=client,
            settings=settings,
            coordinator=SimpleNamespace(group_id="g"),
            subscription=SimpleNamespace(is_subscribed=True),
            wake=lambda: None,
        )
        group = ClassicGroup(cast(MembershipContext, around))
        crossed(client.view)
        joined = JoinGroupResponse(
            protocol_name="range",
            members=[
                JoinGroupResponse.JoinGroupResponseMember(
                    member_id=name, metadata=subscription_bytes(["t"], [], -1, None, rack)
                )
                for name, rack in (("m0", "a"), ("m1", "b"))
            ],
        )
        given = await group._assignments(joined)
        assert {name: read_assignment(data) for name, data in given.items()} == {
            "m0": [("t", 1)],
            "m1": [("t", 0)],
        }
        group.rejoin_reason = None
        client.view.version += 1
        del client.view.nodes[2]  # for a moment
        group.metadata_changed()
        assert group.rejoin_reason is None
        crossed(client.view)
        client.view.topics["t"].partitions[0].replicas = [2, 1]
        client.view.version += 1
        group.metadata_changed()
        assert group.rejoin_reason == "t-0 has replicas in racks ['a', 'b'] now"
        await client.close()

    asyncio.run(main())
