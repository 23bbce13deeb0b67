"""How leaders of classic groups deal out partitions, and what members tell each other."""

from __future__ import annotations

import random
import struct

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
    assignment_bytes,
    assignors_of,
    read_assignment,
    read_member,
    read_sticky_user_data,
    sticky_user_data,
    subscription_bytes,
)
from tidelog.config import ConfigError
from tidelog.partitions import TopicPartition

ALL = [RangeAssignor, RoundRobinAssignor, StickyAssignor, CooperativeStickyAssignor]


def members(count: int, *topics: str) -> list[Member]:
    return [Member(f"m{index}", frozenset(topics)) for index in range(count)]


def shown(given: Assignment) -> dict[str, list[str]]:
    return {member: [str(partition) for partition in partitions] for member, partitions in given.items()}


def test_range_gives_each_member_one_piece_of_every_topic() -> None:
    given = RangeAssignor().assign(members(2, "a", "b"), {"a": 3, "b": 3})
    assert shown(given) == {"m0": ["a-0", "a-1", "b-0", "b-1"], "m1": ["a-2", "b-2"]}


def test_round_robin_deals_in_turn() -> None:
    given = RoundRobinAssignor().assign(members(2, "a", "b"), {"b": 3, "a": 3})
    assert shown(given) == {"m0": ["a-0", "a-2", "b-1"], "m1": ["a-1", "b-0", "b-2"]}


def test_static_members_keep_their_places_under_other_ids() -> None:
    def group(first: str) -> list[Member]:
        return [
            Member(first, frozenset({"t"}), "one"),
            Member("b", frozenset({"t"}), "two"),
            Member("a", frozenset({"t"})),
        ]

    before = RangeAssignor().assign(group("aa"), {"t": 3})
    after = RangeAssignor().assign(group("zz"), {"t": 3})
    assert before["aa"] == after["zz"] == [("t", 0)]


@pytest.mark.parametrize("assignor", ALL, ids=lambda kind: kind.name)
@pytest.mark.parametrize("seed", range(scale(30, 300)))
def test_everything_is_given_to_one_who_wants_it(assignor: type[Assignor], seed: int) -> None:
    chance = random.Random(seed)
    counts = {f"t{index}": chance.randrange(0, 9) for index in range(chance.randrange(1, 5))}
    group = [
        Member(f"m{index}", frozenset(chance.sample(sorted(counts), chance.randrange(1, len(counts) + 1))))
        for index in range(chance.randrange(1, 6))
    ]
    given = assignor().assign(group, counts)
    taken = [partition for partitions in given.values() for partition in partitions]
    wanted = {
        TopicPartition(topic, index)
        for topic, count in counts.items()
        if any(topic in member.topics for member in group)
        for index in range(count)
    }
    assert len(taken) == len(set(taken))
    assert set(taken) == wanted
    for member in group:
        assert {partition.topic for partition in given[member.id]} <= member.topics


def rebalanced(
    assignor: StickyAssignor, group: list[str], counts: Counts, had: Assignment, generation: int
) -> Assignment:
    """The next assignment of members who tell what they have."""
    told = []
    for name in group:
        owned = had.get(name, [])
        data = sticky_user_data(owned, generation) if type(assignor) is StickyAssignor else None
        known = generation if name in had else -1
        told.append(Member(name, frozenset(counts), owned=frozenset(owned), generation=known, user_data=data))
    return assignor.assign(told, counts)


@pytest.mark.parametrize("seed", range(scale(30, 300)))
def test_sticky_assignments_stay_even_and_move_little(seed: int) -> None:
    chance = random.Random(seed)
    counts = {"a": chance.randrange(1, 20), "b": chance.randrange(0, 20)}
    group = [f"m{index}" for index in range(chance.randrange(1, 6))]
    had: Assignment = {}
    for generation in range(1, 6):
        given = rebalanced(StickyAssignor(), group, counts, had, generation - 1)
        sizes = [len(given[name]) for name in group]
        assert max(sizes) - min(sizes) <= 1
        for name in group:
            kept = set(given[name]) & set(had.get(name, ()))
            # Nobody loses more than what the new share makes necessary.
            assert len(kept) >= min(len(had.get(name, ())), sum(counts.values()) // len(group))
        had = given
        if chance.random() < 0.5 and len(group) > 1:
            group = [name for name in group if name != chance.choice(group)] or group
        else:
            group = [*group, f"n{generation}"]
        had = {name: partitions for name, partitions in had.items() if name in group}


def test_cooperative_members_get_nothing_that_another_still_has() -> None:
    counts = {"t": 4}
    first = rebalanced(CooperativeStickyAssignor(), ["a"], counts, {}, 0)
    second = rebalanced(CooperativeStickyAssignor(), ["a", "b"], counts, first, 1)
    assert (len(second["a"]), second["b"]) == (2, [])
    third = rebalanced(CooperativeStickyAssignor(), ["a", "b"], counts, second, 2)
    assert third["a"] == second["a"]
    assert len(third["b"]) == 2


def test_of_two_claims_the_newer_holds_and_equal_ones_do_not() -> None:
    both = frozenset({TopicPartition("t", 0)})
    older = Member("old", frozenset({"t"}), user_data=sticky_user_data(both, 3))
    newer = Member("new", frozenset({"t"}), user_data=sticky_user_data(both, 4))
    assert StickyAssignor().assign([older, newer], {"t": 2})["new"] == [("t", 0)]


def test_what_members_tell_is_read_back() -> None:
    owned = [TopicPartition("a", 1), TopicPartition("a", 0), TopicPartition("b", 5)]
    data = subscription_bytes(["b", "a"], owned, 7, b"more", "rack")
    assert data[:2] == b"\x00\x03"
    member = read_member("m", "i", data)
    assert member == Member("m", frozenset("ab"), "i", frozenset(owned), 7, b"more", "rack")
    assert read_assignment(assignment_bytes(owned)) == sorted(owned)
    assert read_assignment(b"") == []
    assert read_sticky_user_data(sticky_user_data(owned, 9)) == (9, frozenset(owned))


def test_members_with_less_to_tell_are_understood() -> None:
    oldest = struct.pack(">hih1si", 0, 1, 1, b"t", -1)
    assert read_member("m", None, oldest) == Member("m", frozenset({"t"}))
    newer = subscription_bytes(["t"], [], 1, None, "")
    assert read_member("m", None, struct.pack(">h", 9) + newer[2:] + b"what is added later").topics == {"t"}
    without_generation = sticky_user_data([TopicPartition("t", 2)], 4)[:-4]
    assert read_sticky_user_data(without_generation) == (-1, frozenset({TopicPartition("t", 2)}))


@pytest.mark.parametrize("data", [b"\x00", b"\x00\x00\x00\x05", b"\x7f\xff\xff\xff\x00", b"\xff" * 20])
def test_garbage_in_user_data_counts_as_nothing(data: bytes) -> None:
    assert read_sticky_user_data(data) == (-1, frozenset())


def test_assignors_are_named_in_many_ways() -> None:
    class Own(Assignor):
        name = "own"

        def assign(self, members: list[Member], counts: Counts) -> Assignment:  # type: ignore[override]
            return {}

    given = ["range", "org.apache.kafka.clients.consumer.RoundRobinAssignor", StickyAssignor, Own()]
    assert [assignor.name for assignor in assignors_of(given)] == ["range", "roundrobin", "sticky", "own"]
    for wrong in (["range", "range"], ["fair"], [7]):
        with pytest.raises(ConfigError, match=r"partition\.assignment\.strategy"):
            assignors_of(wrong)
