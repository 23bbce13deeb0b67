"""Our consumers in one group with other people's read every record once between commits, whoever comes, goes
or is killed. What that means precisely is written in `tidelog.simulation.checks.group_checker`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.groups.brokers import QUICK_GROUPS
from tests.groups.story import Flavour, Story
from tests.support.own_broker import OwnBrokers
from tests.support.scale import scale

MIXES = {
    "range": [Flavour("tidelog", "range"), Flavour("confluent-kafka", "range")],
    "roundrobin": [Flavour("tidelog", "roundrobin"), Flavour("confluent-kafka", "roundrobin")],
    "cooperative-sticky": [
        Flavour("tidelog", "cooperative-sticky"),
        Flavour("confluent-kafka", "cooperative-sticky"),
    ],
    "sticky": [Flavour("tidelog", "sticky"), Flavour("kafka-python", "sticky")],
    "consumer": [Flavour("tidelog", "consumer:uniform"), Flavour("confluent-kafka", "consumer:uniform")],
}
CHANGES = scale(10, 100)
EVENTS = scale(7, 21)


def change(story: Story, times: int) -> None:
    """So many joins, leaves and kills, as the seed draws them; the group has at most six members."""
    for _ in range(times):
        choices: list[Callable[[], object]] = [story.join] if len(story.members) < 6 else []
        if len(story.members) > 1:
            choices += [
                lambda: story.leave(story.chance.choice(story.members)),
                lambda: story.kill(story.chance.choice(story.members)),
            ]
        story.chance.choice(choices)()
        story.go_on(story.chance.choice([0, 1, 5]))


BY_THE_BROKER = pytest.mark.needs("group.version")


@pytest.mark.parametrize(
    "mix", [pytest.param(mix, marks=BY_THE_BROKER if mix == "consumer" else ()) for mix in MIXES]
)
def test_joins_leaves_and_kills_lose_and_double_nothing(
    own_broker: OwnBrokers, tmp_path: Path, mix: str
) -> None:
    seed = f"ours-{mix}"
    with (
        own_broker(QUICK_GROUPS) as broker,
        Story(broker, tmp_path / "story", MIXES[mix], seed) as story,
    ):
        for _ in MIXES[mix]:
            story.join()
        story.go_on(5)
        change(story, CHANGES)
        story.finish()


@pytest.mark.parametrize(
    "strategy", ["range", "cooperative-sticky", pytest.param("consumer:uniform", marks=BY_THE_BROKER)]
)
def test_pauses_restarts_and_new_partitions_lose_and_double_nothing(
    own_broker: OwnBrokers, tmp_path: Path, strategy: str
) -> None:
    seed = f"alone-{strategy}"
    flavours = [Flavour("tidelog", strategy)]
    with own_broker(QUICK_GROUPS) as broker, Story(broker, tmp_path / "story", flavours, seed) as story:
        story.join()
        story.join()
        story.go_on(5)
        story.act(EVENTS)
        story.finish()
