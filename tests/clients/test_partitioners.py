"""Where records without keys go: to every partition alike, less to those where batches pile up."""

from __future__ import annotations

from collections import Counter

import pytest

from tidelog.clients.metadata import ClusterView, PartitionView, TopicView
from tidelog.clients.producer.partitioners import RoundRobinPartitioner, StickyPartition, partitioner_of
from tidelog.config import ConfigError


def cluster(*leaders: int) -> ClusterView:
    view = ClusterView()
    partitions = {index: PartitionView(index, leader, 0, [1], [1]) for index, leader in enumerate(leaders)}
    view.topics["t"] = TopicView("t", bytes(16), False, partitions)
    return view


def chosen(
    view: ClusterView, loads: dict[int, int], unavailable_brokers: set[int], *, adaptive: bool = True
) -> Counter[int]:
    found: Counter[int] = Counter()
    sticky = StickyPartition(adaptive=adaptive)
    for _ in range(6000):
        sticky.move_on(view, "t", lambda: (loads, unavailable_brokers))
        assert sticky.partition is not None
        found[sticky.partition] += 1
    return found


def test_equal_partitions_are_chosen_alike() -> None:
    found = chosen(cluster(1, 1, 1), {}, set())
    assert all(1800 < found[partition] < 2200 for partition in range(3))


def test_a_partition_with_a_longer_queue_is_chosen_less_often() -> None:
    """With queues of 0, 3 and 1 the weights are 4, 1 and 3."""
    found = chosen(cluster(1, 1, 1), {0: 0, 1: 3, 2: 1}, set())
    assert 2700 < found[0] < 3300
    assert 600 < found[1] < 900
    assert 2000 < found[2] < 2500


def test_without_adaptation_queues_do_not_count() -> None:
    found = chosen(cluster(1, 1), {0: 0, 1: 100}, {1}, adaptive=False)
    assert 2700 < found[1] < 3300


def test_partitions_without_a_leader_and_of_slow_brokers_are_left_alone() -> None:
    assert set(chosen(cluster(1, -1, 2), {}, set())) == {0, 2}
    assert set(chosen(cluster(1, 1, 2), {}, {2})) == {0, 1}
    assert set(chosen(cluster(1, 1), {}, {0, 1})) == {0, 1}
    assert set(chosen(cluster(-1, -1), {}, set())) == {0, 1}


def test_round_robin_passes_over_partitions_without_a_leader() -> None:
    turn = RoundRobinPartitioner()
    view = cluster(1, -1, 1)
    found = [turn.partition("t", None, None, None, None, view) for _ in range(6)]
    assert sorted(found) == [0, 0, 0, 2, 2, 2]
    assert found[0] != found[1]


def test_what_is_no_partitioner_is_refused() -> None:
    assert partitioner_of(None) is None
    assert partitioner_of(RoundRobinPartitioner) is not None
    with pytest.raises(ConfigError, match="expected a function or an object with partition"):
        partitioner_of(5)
