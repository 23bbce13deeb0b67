"""Groups of other people's clients read every record once between commits, whatever happens to the members
and to the broker. What that means precisely is written in `checker`.

A failing story is told again by its seed; processes and clocks are real, so it may end differently.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.groups.brokers import running_broker
from tests.groups.story import Flavour, Story
from tests.support.scale import scale

CLASSIC = [
    *(Flavour("confluent-kafka", strategy) for strategy in ("range", "roundrobin", "cooperative-sticky")),
    *(
        Flavour("kafka-python", strategy)
        for strategy in ("range", "roundrobin", "sticky", "cooperative-sticky")
    ),
    *(Flavour("aiokafka", strategy) for strategy in ("range", "roundrobin", "sticky")),
]
CONSUMER = [
    Flavour("confluent-kafka", "consumer:uniform"),
    Flavour("confluent-kafka", "consumer:range"),
    Flavour("confluent-kafka", "consumer:uniform", pattern=True),
]
EVENTS = scale(7, 21)
SEEDS = range(scale(1, 10))

EVERY_RUN = {
    "confluent-kafka": ("roundrobin", "cooperative-sticky"),
    "kafka-python": ("sticky", "cooperative-sticky"),
    "aiokafka": ("roundrobin",),
}
"""The strategies by which members give up everything in a rebalance differ in what the leader of the group
computes. The coordinator does not read it. So the short form has one of these for each client, and each of
them at least once: range is that of the group which three clients share."""


def is_told(flavour: Flavour) -> bool:
    """Whether the story is one of this run: the long form has all."""
    return bool(scale(0, 1)) or flavour.consumer_protocol or flavour.strategy in EVERY_RUN[flavour.client]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("flavour", list(filter(is_told, [*CLASSIC, *CONSUMER])), ids=str)
def test_every_record_is_read_once_between_commits(tmp_path: Path, flavour: Flavour, seed: int) -> None:
    seed = seed * 100 + [*CLASSIC, *CONSUMER].index(flavour)
    with running_broker(tmp_path) as broker, Story(broker, tmp_path / "story", [flavour], seed) as story:
        story.join()
        story.join()
        story.go_on(5)
        story.act(EVENTS)
        story.finish()


@pytest.mark.parametrize("seed", SEEDS)
def test_clients_of_three_kinds_share_a_group(tmp_path: Path, seed: int) -> None:
    flavours = [Flavour(client, "range") for client in ("confluent-kafka", "kafka-python", "aiokafka")]
    with running_broker(tmp_path) as broker, Story(broker, tmp_path / "story", flavours, seed) as story:
        names = [story.join().name for _ in flavours]
        story.group.wait_until_stable(names)
        story.go_on(10)
        story.act(EVENTS)
        story.finish()


def test_a_broker_that_forgot_a_commit_would_be_found(tmp_path: Path) -> None:
    """The committed offset of one partition goes back a few records while the group is empty."""
    flavour = Flavour("confluent-kafka", "range")
    with running_broker(tmp_path) as broker, Story(broker, tmp_path / "story", [flavour], 0) as story:
        story.join()
        story.go_on(10)
        for member in list(story.members):
            story.leave(member)
        committed = story.group.committed()
        assert committed is not None
        partition, offset = max(committed.items(), key=lambda item: item[1])
        assert story.group.commit({partition: offset - 1}) == {0}
        story.join()
        story.drain()
        problems = "\n".join(story.problems())
    assert "reads records twice" in problems


def test_a_broker_that_passed_over_a_record_would_be_found(tmp_path: Path) -> None:
    flavour = Flavour("confluent-kafka", "range")
    with running_broker(tmp_path) as broker, Story(broker, tmp_path / "story", [flavour], 0) as story:
        member = story.join()
        story.go_on(3)
        story.drain()
        story.leave(member)
        committed = story.group.committed()
        assert committed is not None
        partition, offset = max(committed.items(), key=lambda item: item[1])
        story.write(partition[1], ["one", "two", "three"])
        assert story.group.commit({partition: offset + 1}) == {0}
        story.join()
        story.wait_until_drained()
        problems = "\n".join(story.problems())
    assert "leaves records out" in problems
    assert "nobody read ['one']" in problems
