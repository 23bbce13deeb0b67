"""Replication throttles of a reassignment: set on execute, removed when nothing moves any more.

The rates are settings of the brokers that take part. The throttled replicas are settings of the topics: the
present replicas are throttled as leaders, the added replicas as followers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

import click

from tidelog.cli.reassignment_file import joined
from tidelog.clients.admin.configs import AlterConfigOp, ConfigResource, OpType, ResourceType
from tidelog.partitions import PartitionKey

if TYPE_CHECKING:
    from tidelog.clients.admin import Admin, PartitionReassignment

LEADER_RATE = "leader.replication.throttled.rate"
FOLLOWER_RATE = "follower.replication.throttled.rate"
LOG_DIR_RATE = "replica.alter.log.dirs.io.max.bytes.per.second"
BROKER_THROTTLES = (LEADER_RATE, FOLLOWER_RATE, LOG_DIR_RATE)
LEADER_REPLICAS = "leader.replication.throttled.replicas"
FOLLOWER_REPLICAS = "follower.replication.throttled.replicas"
TOPIC_THROTTLES = (LEADER_REPLICAS, FOLLOWER_REPLICAS)


class PartitionMove(NamedTuple):
    """The brokers that have a partition, and the brokers that get it."""

    sources: frozenset[int]
    destinations: frozenset[int]


def moves_of(
    running: Mapping[PartitionKey, PartitionReassignment],
    wanted: Mapping[PartitionKey, Iterable[int]],
    current: Mapping[PartitionKey, Iterable[int]],
) -> dict[PartitionKey, PartitionMove]:
    """The moves of running reassignments and of wanted replicas, which replace the running ones."""
    moves: dict[PartitionKey, PartitionMove] = {}
    for partition, reassignment in running.items():
        adding = frozenset(reassignment.adding_replicas)
        moves[partition] = PartitionMove(frozenset(reassignment.replicas) - adding, adding)
    for partition, replicas in wanted.items():
        sources = moves[partition].sources if partition in moves else frozenset(current[partition])
        moves[partition] = PartitionMove(sources, frozenset(replicas) - sources)
    return moves


def brokers_of(moves: Mapping[PartitionKey, PartitionMove]) -> list[int]:
    return sorted({broker for move in moves.values() for broker in (*move.sources, *move.destinations)})


def topic_throttles(moves: Mapping[PartitionKey, PartitionMove]) -> dict[str, tuple[str, str]]:
    """The throttled replicas of each topic, of leaders and of followers: `0:1,0:2`."""
    leaders: dict[str, list[str]] = {}
    followers: dict[str, list[str]] = {}
    for (topic, index), move in sorted(moves.items()):
        leaders.setdefault(topic, []).extend(f"{index}:{broker}" for broker in sorted(move.sources))
        followers.setdefault(topic, []).extend(f"{index}:{broker}" for broker in sorted(move.destinations))
    return {topic: (joined(leaders[topic]), joined(followers[topic])) for topic in leaders}


def set_throttles(admin: Admin, moves: Mapping[PartitionKey, PartitionMove], rate: int) -> None:
    """Limit the bytes a second that each broker sends and fetches for the moves."""
    changes = {
        ConfigResource(ResourceType.TOPIC, topic): [
            AlterConfigOp(LEADER_REPLICAS, leaders),
            AlterConfigOp(FOLLOWER_REPLICAS, followers),
        ]
        for topic, (leaders, followers) in topic_throttles(moves).items()
    }
    admin.incremental_alter_configs(changes)
    _set_rates(admin, brokers_of(moves), (LEADER_RATE, FOLLOWER_RATE), rate)
    click.echo(f"The inter-broker throttle limit was set to {rate} B/s")


def set_log_dir_throttle(admin: Admin, brokers: Iterable[int], rate: int) -> None:
    """Limit the bytes a second that brokers copy between their log folders."""
    _set_rates(admin, sorted(brokers), (LOG_DIR_RATE,), rate)
    click.echo(f"The replica-alter-dir throttle limit was set to {rate} B/s")


def _set_rates(admin: Admin, brokers: Iterable[int], names: Iterable[str], rate: int) -> None:
    ops = [AlterConfigOp(name, str(rate)) for name in names]
    admin.incremental_alter_configs(
        {ConfigResource(ResourceType.BROKER, str(broker)): ops for broker in brokers}
    )


def clear_throttles(admin: Admin, brokers: Iterable[int], topics: Iterable[str], *, quiet: bool) -> None:
    """Remove the throttles of brokers and topics. Raises the first error after it tried all of them."""
    ids, names = sorted(brokers), sorted(topics)
    if not quiet:
        click.echo(f"Clearing broker-level throttles on broker{'' if len(ids) == 1 else 's'} {joined(ids)}")
    of_brokers = admin.incremental_alter_configs(
        {ConfigResource(ResourceType.BROKER, str(broker)): _removals(BROKER_THROTTLES) for broker in ids},
        partial=True,
    )
    if not quiet:
        click.echo(f"Clearing topic-level throttles on topic{'' if len(names) == 1 else 's'} {joined(names)}")
    of_topics = admin.incremental_alter_configs(
        {ConfigResource(ResourceType.TOPIC, topic): _removals(TOPIC_THROTTLES) for topic in names},
        partial=True,
    )
    for error in (*of_brokers.errors.values(), *of_topics.errors.values()):
        raise error


def _removals(names: Iterable[str]) -> list[AlterConfigOp]:
    return [AlterConfigOp(name, None, OpType.DELETE) for name in names]
