"""Threads, filters and the range assignment: values in, values out."""

from __future__ import annotations

import doctest

import pytest

from tidelog.clients.zookeeper_consumer import settings as settings_module
from tidelog.clients.zookeeper_consumer import topic_count
from tidelog.clients.zookeeper_consumer.range_assignment import assign_ranges
from tidelog.clients.zookeeper_consumer.settings import zookeeper_consumer_settings
from tidelog.clients.zookeeper_consumer.topic_count import (
    Blacklist,
    ConsumerThreadId,
    StaticTopicCount,
    Whitelist,
    WildcardTopicCount,
    topic_count_of,
)
from tidelog.config import ConfigError
from tidelog.metadata.nodes import ConsumerNode
from tidelog.partitions import TopicPartition


def ranges(consumers: dict[str, int], partitions: int) -> dict[str, list[int]]:
    """The partitions of each thread."""
    threads = [ConsumerThreadId(name, at) for name, count in consumers.items() for at in range(count)]
    found: dict[str, list[int]] = {str(thread): [] for thread in threads}
    for partition, thread in assign_ranges({"t": threads}, {"t": range(partitions)}).items():
        found[str(thread)].append(partition.partition)
    return found


def test_the_first_threads_get_the_partitions_that_are_left_over() -> None:
    assert ranges({"b": 1, "a": 2}, 5) == {"a-0": [0, 1], "a-1": [2, 3], "b-0": [4]}


def test_threads_without_a_partition_stay_idle() -> None:
    assert ranges({"a": 1, "b": 2}, 2) == {"a-0": [0], "b-0": [1], "b-1": []}


def test_threads_are_sorted_as_text() -> None:
    assert ranges({"a": 11}, 11)["a-10"] == [2]


def test_a_topic_without_threads_or_partitions_is_assigned_to_nobody() -> None:
    assert assign_ranges({"t": [], "u": [ConsumerThreadId("a", 0)]}, {"t": [0]}) == {}
    assert list(assign_ranges({"t": [ConsumerThreadId("a", 0)]}, {"t": [1, 0]})) == [
        TopicPartition("t", 0),
        TopicPartition("t", 1),
    ]


@pytest.mark.parametrize(
    ("topic_filter", "allowed"),
    [
        (Whitelist("clicks,logins.*"), ["clicks", "logins-eu"]),
        (Whitelist(" 'clicks' "), ["clicks"]),
        (Blacklist("clicks|logins-eu"), ["other"]),
    ],
)
def test_a_filter_selects_topics(topic_filter: Whitelist | Blacklist, allowed: list[str]) -> None:
    topics = ["clicks", "logins-eu", "other", "__consumer_offsets"]
    assert [topic for topic in topics if topic_filter.allows(topic)] == allowed


def test_internal_topics_are_selected_if_they_are_asked_for() -> None:
    assert Whitelist("__.*").allows("__consumer_offsets", exclude_internal=False)


def test_a_bad_filter_is_refused() -> None:
    with pytest.raises(ValueError, match="no regular expression"):
        Whitelist("[")


def test_a_member_is_read_from_its_node() -> None:
    static = topic_count_of(ConsumerNode({"t": 2}, "static", 0))
    assert static == StaticTopicCount({"t": 2})
    black = topic_count_of(ConsumerNode({"t": 2}, "black_list", 0))
    assert isinstance(black, WildcardTopicCount)
    assert black.threads("a", ["t", "u"]) == {"u": [ConsumerThreadId("a", 0), ConsumerThreadId("a", 1)]}
    assert (black.pattern, black.subscription) == ("black_list", {"t": 2})


def test_settings_are_those_of_the_time() -> None:
    given = {"zookeeper.connect": "zk:2181", "group.id": "g", "zookeeper.session.timeout.ms": "4000"}
    made = zookeeper_consumer_settings(given, auto_offset_reset="smallest", socket_timeout_ms=1000)
    assert (made.auto_commit_interval_ms, made.rebalance_max_retries) == (60000, 4)
    assert (made.zookeeper_connection_timeout_ms, made.rebalance_backoff_ms) == (4000, 2000)
    assert made.fetching == {"request.timeout.ms": "1000", "auto.offset.reset": "earliest"}


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"zookeeper.connect": None}, "zookeeper.connect"),
        ({"group.id": None}, "group.id"),
        ({"group.id": "a/b"}, "letters, digits"),
        ({"auto.offset.reset": "earliest"}, "smallest"),
        ({"offsets.storage": "kafka"}, "zookeeper"),
    ],
)
def test_wrong_settings_are_refused(wrong: dict[str, object], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        zookeeper_consumer_settings({"zookeeper.connect": "zk:2181", "group.id": "g", **wrong})


def test_the_examples_hold() -> None:
    assert doctest.testmod(settings_module).failed == 0
    assert doctest.testmod(topic_count).failed == 0
