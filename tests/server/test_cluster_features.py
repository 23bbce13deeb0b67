"""The features that all brokers of a cluster support are on."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import cast

from tidelog.cluster.metadata_cache import MetadataCache
from tidelog.endpoints import Endpoint
from tidelog.metadata.async_tree import SessionExpired
from tidelog.metadata.cluster_store import ClusterStore
from tidelog.metadata.nodes import BrokerNode
from tidelog.metadata.state import BrokerRegistration
from tidelog.server.cluster_features import ClusterFeatures, finalized

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


def test_registrations_are_read_in_the_next_session_if_one_expires_meanwhile() -> None:
    reads = 0

    async def read_brokers() -> dict[int, BrokerRegistration]:
        nonlocal reads
        reads += 1
        if reads == 2:
            raise SessionExpired("/brokers/ids")
        return {1: broker(1, SUPPORTED)} if reads == 1 else {1: broker(1, SUPPORTED), 2: broker(2, {})}

    async def story() -> None:
        metadata = MetadataCache("cluster")
        store = cast("ClusterStore", SimpleNamespace(read_brokers=read_brokers))
        features = ClusterFeatures(store, metadata, SUPPORTED, lambda levels: None)
        await features.load()
        assert metadata.features == {"group.version": 1, "transaction.version": 2}
        features.brokers_changed()
        async with asyncio.timeout(10):
            while metadata.features:
                await asyncio.sleep(0)
        assert features.is_kafka(2)
        await features.close()

    asyncio.run(story())
