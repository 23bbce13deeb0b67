"""The administrator's questions and commands, asked of a running broker."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.clients.peers import Peer
from tests.support.wait import eventually
from tidelog.clients.admin import Admin, NewTopic
from tidelog.errors import (
    InvalidConfig,
    InvalidPartitions,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    InvalidTopic,
    NetworkException,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
)

NewName = Callable[[str], str]


@pytest.fixture
def admin(bootstrap: str) -> Iterator[Admin]:
    with Admin(bootstrap) as admin:
        yield admin


def make(admin: Admin, topic: NewTopic) -> None:
    """Make a topic and wait until it is described; Kafka answers before its brokers know it."""

    def is_there() -> bool:
        try:
            return all(p.leader is not None for p in admin.describe_topics([topic.name])[0].partitions)
        except UnknownTopicOrPartition:
            return False

    admin.create_topic(topic)
    eventually(is_there, f"{topic.name} is described")


def test_a_new_topic_is_listed_and_described(admin: Admin, new_name: NewName) -> None:
    name = new_name("described")
    make(admin, NewTopic(name, partitions=3, replication_factor=1))
    (listed,) = [topic for topic in admin.list_topics() if topic.name == name]
    assert not listed.is_internal
    (described,) = admin.describe_topics([name])
    assert described.topic_id == listed.topic_id != bytes(16)
    (node,) = admin.nodes()
    assert [(p.index, p.leader, p.replicas, p.isr) for p in described.partitions] == [
        (index, node.id, [node.id], [node.id]) for index in range(3)
    ]


def test_topics_are_listed_by_name(admin: Admin, new_name: NewName) -> None:
    names = [new_name(hint) for hint in ("zz", "aa", "mm")]
    for name in names:
        make(admin, NewTopic(name))
    listed = [topic.name for topic in admin.list_topics()]
    assert listed == sorted(listed)
    assert set(names) <= set(listed)


def test_many_partitions_are_described_page_by_page(admin: Admin, new_name: NewName) -> None:
    names = [new_name("pages") for _ in range(3)]
    for name in names:
        make(admin, NewTopic(name, partitions=5))
    for page_size in (1, 2, 5, 2000):
        described = admin.describe_topics(names, page_size=page_size)
        assert [topic.name for topic in described] == sorted(names)
        assert [[p.index for p in topic.partitions] for topic in described] == [[0, 1, 2, 3, 4]] * 3


def test_settings_of_a_topic_say_where_they_come_from(admin: Admin, new_name: NewName) -> None:
    name = new_name("settings")
    make(admin, NewTopic(name, configs={"retention.ms": "5000"}))
    entries = {entry.name: entry for entry in admin.topic_configs([name])[name]}
    assert (entries["retention.ms"].value, entries["retention.ms"].is_default) == ("5000", False)
    assert (entries["segment.bytes"].value, entries["segment.bytes"].is_default) == ("1073741824", True)


def test_partitions_are_added(admin: Admin, new_name: NewName) -> None:
    name = new_name("grown")
    make(admin, NewTopic(name, partitions=1))
    admin.create_partitions(name, 4)
    eventually(lambda: len(admin.describe_topics([name])[0].partitions) == 4, "four partitions")
    with pytest.raises(InvalidPartitions):
        admin.create_partitions(name, 2)
    (node,) = admin.nodes()
    admin.create_partitions(name, 5, [[node.id]])
    eventually(lambda: len(admin.describe_topics([name])[0].partitions) == 5, "five partitions")


def test_a_deleted_topic_is_gone(admin: Admin, new_name: NewName) -> None:
    name = new_name("deleted")
    make(admin, NewTopic(name))
    admin.delete_topics([name])
    eventually(lambda: name not in [topic.name for topic in admin.list_topics()], "the topic is gone")
    with pytest.raises(UnknownTopicOrPartition):
        admin.delete_topics([name])


@pytest.mark.parametrize(
    ("topic", "error"),
    [
        (NewTopic("bad/name"), InvalidTopic),
        (NewTopic("refused", partitions=0), InvalidPartitions),
        (NewTopic("refused", replication_factor=5), InvalidReplicationFactor),
        (NewTopic("refused", configs={"no.such.setting": "1"}), InvalidConfig),
        pytest.param(
            NewTopic("refused", assignment=[[77]]),
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
        admin.create_topic(topic)


def test_a_topic_is_made_once(admin: Admin, new_name: NewName) -> None:
    topic = NewTopic(new_name("once"))
    make(admin, topic)
    with pytest.raises(TopicAlreadyExists):
        admin.create_topic(topic)


def test_validate_only_makes_nothing(admin: Admin, new_name: NewName) -> None:
    name = new_name("validated")
    admin.create_topic(NewTopic(name), validate_only=True)
    assert name not in [topic.name for topic in admin.list_topics()]


def test_a_topic_that_is_not_there_cannot_be_described(admin: Admin, new_name: NewName) -> None:
    with pytest.raises(UnknownTopicOrPartition, match="does not exist"):
        admin.describe_topics([new_name("nowhere")])


def test_the_first_address_that_answers_is_used(bootstrap: str) -> None:
    with Peer([]) as peer:
        dead = f"{peer.host}:{peer.port}"
    with Admin(f"{dead},{bootstrap}") as admin:
        assert admin.nodes()
    with pytest.raises(NetworkException, match=f"{dead}.*{dead}"):
        Admin(f"{dead},{dead}")
