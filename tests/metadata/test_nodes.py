"""Every node is read and written as Kafka 3.9 writes it, and garbage is refused with a reason."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.endpoints import Endpoint
from tidelog.metadata import nodes, paths, security_nodes
from tidelog.metadata.embedded_tree import FILE_NAME, EmbeddedTree
from tidelog.metadata.nodes import (
    BadNode,
    BrokerNode,
    ControllerNode,
    PartitionNode,
    ProducerIdBlock,
    TopicNode,
)
from tidelog.metadata.security_nodes import AclChange, AclEntry, TokenNode
from tidelog.metadata.store import MetadataStore

KAFKAS_TREE: dict[str, dict[str, str | None]] = json.loads(
    (Path(__file__).parent.parent / "data" / "zookeeper-tree.json").read_text()
)


def encode_again(path: str, data: bytes) -> bytes:
    """What we write for what Kafka's node says."""
    match path.strip("/").split("/"):
        case ["cluster", "id"]:
            return nodes.encode_cluster_id(nodes.decode_cluster_id(data))
        case ["brokers", "ids", _]:
            return BrokerNode.decode(data).encode()
        case ["brokers", "topics", _]:
            return TopicNode.decode(data).encode()
        case ["brokers", "topics", _, "partitions", _, "state"]:
            return PartitionNode.decode(data).encode()
        case ["controller"]:
            return ControllerNode.decode(data).encode()
        case ["controller_epoch"]:
            return nodes.encode_number(nodes.decode_number(data))
        case ["feature"]:
            return nodes.encode_feature()
        case ["latest_producer_id_block"]:
            return ProducerIdBlock.decode(data).encode()
        case ["config", "changes", _]:
            return nodes.encode_config_change(nodes.decode_config_change(data))
        case ["config", *_]:
            return nodes.encode_config(nodes.decode_config(data))
    raise AssertionError(f"nobody reads {path}")


WITH_DATA = [path for path, node in KAFKAS_TREE.items() if node["data"]]


@pytest.mark.parametrize("path", WITH_DATA)
def test_kafkas_nodes_come_out_as_they_went_in(path: str) -> None:
    data = str(KAFKAS_TREE[path]["data"]).encode()
    assert encode_again(path, data) == data


def test_the_parents_made_at_start_are_those_of_kafka(tmp_path: Path) -> None:
    with EmbeddedTree(tmp_path / FILE_NAME) as tree:
        MetadataStore(tree).prepare()
        for path, node in KAFKAS_TREE.items():
            if not node["data"] and not path.startswith(("/brokers/topics/", "/config/users/", "/cluster")):
                assert tree.exists(path), path


def test_kafkas_whole_tree_is_read_as_a_cluster(tmp_path: Path) -> None:
    with EmbeddedTree(tmp_path / FILE_NAME) as tree:
        for path, node in KAFKAS_TREE.items():
            if path != "/" and not node["ephemeral"]:
                tree.create(path, str(node["data"] or "").encode())
        store = MetadataStore(tree)
        store.prepare()
        assert store.cluster_id() == "Op1KtY-PTVCuIrOzPLsjQA"
        topics = store.read_topics()
        assert sorted(topics["plain"].partitions) == [0, 1]
        assert topics["compact"].configs["cleanup.policy"] == "compact"
        assert nodes.topic_id_text(topics["txn"].topic_id) == "QsE0oYIPQpCzN3bP1MmdhQ"
        assert [topic.name for topic in topics.values() if topic.is_internal] == [
            "__consumer_offsets",
            "__transaction_state",
        ]
        assert store.read_entity_configs().keys() == {"brokers/0", "users/alice", "users/bob/clients/app"}
        assert store.elect(0) == 4
        assert store.allocate_producer_ids(0) == range(1000, 2000)


def test_topics_of_every_version_are_read() -> None:
    first = TopicNode.decode(b'{"version":1,"partitions":{"1":[2,1],"0":[1,2]}}')
    assert (first.partitions, first.topic_id) == ({0: [1, 2], 1: [2, 1]}, None)
    second = TopicNode.decode(
        b'{"version":2,"partitions":{"0":[1,2]},"adding_replicas":{"0":[2]},"removing_replicas":{}}'
    )
    assert second.adding == {0: [2]}
    assert TopicNode.decode(second.encode()) == second


def test_partitions_stand_in_the_order_of_their_numbers() -> None:
    node = TopicNode({number: [1] for number in (11, 2, 10, 0)}, bytes(range(16)))
    assert list(json.loads(node.encode())["partitions"]) == ["0", "2", "10", "11"]


def test_a_broker_has_all_its_listeners_and_its_rack() -> None:
    kafkas = (
        b'{"features":{},"listener_security_protocol_map":{"PLAINTEXT":"PLAINTEXT"},'
        b'"endpoints":["PLAINTEXT://127.0.0.1:36092"],"rack":"r1","jmx_port":-1,"port":36092,'
        b'"host":"127.0.0.1","version":5,"timestamp":"1794738891745"}'
    )
    assert BrokerNode.decode(kafkas).rack == "r1"
    assert BrokerNode.decode(kafkas).encode() == kafkas
    two = BrokerNode([Endpoint("IN", "SSL", "::1", 1), Endpoint("OUT", "SASL_SSL", "h", 2)], 5)
    assert BrokerNode.decode(two.encode()) == two
    assert json.loads(two.encode())["host"] is None


