"""Static members, as other people's clients use them: one that comes back in time costs no rebalance, one
that stays away is given up, and of two with the same instance id one is fenced.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.groups.brokers import Running, running_broker
from tests.groups.story import Flavour, MemberProcess, Story
from tidelog.simulation.checks.group_history import Line

FLAVOURS = [
    Flavour("confluent-kafka", "range"),
    Flavour("kafka-python", "range"),
    Flavour("aiokafka", "range"),
    Flavour("confluent-kafka", "consumer:uniform"),
]
PATIENT = {"group.consumer.session.timeout.ms": "8000"}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running_broker(tmp_path_factory.mktemp("static"), PATIENT) as running:
        yield running


class StaticGroup:
    """Two static members that have shared out four partitions."""

    def __init__(self, story: Story) -> None:
        self.story = story
        self.history = story.history
        self.one = story.join(instance="one", session_ms=8000)
        self.two = story.join(instance="two", session_ms=8000)
        story.group.wait_until_stable([self.one.name, self.two.name])
        self.wait_for_partitions(self.one, 2)
        self.wait_for_partitions(self.two, 2)
        story.go_on(4)

    def lines(self, member: MemberProcess, *what: str) -> list[Line]:
        return [line for line in self.history.read() if line.who == member.name and line.what in what]

    def owned(self, member: MemberProcess) -> set[int]:
        owned: set[int] = set()
        for line in self.lines(member, "assigned", "revoked", "lost"):
            if line.what == "assigned":
                owned.add(line.partition)
            else:
                owned.discard(line.partition)
        return owned

    def wait_for_partitions(self, member: MemberProcess, count: int) -> None:
        self.story.wait_until(
            lambda: len(self.owned(member)) == count, f"{member.name} owns {count} partitions"
        )


@pytest.mark.parametrize(
    ("flavour", "politely"),
    # A consumer group gives an instance id to nobody else while its member lives, and a killed one lives
    # until its session is over.
    [*((flavour, True) for flavour in FLAVOURS), *((flavour, False) for flavour in FLAVOURS[:3])],
    ids=str,
)
def test_a_static_member_that_comes_back_in_time_costs_no_rebalance(
    broker: Running, tmp_path: Path, flavour: Flavour, politely: bool
) -> None:
    with Story(broker, tmp_path, [flavour], f"{flavour}-{politely}") as story:
        group = StaticGroup(story)
        owned = group.owned(group.one)
        before = group.lines(group.two, "assigned", "revoked", "lost")
        generations = {line.detail for line in group.lines(group.one, "assigned")}
        if politely:
            story.leave(group.one)
        else:
            story.kill(group.one)
        again = story.join(instance="one", session_ms=8000)
        group.wait_for_partitions(again, 2)
        story.history.wait_for(
            lambda line: line.who == again.name and line.what == "committed", f"{again.name} commits"
        )
        assert group.owned(again) == owned
        assert group.lines(group.two, "assigned", "revoked", "lost") == before
        assert {line.detail for line in group.lines(again, "assigned")} <= generations
        story.finish()


@pytest.mark.parametrize("flavour", [FLAVOURS[0], FLAVOURS[3]], ids=str)
def test_a_static_member_that_stays_away_is_given_up(tmp_path: Path, flavour: Flavour) -> None:
    with running_broker(tmp_path) as broker, Story(broker, tmp_path / "story", [flavour], 1) as story:
        one, two = story.join(instance="one"), story.join(instance="two")
        story.group.wait_until_stable([one.name, two.name])
        story.kill(one)
        story.group.wait_until_stable([two.name])
        story.finish()


# aiokafka sends no instance id with its commits, so that two of them take the place of each other for ever.
@pytest.mark.parametrize("flavour", FLAVOURS[:2], ids=str)
def test_the_second_member_with_an_instance_id_fences_the_first(
    broker: Running, tmp_path: Path, flavour: Flavour
) -> None:
    with Story(broker, tmp_path, [flavour], f"fenced-{flavour}") as story:
        group = StaticGroup(story)
        other = story.join(instance="one", session_ms=8000)
        group.wait_for_partitions(other, 2)
        story.wait_until(lambda: not group.one.running, f"{group.one.name} is fenced and ends")
        (reason,) = group.lines(group.one, "fenced")
        assert "fenced" in reason.detail.lower()
        story.members.remove(group.one)
        story.finish()


def test_a_consumer_group_refuses_a_second_member_with_an_instance_id(
    broker: Running, tmp_path: Path
) -> None:
    with Story(broker, tmp_path, [FLAVOURS[3]], "unreleased") as story:
        group = StaticGroup(story)
        before = group.lines(group.one, "assigned", "revoked", "lost")
        other = story.join(instance="one")
        story.wait_until(lambda: not other.running, f"{other.name} is refused and ends")
        (reason,) = group.lines(other, "fenced")
        assert "instance ID is still used" in reason.detail
        story.members.remove(other)
        story.go_on(5)
        assert group.lines(group.one, "assigned", "revoked", "lost") == before
        story.finish()
