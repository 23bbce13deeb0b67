"""The partition of a record: by the hash of its key as in Java's client, round robin, or sticky.

Records without a key stay with a partition for batch.size bytes, and then go to another one. It is chosen at
random, less often if batches wait for it.
"""

from __future__ import annotations

import bisect
import itertools
import random
from collections.abc import Callable, Mapping
from typing import Protocol, runtime_checkable

from tidelog.clients.metadata import NO_LEADER, ClusterView
from tidelog.clients.producer.batch import ProducerBatch
from tidelog.config import ConfigError
from tidelog.records.partitioning import partition_for_key

__all__ = ["Partitioner", "RoundRobinPartitioner", "StickyPartition", "partition_for_key", "partitioner_of"]


@runtime_checkable
class Partitioner(Protocol):
    """A user-defined partitioner: an object with this method, or a function with its arguments."""

    def partition(
        self,
        topic: str,
        key: object,
        key_bytes: bytes | None,
        value: object,
        value_bytes: bytes | None,
        cluster: ClusterView,
    ) -> int:
        """Return the partition of a record, 0 or more."""


Choose = Callable[[str, object, "bytes | None", object, "bytes | None", ClusterView], int]


class RoundRobinPartitioner:
    """Goes through the partitions that have a leader, whatever the key."""

    def __init__(self) -> None:
        self._turns: dict[str, itertools.count[int]] = {}

    def partition(
        self,
        topic: str,
        key: object,
        key_bytes: bytes | None,
        value: object,
        value_bytes: bytes | None,
        cluster: ClusterView,
    ) -> int:
        turn = next(self._turns.setdefault(topic, itertools.count(random.randrange(1 << 20))))
        available = available_partitions(cluster, topic)
        if available:
            return available[turn % len(available)]
        return turn % (cluster.partition_count(topic) or 1)


def partitioner_of(given: object) -> Choose | None:
    """The partitioner of partitioner.class; None for the built-in one."""
    if given is None:
        return None
    if isinstance(given, str):
        name = given.rpartition(".")[2]
        if name in ("RoundRobinPartitioner", "round_robin", "RoundRobin"):
            return RoundRobinPartitioner().partition
        if name in ("DefaultPartitioner", "UniformStickyPartitioner", ""):
            return None
        raise ConfigError(
            "partitioner.class", given, "expected a function, an object or RoundRobinPartitioner"
        )
    if isinstance(given, type):
        given = given()
    if isinstance(given, Partitioner):
        return given.partition
    if callable(given):
        return given
    raise ConfigError("partitioner.class", repr(given), "expected a function or an object with partition()")


def available_partitions(cluster: ClusterView, topic: str) -> list[int]:
    """The partitions of a topic that have a leader, in order."""
    view = cluster.topics.get(topic)
    if view is None:
        return []
    return [index for index, entry in view.partitions.items() if entry.leader != NO_LEADER]


Loads = tuple[Mapping[int, int], set[int]]


class StickyPartition:
    """The partition that records of a topic without a key go to at present."""

    __slots__ = ("_adaptive", "batch", "partition", "produced")

    def __init__(self, *, adaptive: bool) -> None:
        self._adaptive = adaptive
        self.partition: int | None = None
        self.produced = 0
        self.batch: ProducerBatch | None = None

    def move_on(self, cluster: ClusterView, topic: str, state: Callable[[], Loads]) -> None:
        """Choose the next partition. `state` returns the waiting batches, and partitions to avoid."""
        self.produced = 0
        available = available_partitions(cluster, topic)
        if not available:
            self.partition = random.randrange(cluster.partition_count(topic) or 1)
            return
        if not self._adaptive or len(available) < 2:
            self.partition = random.choice(available)
            return
        loads, unavailable_brokers = state()
        candidates = [index for index in available if index not in unavailable_brokers] or available
        most = max(loads.get(index, 0) for index in candidates) + 1
        # The fewer batches wait for a partition, the more often it is chosen.
        sums = list(itertools.accumulate(most - loads.get(index, 0) for index in candidates))
        self.partition = candidates[bisect.bisect_right(sums, random.randrange(sums[-1]))]
