"""ClusterLoad: the sizes of brokers, topics and groups, and the rates between two looks at them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidelog.clients.admin import Admin
    from tidelog.partitions import PartitionKey

LATEST = -1


@dataclass(slots=True, frozen=True)
class ClusterSample:
    """One look at the cluster."""

    at: float
    cluster_id: str
    controller: int | None
    nodes: dict[int, str]
    leaders: dict[PartitionKey, int | None]
    replicas: dict[int, int]
    out_of_sync: dict[str, int]
    ends: dict[PartitionKey, int]
    sizes: dict[tuple[int, str], int]
    """The bytes of a topic on a broker."""
    groups: dict[str, str]
    """The state of each group."""
    committed: dict[str, dict[PartitionKey, int]] = field(default_factory=dict)


@dataclass(slots=True, frozen=True)
class BrokerLoad:
    broker: int
    address: str
    controller: bool
    leaders: int
    replicas: int
    records_per_second: float
    bytes: int


@dataclass(slots=True, frozen=True)
class TopicLoad:
    topic: str
    partitions: int
    records_per_second: float
    bytes_per_second: float
    bytes: int
    out_of_sync: int


@dataclass(slots=True, frozen=True)
class GroupLoad:
    group: str
    state: str
    lag: int
    consumed_per_second: float
    topics: int


@dataclass(slots=True, frozen=True)
class ClusterLoad:
    cluster: str
    seconds: float
    brokers: list[BrokerLoad]
    topics: list[TopicLoad]
    groups: list[GroupLoad]


def sample(admin: Admin, now: Callable[[], float] = time.monotonic) -> ClusterSample:
    """Ask the cluster: a few requests to each broker, whatever the number of topics."""
    cluster = admin.describe_cluster()
    names = admin.list_topics(list_internal=True)
    topics = admin.describe_topics(names, partial=True) if names else {}
    leaders: dict[PartitionKey, int | None] = {}
    replicas: Counter[int] = Counter()
    behind: Counter[str] = Counter()
    for name, topic in topics.items():
        for partition in topic.partitions:
            leaders[name, partition.partition] = partition.leader
            replicas.update(partition.replicas)
            behind[name] += bool(set(partition.replicas) - set(partition.isr))
    led = [key for key, leader in leaders.items() if leader is not None]
    ends = admin.list_offsets(dict.fromkeys(led, LATEST), partial=True) if led else {}
    sizes: Counter[tuple[int, str]] = Counter()
    for broker, folders in admin.describe_log_dirs([node.id for node in cluster.nodes], partial=True).items():
        for folder in folders.values():
            for (name, _), replica in folder.replicas.items():
                sizes[broker, name] += replica.size
    groups = {group.group_id: group.state for group in admin.list_consumer_groups()}
    offsets = admin.list_consumer_group_offsets(list(groups), partial=True) if groups else {}
    return ClusterSample(
        now(),
        cluster.cluster_id,
        cluster.controller,
        {node.id: node.address for node in cluster.nodes},
        leaders,
        dict(replicas),
        dict(behind),
        {key: info.offset for key, info in ends.items()},
        dict(sizes),
        groups,
        {group: {key: place.offset for key, place in places.items()} for group, places in offsets.items()},
    )


def load_between(before: ClusterSample, after: ClusterSample) -> ClusterLoad:
    """The state at the second look, with rates since the first."""
    seconds = max(after.at - before.at, 0.001)
    written = {key: max(0, end - before.ends.get(key, end)) / seconds for key, end in after.ends.items()}
    return ClusterLoad(
        after.cluster_id,
        seconds,
        _brokers(after, written),
        _topics(before, after, written, seconds),
        _groups(before, after, seconds),
    )


def _brokers(after: ClusterSample, written: dict[PartitionKey, float]) -> list[BrokerLoad]:
    leading: Counter[int] = Counter(leader for leader in after.leaders.values() if leader is not None)
    rates: dict[int, float] = {}
    for key, rate in written.items():
        leader = after.leaders.get(key)
        if leader is not None:
            rates[leader] = rates.get(leader, 0.0) + rate
    return [
        BrokerLoad(
            broker,
            address,
            broker == after.controller,
            leading[broker],
            after.replicas.get(broker, 0),
            rates.get(broker, 0.0),
            sum(size for (owner, _), size in after.sizes.items() if owner == broker),
        )
        for broker, address in sorted(after.nodes.items())
    ]


def _topics(
    before: ClusterSample, after: ClusterSample, written: dict[PartitionKey, float], seconds: float
) -> list[TopicLoad]:
    partitions: Counter[str] = Counter(name for name, _ in after.leaders)
    rates: dict[str, float] = {}
    for (name, _), rate in written.items():
        rates[name] = rates.get(name, 0.0) + rate
    sizes, earlier = _topic_sizes(after), _topic_sizes(before)
    return [
        TopicLoad(
            name,
            count,
            rates.get(name, 0.0),
            max(0, sizes[name] - earlier.get(name, sizes[name])) / seconds,
            sizes[name],
            after.out_of_sync.get(name, 0),
        )
        for name, count in sorted(partitions.items())
    ]


def _topic_sizes(found: ClusterSample) -> Counter[str]:
    sizes: Counter[str] = Counter()
    for (_, name), size in found.sizes.items():
        sizes[name] += size
    return sizes


def _groups(before: ClusterSample, after: ClusterSample, seconds: float) -> list[GroupLoad]:
    found = []
    for group, state in sorted(after.groups.items()):
        committed, earlier = after.committed.get(group, {}), before.committed.get(group, {})
        lag = sum(max(0, after.ends[key] - offset) for key, offset in committed.items() if key in after.ends)
        moved = sum(max(0, offset - earlier.get(key, offset)) for key, offset in committed.items())
        found.append(GroupLoad(group, state, lag, moved / seconds, len({name for name, _ in committed})))
    return found


# With "rate" and "size", groups are sorted by their lag.
TOPIC_SORTS: dict[str, Callable[[TopicLoad], tuple[float, str]]] = {
    "rate": lambda topic: (-topic.records_per_second, topic.topic),
    "size": lambda topic: (-topic.bytes, topic.topic),
    "name": lambda topic: (0, topic.topic),
}
GROUP_SORTS: dict[str, Callable[[GroupLoad], tuple[float, str]]] = {
    "rate": lambda group: (-group.lag, group.group),
    "size": lambda group: (-group.lag, group.group),
    "name": lambda group: (0, group.group),
}
SORTS = tuple(TOPIC_SORTS)