def test_brokers_of_older_versions_are_read() -> None:
    node = BrokerNode.decode(b'{"jmx_port":-1,"timestamp":"5","host":"h","version":1,"port":9092}')
    assert node.endpoints == [Endpoint("PLAINTEXT", "PLAINTEXT", "h", 9092)]


def test_settings_changes_of_the_first_version_are_read() -> None:
    old = b'{"version":1,"entity_type":"topics","entity_name":"demo"}'
    assert nodes.decode_config_change(old) == "topics/demo"


def test_lists_of_partitions_go_both_ways() -> None:
    partitions = [("a", 0), ("b", 12)]
    assert nodes.decode_partitions(nodes.encode_partitions(partitions)) == partitions
    assert nodes.encode_partitions([("a", 0)]) == b'{"version":1,"partitions":[{"topic":"a","partition":0}]}'
    assignment = {("a", 0): [1, 2]}
    assert nodes.decode_reassignment(nodes.encode_reassignment(assignment)) == assignment
    assert nodes.encode_log_dir_event(1) == b'{"version":1,"broker":1,"event":1}'
    assert nodes.decode_log_dir_event(b'{"version":1,"broker":1,"event":1}') == 1


def test_a_consumer_of_old_goes_both_ways() -> None:
    text = b'{"version":1,"subscription":{"demo":2},"pattern":"static","timestamp":"5"}'
    node = nodes.ConsumerNode.decode(text)
    assert node.subscription == {"demo": 2}
    assert node.encode() == text


def test_access_rules_are_kafkas() -> None:
    rule = b'{"principal":"User:al","permissionType":"Deny","host":"1.2.3.4","operation":"All"}'
    kafkas = b'{"acls":[' + rule + b'],"version":1}'
    assert security_nodes.decode_acls(kafkas) == [AclEntry("User:al", "Deny", "All", "1.2.3.4")]
    assert security_nodes.encode_acls(security_nodes.decode_acls(kafkas)) == kafkas
    literal, prefixed = (
        b"TOPIC:x:y",
        b'{"version":1,"resourceType":"TOPIC","name":"pre","patternType":"PREFIXED"}',
    )
    assert AclChange.decode(literal) == AclChange("TOPIC", "x:y")
    assert AclChange.decode(literal).encode() == literal
    assert AclChange.decode(prefixed).encode() == prefixed


def test_tokens_are_kafkas() -> None:
    kafkas = (
        b'{"issueTimestamp":1,"renewers":["User%3Aren","User%3Areq"],"tokenRequester":"User%3Areq",'
        b'"tokenId":"tok1","owner":"User%3Aalice","expiryTimestamp":5,"maxTimestamp":9,"version":3}'
    )
    token = TokenNode.decode(kafkas)
    assert (token.owner, token.renewers) == ("User:alice", ["User:ren", "User:req"])
    assert token.encode() == kafkas


@pytest.mark.parametrize(
    ("name", "encoded"),
    [
        ("al ice/é*~", "al%20ice%2F%C3%A9%2A%7E"),
        ("a+b c", "a%2Bb%20c"),
        ("a-b_c.d", "a-b_c.d"),
        ("<default>",) * 2,
    ],
)
def test_names_are_encoded_as_kafka_does(name: str, encoded: str) -> None:
    assert paths.encode_name(name) == encoded
    assert paths.decode_name(encoded) == name
    assert paths.entity_path("users", name, "clients", name) == f"users/{encoded}/clients/{encoded}"


@pytest.mark.parametrize(
    ("decoder", "data"),
    [
        (TopicNode.decode, b""),
        (TopicNode.decode, b"[]"),
        (TopicNode.decode, b'{"partitions":{"x":[1]}}'),
        (TopicNode.decode, b'{"partitions":{"0":["1"]}}'),
        (TopicNode.decode, b'{"partitions":{"0":[1]},"topic_id":"short"}'),
        (TopicNode.decode, b'{"partitions":[]}'),
        (PartitionNode.decode, b'{"leader":"one","leader_epoch":0,"isr":[],"controller_epoch":0}'),
        (PartitionNode.decode, b'{"leader":1}'),
        (BrokerNode.decode, b'{"version":5,"endpoints":["nonsense"]}'),
        (nodes.decode_config, b'{"config":{"a":1}}'),
        (nodes.decode_number, b"one"),
        (ControllerNode.decode, b"\xff\xfe"),
        (AclChange.decode, b"nonsense"),
    ],
)
def test_a_node_that_makes_no_sense_is_refused(decoder: Callable[[bytes], object], data: bytes) -> None:
    with pytest.raises(BadNode):
        decoder(data)


@settings(max_examples=200, derandomize=True, deadline=None)
@given(
    st.binary(max_size=60)
    | st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["version", "partitions", "isr", "leader", "topic_id", "0"]),
                inner,
                max_size=4,
            )
        ),
        max_leaves=8,
    ).map(lambda value: json.dumps(value).encode())
)
def test_no_garbage_does_more_than_be_refused(data: bytes) -> None:
    for decoder in (TopicNode.decode, PartitionNode.decode, BrokerNode.decode, nodes.decode_config):
        try:
            decoder(data)
        except BadNode:
            pass


def test_ids_are_22_characters_and_never_look_like_a_flag() -> None:
    for _ in range(200):
        text = nodes.topic_id_text(nodes.random_id())
        assert len(text) == 22
        assert not text.startswith("-")
        assert len(nodes.topic_id_from_text(text)) == 16
