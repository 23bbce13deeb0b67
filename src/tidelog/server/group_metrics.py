"""The metrics of groups and offsets, under the names of Kafka and of kafka_exporter.

They are computed for each scrape. A scrape has at most MAX_OFFSETS offsets; another metric counts the rest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import islice

from tidelog.cluster.replica_manager import ReplicaManager
from tidelog.coordinator.group.classic import ClassicGroup
from tidelog.coordinator.group.classic_state import GroupState
from tidelog.coordinator.group.consumer import ConsumerGroup
from tidelog.coordinator.group.coordinator import GroupCoordinator
from tidelog.coordinator.group.group import Group
from tidelog.coordinator.group.records import read_offset_value
from tidelog.coordinator.group.shard import GroupShard
from tidelog.metrics.registry import Family, MetricName

SUMS = {
    "current_offset_sum": "Sum of the committed offsets of a group in a topic.",
    "lag_sum": "Records of a topic behind the committed offsets of a group.",
}
MAX_OFFSETS = 50_000
"""The offsets of a scrape: some 25 MB of text in five families, which Prometheus can still read."""

MANAGER = ("kafka.coordinator.group", "GroupMetadataManager")
COORDINATOR = ("kafka.server", "group-coordinator-metrics")
CONSUMER_STATES = ("Empty", "Assigning", "Reconciling", "Stable", "Dead")

Labels = tuple[tuple[str, str], ...]


class GroupMetrics:
    def __init__(self, groups: GroupCoordinator, replicas: ReplicaManager) -> None:
        self._groups = groups
        self._replicas = replicas

    def families(self) -> Iterator[Family]:
        yield from self._counts()
        yield from self._events()
        left = MAX_OFFSETS
        left_out = 0
        for shard in list(self._groups.runtime.shards()):
            for group_id, group in list(shard.groups.items()):
                size = len(shard.offsets.of_group(group_id))
                yield from self._members(group)
                yield from self._offsets(shard, group_id, left)
                left_out += max(size - left, 0)
                left = max(left - size, 0)
        yield Family(
            "tidelog_consumergroup_offsets_left_out",
            "gauge",
            [((), left_out)],
            "Offsets that are not listed.",
        )

    def _counts(self) -> Iterator[Family]:
        counts = Counter((group.kind, group.state_name) for group in self._groups.groups())
        yield _gauge("NumGroups", sum(counts.values()))
        yield _gauge("NumOffsets", self._groups.offsets.count)
        for state in GroupState:
            yield _gauge(f"NumGroups{state.value}", counts["classic", state.value])
        by_kind = Counter[str]()
        for (kind, _), count in counts.items():
            by_kind[kind] += count
        kinds: list[tuple[Labels, float]] = [
            ((("protocol", kind),), by_kind[kind]) for kind in ("classic", "consumer")
        ]
        yield Family(MetricName(*COORDINATOR, "group-count", ()), "gauge", kinds)
        states: list[tuple[Labels, float]] = [
            ((("state", state.lower()),), counts["consumer", state]) for state in CONSUMER_STATES
        ]
        yield Family(MetricName(*COORDINATOR, "consumer-group-count", ()), "gauge", states)

    def _events(self) -> Iterator[Family]:
        offsets = self._groups.offsets
        for name, count in (
            ("group-completed-rebalance", self._groups.classic.completed_rebalances),
            ("offset-commit", offsets.commits),
            ("offset-deletion", offsets.deletions),
            ("offset-expiration", offsets.expirations),
        ):
            yield Family(MetricName(*COORDINATOR, name, ()), "counter", [((), count)])

    def _members(self, group: Group) -> Iterator[Family]:
        if isinstance(group, ClassicGroup | ConsumerGroup):
            labels = (("consumergroup", group.group_id),)
            members = len(group.members)
            yield Family("kafka_consumergroup_members", "gauge", [(labels, members)], "Members of a group.")

    def _offsets(self, shard: GroupShard, group_id: str, most: int) -> Iterator[Family]:
        current: list[tuple[Labels, float]] = []
        lags: list[tuple[Labels, float]] = []
        sums: dict[str, list[int]] = {}
        for (topic, index), value in islice(shard.offsets.of_group(group_id).items(), most):
            offset = read_offset_value(value).offset
            labels = (("consumergroup", group_id), ("partition", str(index)), ("topic", topic))
            current.append((labels, offset))
            total = sums.setdefault(topic, [0, 0])
            total[0] += offset
            end = self._end_of(topic, index)
            if end is not None:
                lags.append((labels, max(end - offset, 0)))
                total[1] += max(end - offset, 0)
        yield Family("kafka_consumergroup_current_offset", "gauge", current, "Committed offset of a group.")
        yield Family("kafka_consumergroup_lag", "gauge", lags, "Records behind the committed offset.")
        for at, (name, help_text) in enumerate(SUMS.items()):
            summed: list[tuple[Labels, float]] = [
                ((("consumergroup", group_id), ("topic", topic)), total[at]) for topic, total in sums.items()
            ]
            yield Family(f"kafka_consumergroup_{name}", "gauge", summed, help_text)

    def _end_of(self, topic: str, index: int) -> int | None:
        """The high watermark of a partition; None for an unknown partition."""
        hosted = self._replicas.topics.get(topic)
        partition = None if hosted is None else hosted.partitions.get(index)
        log = None if partition is None else partition.log
        return None if log is None else log.high_watermark


def _gauge(name: str, value: int) -> Family:
    return Family(MetricName(*MANAGER, name, ()), "gauge", [((), value)])
