"""Selects and prints topics and partitions for `topics --describe`."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from tidelog.errors import ClusterAuthorizationFailed, UnsupportedVersion
from tidelog.partitions import PartitionKey

if TYPE_CHECKING:
    from tidelog.clients.admin import (
        Admin,
        ConfigEntry,
        PartitionReassignment,
        TopicDescription,
        TopicPartitionInfo,
    )


@dataclass(slots=True, frozen=True)
class Shown:
    """The selection of topics and partitions; by default all."""

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
    """A partition with the settings and brokers that decide its state."""

    topic: str
    partition: TopicPartitionInfo
    live_brokers: frozenset[int]
    min_insync_replicas: int
    reassignment: PartitionReassignment | None

    @property
    def is_under_replicated(self) -> bool:
        adding = len(self.reassignment.adding_replicas) if self.reassignment else 0
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
            "partition": partition.partition,
            "leader": partition.leader,
            "replicas": partition.replicas,
            "isr": partition.isr,
            "elr": partition.elr,
            "last_known_elr": partition.last_known_elr,
            "adding": [] if self.reassignment is None else self.reassignment.adding_replicas,
            "removing": [] if self.reassignment is None else self.reassignment.removing_replicas,
        }

    def line(self) -> str:
        partition = self.partition
        columns = [
            f"\tTopic: {self.topic}",
            f"Partition: {partition.partition}",
            f"Leader: {'none' if partition.leader is None else partition.leader}",
            f"Replicas: {joined(partition.replicas)}",
            f"Isr: {joined(partition.isr)}",
        ]
        if self.reassignment is not None:
            columns.append(f"Adding Replicas: {joined(self.reassignment.adding_replicas)}")
            columns.append(f"Removing Replicas: {joined(self.reassignment.removing_replicas)}")
        columns.append(f"Elr: {joined(partition.elr)}")
        columns.append(f"LastKnownElr: {joined(partition.last_known_elr)}")
        return "\t".join(columns)


def print_descriptions(admin: Admin, topics: list[TopicDescription], shown: Shown) -> None:
    if not topics:
        return
    configs = topic_configs(admin, topics)
    live = frozenset(node.id for node in admin.describe_cluster().nodes)
    moving = reassignments(admin)
    for topic in topics:
        entries = configs.get(topic.name, ())
        for line in topic_lines(topic, entries, live, moving, shown):
            click.echo(line)


def describe_as_json(admin: Admin, topics: list[TopicDescription], shown: Shown) -> list[dict[str, object]]:
    """The selected topics with their partitions and settings, as objects for JSON."""
    if not topics:
        return []
    configs = topic_configs(admin, topics)
    live = frozenset(node.id for node in admin.describe_cluster().nodes)
    moving = reassignments(admin)
    found = []
    for topic in topics:
        entries = configs.get(topic.name, ())
        overrides = {entry.name: entry.value for entry in entries if not entry.is_default}
        views = [view for view in partition_views(topic, entries, live, moving) if view.is_shown(shown)]
        if (shown.topics_with_overrides and not overrides) or (shown.only_some_partitions and not views):
            continue
        found.append(
            {
                "name": topic.name,
                "id": topic.topic_id,
                "internal": topic.is_internal,
                "configs": overrides,
                "partitions": [view.as_json() for view in views],
            }
        )
    return found


def topic_configs(admin: Admin, topics: list[TopicDescription]) -> dict[str, Collection[ConfigEntry]]:
    """All effective settings of each topic."""
    from tidelog.clients.admin.configs import ConfigResource, ResourceType

    found = admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic.name) for topic in topics])
    return {resource.name: entries.values() for resource, entries in found.items()}


def reassignments(admin: Admin) -> Mapping[PartitionKey, PartitionReassignment]:
    """The reassignments in progress; none if the cluster does not answer."""
    try:
        return admin.list_partition_reassignments()
    except (UnsupportedVersion, ClusterAuthorizationFailed):
        return {}


def partition_views(
    topic: TopicDescription,
    entries: Collection[ConfigEntry],
    live: frozenset[int],
    moving: Mapping[PartitionKey, PartitionReassignment],
) -> Iterator[PartitionView]:
    min_isr = next((int(entry.value or 1) for entry in entries if entry.name == "min.insync.replicas"), 1)
    for partition in topic.partitions:
        yield PartitionView(
            topic.name, partition, live, min_isr, moving.get((topic.name, partition.partition))
        )


def topic_lines(
    topic: TopicDescription,
    entries: Collection[ConfigEntry],
    live: frozenset[int],
    moving: Mapping[PartitionKey, PartitionReassignment],
    shown: Shown,
) -> Iterator[str]:
    overrides = [entry for entry in entries if not entry.is_default]
    if not shown.only_some_partitions and (overrides or not shown.topics_with_overrides):
        yield topic_line(topic, overrides, moving)
    if shown.topics_with_overrides:
        return
    for view in partition_views(topic, entries, live, moving):
        if view.is_shown(shown):
            yield view.line()


def topic_line(
    topic: TopicDescription,
    overrides: list[ConfigEntry],
    moving: Mapping[PartitionKey, PartitionReassignment],
) -> str:
    replication_factor = 0
    if topic.partitions:
        first = topic.partitions[0]
        reassignment = moving.get((topic.name, first.partition))
        adding = len(reassignment.adding_replicas) if reassignment else 0
        replication_factor = len(first.replicas) - adding
    settings = ",".join(f"{entry.name}={entry.value}" for entry in overrides)
    return (
        f"Topic: {topic.name}\tTopicId: {topic.topic_id}"
        f"\tPartitionCount: {len(topic.partitions)}\tReplicationFactor: {replication_factor}"
        f"\tConfigs: {settings}"
    )


def joined(brokers: list[int] | None) -> str:
    return "N/A" if brokers is None else ",".join(map(str, brokers))
