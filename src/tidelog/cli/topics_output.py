"""How `topics --describe` prints topics and partitions, and which of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import click

from tidelog.clients.admin import (
    Admin,
    ConfigEntry,
    PartitionDescription,
    Reassignment,
    TopicDescription,
)
from tidelog.protocol.wire import uuid_to_text


@dataclass(slots=True, frozen=True)
class Shown:
    """Which topics and partitions are of interest; without any choice, all of both."""

    topics_with_overrides: bool = False
    under_replicated: bool = False
    under_min_isr: bool = False
    at_min_isr: bool = False
    unavailable: bool = False

    @property
    def only_some_partitions(self) -> bool:
        return self.under_replicated or self.under_min_isr or self.at_min_isr or self.unavailable


@dataclass(slots=True, frozen=True)
class PartitionView:
    """A partition with what its state is judged by."""

    topic: str
    partition: PartitionDescription
    live_brokers: frozenset[int]
    min_insync_replicas: int
    reassignment: Reassignment | None

    @property
    def is_under_replicated(self) -> bool:
        adding = len(self.reassignment.adding) if self.reassignment else 0
        return len(self.partition.isr) < len(self.partition.replicas) - adding

    @property
    def is_unavailable(self) -> bool:
        return self.partition.leader is None or self.partition.leader not in self.live_brokers

    @property
    def is_under_min_isr(self) -> bool:
        return self.partition.leader is None or len(self.partition.isr) < self.min_insync_replicas

    @property
    def is_at_min_isr(self) -> bool:
        return len(self.partition.isr) == self.min_insync_replicas

    def is_shown(self, shown: Shown) -> bool:
        if not shown.only_some_partitions:
            return True
        return (
            (shown.under_replicated and self.is_under_replicated)
            or (shown.unavailable and self.is_unavailable)
            or (shown.under_min_isr and self.is_under_min_isr)
            or (shown.at_min_isr and self.is_at_min_isr)
        )

    def as_json(self) -> dict[str, object]:
        partition = self.partition
        return {
            "partition": partition.index,
            "leader": partition.leader,
            "replicas": partition.replicas,
            "isr": partition.isr,
            "elr": partition.eligible_leader_replicas,
            "last_known_elr": partition.last_known_elr,
            "adding": [] if self.reassignment is None else self.reassignment.adding,
            "removing": [] if self.reassignment is None else self.reassignment.removing,
        }

    def line(self) -> str:
        partition = self.partition
        columns = [
            f"\tTopic: {self.topic}",
            f"Partition: {partition.index}",
            f"Leader: {'none' if partition.leader is None else partition.leader}",
            f"Replicas: {joined(partition.replicas)}",
            f"Isr: {joined(partition.isr)}",
            f"Elr: {joined(partition.eligible_leader_replicas)}",
            f"LastKnownElr: {joined(partition.last_known_elr)}",
        ]
        if self.reassignment is not None:
            columns.append(f"Adding Replicas: {joined(self.reassignment.adding)}")
            columns.append(f"Removing Replicas: {joined(self.reassignment.removing)}")
        return "\t".join(columns)


def print_descriptions(admin: Admin, topics: list[TopicDescription], shown: Shown) -> None:
    if not topics:
        return
    configs = admin.topic_configs(topic.name for topic in topics)
    live = frozenset(node.id for node in admin.nodes())
    moving = admin.reassignments()
    for topic in topics:
        entries = configs.get(topic.name, [])
        for line in topic_lines(topic, entries, live, moving, shown):
            click.echo(line)


def describe_as_json(admin: Admin, topics: list[TopicDescription], shown: Shown) -> list[dict[str, object]]:
    """The same as objects: topics with the partitions and settings that are of interest."""
    if not topics:
        return []
    configs = admin.topic_configs(topic.name for topic in topics)
    live = frozenset(node.id for node in admin.nodes())
    moving = admin.reassignments()
    found = []
    for topic in topics:
        entries = configs.get(topic.name, [])
        overrides = {entry.name: entry.value for entry in entries if not entry.is_default}
        views = [view for view in partition_views(topic, entries, live, moving) if view.is_shown(shown)]
        if (shown.topics_with_overrides and not overrides) or (shown.only_some_partitions and not views):
            continue
        found.append(
            {
                "name": topic.name,
                "id": uuid_to_text(topic.topic_id),
                "internal": topic.is_internal,
                "configs": overrides,
                "partitions": [view.as_json() for view in views],
            }
        )
    return found


def partition_views(
    topic: TopicDescription,
    entries: list[ConfigEntry],
    live: frozenset[int],
    moving: dict[tuple[str, int], Reassignment],
) -> Iterator[PartitionView]:
    min_isr = next((int(entry.value or 1) for entry in entries if entry.name == "min.insync.replicas"), 1)
    for partition in topic.partitions:
        yield PartitionView(topic.name, partition, live, min_isr, moving.get((topic.name, partition.index)))


def topic_lines(
    topic: TopicDescription,
    entries: list[ConfigEntry],
    live: frozenset[int],
    moving: dict[tuple[str, int], Reassignment],
    shown: Shown,
) -> Iterator[str]:
    overrides = [entry for entry in entries if not entry.is_default]
    if not shown.only_some_partitions and (overrides or not shown.topics_with_overrides):
        yield topic_line(topic, overrides)
    if shown.topics_with_overrides:
        return
    for view in partition_views(topic, entries, live, moving):
        if view.is_shown(shown):
            yield view.line()


def topic_line(topic: TopicDescription, overrides: list[ConfigEntry]) -> str:
    replication_factor = len(topic.partitions[0].replicas) if topic.partitions else 0
    settings = ",".join(f"{entry.name}={entry.value}" for entry in overrides)
    return (
        f"Topic: {topic.name}\tTopicId: {uuid_to_text(topic.topic_id)}"
        f"\tPartitionCount: {len(topic.partitions)}\tReplicationFactor: {replication_factor}"
        f"\tConfigs: {settings}"
    )


def joined(brokers: list[int] | None) -> str:
    return "N/A" if brokers is None else ",".join(map(str, brokers))
