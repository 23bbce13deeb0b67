"""The administrator's questions and commands about groups, blocking: list, describe, offsets, delete.

Each goes to the coordinator of its group. What is wrong with one group is told for that group and leaves the
others alone.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from tidelog.clients.admin import Admin, Node, error_from, error_of
from tidelog.clients.admin_coordinators import GROUP_KEY, PASSING, PAUSE_SECONDS, Coordinators
from tidelog.errors import (
    GroupIdNotFound,
    KafkaError,
    UnsupportedVersion,
)
from tidelog.partitions import PartitionKey
from tidelog.protocol.message import decode
from tidelog.protocol.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)
from tidelog.protocol.messages.consumer_protocol import ConsumerProtocolAssignment
from tidelog.protocol.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from tidelog.protocol.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from tidelog.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from tidelog.protocol.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from tidelog.protocol.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse
from tidelog.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchResponse

T = TypeVar("T")

BATCHED_OFFSETS = 8  # the first version that asks for the offsets of several groups at once
# Later versions speak of topics by their ids alone, and what is asked here are names.
LAST_FETCH_BY_NAME = 9
LAST_COMMIT_BY_NAME = 9
CONSUMER_PROTOCOL = "consumer"


@dataclass(slots=True, frozen=True)
class GroupListing:
    """A group; kind and state are empty where the broker is too old to tell."""

    group_id: str
    protocol: str
    state: str
    kind: str


@dataclass(slots=True, frozen=True)
class MemberDescription:
    """A member; what only the newer protocol has is None in classic groups."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    assignment: list[PartitionKey]
    target_assignment: list[PartitionKey] | None = None
    epoch: int | None = None
    upgraded: bool | None = None


@dataclass(slots=True, frozen=True)
class GroupDescription:
    group_id: str
    state: str
    assignor: str
    coordinator: Node
    members: list[MemberDescription] = field(default_factory=list)
    epoch: int | None = None
    target_epoch: int | None = None


@dataclass(slots=True, frozen=True)
class CommittedOffset:
    offset: int
    leader_epoch: int | None = None
    metadata: str = ""


