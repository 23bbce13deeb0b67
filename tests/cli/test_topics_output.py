"""`topics --describe` of replicated topics: which partitions each filter shows, and partitions that move.

The lines are those that kafka-topics 3.9 prints about the same partitions.
"""

from __future__ import annotations

import pytest

from tidelog.cli.topics_output import Shown, topic_lines
from tidelog.clients.admin import ConfigEntry, ConfigSource, PartitionReassignment, TopicDescription
from tidelog.clients.admin import TopicPartitionInfo as Partition

LIVE = frozenset({1, 2})
TOPIC = TopicDescription(
    "t",
    "ID",
    False,
    [
        Partition(0, 1, [1, 2], [1, 2], []),
        Partition(1, 1, [1, 2, 3], [1, 2], [3]),
        Partition(2, None, [3], [3], [3]),
        Partition(3, 1, [1, 3], [1], [3]),
        Partition(4, 3, [3, 1, 2], [3, 1, 2], []),
    ],
    None,
)
MIN_ISR = ConfigEntry("min.insync.replicas", "2", ConfigSource.DYNAMIC_TOPIC_CONFIG)


def partitions(**shown: bool) -> list[int]:
    lines = topic_lines(TOPIC, [MIN_ISR], LIVE, {}, Shown(**shown))
    return [int(line.split("Partition: ")[1].split("\t")[0]) for line in lines]


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        ({"under_replicated": True}, [1, 3]),
        ({"unavailable": True}, [2, 4]),
        ({"under_min_isr": True}, [2, 3]),
        ({"at_min_isr": True}, [0, 1]),
        ({"at_min_isr": True, "unavailable": True}, [0, 1, 2, 4]),
    ],
)
def test_filters_show_their_partitions(shown: dict[str, bool], expected: list[int]) -> None:
    assert partitions(**shown) == expected


def test_a_partition_that_moves_counts_without_the_replicas_that_are_added() -> None:
    moving = {("t", 0): PartitionReassignment([1, 2, 3], [1], [3])}
    topic = TopicDescription("t", "ID", False, [Partition(0, 3, [1, 2, 3], [3, 2], [])], None)
    assert list(topic_lines(topic, [], LIVE, moving, Shown())) == [
        "Topic: t\tTopicId: ID\tPartitionCount: 1\tReplicationFactor: 2\tConfigs: ",
        "\tTopic: t\tPartition: 0\tLeader: 3\tReplicas: 1,2,3\tIsr: 3,2"
        "\tAdding Replicas: 1\tRemoving Replicas: 3\tElr: N/A\tLastKnownElr: N/A",
    ]
    assert list(topic_lines(topic, [], LIVE, moving, Shown(under_replicated=True))) == []
