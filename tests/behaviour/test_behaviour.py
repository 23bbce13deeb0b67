"""A new broker gives the answers that Kafka 4.3 gave to the same requests, save for the listed deviations.

TIDELOG_TEST_BOOTSTRAP names another broker to play to, such as a new Kafka: then everything has to agree.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.behaviour.compare import Differences
from tests.behaviour.deviations import CASES, DETAILS, deviation, unexplained
from tests.behaviour.player import Case, Played, Player, load_cases
from tests.support.broker import Broker
from tests.support.own_cluster import one_broker_only
from tidelog.protocol.json import Json

SETTINGS = {"broker.id": "1", "group.initial.rebalance.delay.ms": "0"}
OTHER_BROKER = os.environ.get("TIDELOG_TEST_BOOTSTRAP")
pytestmark = one_broker_only("the answers are those of a Kafka alone, whose id is 1")


def may_differ(case: Case) -> bool:
    return OTHER_BROKER is None and deviation(case.name, case.api) is not None


def play_to(address: str) -> list[Played]:
    player = Player(address, may_differ)
    try:
        return list(player.play(load_cases()))
    finally:
        player.close()


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Played]]:
    if OTHER_BROKER:
        yield play_to(OTHER_BROKER)
        return
    folder: Path = tmp_path_factory.mktemp("behaviour")
    with Broker(folder, SETTINGS) as broker:
        yield play_to(broker.bootstrap)


def differences_that_count(result: Played) -> list[str]:
    return result.differences if OTHER_BROKER else unexplained(result.differences)


def report(results: list[Played]) -> str:
    lines: list[str] = []
    for result in results:
        lines.append(f"{result.case.name} ({result.case.api} v{result.case.version})")
        lines += [f"    {difference}" for difference in differences_that_count(result)[:10]]
    return "\n".join(lines)


def test_every_answer_agrees_with_kafka_or_is_a_listed_deviation(played: list[Played]) -> None:
    assert len(played) == 290
    unexpected = [
        result for result in played if differences_that_count(result) and not may_differ(result.case)
    ]
    assert not unexpected, f"{len(unexpected)} answers differ from Kafka's:\n{report(unexpected)}"


@pytest.mark.skipif(OTHER_BROKER is not None, reason="the deviations are those of our own broker")
def test_every_listed_deviation_is_one_still(played: list[Played]) -> None:
    agree = [result.case.name for result in played if result.case.name in CASES and not result.differences]
    assert not agree, f"these agree with Kafka now and need no reason any more: {agree}"
    unknown = CASES.keys() - {result.case.name for result in played}
    assert not unknown, f"no such cases: {unknown}"
    seen = "\n".join(line for result in played for line in result.differences)
    unused = [detail for detail in DETAILS if not re.search(detail, seen)]
    assert not unused, f"nothing differs in this way any more: {unused}"


TOPIC: dict[str, Json] = {
    "errorCode": 0,
    "name": "t",
    "topicId": "Tm90IGFuIGlkLCByZWFsbHk",
    "errorMessage": None,
}
OTHER_ID = "QW5vdGhlciBpZCBvZiBhbnk"


@pytest.mark.parametrize(
    ("change", "differs"),
    [
        ({}, False),
        ({"topicId": OTHER_ID}, False),  # made up by each broker
        ({"topicId": "A" * 22}, True),  # none at all
        ({"errorCode": 3}, True),
        ({"name": "u"}, True),
        ({"errorMessage": "something"}, True),
        ({"extra": 1}, True),
    ],
)
def test_the_comparison_sees_what_matters(change: dict[str, Json], differs: bool) -> None:
    found = Differences().between({"topics": [TOPIC]}, {"topics": [{**TOPIC, **change}]}, {})
    assert bool(found) == differs, found


def test_an_identifier_stands_for_the_same_thing_in_every_answer() -> None:
    differences = Differences()
    assert not differences.between({"topicId": "recorded-1"}, {"topicId": "live-1"}, {})
    assert not differences.between({"topicId": "recorded-1"}, {"topicId": "live-1"}, {})
    assert differences.between({"topicId": "recorded-1"}, {"topicId": "live-2"}, {})
    assert differences.between({"topicId": "recorded-2"}, {"topicId": "live-1"}, {})


def test_an_identifier_from_the_request_comes_back_as_it_was() -> None:
    asked: dict[str, Json] = {"topicId": "asked-for"}
    assert not Differences().between(asked, {"topicId": "asked-for"}, asked)
    assert Differences().between(asked, {"topicId": "another"}, asked)


def test_lists_may_have_another_order_but_not_another_length() -> None:
    one: list[Json] = [{"name": "a", "value": 1}, {"name": "b", "value": 2}]
    assert not Differences().between({"configs": one}, {"configs": one[::-1]}, {})
    assert Differences().between({"configs": one}, {"configs": one[:1]}, {})
    assert Differences().between({"configs": one}, {"configs": [one[0], {"name": "b", "value": 3}]}, {})


def test_masked_text_stands_for_any_text() -> None:
    assert not Differences().between({"errorMessage": "(text)"}, {"errorMessage": "in other words"}, {})
    assert Differences().between({"errorMessage": "(text)"}, {"errorMessage": None}, {})
    assert Differences().between({"errorMessage": "(text)"}, {"errorMessage": ""}, {})
