"""What the admin client says of topics, and how it connects, asked of a running broker."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.clients.peers import Peer
from tests.support.topics import PatientAdmin
from tidelog import Admin, NewTopic
from tidelog.clients.admin import NewPartitions
from tidelog.errors import (
    InvalidConfig,
    InvalidPartitions,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    InvalidTopic,
    NetworkException,
    UnknownTopicOrPartition,
)

NewName = Callable[[str], str]


@pytest.fixture(scope="module")
def admin(bootstrap: str) -> Iterator[Admin]:
    with PatientAdmin(bootstrap_servers=bootstrap, default_api_timeout_ms=30_000) as admin:
        yield admin


def test_topics_are_listed_by_name(admin: Admin, new_name: NewName) -> None:
    names = [new_name(hint) for hint in ("zz", "aa", "mm")]
    admin.create_topics([NewTopic(name) for name in names])
    listed = list(admin.list_topics())
    assert listed == sorted(listed)
    assert set(names) <= set(listed)


@pytest.mark.needs("DescribeTopicPartitions")
def test_many_partitions_are_described_page_by_page(admin: Admin, new_name: NewName) -> None:
    names = [new_name("pages") for _ in range(3)]
    admin.create_topics([NewTopic(name, num_partitions=5) for name in names])
    for limit in (1, 2, 5, 2000):
        before = admin.metrics()["request-total"]
        described = admin.describe_topics(names, partition_size_limit_per_response=limit)
        asked = admin.metrics()["request-total"] - before
        assert list(described) == sorted(names)
        assert [[p.partition for p in topic.partitions] for topic in described.values()] == [
            [0, 1, 2, 3, 4]
        ] * 3
        assert asked >= 15 // limit


@pytest.mark.parametrize(
    ("topic", "error"),
    [
        (NewTopic("bad/name"), InvalidTopic),
        (NewTopic("refused", num_partitions=0), InvalidPartitions),
        (NewTopic("refused", replication_factor=5), InvalidReplicationFactor),
        (NewTopic("refused", configs={"no.such.setting": "1"}), InvalidConfig),
        pytest.param(
            NewTopic("refused", replica_assignments={0: [77]}),
            InvalidReplicaAssignment,
            # Brokers with a ZooKeeper, which lack this API, wait for broker 77 instead.
            marks=pytest.mark.needs("DescribeTopicPartitions"),
        ),
    ],
)
def test_what_the_cluster_refuses_is_raised_as_its_class(
    admin: Admin, topic: NewTopic, error: type[Exception]
) -> None:
    with pytest.raises(error):
        admin.create_topics([topic])


def test_a_topic_that_is_not_there_is_said_to_be_missing(admin: Admin, new_name: NewName) -> None:
    name = new_name("nowhere")
    with pytest.raises(UnknownTopicOrPartition, match="does not exist"):
        admin.describe_topics([name])
    with pytest.raises(UnknownTopicOrPartition):
        admin.delete_topics([name])
    with pytest.raises(UnknownTopicOrPartition):
        admin.create_partitions({name: NewPartitions(2)})


def test_connect_takes_the_first_server_that_answers_and_fails_at_once_where_none_does(
    bootstrap: str,
) -> None:
    with Peer([]) as peer:
        dead = f"{peer.host}:{peer.port}"
    with Admin(bootstrap_servers=f"{dead},{bootstrap}") as admin:
        admin.connect()
        assert admin.metrics()["connection-count"] == 1
    with Admin(bootstrap_servers=dead) as admin, pytest.raises(NetworkException) as raised:
        admin.connect()
    assert str(raised.value) == f"cannot connect to {dead}: Connection refused"
    with Admin(bootstrap_servers=[dead, dead]) as admin, pytest.raises(NetworkException) as raised:
        admin.connect()
    assert str(raised.value) == "; ".join([f"cannot connect to {dead}: Connection refused"] * 2)
