"""The store says in one step what belongs together, and only for the controller in charge."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tidelog.clock import ManualClock
from tidelog.endpoints import Endpoint
from tidelog.metadata import paths
from tidelog.metadata.embedded_tree import FILE_NAME, EmbeddedTree
from tidelog.metadata.nodes import BadNode, BrokerNode, random_id
from tidelog.metadata.operations import Fenced
from tidelog.metadata.state import NO_LEADER, NO_STATE_NODE, PartitionState, TopicState
from tidelog.metadata.store import MetadataStore
from tidelog.metadata.tree import BadVersion, NodeExists


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MetadataStore]:
    with EmbeddedTree(tmp_path / FILE_NAME, ManualClock()) as tree:
        made = MetadataStore(tree, ManualClock())
        made.prepare()
        yield made


def topic(name: str, partitions: int = 2) -> TopicState:
    states = {n: PartitionState([1, 2], 1, 0, [1, 2], controller_epoch=1) for n in range(partitions)}
    return TopicState(name, random_id(), states, {"retention.ms": "5"})


def test_a_topic_is_read_as_it_was_written(store: MetadataStore) -> None:
    made = topic("demo", 12)
    store.create_topics([made])
    assert store.read_topics() == {"demo": made}


def test_of_topics_written_together_all_or_none_are_there(store: MetadataStore) -> None:
    store.create_topics([topic("old")])
    with pytest.raises(NodeExists):
        store.create_topics([topic("new"), topic("old")])
    assert set(store.read_topics()) == {"old"}
    assert store.tree.children("/config/topics") == ["old"]


def test_settings_left_by_a_deleted_topic_are_replaced(store: MetadataStore) -> None:
    store.write_config("topics/demo", {"cleanup.policy": "compact"})
    store.create_topics([topic("demo")])
    assert store.read_topics()["demo"].configs == {"retention.ms": "5"}


def test_added_partitions_leave_the_others_as_they_are(store: MetadataStore) -> None:
    made = topic("demo", 2)
    store.create_topics([made])
    made.partitions[0] = replace(made.partitions[0], leader=2, leader_epoch=5)
    store.write_partitions("demo", {0: made.partitions[0]})
    store.add_partitions([replace(made, partitions=made.partitions | topic("demo", 3).partitions)])
    partitions = store.read_topics()["demo"].partitions
    assert (len(partitions), partitions[0].leader_epoch, partitions[0].partition_epoch) == (3, 5, 1)


def test_a_leader_is_changed_only_from_the_state_it_was_decided_on(store: MetadataStore) -> None:
    made = topic("demo")
    store.create_topics([made])
    seen = made.partitions[0]
    store.write_partitions("demo", {0: replace(seen, leader=2)})
    with pytest.raises(BadVersion):
        store.write_partitions("demo", {0: replace(seen, leader=1, leader_epoch=9)})
    assert store.read_topics()["demo"].partitions[0].leader == 2


def test_a_removed_topic_leaves_nothing(store: MetadataStore) -> None:
    store.create_topics([topic("demo"), topic("other")])
    store.mark_for_deletion(["demo"])
    assert store.marked_for_deletion() == ["demo"]
    store.remove_topic("demo")
    assert set(store.read_topics()) == {"other"}
    assert store.marked_for_deletion() == []
    assert store.tree.children("/config/topics") == ["other"]
    store.remove_topic("demo")


def test_a_partition_without_state_is_new(store: MetadataStore) -> None:
    store.tree.create("/brokers/topics/demo", b'{"version":1,"partitions":{"0":[1],"1":[1]}}')
    store.tree.create("/brokers/topics/demo/partitions/1", make_parents=True)
    partition = store.read_topics()["demo"].partitions[0]
    assert (partition.leader, partition.partition_epoch) == (NO_LEADER, NO_STATE_NODE)
    led = {n: PartitionState([1], 1, 0, [1], NO_STATE_NODE) for n in (0, 1)}
    store.write_partitions("demo", led)
    assert [state.partition_epoch for state in led.values()] == [0, 0]
    assert [state.leader for state in store.read_topics()["demo"].partitions.values()] == [1, 1]


def test_a_topic_from_before_there_were_ids_gets_one_for_good(store: MetadataStore) -> None:
    store.tree.create("/brokers/topics/demo", b'{"version":1,"partitions":{"0":[1]}}')
    given = store.read_topics()["demo"].topic_id
    assert len(given) == 16
    assert store.read_topics()["demo"].topic_id == given


def test_a_node_that_makes_no_sense_is_named(store: MetadataStore) -> None:
    store.tree.create("/brokers/topics/demo", b"nonsense")
    with pytest.raises(BadNode, match="/brokers/topics/demo"):
        store.read_topics()


def test_a_controller_that_was_replaced_can_write_nothing(store: MetadataStore) -> None:
    assert store.elect(1) == 1
    store.tree.delete(paths.CONTROLLER)
    later = MetadataStore(store.tree, ManualClock())
    assert later.elect(2) == 2
    for change in (
        lambda: store.create_topics([topic("demo")]),
        lambda: store.write_config("topics/demo", {}),
        lambda: store.mark_for_deletion(["demo"]),
    ):
        with pytest.raises(Fenced):
            change()
    later.create_topics([topic("demo")])


def test_there_is_one_controller_at_a_time(store: MetadataStore) -> None:
    store.elect(1)
    with pytest.raises(NodeExists):
        MetadataStore(store.tree).elect(2)
    assert store.tree.get(paths.CONTROLLER_EPOCH)[0] == b"1"


def test_cluster_id_is_made_once(store: MetadataStore) -> None:
    made = store.cluster_id()
    assert len(made) == 22
    assert store.cluster_id("another") == made


def test_cluster_id_of_data_that_is_there_is_taken_over(store: MetadataStore) -> None:
    assert store.cluster_id("Op1KtY-PTVCuIrOzPLsjQA") == "Op1KtY-PTVCuIrOzPLsjQA"
    assert store.cluster_id() == "Op1KtY-PTVCuIrOzPLsjQA"


def test_generated_broker_ids_start_above_the_reserved_ones(store: MetadataStore) -> None:
    assert [store.generate_broker_id(), store.generate_broker_id(), store.generate_broker_id(5000)] == [
        1001,
        1002,
        5003,
    ]


def test_a_registered_broker_is_told_from_the_one_before(tmp_path: Path) -> None:
    node = BrokerNode([Endpoint("PLAINTEXT", "PLAINTEXT", "h", 9092)], 5, "rack")
    epochs = []
    for _ in range(2):
        with EmbeddedTree(tmp_path / FILE_NAME) as tree:
            store = MetadataStore(tree)
            epochs.append(store.register_broker(1, node).epoch)
            with pytest.raises(NodeExists):
                store.register_broker(1, node)
    assert epochs[0] < epochs[1]


def test_producer_ids_end_with_an_error_instead_of_a_number_too_large(store: MetadataStore) -> None:
    block = b'{"version":1,"broker":0,"block_start":"9223372036854774000","block_end":"%d"}'
    store.tree.set(paths.PRODUCER_IDS, block % (2**63 - 1))
    with pytest.raises(ValueError, match="no producer ids left"):
        store.allocate_producer_ids(1)


def test_settings_of_users_and_their_clients_are_kept_apart(store: MetadataStore) -> None:
    inner = paths.entity_path("users", "al/ice", "clients", "app")
    store.write_config(inner, {"producer_byte_rate": "1"})
    assert store.read_entity_configs() == {"users/al%2Fice/clients/app": {"producer_byte_rate": "1"}}
