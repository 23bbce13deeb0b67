"""The features that all brokers of a cluster support are on."""

from __future__ import annotations

from tidelog.endpoints import Endpoint
from tidelog.metadata.nodes import BrokerNode
from tidelog.metadata.state import BrokerRegistration
from tidelog.server.cluster_features import finalized

SUPPORTED = {"group.version": (0, 1), "transaction.version": (0, 2)}


def broker(broker_id: int, features: dict[str, tuple[int, int]]) -> BrokerRegistration:
    return BrokerRegistration(broker_id, [], features=features)


def test_alone_everything_is_on() -> None:
    assert finalized(SUPPORTED, [broker(1, SUPPORTED)]) == {"group.version": 1, "transaction.version": 2}


def test_the_oldest_broker_decides() -> None:
    older = broker(2, {"group.version": (1, 1), "transaction.version": (1, 1), "else": (1, 9)})
    assert finalized(SUPPORTED, [broker(1, SUPPORTED), older]) == {
        "group.version": 1,
        "transaction.version": 1,
    }


def test_with_kafka_3_9_nothing_is_on() -> None:
    assert finalized(SUPPORTED, [broker(1, SUPPORTED), broker(2, {})]) == {}


def test_a_registration_keeps_its_features() -> None:
    endpoint = Endpoint("PLAINTEXT", "PLAINTEXT", "host", 9092)
    node = BrokerNode([endpoint], 1, features={"group.version": (1, 1)})
    assert b'"features":{"group.version":{"min_version":1,"max_version":1}}' in node.encode()
    assert BrokerNode.decode(node.encode()).state(1, 5).features == {"group.version": (1, 1)}
    assert b'"features":{}' in BrokerNode([endpoint], 1).encode()
