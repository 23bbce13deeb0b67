"""The metadata cache after full and partial updates of the controller."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.controlled import (
    NO_ID,
    OTHER,
    OTHER_ID,
    TOPIC_ID,
    Controlled,
    TopicState,
    live_broker,
    topic_state,
    update_metadata,
)
from tests.cluster.world import SELF
from tidelog.cluster.metadata_cache import MetadataCache
from tidelog.cluster.metadata_update import FULL_UPDATE
from tidelog.endpoints import Endpoint
from tidelog.errors import StaleControllerEpoch
from tidelog.metadata.state import LEADER_DURING_DELETE, ClusterState, PartitionState
from tidelog.metadata.state import TopicState as Topic
from tidelog.protocol.messages.update_metadata import UpdateMetadataRequest


class Cache(MetadataCache):
    """A cache that notes the deleted topics."""

    def __init__(self) -> None:
        super().__init__("cluster")
        self.deleted: list[tuple[str, bytes]] = []
        self.topics_deleted = self.deleted.extend

    def take(self, *topics: TopicState, **options: object) -> None:
        asyncio.run(self.apply(update_metadata(*topics, **options)))  # type: ignore[arg-type]


@pytest.fixture
def cache() -> Cache:
    return Cache()


def test_an_update_has_brokers_topics_and_the_controller(cache: Cache) -> None:
    brokers = [
        live_broker(SELF, ("PLAINTEXT", "INTERNAL"), "r1"),
        live_broker(OTHER, ("PLAINTEXT", "INTERNAL")),
    ]
    cache.take(topic_state("t", leaders={0: SELF, 1: -1}), brokers=brokers, controller_epoch=4)
    state = cache.snapshot
    assert (state.cluster_id, state.controller_id, state.controller_epoch) == ("cluster", OTHER, 4)
    assert state.brokers[SELF].endpoints == [
        Endpoint("PLAINTEXT", "PLAINTEXT", "host0", 9000),
        Endpoint("INTERNAL", "PLAINTEXT", "host0", 9001),
    ]
    assert (state.brokers[SELF].rack, state.brokers[OTHER].rack) == ("r1", None)
    assert state.topics["t"].topic_id == TOPIC_ID
    assert state.names_by_id == {TOPIC_ID: "t"}
    expected = PartitionState([SELF, OTHER], SELF, 7, [SELF], 3, 1, offline_replicas=[OTHER])
    assert state.topics["t"].partitions == {
        0: expected,
        1: PartitionState([0, 1], -1, 7, [0], 3, 1, offline_replicas=[1]),
    }
    assert cache.find_partition("t", 0) == cache.find_partition(TOPIC_ID, 0) == expected
    assert cache.find_partition("t", 2) is None


@pytest.mark.parametrize("update", [{"type": FULL_UPDATE}, {"topics": [topic_state("t")]}])
def test_a_cache_speaks_for_the_cluster_from_the_first_update_about_topics_on(
    cache: Cache, update: dict[str, object]
) -> None:
    assert not cache.is_initialized
    cache.take()  # about the brokers alone
    assert not cache.is_initialized
    topics = update.pop("topics", [])
    assert isinstance(topics, list)
    cache.take(*topics, **update)
    assert cache.is_initialized
    single = MetadataCache("cluster")
    single.update(ClusterState("cluster"))
    assert single.is_initialized


def test_a_partial_update_shares_what_it_does_not_name(cache: Cache) -> None:
    cache.take(topic_state("t", leaders={0: 0, 1: 0}), topic_state("u", OTHER_ID))
    before = cache.snapshot
    cache.take(topic_state("t", leaders={1: OTHER}))
    after = cache.snapshot
    assert after.topics["u"] is before.topics["u"]
    assert after.topics["t"].partitions[0] is before.topics["t"].partitions[0]
    assert after.topics["t"].partitions[1].leader == OTHER
    assert before.topics["t"].partitions[1].leader == SELF  # whoever holds it reads on unharmed
    assert after.brokers is before.brokers


def test_an_update_without_topics_changes_brokers_only(cache: Cache) -> None:
    cache.take(topic_state("t"))
    topics = cache.snapshot.topics
    cache.take(brokers=[live_broker(OTHER)])
    assert cache.snapshot.topics is topics
    assert list(cache.snapshot.brokers) == [OTHER]


def test_the_change_of_one_partition_of_ten_thousand_copies_no_partition(cache: Cache) -> None:
    names = [f"t{number}" for number in range(1_000)]
    ids = [number.to_bytes(16, "big") for number in range(1, 1_001)]
    leaders = dict.fromkeys(range(10), SELF)
    cache.take(*(topic_state(name, topic_id, leaders) for name, topic_id in zip(names, ids, strict=True)))
    before = cache.snapshot
    change = update_metadata(topic_state("t500", ids[500], {3: OTHER}))
    started = time.perf_counter()
    asyncio.run(cache.apply(change))
    elapsed = time.perf_counter() - started
    after = cache.snapshot
    changed = [name for name in names if after.topics[name] is not before.topics[name]]
    assert changed == ["t500"]
    kept = [n for n in range(10) if after.topics["t500"].partitions[n] is before.topics["t500"].partitions[n]]
    assert kept == [0, 1, 2, 4, 5, 6, 7, 8, 9]
    assert elapsed < 0.1  # 0.3 ms on an idle machine; a copy of all states would take 20 ms


@pytest.mark.parametrize("leaders", [{0: -2}, {0: -2, 1: -2}])
def test_a_deleted_partition_leaves_the_cache_and_the_last_one_its_topic(
    cache: Cache, leaders: dict[int, int]
) -> None:
    cache.take(topic_state("t", leaders={0: 0, 1: 0}))
    assert LEADER_DURING_DELETE == -2
    cache.take(topic_state("t", leaders=leaders))
    if len(leaders) == 1:
        assert list(cache.snapshot.topics["t"].partitions) == [1]
        assert cache.deleted == []
    else:
        assert cache.snapshot.topics == {}
        assert cache.snapshot.names_by_id == {}
        assert cache.deleted == [("t", TOPIC_ID)]
    cache.take(topic_state("unknown", OTHER_ID, {0: -2}))
    assert "unknown" not in cache.snapshot.topics


def test_a_topic_made_anew_replaces_the_old_one(cache: Cache) -> None:
    cache.take(topic_state("t", leaders={0: 0, 1: 0}))
    cache.take(topic_state("t", OTHER_ID, {0: 0}))
    assert list(cache.snapshot.topics["t"].partitions) == [0]
    assert cache.snapshot.names_by_id == {OTHER_ID: "t"}
    assert cache.deleted == [("t", TOPIC_ID)]


def test_a_topic_may_have_no_id(cache: Cache) -> None:
    cache.take(topic_state("t", NO_ID, {0: 0}), topic_state("u", NO_ID, {0: 0}))
    assert cache.snapshot.names_by_id == {}
    cache.take(topic_state("t", TOPIC_ID, {1: 0}))
    assert list(cache.snapshot.topics["t"].partitions) == [0, 1]
    assert cache.snapshot.names_by_id == {TOPIC_ID: "t"}
    assert cache.deleted == []


@pytest.mark.parametrize(("before", "after"), [(NO_ID, TOPIC_ID), (TOPIC_ID, NO_ID)])
def test_a_full_update_with_an_id_for_a_topic_without_one_does_not_delete_it(
    cache: Cache, before: bytes, after: bytes
) -> None:
    cache.take(topic_state("t", before, {0: 0}))
    cache.take(topic_state("t", after, {0: 0}), type=FULL_UPDATE)
    assert list(cache.snapshot.topics) == ["t"]
    assert cache.deleted == []


def test_an_internal_topic_is_known_by_its_name(cache: Cache) -> None:
    cache.take(topic_state("__consumer_offsets"), topic_state("t", OTHER_ID))
    assert [topic.is_internal for topic in cache.snapshot.topics.values()] == [True, False]


def test_a_full_update_replaces_all_topics(cache: Cache) -> None:
    cache.take(topic_state("gone"), topic_state("stays", OTHER_ID))
    cache.take(topic_state("stays", OTHER_ID), type=FULL_UPDATE)
    assert list(cache.snapshot.topics) == ["stays"]
    assert cache.deleted == [("gone", TOPIC_ID)]
    cache.take(topic_state("new", b"C" * 16))
    assert sorted(cache.snapshot.topics) == ["new", "stays"]


def test_an_update_without_topics_deletes_none_unless_it_is_full(cache: Cache) -> None:
    """A new controller begins with an update about the brokers alone, if it is Kafka's."""
    cache.take(topic_state("stays"))
    cache.take()
    assert list(cache.snapshot.topics) == ["stays"]
    cache.take(type=FULL_UPDATE)
    assert cache.deleted == [("stays", TOPIC_ID)]


