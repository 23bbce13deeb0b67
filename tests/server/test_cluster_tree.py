"""Three brokers leave a tree in ZooKeeper that has the form of Kafka 3.9's."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.cluster import ClusterOfBrokers
from tests.support.wait import eventually
from tidelog import Admin, Consumer, NewTopic, Producer
from tidelog.clients.admin.configs import AlterConfigOp, ConfigResource, ResourceType

DATA = Path(__file__).parent.parent / "data"
KAFKAS_TREE: dict[str, dict[str, str | bool | int | None]] = json.loads(
    (DATA / "zookeeper-tree.json").read_text()
)
# The parts of a path that name something, and what stands for any name.
NAMES = (
    (r"^(/brokers/ids|/config/brokers)/\d+", r"\1/BROKER"),
    (r"^(/brokers/topics|/config/topics)/[^/]+", r"\1/TOPIC"),
    (r"/partitions/\d+", "/partitions/PARTITION"),
    (r"(config_change_)\d{10}$", r"\1NUMBER"),
)
# A broker of ours says in which rack and on which host it is; Kafka says so where it is set.
OPTIONAL_KEYS = {"rack"}


@dataclass(frozen=True, slots=True)
class Node:
    data: bytes
    ephemeral: bool


@dataclass(slots=True)
class Form:
    """How a kind of node looks: its keys, the version of its JSON, and whether it ends with a session."""

    keys: frozenset[str]
    version: int | str | None
    ephemeral: bool


def kind_of(path: str) -> str:
    for pattern, replacement in NAMES:
        path = re.sub(pattern, replacement, path)
    return path


def form_of(data: bytes | None, ephemeral: bool) -> Form:
    value = json.loads(data) if data else {}
    if not isinstance(value, dict):
        return Form(frozenset([type(value).__name__]), None, ephemeral)
    return Form(frozenset(value) - OPTIONAL_KEYS, value.get("version"), ephemeral)


def kafkas_forms() -> dict[str, Form]:
    return {
        kind_of(path): form_of(str(node["data"]).encode() if node["data"] else None, bool(node["ephemeral"]))
        for path, node in KAFKAS_TREE.items()
    }


def read_tree(address: str) -> dict[str, Node]:
    from kazoo.client import KazooClient

    found: dict[str, Node] = {}
    client = KazooClient(hosts=address, timeout=20)
    client.start(30)
    try:
        waiting = ["/"]
        while waiting:
            path = waiting.pop()
            data, stat = client.get(path)
            found[path] = Node(data, stat.ephemeralOwner != 0)
            waiting += [f"{path.rstrip('/')}/{name}" for name in client.get_children(path)]
    finally:
        client.stop()
        client.close()
    return found


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterOfBrokers]:
    with ClusterOfBrokers(tmp_path_factory.mktemp("tree"), 3) as brokers:
        fill(brokers)
        yield brokers


def fill(cluster: ClusterOfBrokers) -> None:
    """Do what was done to the Kafka whose tree was stored."""
    bootstrap = cluster.bootstrap
    with Admin(bootstrap_servers=bootstrap) as admin:
        admin.create_topics([NewTopic("plain", 2, 1, configs={"retention.ms": "-1"})])
        broker = ConfigResource(ResourceType.BROKER, "1")
        admin.incremental_alter_configs({broker: [AlterConfigOp("log.cleaner.threads", "2")]})
    with Producer(bootstrap_servers=bootstrap, transactional_id="writer") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("plain", b"value", partition=0).result(20)
        producer.commit_transaction()
    settings = {"group_id": "g", "auto_offset_reset": "earliest"}
    with Consumer("plain", bootstrap_servers=bootstrap, **settings) as consumer:
        eventually(lambda: consumer.poll(0.2), "the record is read", 20.0, 0)


def test_every_node_has_a_counterpart_of_the_same_form_in_kafkas_tree(cluster: ClusterOfBrokers) -> None:
    assert cluster.zookeeper is not None
    expected = kafkas_forms()
    differences = [
        f"{path}: {found}, in Kafka {expected.get(kind_of(path))}"
        for path, node in read_tree(cluster.zookeeper).items()
        if not path.startswith("/zookeeper")
        and (found := form_of(node.data, node.ephemeral)) != expected.get(kind_of(path))
    ]
    assert differences == []


def test_every_kind_of_node_of_kafka_is_there(cluster: ClusterOfBrokers) -> None:
    assert cluster.zookeeper is not None
    found = {kind_of(path) for path in read_tree(cluster.zookeeper)}
    missing = set(kafkas_forms()) - found
    # Nobody changes users and their quotas through a broker here.
    assert {kind for kind in missing if not kind.startswith("/config/users/")} == set()


def test_leaders_of_partitions_and_copies_in_the_tree_agree(cluster: ClusterOfBrokers) -> None:
    assert cluster.zookeeper is not None
    tree = read_tree(cluster.zookeeper)
    brokers = {int(path.rpartition("/")[2]) for path in tree if kind_of(path) == "/brokers/ids/BROKER"}
    assert brokers == {1, 2, 3}
    for topic in ("plain", "__consumer_offsets", "__transaction_state"):
        placed = json.loads(tree[f"/brokers/topics/{topic}"].data)["partitions"]
        for partition, replicas in placed.items():
            state = json.loads(tree[f"/brokers/topics/{topic}/partitions/{partition}/state"].data)
            assert state["isr"] == replicas == [state["leader"]]
        assert {replicas[0] for replicas in placed.values()} <= brokers
