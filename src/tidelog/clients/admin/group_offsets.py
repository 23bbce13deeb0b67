"""Committed offsets of consumer, streams and share groups: list, alter, delete."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tidelog.clients.admin.client import AsyncAdmin
from tidelog.clients.admin.driver import Deadline, Outcomes, by_topic
from tidelog.clients.admin.groups import by_group, raise_retried
from tidelog.clients.admin.results import Results, error_from, names_in, raise_for, settled
from tidelog.clients.offsets import OffsetAndMetadata
from tidelog.errors import KafkaError
from tidelog.partitions import PartitionKey
from tidelog.protocol.messages.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsResponse,
)
from tidelog.protocol.messages.delete_share_group_offsets import (
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
)
from tidelog.protocol.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsResponse,
)
from tidelog.protocol.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from tidelog.protocol.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse
from tidelog.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchResponse

BATCHED_OFFSETS = 8  # the first version with several groups in a request
# Later versions name topics only by id, and the caller has names.
LAST_BY_NAME = 9


@dataclass(slots=True, frozen=True)
class SharePartitionOffset:
    """The start offset of a share group in a partition. The lag is None if the broker does not report it."""

    start_offset: int
    leader_epoch: int | None
    lag: int | None


GroupOffsets = dict[PartitionKey, OffsetAndMetadata]
ShareOffsets = dict[PartitionKey, SharePartitionOffset]
GroupsToList = Iterable[str] | Mapping[str, Iterable[PartitionKey] | None]
"""The groups, or each group with the partitions to list; None lists all partitions."""


async def list_consumer_group_offsets(
    self: AsyncAdmin,
    group_ids: GroupsToList,
    *,
    require_stable: bool = False,
    partial: bool = False,
    timeout: float | None = None,
) -> Results[str, GroupOffsets]:
    """The committed offsets of groups; `require_stable` waits for open transactions.

    `{"billing": [("orders", 0)]}` lists only some partitions. Partitions without an offset are left out.
    """
    deadline = self.driver.deadline(timeout)
    partitions = _partitions_of(group_ids)

    async def ask(node: int, ids: list[str]) -> Outcomes[str, GroupOffsets]:
        wanted = {group_id: partitions[group_id] for group_id in ids}
        return await _fetch_offsets(self, node, wanted, require_stable, deadline)

    return settled(await self.driver.by_coordinator(partitions, deadline, ask), partial)


async def alter_consumer_group_offsets(
    self: AsyncAdmin,
    group_id: str,
    offsets: Mapping[PartitionKey, OffsetAndMetadata | int],
    *,
    partial: bool = False,
    timeout: float | None = None,
) -> Results[PartitionKey, None]:
    """Commit offsets for a group without members."""
    deadline = self.driver.deadline(timeout)

    async def ask(node: int) -> Outcomes[PartitionKey, None]:
        request = _commit(group_id, offsets)
        connection = await self.driver.client.connection(node, timeout=deadline.left)
        version = connection.version_for(OffsetCommitRequest, at_most=LAST_BY_NAME)
        answer = await connection.call(request, OffsetCommitResponse, version=version)
        raise_retried(
            (partition.error_code for topic in answer.topics for partition in topic.partitions),
            f"offsets of group {group_id!r}",
        )
        return _errors(group_id, answer.topics)

    return settled(await self.driver.by_one_coordinator(group_id, deadline, ask), partial)


async def delete_consumer_group_offsets(
    self: AsyncAdmin,
    group_id: str,
    partitions: Iterable[PartitionKey],
    *,
    partial: bool = False,
    timeout: float | None = None,
) -> Results[PartitionKey, None]:
    """Delete committed offsets of a group in partitions of topics that it does not subscribe to."""
    deadline = self.driver.deadline(timeout)
    wanted = list(partitions)

    async def ask(node: int) -> Outcomes[PartitionKey, None]:
        request = OffsetDeleteRequest(group_id=group_id)
        for topic, indexes in by_topic(wanted).items():
            listed = [OffsetDeleteRequest.OffsetDeleteRequestPartition(partition_index=i) for i in indexes]
            request.topics.append(OffsetDeleteRequest.OffsetDeleteRequestTopic(name=topic, partitions=listed))
        answer = await self.driver.call(node, request, OffsetDeleteResponse, deadline)
        raise_for(answer.error_code, None, f"group {group_id!r}")
        return _errors(group_id, answer.topics)

    return settled(await self.driver.by_one_coordinator(group_id, deadline, ask), partial)


async def list_streams_group_offsets(
    self: AsyncAdmin,
    group_ids: GroupsToList,
    *,
    require_stable: bool = False,
    partial: bool = False,
    timeout: float | None = None,
) -> Results[str, GroupOffsets]:
    """The committed offsets of streams groups."""
    return await list_consumer_group_offsets(
        self, group_ids, require_stable=require_stable, partial=partial, timeout=timeout
    )


async def alter_streams_group_offsets(
    self: AsyncAdmin,
    group_id: str,
    offsets: Mapping[PartitionKey, OffsetAndMetadata | int],
    *,
    partial: bool = False,
    timeout: float | None = None,
) -> Results[PartitionKey, None]:
    """Commit offsets for a streams group without members."""
    return await alter_consumer_group_offsets(self, group_id, offsets, partial=partial, timeout=timeout)


async def delete_streams_group_offsets(
    self: AsyncAdmin,
    group_id: str,
    partitions: Iterable[PartitionKey],
    *,
    partial: bool = False,
    timeout: float | None = None,
) -> Results[PartitionKey, None]:
    """Delete committed offsets of a streams group in partitions of topics that it does not read."""
    return await delete_consumer_group_offsets(self, group_id, partitions, partial=partial, timeout=timeout)


# Share groups


async def list_share_group_offsets(
    self: AsyncAdmin,
    group_ids: GroupsToList,
    *,
    partial: bool = False,
    timeout: float | None = None,
) -> Results[str, ShareOffsets]:
    """The start offsets of share groups, in all partitions or in the given ones."""
    deadline = self.driver.deadline(timeout)
    partitions = _partitions_of(group_ids)

    async def ask(node: int, ids: list[str]) -> Outcomes[str, ShareOffsets]:
        request = DescribeShareGroupOffsetsRequest()
        for group_id in ids:
            wanted = partitions[group_id]
            topics = [
                DescribeShareGroupOffsetsRequest.DescribeShareGroupOffsetsRequestTopic(
                    topic_name=topic, partitions=indexes
                )
                for topic, indexes in by_topic(wanted or ()).items()
            ]
            request.groups.append(
                DescribeShareGroupOffsetsRequest.DescribeShareGroupOffsetsRequestGroup(
                    group_id=group_id, topics=None if wanted is None else topics
                )
            )
        answer = await self.driver.call(node, request, DescribeShareGroupOffsetsResponse, deadline)
        return by_group(answer.groups, "share group", _share_offsets)

    return settled(await self.driver.by_coordinator(partitions, deadline, ask), partial)


async def alter_share_group_offsets(
    self: AsyncAdmin,
    group_id: str,
    offsets: Mapping[PartitionKey, int],
    *,
    partial: bool = False,
    timeout: float | None = None,
) -> Results[PartitionKey, None]:
    """Set the start offsets of a share group without members."""
    deadline = self.driver.deadline(timeout)

    async def ask(node: int) -> Outcomes[PartitionKey, None]:
        request = AlterShareGroupOffsetsRequest(group_id=group_id)
        for topic, indexes in by_topic(offsets).items():
            listed = [
                AlterShareGroupOffsetsRequest.AlterShareGroupOffsetsRequestPartition(
                    partition_index=i, start_offset=offsets[topic, i]
                )
                for i in indexes
            ]
            request.topics.append(
                AlterShareGroupOffsetsRequest.AlterShareGroupOffsetsRequestTopic(
                    topic_name=topic, partitions=listed
                )
            )
        answer = await self.driver.call(node, request, AlterShareGroupOffsetsResponse, deadline)
        raise_for(answer.error_code, answer.error_message, f"share group {group_id!r}")
        return {
            (found.topic_name, partition.partition_index): error_from(
                partition.error_code,
                partition.error_message,
                f"offset of share group {group_id!r} in {found.topic_name}",
            )
            for found in answer.responses
            for partition in found.partitions
        }

    return settled(await self.driver.by_one_coordinator(group_id, deadline, ask), partial)


async def delete_share_group_offsets(
    self: AsyncAdmin,
    group_id: str,
    topics: Iterable[str],
    *,
    partial: bool = False,
    timeout: float | None = None,
) -> Results[str, None]:
    """Delete the offsets of topics of a share group without members."""
    deadline = self.driver.deadline(timeout)
    wanted = names_in(topics)

    async def ask(node: int) -> Outcomes[str, None]:
        request = DeleteShareGroupOffsetsRequest(
            group_id=group_id,
            topics=[
                DeleteShareGroupOffsetsRequest.DeleteShareGroupOffsetsRequestTopic(topic_name=topic)
                for topic in wanted
            ],
        )
        answer = await self.driver.call(node, request, DeleteShareGroupOffsetsResponse, deadline)
        raise_for(answer.error_code, answer.error_message, f"share group {group_id!r}")
        return {
            found.topic_name: error_from(found.error_code, found.error_message, f"topic {found.topic_name!r}")
            for found in answer.responses
        }

    return settled(await self.driver.by_one_coordinator(group_id, deadline, ask), partial)


# Requests


async def _fetch_offsets(
    self: AsyncAdmin,
    node: int,
    wanted: Mapping[str, list[PartitionKey] | None],
    require_stable: bool,
    deadline: Deadline,
) -> Outcomes[str, GroupOffsets]:
    connection = await self.driver.client.connection(node, timeout=deadline.left)
    version = connection.version_for(OffsetFetchRequest, at_most=LAST_BY_NAME)
    found: Outcomes[str, GroupOffsets] = {}
    if version < BATCHED_OFFSETS:
        for group_id, partitions in wanted.items():
            request = OffsetFetchRequest(group_id=group_id, topics=None)
            if partitions is not None:
                request.topics = [
                    OffsetFetchRequest.OffsetFetchRequestTopic(name=topic, partition_indexes=indexes)
                    for topic, indexes in by_topic(partitions).items()
                ]
            answer = await connection.call(request, OffsetFetchResponse, version=version)
            found[group_id] = _offsets(group_id, answer.error_code, answer.topics)
        return found
    request = OffsetFetchRequest(require_stable=require_stable)
    for group_id, partitions in wanted.items():
        group = OffsetFetchRequest.OffsetFetchRequestGroup(group_id=group_id, topics=None)
        if partitions is not None:
            group.topics = [
                OffsetFetchRequest.OffsetFetchRequestTopics(name=topic, partition_indexes=indexes)
                for topic, indexes in by_topic(partitions).items()
            ]
        request.groups.append(group)
    answer = await connection.call(request, OffsetFetchResponse, version=version)
    for described in answer.groups:
        found[described.group_id] = _offsets(described.group_id, described.error_code, described.topics)
    return found


def _partitions_of(groups: GroupsToList) -> dict[str, list[PartitionKey] | None]:
    """The groups, each with the partitions to list, or None."""
    if not isinstance(groups, Mapping):
        return dict.fromkeys(names_in(groups))
    return {group_id: None if wanted is None else list(wanted) for group_id, wanted in groups.items()}


def _offsets(
    group_id: str,
    code: int,
    topics: list[OffsetFetchResponse.OffsetFetchResponseTopic]
    | list[OffsetFetchResponse.OffsetFetchResponseTopics],
) -> GroupOffsets | KafkaError:
    error = error_from(code, None, f"group {group_id!r}")
    if error is not None:
        return error
    found: GroupOffsets = {}
    for topic in topics:
        for partition in topic.partitions:
            what = f"offset of group {group_id!r} in {topic.name}-{partition.partition_index}"
            error = error_from(partition.error_code, None, what)
            if error is not None:
                return error
            if partition.committed_offset >= 0:
                epoch = partition.committed_leader_epoch
                found[topic.name, partition.partition_index] = OffsetAndMetadata(
                    partition.committed_offset, partition.metadata or "", None if epoch < 0 else epoch
                )
    return found


def _errors(
    group_id: str,
    topics: list[OffsetCommitResponse.OffsetCommitResponseTopic]
    | list[OffsetDeleteResponse.OffsetDeleteResponseTopic],
) -> Outcomes[PartitionKey, None]:
    return {
        (topic.name, partition.partition_index): error_from(
            partition.error_code,
            None,
            f"offset of group {group_id!r} in {topic.name}-{partition.partition_index}",
        )
        for topic in topics
        for partition in topic.partitions
    }


def _share_offsets(
    group: DescribeShareGroupOffsetsResponse.DescribeShareGroupOffsetsResponseGroup,
) -> ShareOffsets:
    return {
        (topic.topic_name, partition.partition_index): SharePartitionOffset(
            partition.start_offset,
            None if partition.leader_epoch < 0 else partition.leader_epoch,
            None if partition.lag < 0 else partition.lag,
        )
        for topic in group.topics
        for partition in topic.partitions
        if not partition.error_code and partition.start_offset >= 0
    }


def _commit(group_id: str, offsets: Mapping[PartitionKey, OffsetAndMetadata | int]) -> OffsetCommitRequest:
    request = OffsetCommitRequest(group_id=group_id)
    for topic, indexes in by_topic(offsets).items():
        partitions = []
        for index in indexes:
            given = offsets[topic, index]
            offset = OffsetAndMetadata(given) if isinstance(given, int) else given
            if offset.offset < 0:
                raise ValueError(f"offset {offset.offset} of {topic}-{index}: expected 0 or more")
            partitions.append(
                OffsetCommitRequest.OffsetCommitRequestPartition(
                    partition_index=index,
                    committed_offset=offset.offset,
                    committed_leader_epoch=-1 if offset.leader_epoch is None else offset.leader_epoch,
                    committed_metadata=offset.metadata,
                )
            )
        request.topics.append(OffsetCommitRequest.OffsetCommitRequestTopic(name=topic, partitions=partitions))
    return request