class GroupAdmin:
    """`GroupAdmin(admin).describe(["orders-readers"])`; every call ends within about `timeout` seconds."""

    def __init__(self, admin: Admin, *, timeout: float = 30.0) -> None:
        self._admin = admin
        self._timeout = timeout
        self._coordinators = Coordinators(admin, GROUP_KEY, timeout=timeout)

    def list_groups(
        self,
        *,
        states: Collection[str] = (),
        kinds: Collection[str] = (),
        protocols: Collection[str] | None = None,
    ) -> list[GroupListing]:
        """The groups of all brokers by name, of any state, kind and protocol where none is given."""
        request = ListGroupsRequest(states_filter=list(states), types_filter=list(kinds))
        found: dict[str, GroupListing] = {}
        for node in self._admin.nodes():
            for group in self._listed(node, request):
                if protocols is None or group.protocol_type in protocols:
                    found[group.group_id] = GroupListing(
                        group.group_id, group.protocol_type, group.group_state, group.group_type
                    )
        return [found[group_id] for group_id in sorted(found)]

    def describe(self, group_ids: Iterable[str]) -> dict[str, GroupDescription | KafkaError]:
        """Consumer groups of both protocols; a group of some other protocol type is an error."""
        wanted = list(dict.fromkeys(group_ids))
        found: dict[str, GroupDescription | KafkaError] = {}
        if self._admin.any_broker.serves(ConsumerGroupDescribeRequest):
            found = self._coordinators.settle(wanted, self._describe_consumer)
        # A group that the newer protocol does not know may be a classic one.
        classic = [
            group_id
            for group_id in wanted
            if isinstance(found.get(group_id, GroupIdNotFound("")), GroupIdNotFound | UnsupportedVersion)
        ]
        return found | self._coordinators.settle(classic, self._describe_classic)

    def offsets(
        self, group_ids: Iterable[str]
    ) -> dict[str, dict[PartitionKey, CommittedOffset] | KafkaError]:
        """Everything that each of the groups has committed."""
        return self._coordinators.settle(group_ids, self._fetch_offsets)

    def alter_offsets(
        self, group_id: str, offsets: Mapping[PartitionKey, int]
    ) -> dict[PartitionKey, KafkaError | None]:
        """Commit offsets for a group without members; why not, for each partition that was refused."""

        def commit(node: Node, groups: list[str]) -> dict[str, dict[PartitionKey, KafkaError | None]]:
            request = OffsetCommitRequest(group_id=group_id)
            for topic, partitions in _by_topic(offsets).items():
                request.topics.append(
                    OffsetCommitRequest.OffsetCommitRequestTopic(
                        name=topic,
                        partitions=[
                            OffsetCommitRequest.OffsetCommitRequestPartition(
                                partition_index=index,
                                committed_offset=offsets[topic, index],
                                committed_metadata="",
                            )
                            for index in partitions
                        ],
                    )
                )
            version = min(
                LAST_COMMIT_BY_NAME, self._admin.connection_to(node).version_for(OffsetCommitRequest)
            )
            answer = self._admin.call_node(node, request, OffsetCommitResponse, version=version)
            refused = {
                (topic.name, partition.partition_index): error_of(partition.error_code)
                for topic in answer.topics
                for partition in topic.partitions
            }
            _raise_passing(refused.values())
            return {group_id: refused}

        return self._coordinators.settle_one(group_id, commit)

    def delete_offsets(
        self, group_id: str, partitions: Collection[PartitionKey]
    ) -> dict[PartitionKey, KafkaError | None]:
        """Forget what a group committed; raises where the group itself is refused."""

        def delete(node: Node, groups: list[str]) -> dict[str, dict[PartitionKey, KafkaError | None]]:
            request = OffsetDeleteRequest(group_id=group_id)
            for topic, indexes in _by_topic(partitions).items():
                wanted = [
                    OffsetDeleteRequest.OffsetDeleteRequestPartition(partition_index=i) for i in indexes
                ]
                request.topics.append(
                    OffsetDeleteRequest.OffsetDeleteRequestTopic(name=topic, partitions=wanted)
                )
            answer = self._admin.call_node(node, request, OffsetDeleteResponse)
            refused = error_of(answer.error_code)
            if refused is not None:
                raise refused
            return {
                group_id: {
                    (topic.name, partition.partition_index): error_of(partition.error_code)
                    for topic in answer.topics
                    for partition in topic.partitions
                }
            }

        return self._coordinators.settle_one(group_id, delete)

    def delete(self, group_ids: Iterable[str]) -> dict[str, KafkaError | None]:
        """Delete groups with their offsets; why not, for each that was refused."""

        def delete(node: Node, groups: list[str]) -> dict[str, KafkaError | None]:
            answer = self._admin.call_node(
                node, DeleteGroupsRequest(groups_names=groups), DeleteGroupsResponse
            )
            return {result.group_id: error_of(result.error_code) for result in answer.results}

        return self._coordinators.settle(group_ids, delete)

    def _listed(self, node: Node, request: ListGroupsRequest) -> list[ListGroupsResponse.ListedGroup]:
        version = self._admin.connection_to(node).version_for(ListGroupsRequest)
        if (request.states_filter and version < 4) or (request.types_filter and version < 5):
            raise UnsupportedVersion(
                f"the broker {node.host}:{node.port} lists groups at version {version}, which cannot choose "
                "them by state (4) or type (5)"
            )
        deadline = time.monotonic() + self._timeout
        while True:
            answer = self._admin.call_node(node, request, ListGroupsResponse)
            error = error_of(answer.error_code)
            if error is None:
                return answer.groups
            if not isinstance(error, PASSING) or time.monotonic() + PAUSE_SECONDS > deadline:
                raise error
            time.sleep(PAUSE_SECONDS)

    def _describe_consumer(
        self, node: Node, group_ids: list[str]
    ) -> dict[str, GroupDescription | KafkaError]:
        request = ConsumerGroupDescribeRequest(group_ids=group_ids)
        found: dict[str, GroupDescription | KafkaError] = {}
        for group in self._admin.call_node(node, request, ConsumerGroupDescribeResponse).groups:
            error = error_from(group.error_code, group.error_message)
            if error is not None:
                found[group.group_id] = error
            else:
                found[group.group_id] = GroupDescription(
                    group.group_id,
                    group.group_state,
                    group.assignor_name,
                    node,
                    [_member(member) for member in group.members],
                    group.group_epoch,
                    group.assignment_epoch,
                )
        return found

    def _describe_classic(self, node: Node, group_ids: list[str]) -> dict[str, GroupDescription | KafkaError]:
        request = DescribeGroupsRequest(groups=group_ids)
        found: dict[str, GroupDescription | KafkaError] = {}
        for group in self._admin.call_node(node, request, DescribeGroupsResponse).groups:
            error = error_from(group.error_code, group.error_message)
            if error is not None:
                found[group.group_id] = error
            elif group.protocol_type not in ("", CONSUMER_PROTOCOL):
                raise ValueError(f"GroupId {group.group_id} is not a consumer group ({group.protocol_type}).")
            else:
                found[group.group_id] = GroupDescription(
                    group.group_id,
                    group.group_state,
                    group.protocol_data,
                    node,
                    [_classic_member(member) for member in group.members],
                )
        return found

    def _fetch_offsets(
        self, node: Node, group_ids: list[str]
    ) -> dict[str, dict[PartitionKey, CommittedOffset] | KafkaError]:
        version = min(LAST_FETCH_BY_NAME, self._admin.connection_to(node).version_for(OffsetFetchRequest))
        if version < BATCHED_OFFSETS:
            return {group_id: self._fetch_offsets_of_one(node, group_id, version) for group_id in group_ids}
        request = OffsetFetchRequest(
            groups=[
                OffsetFetchRequest.OffsetFetchRequestGroup(group_id=group_id, topics=None)
                for group_id in group_ids
            ]
        )
        found: dict[str, dict[PartitionKey, CommittedOffset] | KafkaError] = {}
        for group in self._admin.call_node(node, request, OffsetFetchResponse, version=version).groups:
            found[group.group_id] = error_of(group.error_code) or {
                (topic.name, partition.partition_index): _committed(partition)
                for topic in group.topics
                for partition in topic.partitions
                if not partition.error_code and partition.committed_offset >= 0
            }
        return found

    def _fetch_offsets_of_one(
        self, node: Node, group_id: str, version: int
    ) -> dict[PartitionKey, CommittedOffset] | KafkaError:
        request = OffsetFetchRequest(group_id=group_id, topics=None)
        answer = self._admin.call_node(node, request, OffsetFetchResponse, version=version)
        return error_of(answer.error_code) or {
            (topic.name, partition.partition_index): _committed(partition)
            for topic in answer.topics
            for partition in topic.partitions
            if not partition.error_code and partition.committed_offset >= 0
        }


