"""The metrics of groups and offsets, under the names of Kafka and of kafka_exporter.

They are computed for each scrape. A scrape has at most MAX_OFFSETS offsets; another metric counts the rest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import islice

from tidelog.coordinator.group.classic import ClassicGroup
from tidelog.coordinator.group.classic_state import GroupState
from tidelog.coordinator.group.consumer import ConsumerGroup
from tidelog.coordinator.group.coordinator import GroupCoordinator
from tidelog.coordinator.group.group import Group
from tidelog.coordinator.group.records import read_offset_value
from tidelog.coordinator.group.shard import GroupShard
from tidelog.metrics.registry import Family, MetricName
from tidelog.server.group_lag import GroupLag

SUMS = {
    "current_offset_sum": "Sum of the committed offsets of a group in a topic.",
    "lag_sum": "Records of a topic behind the committed offsets of a group.",
}
PREFIX = "kafka_consumergroup_"
MAX_LAG = "The largest lag of a group in a partition, in records."
MAX_LAG_SECONDS = "The largest lag of a group in a partition, in seconds."
OFFSETS_PER_FAMILY = 50
MAX_OFFSETS = 50_000
"""The offsets of a scrape: some 30 MB of text in six families, which Prometheus can still read."""

MANAGER = ("kafka.coordinator.group", "GroupMetadataManager")
COORDINATOR = ("kafka.server", "group-coordinator-metrics")
CONSUMER_STATES = ("Empty", "Assigning", "Reconciling", "Stable", "Dead")

Labels = tuple[tuple[str, str], ...]


class GroupMetrics:
    def __init__(self, groups: GroupCoordinator, lag: GroupLag) -> None:
        self._groups = groups
        self._lag = lag

    def families(self) -> Iterator[Family]:
        yield from self._counts()
        yield from self._events()
        remaining = MAX_OFFSETS
        omitted = 0
        for shard in list(self._groups.runtime.shards()):
            for group_id, group in list(shard.groups.items()):
                size = len(shard.offsets.of_group(group_id))
                yield from self._members(group)
                yield from self._offsets(shard, group_id, remaining)
                omitted += max(size - remaining, 0)
                remaining = max(remaining - size, 0)
        yield Family(
            "tidelog_consumergroup_offsets_left_out",
            "gauge",
            [((), omitted)],
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
        """The offsets and lags of a group, in families of at most OFFSETS_PER_FAMILY samples."""
        sums: dict[str, list[int]] = {}
        most_records: int | None = None
        most_seconds: float | None = None
        offsets = list(islice(shard.offsets.of_group(group_id).items(), most))
        for start in range(0, len(offsets), OFFSETS_PER_FAMILY):
            current: list[tuple[Labels, float]] = []
            lags: list[tuple[Labels, float]] = []
            late: list[tuple[Labels, float]] = []
            for partition, value in offsets[start : start + OFFSETS_PER_FAMILY]:
                topic, index = partition
                offset = read_offset_value(value).offset
                labels = (("consumergroup", group_id), ("partition", str(index)), ("topic", topic))
                current.append((labels, offset))
                total = sums.setdefault(topic, [0, 0])
                total[0] += offset
                end = self._lag.end_offset(partition)
                if end is None:
                    continue
                records = max(end - offset, 0)
                lags.append((labels, records))
                total[1] += records
                most_records = max(records, most_records or 0)
                seconds = self._lag.seconds(partition, offset) if records else 0.0
                if seconds is not None:
                    late.append((labels, seconds))
                    most_seconds = max(seconds, most_seconds or 0.0)
            yield Family(PREFIX + "current_offset", "gauge", current, "Committed offset of a group.")
            yield Family(PREFIX + "lag", "gauge", lags, "Records behind the committed offset.")
            yield Family(
                PREFIX + "lag_seconds",
                "gauge",
                late,
                "Seconds since the oldest record behind the committed offset was appended.",
                fold="max",
            )
        for at, (name, help_text) in enumerate(SUMS.items()):
            summed: list[tuple[Labels, float]] = [
                ((("consumergroup", group_id), ("topic", topic)), total[at]) for topic, total in sums.items()
            ]
            yield Family(PREFIX + name, "gauge", summed, help_text)
        group: Labels = (("consumergroup", group_id),)
        if most_records is not None:
            yield Family(PREFIX + "max_lag", "gauge", [(group, most_records)], MAX_LAG)
        if most_seconds is not None:
            yield Family(PREFIX + "max_lag_seconds", "gauge", [(group, most_seconds)], MAX_LAG_SECONDS)


def _gauge(name: str, value: int) -> Family:
    return Family(MetricName(*MANAGER, name, ()), "gauge", [((), value)])