def test_the_settings_of_entities_stay(cache: Cache) -> None:
    cache.set_entity_configs("brokers/1", {"a": "b"})
    cache.take(topic_state("t"))
    assert cache.snapshot.broker_configs(1) == {"a": "b"}


def test_brokers_with_different_listeners_are_an_error_line(
    cache: Cache, caplog: pytest.LogCaptureFixture
) -> None:
    same = [live_broker(0, ("A", "B")), live_broker(1, ("B", "A"))]
    different = [live_broker(0, ("A", "B")), live_broker(1, ("A",))]
    with caplog.at_level(logging.ERROR, "tidelog.cluster"):
        cache.take(brokers=same)
        assert caplog.messages == []
        cache.take(brokers=different)
        cache.take(topic_state("t"), brokers=different)
    assert caplog.messages == ["the brokers have different listeners: broker 0: A, B; broker 1: A"]


def test_the_security_protocol_of_an_endpoint_is_read_by_its_number(cache: Cache) -> None:
    endpoint = UpdateMetadataRequest.UpdateMetadataEndpoint(
        port=1, host="h", listener="L", security_protocol=3
    )
    cache.take(brokers=[UpdateMetadataRequest.UpdateMetadataBroker(id=0, endpoints=[endpoint])])
    assert cache.snapshot.brokers[0].endpoints == [Endpoint("L", "SASL_SSL", "h", 1)]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Controlled]:
    made = Controlled(tmp_path / "log")
    yield made
    made.close()


@pytest.mark.parametrize(("epoch", "is_taken"), [(2, False), (3, True), (4, True)])
def test_an_update_of_an_older_controller_is_refused(broker: Controlled, epoch: int, is_taken: bool) -> None:
    broker.lead(controller_epoch=3)
    if is_taken:
        broker.update(topic_state("t"), controller_epoch=epoch)
    else:
        with pytest.raises(StaleControllerEpoch):
            broker.update(topic_state("t"), controller_epoch=epoch)
    assert ("t" in broker.metadata.snapshot.topics) is is_taken
    assert broker.metadata.is_initialized is is_taken
    assert broker.states.controller_epoch == max(3, epoch)


def test_a_snapshot_with_a_topic_without_an_id_finds_the_others_by_theirs() -> None:
    state = ClusterState("c").with_topics([Topic("t", NO_ID, {}), Topic("u", TOPIC_ID, {})])
    assert state.topic_by_id(TOPIC_ID) is state.topics["u"]
    assert state.topic_by_id(NO_ID) is None
    assert state.with_topics(removed=["t", "u"]).names_by_id == {}
