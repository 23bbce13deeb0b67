"""ClusterStatus: brokers, controller, leaders, and partitions that are not as they should be."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidelog.clients.admin import Admin, TopicDescription

NAMES_SHOWN = 10


@dataclass(slots=True)
class BrokerStatus:
    """A broker that is alive, or that has replicas: then without an address."""

    broker_id: int
    address: str | None
    rack: str | None
    leaders: int
    replicas: int
    out_of_sync: int


@dataclass(slots=True)
class ClusterStatus:
    cluster_id: str
    controller: int | None
    brokers: list[BrokerStatus]
    topics: int
    partitions: int
    without_leader: list[str]
    """Partitions such as "orders-0" that nobody can read or write at present."""

    out_of_sync: list[str]
    """Partitions with a replica that is not in sync."""

    def as_json(self) -> dict[str, object]:
        return {
            "cluster": self.cluster_id,
            "controller": self.controller,
            "brokers": [
                {
                    "id": broker.broker_id,
                    "address": broker.address,
                    "rack": broker.rack,
                    "leaders": broker.leaders,
                    "replicas": broker.replicas,
                    "outOfSync": broker.out_of_sync,
                }
                for broker in self.brokers
            ],
            "topics": self.topics,
            "partitions": self.partitions,
            "withoutLeader": self.without_leader,
            "outOfSync": self.out_of_sync,
        }

    def lines(self) -> list[str]:
        """The summary for people."""
        lines = [f"cluster {self.cluster_id}: topics {self.topics:,}, partitions {self.partitions:,}"]
        if self.controller is None:
            lines.append("no broker is the controller")
        if self.without_leader:
            lines.append(
                f"{len(self.without_leader):,} partitions without leader: {_some(self.without_leader)}"
            )
        if self.out_of_sync:
            lines.append(
                f"{len(self.out_of_sync):,} partitions with replicas out of sync: {_some(self.out_of_sync)}"
            )
        return lines


def _some(names: list[str]) -> str:
    more = len(names) - NAMES_SHOWN
    return ", ".join(names[:NAMES_SHOWN]) + (f" and {more:,} more" if more > 0 else "")


def cluster_status(admin: Admin) -> ClusterStatus:
    """Ask the cluster; also internal topics count."""
    described = admin.describe_cluster()
    names = admin.list_topics(list_internal=True)
    return summed_up(
        described.cluster_id,
        described.controller,
        {node.id: (node.address, node.rack) for node in described.nodes},
        list(admin.describe_topics(names).values()) if names else [],
    )


def summed_up(
    cluster_id: str,
    controller: int | None,
    live: dict[int, tuple[str, str | None]],
    topics: list[TopicDescription],
) -> ClusterStatus:
    leaders: Counter[int] = Counter()
    replicas: Counter[int] = Counter()
    out_of_sync: Counter[int] = Counter()
    without_leader, behind = [], []
    for topic in topics:
        for partition in topic.partitions:
            name = f"{topic.name}-{partition.partition}"
            replicas.update(partition.replicas)
            missing = set(partition.replicas) - set(partition.isr)
            out_of_sync.update(missing)
            if missing:
                behind.append(name)
            if partition.leader is None:
                without_leader.append(name)
            else:
                leaders[partition.leader] += 1
    brokers = []
    for broker_id in sorted({*live, *replicas}):
        address, rack = live.get(broker_id, (None, None))
        brokers.append(
            BrokerStatus(
                broker_id,
                address,
                rack,
                leaders[broker_id],
                replicas[broker_id],
                out_of_sync[broker_id],
            )
        )
    partitions = sum(len(topic.partitions) for topic in topics)
    return ClusterStatus(cluster_id, controller, brokers, len(topics), partitions, without_leader, behind)
