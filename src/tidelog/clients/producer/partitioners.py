"""Which partition a record goes to: by its key as Kafka's Java client, in turn, or with the batch at hand.

Without a key and a partitioner, records stay with one partition until a batch's worth went there, then move
to another one, chosen at random and less often where batches pile up.
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

__all__ = ["Partitioner", "RoundRobin", "StickyPartition", "partition_for_key", "partitioner_of"]


@runtime_checkable
class Partitioner(Protocol):
    """A partitioner of one's own: an object with this method, or a function of the same arguments."""

    def partition(
        self,
        topic: str,
        key: object,
        key_bytes: bytes | None,
        value: object,
        value_bytes: bytes | None,
        cluster: ClusterView,
    ) -> int:
        """The partition of a record; a number below 0 is an error."""


Choose = Callable[[str, object, "bytes | None", object, "bytes | None", ClusterView], int]


class RoundRobin:
    """The partitions with a leader in turn, whatever the key."""

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
    """The partitioner that partitioner.class names; None for the built-in way."""
    if given is None:
        return None
    if isinstance(given, str):
        name = given.rpartition(".")[2]
        if name in ("RoundRobinPartitioner", "round_robin", "RoundRobin"):
            return RoundRobin().partition
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
    """Where the records of a topic that have no key go at present."""

    __slots__ = ("_adaptive", "batch", "partition", "produced")

    def __init__(self, *, adaptive: bool) -> None:
        self._adaptive = adaptive
        self.partition: int | None = None
        self.produced = 0
        self.batch: ProducerBatch | None = None

    def move_on(self, cluster: ClusterView, topic: str, state: Callable[[], Loads]) -> None:
        """Choose anew; `state` says how many batches wait for each partition, and which to leave alone."""
        self.produced = 0
        available = available_partitions(cluster, topic)
        if not available:
            self.partition = random.randrange(cluster.partition_count(topic) or 1)
            return
        if not self._adaptive or len(available) < 2:
            self.partition = random.choice(available)
            return
        loads, shunned = state()
        candidates = [index for index in available if index not in shunned] or available
        most = max(loads.get(index, 0) for index in candidates) + 1
        # The fewer batches wait for a partition, the more often it is chosen.
        sums = list(itertools.accumulate(most - loads.get(index, 0) for index in candidates))
        self.partition = candidates[bisect.bisect_right(sums, random.randrange(sums[-1]))]
