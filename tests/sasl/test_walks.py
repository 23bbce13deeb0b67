"""Each walk through the states of SASL gets Kafka's answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.sasl_broker import listeners, sasl_broker
from tests.support.sasl_walks import WALKS, take
from tidelog.testing import Broker

KAFKA = json.loads((Path(__file__).parent.parent / "data" / "sasl-walks.json").read_text())

OTHER_THAN_KAFKA = {
    "scram, unknown user": "it fails where a wrong password fails, so that nobody learns which users exist",
    "scram, an unknown token": "the same for delegation tokens",
    "scram, other channel binding": "RFC 5802 wants the binding compared",
    "scram, other proof": "an answer, as for any wrong proof, instead of a closed connection",
}


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    broker = sasl_broker()
    yield broker
    broker.close()


@pytest.mark.parametrize("name", WALKS)
def test_the_walk_gets_kafkas_answers(broker: Broker, name: str) -> None:
    found = take(name, listeners(broker))
    if name in OTHER_THAN_KAFKA:
        assert found != KAFKA[name]
    else:
        assert found == KAFKA[name]


def test_an_unknown_user_looks_like_a_wrong_password(broker: Broker) -> None:
    wrong = take("scram, wrong password", listeners(broker))
    assert take("scram, unknown user", listeners(broker)) == wrong
    assert take("scram, an unknown token", listeners(broker)) == wrong


def test_a_wrong_channel_binding_and_a_short_proof_fail(broker: Broker) -> None:
    wrong = take("scram, wrong password", listeners(broker))
    assert take("scram, other channel binding", listeners(broker)) == wrong
    assert take("scram, other proof", listeners(broker)) == wrong
