"""The partitions of a topic as `partitions_for` of producers and consumers returns them."""

from __future__ import annotations

from dataclasses import dataclass

from tidelog.clients.metadata import NO_LEADER, TopicView


@dataclass(slots=True, frozen=True)
class PartitionInfo:
    """A partition and the ids of its brokers; `leader` is None while the partition has none."""

    topic: str
    partition: int
    leader: int | None
    replicas: tuple[int, ...]
    in_sync_replicas: tuple[int, ...]
    offline_replicas: tuple[int, ...]


def partition_infos(topic: TopicView) -> list[PartitionInfo]:
    """The partitions of a topic, in the order of their numbers."""
    return [
        PartitionInfo(
            topic.name,
            number,
            None if entry.leader == NO_LEADER else entry.leader,
            tuple(entry.replicas),
            tuple(entry.isr),
            tuple(entry.offline),
        )
        for number, entry in sorted(topic.partitions.items())
    ]