def decode_assignment(data: bytes) -> list[PartitionKey]:
    """The partitions in what a classic consumer group's leader assigned to a member; none in no bytes."""
    if not data:
        return []
    (version,) = struct.unpack_from(">h", data)
    # A newer version begins like the newest that is known, and what follows may be passed over.
    known = min(version, ConsumerProtocolAssignment.VERSIONS.high)
    assignment, _end = decode(ConsumerProtocolAssignment, known, data, 2)
    return [(topic.topic, index) for topic in assignment.assigned_partitions for index in topic.partitions]


def _classic_member(member: DescribeGroupsResponse.DescribedGroupMember) -> MemberDescription:
    return MemberDescription(
        member.member_id,
        member.group_instance_id,
        member.client_id,
        member.client_host,
        decode_assignment(member.member_assignment),
    )


def _member(member: ConsumerGroupDescribeResponse.Member) -> MemberDescription:
    return MemberDescription(
        member.member_id,
        member.instance_id,
        member.client_id,
        member.client_host,
        _partitions(member.assignment),
        _partitions(member.target_assignment),
        member.member_epoch,
        None if member.member_type < 0 else member.member_type == 1,
    )


def _partitions(assignment: ConsumerGroupDescribeResponse.Assignment) -> list[PartitionKey]:
    return [(topic.topic_name, index) for topic in assignment.topic_partitions for index in topic.partitions]


def _committed(
    partition: OffsetFetchResponse.OffsetFetchResponsePartitions
    | OffsetFetchResponse.OffsetFetchResponsePartition,
) -> CommittedOffset:
    epoch = partition.committed_leader_epoch
    return CommittedOffset(partition.committed_offset, None if epoch < 0 else epoch, partition.metadata or "")


def _by_topic(partitions: Iterable[PartitionKey]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for topic, index in sorted(partitions):
        topics.setdefault(topic, []).append(index)
    return topics


def _raise_passing(errors: Iterable[KafkaError | None]) -> None:
    for error in errors:
        if isinstance(error, PASSING):
            raise error
