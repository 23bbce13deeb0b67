"""ClusterSnapshot: topics, partitions and groups of a cluster at one moment.

Pages and API read it. It is made from a broker's memory or from a few requests, never from one per topic.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tidelog.partitions import PartitionKey


@dataclass(slots=True)
class BrokerSnapshot:
    """A live broker of the cluster."""

    broker_id: int
    host: str
    port: int
    rack: str | None = None


@dataclass(slots=True)
class PartitionSnapshot:
    """A partition. Offsets, size and time are None where nobody could be asked.

    `records` is an exact count, or None where only the difference of the offsets is known.
    """

    index: int
    leader: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    offline: tuple[int, ...] = ()
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    start: int | None = None
    end: int | None = None
    size: int | None = None
    records: int | None = None
    last_ms: int | None = None

    @property
    def is_offline(self) -> bool:
        return self.leader < 0

    @property
    def is_under_replicated(self) -> bool:
        return len(self.isr) < len(self.replicas)

    @property
    def is_led_by_preferred(self) -> bool:
        return bool(self.replicas) and self.replicas[0] == self.leader

    @property
    def offset_range(self) -> int | None:
        """The difference of end and start: the number of records, if none was removed in between."""
        return None if self.start is None or self.end is None else self.end - self.start


@dataclass(slots=True)
class TopicGroup:
    """A group that has committed offsets in a topic, and its lag there; None if an end offset is unknown."""

    group_id: str
    lag: int | None


@dataclass(slots=True)
class TopicSnapshot:
    """A topic. Rates are averages of about a minute; None where no broker of ours counts them."""

    name: str
    topic_id: str
    is_internal: bool
    partitions: list[PartitionSnapshot]
    cleanup_policy: str | None = None
    records_per_s: float | None = None
    bytes_in_per_s: float | None = None
    bytes_out_per_s: float | None = None
    groups: list[TopicGroup] = field(default_factory=list)

    @property
    def replication_factor(self) -> int:
        return len(self.partitions[0].replicas) if self.partitions else 0

    @property
    def is_exact(self) -> bool:
        """Whether `records` is an exact count."""
        return all(partition.records is not None for partition in self.partitions)

    @property
    def records(self) -> int | None:
        """The records of the topic; the differences of offsets where they were not counted."""
        total = 0
        for partition in self.partitions:
            count = partition.records if partition.records is not None else partition.offset_range
            if count is None:
                return None
            total += count
        return total

    @property
    def size(self) -> int | None:
        """Bytes of the leaders' logs."""
        sizes = [partition.size for partition in self.partitions]
        return None if any(size is None for size in sizes) else sum(size or 0 for size in sizes)

    @property
    def last_ms(self) -> int | None:
        """The largest timestamp of a record."""
        return max((p.last_ms for p in self.partitions if p.last_ms is not None), default=None)

    @property
    def offline_count(self) -> int:
        return sum(partition.is_offline for partition in self.partitions)

    @property
    def under_replicated_count(self) -> int:
        return sum(partition.is_under_replicated for partition in self.partitions)


@dataclass(slots=True)
class GroupSnapshot:
    """A group with its committed offsets; `lags` has its lag by topic, None if an end offset is unknown."""

    group_id: str
    protocol: str
    state: str
    members: int | None
    coordinator: int | None
    offsets: dict[PartitionKey, int] = field(default_factory=dict)
    lags: dict[str, int | None] = field(default_factory=dict)

    @property
    def lag(self) -> int | None:
        known = [lag for lag in self.lags.values() if lag is not None]
        return sum(known) if len(known) == len(self.lags) else None


@dataclass(slots=True)
class Totals:
    """Sums over all topics; `records` and `topics` without internal topics, `size` None if one is unknown.

    `broker_ids` are the brokers that have replicas, alive or not.
    """

    topics: int = 0
    partitions: int = 0
    records: int = 0
    is_exact: bool = True
    size: int | None = 0
    offline: list[str] = field(default_factory=list)
    under_replicated: list[str] = field(default_factory=list)
    broker_ids: set[int] = field(default_factory=set)


@dataclass(slots=True)
class ClusterSnapshot:
    """The cluster at one moment. `notes` says in sentences what could not be read."""

    cluster_id: str
    controller: int | None
    brokers: list[BrokerSnapshot]
    topics: dict[str, TopicSnapshot]
    groups: dict[str, GroupSnapshot]
    taken_ms: int
    notes: list[str] = field(default_factory=list)
    _totals: Totals | None = None

    @property
    def totals(self) -> Totals:
        """The sums, computed once: many pages show them."""
        if self._totals is None:
            self._totals = totals = Totals()
            for topic in self.topics.values():
                _add(totals, topic)
        return self._totals

    def add_lags(self) -> None:
        """Compute the lag of each group in each topic, and list the groups of each topic."""
        for topic in self.topics.values():
            topic.groups = []
        for group in self.groups.values():
            lags: dict[str, int | None] = {}
            for (name, index), offset in group.offsets.items():
                topic_of = self.topics.get(name)
                if topic_of is None:
                    continue
                end = topic_of.partitions[index].end if index < len(topic_of.partitions) else None
                before = lags.get(name, 0)
                lags[name] = None if end is None or before is None else before + max(end - offset, 0)
            group.lags = lags
            for name, lag in lags.items():
                self.topics[name].groups.append(TopicGroup(group.group_id, lag))


def _add(totals: Totals, topic: TopicSnapshot) -> None:
    totals.partitions += len(topic.partitions)
    if not topic.is_internal:
        totals.topics += 1
        totals.records += topic.records or 0
        totals.is_exact = totals.is_exact and topic.is_exact
    size = topic.size
    totals.size = None if size is None or totals.size is None else totals.size + size
    for partition in topic.partitions:
        totals.broker_ids.update(partition.replicas)
        if partition.is_offline:
            totals.offline.append(f"{topic.name}-{partition.index}")
        elif partition.is_under_replicated:
            totals.under_replicated.append(f"{topic.name}-{partition.index}")
