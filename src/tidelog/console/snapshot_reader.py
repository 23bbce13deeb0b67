"""Reads a ClusterSnapshot: from the broker's memory, and from a few requests for the rest.

A cluster of other brokers takes one Metadata request, two ListOffsets requests for each leader, one
DescribeLogDirs and one ListGroups request for each broker, and one OffsetFetch request for each coordinator.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from tidelog.clients.admin.topics import OffsetSpec
from tidelog.console.snapshot import (
    BrokerSnapshot,
    ClusterSnapshot,
    GroupSnapshot,
    PartitionSnapshot,
    TopicSnapshot,
)
from tidelog.errors import KafkaError
from tidelog.partitions import PartitionKey
from tidelog.protocol.wire import uuid_to_text

if TYPE_CHECKING:
    from tidelog.clients.admin.client import AsyncAdmin
    from tidelog.console.clusters import Cluster


async def read_snapshot(cluster: Cluster) -> ClusterSnapshot:
    """A new snapshot. Raises the KafkaError of a cluster that does not answer."""
    if cluster.local is None:
        snapshot = await _shape(cluster.admin)
        await asyncio.gather(
            _add_offsets(cluster.admin, snapshot, _led(snapshot)),
            _add_sizes(cluster.admin, snapshot, None),
            _add_groups(cluster.admin, snapshot),
        )
    else:
        snapshot = await cluster.local.snapshot()
        if len(snapshot.brokers) > 1:
            here = cluster.local.broker_id
            others = [broker.broker_id for broker in snapshot.brokers if broker.broker_id != here]
            await asyncio.gather(
                _add_offsets(cluster.admin, snapshot, _led(snapshot)),
                _add_sizes(cluster.admin, snapshot, others),
                _add_groups(cluster.admin, snapshot),
            )
    snapshot.add_lags()
    return snapshot


async def _shape(admin: AsyncAdmin) -> ClusterSnapshot:
    """Brokers, topics and partitions by one Metadata request."""
    answer = await admin.driver.metadata(None, admin.driver.deadline(None))
    topics = {}
    for topic in sorted(answer.topics, key=lambda found: found.name or ""):
        if topic.name is None:
            continue
        partitions = [
            PartitionSnapshot(
                partition.partition_index,
                partition.leader_id,
                tuple(partition.replica_nodes),
                tuple(partition.isr_nodes),
                tuple(partition.offline_replicas),
            )
            for partition in sorted(topic.partitions, key=lambda found: found.partition_index)
        ]
        topics[topic.name] = TopicSnapshot(
            topic.name, uuid_to_text(topic.topic_id), topic.is_internal, partitions
        )
    brokers = [BrokerSnapshot(node.node_id, node.host, node.port, node.rack) for node in answer.brokers]
    return ClusterSnapshot(
        answer.cluster_id or "",
        None if answer.controller_id < 0 else answer.controller_id,
        sorted(brokers, key=lambda broker: broker.broker_id),
        topics,
        {},
        round(time.time() * 1000),
    )


def _led(snapshot: ClusterSnapshot) -> list[PartitionKey]:
    """The partitions with a leader whose offsets are not known yet."""
    return [
        (topic.name, partition.index)
        for topic in snapshot.topics.values()
        for partition in topic.partitions
        if partition.leader >= 0 and partition.end is None
    ]


async def _add_offsets(admin: AsyncAdmin, snapshot: ClusterSnapshot, keys: list[PartitionKey]) -> None:
    if not keys:
        return
    try:
        earliest, latest = await asyncio.gather(
            admin.list_offsets(dict.fromkeys(keys, OffsetSpec.EARLIEST), partial=True),
            admin.list_offsets(dict.fromkeys(keys, OffsetSpec.LATEST), partial=True),
        )
    except KafkaError as error:
        snapshot.notes.append(f"Offsets could not be read: {error}")
        return
    starts, ends = dict(earliest), dict(latest)
    for topic, index in keys:
        partition = snapshot.topics[topic].partitions[index]
        start, end = starts.get((topic, index)), ends.get((topic, index))
        partition.start = None if start is None else start.offset
        partition.end = None if end is None else end.offset
    if latest.errors:
        snapshot.notes.append(f"Offsets of {len(latest.errors)} partitions could not be read.")


async def _add_sizes(admin: AsyncAdmin, snapshot: ClusterSnapshot, brokers: Iterable[int] | None) -> None:
    """The sizes of the leaders' logs, from brokers that may be asked."""
    try:
        found = await admin.describe_log_dirs(brokers, partial=True)
    except KafkaError as error:
        snapshot.notes.append(f"Sizes could not be read: {error}")
        return
    for broker, log_dirs in found.items():
        for log_dir in log_dirs.values():
            for (topic, index), replica in log_dir.replicas.items():
                known = snapshot.topics.get(topic)
                if known is None or replica.is_future or index >= len(known.partitions):
                    continue
                if known.partitions[index].leader == broker:
                    known.partitions[index].size = replica.size


async def _add_groups(admin: AsyncAdmin, snapshot: ClusterSnapshot) -> None:
    """The groups and their offsets; groups that the local broker reported are kept."""
    try:
        listed = await admin.list_groups()
        wanted = [group for group in listed if group.group_id not in snapshot.groups]
        offsets = await admin.list_consumer_group_offsets(
            [group.group_id for group in wanted if group.protocol in ("", "consumer")], partial=True
        )
    except KafkaError as error:
        snapshot.notes.append(f"Groups could not be read: {error}")
        return
    committed_by = dict(offsets)
    for group in wanted:
        found = committed_by.get(group.group_id, {})
        snapshot.groups[group.group_id] = GroupSnapshot(
            group.group_id,
            group.type.lower() or "classic",
            group.state,
            None,
            None,
            {key: committed.offset for key, committed in found.items()},
        )
