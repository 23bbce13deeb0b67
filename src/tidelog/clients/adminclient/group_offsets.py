"""What groups have committed: list, set, forget; for consumer, streams and share groups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tidelog.clients.adminclient.base import AdminBase, Deadline, Outcomes, by_topic
from tidelog.clients.adminclient.groups import raise_passing
from tidelog.clients.adminclient.results import Results, error_from, names_in, settled
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

BATCHED_OFFSETS = 8  # the first version that asks for the offsets of several groups at once
# Later versions speak of topics by their ids alone, and what is asked here are names.
LAST_BY_NAME = 9


@dataclass(slots=True, frozen=True)
class OffsetAndMetadata:
    offset: int
    metadata: str = ""
    leader_epoch: int | None = None


@dataclass(slots=True, frozen=True)
class SharePartitionOffset:
    """Where a share group begins to read; the lag is None where the broker does not tell it."""

    start_offset: int
    leader_epoch: int | None
    lag: int | None


GroupOffsets = dict[PartitionKey, OffsetAndMetadata]
ShareOffsets = dict[PartitionKey, SharePartitionOffset]
GroupsToList = Iterable[str] | Mapping[str, Iterable[PartitionKey] | None]
"""Groups with all that they have, or each with the partitions that are asked about; None is for all."""


class GroupOffsetAdmin(AdminBase):
    async def list_consumer_group_offsets(
        self,
        group_ids: GroupsToList,
        *,
        require_stable: bool = False,
        partial: bool = False,
        timeout: float | None = None,
    ) -> Results[str, GroupOffsets]:
        """Everything that each of the groups has committed; `require_stable` waits for open transactions.

        `{"billing": [("orders", 0)]}` asks about some partitions; one without an offset is left out.
        """
        deadline = self._deadline(timeout)
        partitions = _partitions_of(group_ids)

        async def ask(node: int, ids: list[str]) -> Outcomes[str, GroupOffsets]:
            wanted = {group_id: partitions[group_id] for group_id in ids}
            return await self._fetch_offsets(node, wanted, require_stable, deadline)

        return settled(await self._by_coordinator(partitions, deadline, ask), partial)

    async def alter_consumer_group_offsets(
        self,
        group_id: str,
        offsets: Mapping[PartitionKey, OffsetAndMetadata | int],
        *,
        partial: bool = False,
        timeout: float | None = None,
    ) -> Results[PartitionKey, None]:
        """Commit offsets for a group without members."""
        deadline = self._deadline(timeout)

        async def ask(node: int, ids: list[str]) -> Outcomes[str, Outcomes[PartitionKey, None]]:
            request = _commit(group_id, offsets)
            connection = await self._client.connection(node, timeout=deadline.left)
            version = connection.version_for(OffsetCommitRequest, at_most=LAST_BY_NAME)
            answer = await connection.call(request, OffsetCommitResponse, version=version)
            raise_passing(
                (partition.error_code for topic in answer.topics for partition in topic.partitions),
                f"offsets of group {group_id!r}",
            )
            return {
                group_id: {
                    (topic.name, partition.partition_index): error_from(
                        partition.error_code,
                        None,
                        f"offset of group {group_id!r} in {topic.name}-{partition.partition_index}",
                    )
                    for topic in answer.topics
                    for partition in topic.partitions
                }
            }

        outcome = settled(await self._by_coordinator([group_id], deadline, ask), partial=False)
        return settled(outcome[group_id], partial)

    async def delete_consumer_group_offsets(
        self,
        group_id: str,
        partitions: Iterable[PartitionKey],
        *,
        partial: bool = False,
        timeout: float | None = None,
    ) -> Results[PartitionKey, None]:
        """Forget what a group has committed in partitions that it does not read now."""
        deadline = self._deadline(timeout)
        wanted = list(partitions)

        async def ask(node: int, ids: list[str]) -> Outcomes[str, Outcomes[PartitionKey, None]]:
            request = OffsetDeleteRequest(group_id=group_id)
            for topic, indexes in by_topic(wanted).items():
                listed = [
                    OffsetDeleteRequest.OffsetDeleteRequestPartition(partition_index=i) for i in indexes
                ]
                request.topics.append(
                    OffsetDeleteRequest.OffsetDeleteRequestTopic(name=topic, partitions=listed)
                )
            answer = await self._call(node, request, OffsetDeleteResponse, deadline)
            return {
                group_id: error_from(answer.error_code, None, f"group {group_id!r}")
                or {
                    (found.name, partition.partition_index): error_from(
                        partition.error_code,
                        None,
                        f"offset of group {group_id!r} in {found.name}-{partition.partition_index}",
                    )
                    for found in answer.topics
                    for partition in found.partitions
                }
            }

        outcome = settled(await self._by_coordinator([group_id], deadline, ask), partial=False)
        return settled(outcome[group_id], partial)

    async def list_streams_group_offsets(
        self,
        group_ids: GroupsToList,
        *,
        require_stable: bool = False,
        partial: bool = False,
        timeout: float | None = None,
    ) -> Results[str, GroupOffsets]:
        """Everything that each of the streams groups has committed."""
        return await self.list_consumer_group_offsets(
            group_ids, require_stable=require_stable, partial=partial, timeout=timeout
        )

    async def alter_streams_group_offsets(
        self,
        group_id: str,
        offsets: Mapping[PartitionKey, OffsetAndMetadata | int],
        *,
        partial: bool = False,
        timeout: float | None = None,
    ) -> Results[PartitionKey, None]:
        """Commit offsets for a streams group without members."""
        return await self.alter_consumer_group_offsets(group_id, offsets, partial=partial, timeout=timeout)

    async def delete_streams_group_offsets(
        self,
        group_id: str,
        partitions: Iterable[PartitionKey],
        *,
        partial: bool = False,
        timeout: float | None = None,
    ) -> Results[PartitionKey, None]:
        """Forget what a streams group has committed in partitions that it does not read now."""
        return await self.delete_consumer_group_offsets(
            group_id, partitions, partial=partial, timeout=timeout
        )

    # Share groups

    async def list_share_group_offsets(
        self,
        group_ids: GroupsToList,
        *,
        partial: bool = False,
        timeout: float | None = None,
    ) -> Results[str, ShareOffsets]:
        """Where each of the share groups begins to read, in all partitions or in those that are named."""
        deadline = self._deadline(timeout)
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
            answer = await self._call(node, request, DescribeShareGroupOffsetsResponse, deadline)
            return {
                group.group_id: error_from(
                    group.error_code, group.error_message, f"share group {group.group_id!r}"
                )
                or {
                    (topic.topic_name, partition.partition_index): SharePartitionOffset(
                        partition.start_offset,
                        None if partition.leader_epoch < 0 else partition.leader_epoch,
                        None if partition.lag < 0 else partition.lag,
                    )
                    for topic in group.topics
                    for partition in topic.partitions
                    if not partition.error_code and partition.start_offset >= 0
                }
                for group in answer.groups
            }

        return settled(await self._by_coordinator(partitions, deadline, ask), partial)

    async def alter_share_group_offsets(
        self,
        group_id: str,
        offsets: Mapping[PartitionKey, int],
        *,
        partial: bool = False,
        timeout: float | None = None,
    ) -> Results[PartitionKey, None]:
        """Set where a share group without members begins to read."""
        deadline = self._deadline(timeout)

        async def ask(node: int, ids: list[str]) -> Outcomes[str, Outcomes[PartitionKey, None]]:
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
            answer = await self._call(node, request, AlterShareGroupOffsetsResponse, deadline)
            return {
                group_id: error_from(answer.error_code, answer.error_message, f"share group {group_id!r}")
                or {
                    (found.topic_name, partition.partition_index): error_from(
                        partition.error_code,
                        partition.error_message,
                        f"offset of share group {group_id!r} in {found.topic_name}",
                    )
                    for found in answer.responses
                    for partition in found.partitions
                }
            }

        outcome = settled(await self._by_coordinator([group_id], deadline, ask), partial=False)
        return settled(outcome[group_id], partial)

    async def delete_share_group_offsets(
        self,
        group_id: str,
        topics: Iterable[str],
        *,
        partial: bool = False,
        timeout: float | None = None,
    ) -> Results[str, None]:
        """Forget what a share group without members has read of topics."""
        deadline = self._deadline(timeout)
        wanted = names_in(topics)

        async def ask(node: int, ids: list[str]) -> Outcomes[str, Outcomes[str, None]]:
            request = DeleteShareGroupOffsetsRequest(
                group_id=group_id,
                topics=[
                    DeleteShareGroupOffsetsRequest.DeleteShareGroupOffsetsRequestTopic(topic_name=topic)
                    for topic in wanted
                ],
            )
            answer = await self._call(node, request, DeleteShareGroupOffsetsResponse, deadline)
            return {
                group_id: error_from(answer.error_code, answer.error_message, f"share group {group_id!r}")
                or {
                    found.topic_name: error_from(
                        found.error_code, found.error_message, f"topic {found.topic_name!r}"
                    )
                    for found in answer.responses
                }
            }

        outcome = settled(await self._by_coordinator([group_id], deadline, ask), partial=False)
        return settled(outcome[group_id], partial)

    # Asking

    async def _fetch_offsets(
        self,
        node: int,
        wanted: Mapping[str, list[PartitionKey] | None],
        require_stable: bool,
        deadline: Deadline,
    ) -> Outcomes[str, GroupOffsets]:
        connection = await self._client.connection(node, timeout=deadline.left)
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
        for told in answer.groups:
            found[told.group_id] = _offsets(told.group_id, told.error_code, told.topics)
        return found


def _partitions_of(groups: GroupsToList) -> dict[str, list[PartitionKey] | None]:
    """The groups, each with the partitions that are asked about, or None."""
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
