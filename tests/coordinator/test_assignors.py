"""Assignors give every partition to one member: `uniform` evenly and with few moves, `range` in pieces."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.scale import scale
from tidelog.coordinator.group.assignors import Members, MemberSpec, Topics, range_, uniform
from tidelog.coordinator.group.consumer_events import Target

EXAMPLES = scale(150, 3000)


def topic(number: int) -> bytes:
    return bytes([number]) * 16


topics_of_a_cluster = st.dictionaries(
    st.integers(1, 6).map(topic), st.integers(1, 12), min_size=1, max_size=6
)


@st.composite
def homogeneous(draw: st.DrawFn) -> tuple[dict[str, MemberSpec], dict[bytes, int]]:
    topics = draw(topics_of_a_cluster)
    names = draw(st.lists(st.integers(0, 20).map(str), min_size=1, max_size=8, unique=True))
    return {name: MemberSpec(None, frozenset(topics), {}) for name in names}, topics


@st.composite
def heterogeneous(draw: st.DrawFn) -> tuple[dict[str, MemberSpec], dict[bytes, int]]:
    topics = draw(topics_of_a_cluster)
    names = draw(st.lists(st.integers(0, 20).map(str), min_size=1, max_size=8, unique=True))
    subscribed = st.frozensets(st.sampled_from(sorted(topics)))
    return {name: MemberSpec(None, draw(subscribed), {}) for name in names}, topics


def after(members: Members, targets: dict[str, Target]) -> dict[str, MemberSpec]:
    """The same members with what they were given."""
    return {name: member._replace(target=targets.get(name, {})) for name, member in members.items()}


def partitions(target: Target) -> set[tuple[bytes, int]]:
    return {(topic_id, partition) for topic_id, found in target.items() for partition in found}


def check_each_has_one_owner(members: Members, topics: Topics, targets: dict[str, Target]) -> None:
    assert targets.keys() == members.keys()
    owned = [entry for target in targets.values() for entry in partitions(target)]
    wanted = {topic_id for member in members.values() for topic_id in member.topics}
    expected = {(topic_id, index) for topic_id in wanted for index in range(topics[topic_id])}
    assert len(owned) == len(set(owned))
    assert set(owned) == expected
    for name, target in targets.items():
        assert target.keys() <= members[name].topics


def loads(targets: dict[str, Target]) -> dict[str, int]:
    return {name: len(partitions(target)) for name, target in targets.items()}


def check_even(targets: dict[str, Target]) -> None:
    found = loads(targets).values()
    assert max(found) - min(found) <= 1


def moved(before: dict[str, Target], now: dict[str, Target]) -> int:
    """Partitions that somebody who is still there has lost."""
    return sum(len(partitions(before[name]) - partitions(now[name])) for name in before if name in now)


@given(homogeneous(), st.integers(0, 12))
@settings(max_examples=EXAMPLES, deadline=None)
def test_uniform_is_even_and_moves_only_what_has_to_be_moved(
    group: tuple[dict[str, MemberSpec], dict[bytes, int]], newcomers: int
) -> None:
    members, topics = group
    first = uniform(members, topics)
    check_each_has_one_owner(members, topics, first)
    check_even(first)
    # Nothing has changed: nobody loses anything.
    assert uniform(after(members, first), topics) == first
    # Members come: each of the others gives up what it has too many of, and not one more.
    more = after(members, first)
    for number in range(newcomers):
        more.setdefault(f"new{number}", MemberSpec(None, frozenset(topics), {}))
    second = uniform(more, topics)
    check_each_has_one_owner(more, topics, second)
    check_even(second)
    total = sum(topics.values())
    quota, extra = divmod(total, len(more))
    may_keep = sorted((loads(first)[name] for name in first), reverse=True)
    must_move = sum(max(load - quota - (at < extra), 0) for at, load in enumerate(may_keep))
    assert moved(first, second) == must_move


@given(homogeneous(), st.data())
@settings(max_examples=EXAMPLES, deadline=None)
def test_uniform_takes_nothing_from_those_who_stay_when_members_leave(
    group: tuple[dict[str, MemberSpec], dict[bytes, int]], data: st.DataObject
) -> None:
    members, topics = group
    first = uniform(members, topics)
    staying = data.draw(st.sets(st.sampled_from(sorted(members)), min_size=1))
    rest = {name: spec for name, spec in after(members, first).items() if name in staying}
    second = uniform(rest, topics)
    check_each_has_one_owner(rest, topics, second)
    check_even(second)
    assert moved(first, second) == 0


@given(homogeneous(), st.integers(1, 6))
@settings(max_examples=EXAMPLES, deadline=None)
def test_uniform_deals_out_what_a_topic_grows_by(
    group: tuple[dict[str, MemberSpec], dict[bytes, int]], growth: int
) -> None:
    members, topics = group
    first = uniform(members, topics)
    grown = dict(topics)
    grown[min(grown)] += growth
    second = uniform(after(members, first), grown)
    check_each_has_one_owner(members, grown, second)
    check_even(second)
    assert moved(first, second) == 0


@given(heterogeneous(), heterogeneous())
@settings(max_examples=EXAMPLES, deadline=None)
def test_uniform_is_even_where_subscriptions_differ_as_far_as_they_allow(
    group: tuple[dict[str, MemberSpec], dict[bytes, int]],
    later: tuple[dict[str, MemberSpec], dict[bytes, int]],
) -> None:
    members, topics = group
    first = uniform(members, topics)
    check_each_has_one_owner(members, topics, first)
    check_no_move_would_help(members, first)
    assert uniform(after(members, first), topics) == first
    # Others, with other subscriptions and other topics, begin from what these had.
    others, other_topics = later
    begun = {name: spec._replace(target=first.get(name, {})) for name, spec in others.items()}
    second = uniform(begun, other_topics)
    check_each_has_one_owner(begun, other_topics, second)
    check_no_move_would_help(begun, second)


def check_no_move_would_help(members: Members, targets: dict[str, Target]) -> None:
    load = loads(targets)
    for rich, target in targets.items():
        for topic_id in target:
            for poor, member in members.items():
                if topic_id in member.topics:
                    assert load[rich] - load[poor] <= 1, f"{rich} could give a partition to {poor}"


@given(heterogeneous())
@settings(max_examples=EXAMPLES, deadline=None)
def test_range_gives_each_subscriber_one_piece_of_a_topic(
    group: tuple[dict[str, MemberSpec], dict[bytes, int]],
) -> None:
    members, topics = group
    targets = range_(members, topics)
    check_each_has_one_owner(members, topics, targets)
    for target in targets.values():
        for found in target.values():
            assert max(found) - min(found) + 1 == len(found)
    for topic_id in topics:
        sizes = [
            len(targets[name].get(topic_id, ())) for name, spec in members.items() if topic_id in spec.topics
        ]
        assert not sizes or max(sizes) - min(sizes) <= 1


def test_range_gives_the_same_pieces_of_topics_of_the_same_size_to_the_same_members() -> None:
    topics = {topic(1): 5, topic(2): 5}
    members = {name: MemberSpec(None, frozenset(topics), {}) for name in ("b", "a")}
    targets = range_(members, topics)
    assert targets["a"] == {topic(1): frozenset({0, 1, 2}), topic(2): frozenset({0, 1, 2})}
    assert targets["b"] == {topic(1): frozenset({3, 4}), topic(2): frozenset({3, 4})}


def test_range_goes_by_instance_ids_which_outlive_member_ids() -> None:
    topics = {topic(1): 4}
    subscribed = frozenset(topics)
    before = range_({"x": MemberSpec("1", subscribed, {}), "a": MemberSpec("2", subscribed, {})}, topics)
    again = range_({"y": MemberSpec("1", subscribed, {}), "a": MemberSpec("2", subscribed, {})}, topics)
    assert before["x"] == again["y"] == {topic(1): frozenset({0, 1})}


def test_nobody_gets_anything_where_nobody_is() -> None:
    assert uniform({}, {topic(1): 3}) == {}
    assert range_({}, {topic(1): 3}) == {}
