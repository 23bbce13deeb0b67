"""Groups of every kind: list, describe, delete, remove members.

Requests about a group go to its coordinator. `other_groups` describes share and streams groups, and
`group_offsets` has the offsets.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from tidelog.clients.admin.acls import AclOperation, operations_of
from tidelog.clients.admin.client import AsyncAdmin
from tidelog.clients.admin.driver import RETRIED, Deadline, Outcomes
from tidelog.clients.admin.results import Results, error_from, names_in, raise_for, settled
from tidelog.clients.metadata import BrokerNode
from tidelog.errors import (
    GroupIdNotFound,
    InconsistentGroupProtocol,
    KafkaError,
    UnknownServerError,
    UnsupportedVersion,
    error_class,
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
from tidelog.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse
from tidelog.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse

T = TypeVar("T")
G = TypeVar("G", bound="AnsweredGroup")

CONSUMER_PROTOCOL = "consumer"
BATCHED_LEAVE = 3  # the first version that removes several members, also by instance id
REMOVED_BY_ADMIN = "member was removed by an admin"


@dataclass(slots=True, frozen=True)
class GroupListing:
    """A group. Type and state are empty if the broker is too old to report them."""

    group_id: str
    type: str
    protocol: str
    state: str

    @property
    def is_simple_consumer_group(self) -> bool:
        """Whether the group has only offsets, and members never join."""
        return self.type.lower() == "classic" and not self.protocol


@dataclass(slots=True, frozen=True)
class MemberDescription:
    """A member. Fields of the newer protocol are None in classic groups."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    host: str
    assignment: list[PartitionKey]
    target_assignment: list[PartitionKey] | None = None
    member_epoch: int | None = None
    upgraded: bool | None = None
    rack_id: str | None = None
    subscribed_topics: list[str] = field(default_factory=list)
    subscribed_regex: str | None = None


@dataclass(slots=True, frozen=True)
class ConsumerGroupDescription:
    group_id: str
    type: str
    state: str
    coordinator: BrokerNode
    partition_assignor: str
    members: list[MemberDescription]
    group_epoch: int | None = None
    target_assignment_epoch: int | None = None
    authorized_operations: frozenset[AclOperation] | None = None


@dataclass(slots=True, frozen=True)
class ClassicMember:
    """A member of a classic group. The protocol type defines the bytes of metadata and assignment."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    host: str
    metadata: bytes
    assignment: bytes


@dataclass(slots=True, frozen=True)
class ClassicGroupDescription:
    group_id: str
    protocol: str
    protocol_data: str
    state: str
    coordinator: BrokerNode
    members: list[ClassicMember]
    authorized_operations: frozenset[AclOperation] | None = None


async def list_groups(
    self: AsyncAdmin,
    *,
    states: Iterable[str] = (),
    types: Iterable[str] = (),
    protocols: Iterable[str] | None = None,
    timeout: float | None = None,
) -> list[GroupListing]:
    """The groups of all brokers by name, of the given states, types and protocols or of any."""
    deadline = self.driver.deadline(timeout)
    request = ListGroupsRequest(states_filter=list(states), types_filter=list(types))
    wanted = None if protocols is None else set(protocols)
    found: dict[str, GroupListing] = {}
    for node in await self.driver.nodes(deadline):
        for group in await _groups_of(self, node, request, deadline):
            if wanted is None or group.protocol_type in wanted:
                found[group.group_id] = GroupListing(
                    group.group_id, group.group_type, group.protocol_type, group.group_state
                )
    return [found[group_id] for group_id in sorted(found)]


async def list_consumer_groups(
    self: AsyncAdmin,
    *,
    states: Iterable[str] = (),
    types: Iterable[str] = (),
    timeout: float | None = None,
) -> list[GroupListing]:
    """The consumer groups, and the groups that have only offsets."""
    return await list_groups(
        self, states=states, types=types, protocols=("", CONSUMER_PROTOCOL), timeout=timeout
    )


async def describe_consumer_groups(
    self: AsyncAdmin,
    group_ids: Iterable[str],
    *,
    include_authorized_operations: bool = False,
    partial: bool = False,
    timeout: float | None = None,
) -> Results[str, ConsumerGroupDescription]:
    """Describe consumer groups of both protocols, with their members and assignments."""
    deadline = self.driver.deadline(timeout)
    wanted = names_in(group_ids)
    connection = await self.driver.any_connection(deadline, "describe_consumer_groups")
    found: Outcomes[str, ConsumerGroupDescription] = {}
    if connection.serves(ConsumerGroupDescribeRequest):
        found = await self.driver.by_coordinator(
            wanted,
            deadline,
            lambda node, ids: _describe_new(self, node, ids, include_authorized_operations, deadline),
        )
    # A group that the newer protocol does not have may be a classic group.
    classic = [
        group_id
        for group_id in wanted
        if isinstance(found.get(group_id, GroupIdNotFound("")), GroupIdNotFound | UnsupportedVersion)
    ]
    described = await _describe_classic(self, classic, include_authorized_operations, deadline)
    for group_id, group in described.items():
        found[group_id] = group if isinstance(group, KafkaError) else _as_consumer_group(group)
    return settled({group_id: found[group_id] for group_id in wanted}, partial)


async def describe_classic_groups(
    self: AsyncAdmin,
    group_ids: Iterable[str],
    *,
    include_authorized_operations: bool = False,
    partial: bool = False,
    timeout: float | None = None,
) -> Results[str, ClassicGroupDescription]:
    """Describe classic groups of consumers and of others, such as Connect's workers."""
    deadline = self.driver.deadline(timeout)
    return settled(
        await _describe_classic(self, names_in(group_ids), include_authorized_operations, deadline),
        partial,
    )


async def delete_consumer_groups(
    self: AsyncAdmin, group_ids: Iterable[str], *, partial: bool = False, timeout: float | None = None
) -> Results[str, None]:
    """Delete groups without members, with their offsets."""
    deadline = self.driver.deadline(timeout)

    async def ask(node: int, ids: list[str]) -> Outcomes[str, None]:
        answer = await self.driver.call(
            node, DeleteGroupsRequest(groups_names=ids), DeleteGroupsResponse, deadline
        )
        return {
            result.group_id: error_from(result.error_code, None, f"group {result.group_id!r}")
            for result in answer.results
        }

    return settled(await self.driver.by_coordinator(group_ids, deadline, ask), partial)


async def delete_share_groups(
    self: AsyncAdmin, group_ids: Iterable[str], *, partial: bool = False, timeout: float | None = None
) -> Results[str, None]:
    """Delete share groups without members, with their offsets."""
    return await delete_consumer_groups(self, group_ids, partial=partial, timeout=timeout)


async def delete_streams_groups(
    self: AsyncAdmin, group_ids: Iterable[str], *, partial: bool = False, timeout: float | None = None
) -> Results[str, None]:
    """Delete streams groups without members, with their offsets."""
    return await delete_consumer_groups(self, group_ids, partial=partial, timeout=timeout)


async def remove_members_from_consumer_group(
    self: AsyncAdmin,
    group_id: str,
    group_instance_ids: Iterable[str] | None = None,
    *,
    reason: str = "",
    partial: bool = False,
    timeout: float | None = None,
) -> Results[str, None]:
    """Remove members from a group: static members by instance id, or all members without an argument.

    The results are by instance id, or by member id for dynamic members.
    """
    deadline = self.driver.deadline(timeout)
    text = f"{REMOVED_BY_ADMIN}: {reason}" if reason else REMOVED_BY_ADMIN
    if group_instance_ids is None:
        described = await describe_consumer_groups(self, [group_id], timeout=deadline.left)
        members = [
            LeaveGroupRequest.MemberIdentity(
                member_id="" if member.group_instance_id else member.member_id,
                group_instance_id=member.group_instance_id,
                reason=text,
            )
            for member in described[group_id].members
        ]
    else:
        members = [
            LeaveGroupRequest.MemberIdentity(member_id="", group_instance_id=instance, reason=text)
            for instance in names_in(group_instance_ids)
        ]
    if not members:
        return settled({}, partial)

    async def ask(node: int) -> LeaveGroupResponse:
        connection = await self.driver.client.connection(node, timeout=deadline.left)
        if connection.version_for(LeaveGroupRequest) < BATCHED_LEAVE:
            raise UnsupportedVersion(
                f"the broker {connection.node.address} does not take out members (LeaveGroup 3)"
            )
        request = LeaveGroupRequest(group_id=group_id, members=members)
        answer = await self.driver.call(node, request, LeaveGroupResponse, deadline)
        raise_for(answer.error_code, None, f"group {group_id!r}")
        return answer

    answer = await self.driver.by_one_coordinator(group_id, deadline, ask)
    return settled(
        {
            member.group_instance_id or member.member_id: error_from(
                member.error_code, None, f"member {member.group_instance_id or member.member_id}"
            )
            for member in answer.members
        },
        partial,
    )


# Requests


async def _groups_of(
    self: AsyncAdmin, node: int, request: ListGroupsRequest, deadline: Deadline
) -> list[ListGroupsResponse.ListedGroup]:
    connection = await self.driver.client.connection(node, timeout=deadline.left)
    version = connection.version_for(ListGroupsRequest)
    if (request.states_filter and version < 4) or (request.types_filter and version < 5):
        raise UnsupportedVersion(
            f"the broker {connection.node.address} lists groups at version {version}, which cannot "
            "choose them by state (4) or type (5)"
        )

    async def ask() -> list[ListGroupsResponse.ListedGroup]:
        answer = await self.driver.call(node, request, ListGroupsResponse, deadline)
        raise_for(answer.error_code, None, f"groups of broker {node}")
        return answer.groups

    return await self.driver.retrying(deadline, "list_groups", ask)


async def _describe_new(
    self: AsyncAdmin, node: int, group_ids: list[str], authorized: bool, deadline: Deadline
) -> Outcomes[str, ConsumerGroupDescription]:
    coordinator = self.driver.node(node)
    request = ConsumerGroupDescribeRequest(group_ids=group_ids, include_authorized_operations=authorized)
    answer = await self.driver.call(node, request, ConsumerGroupDescribeResponse, deadline)
    return by_group(answer.groups, "group", lambda group: _consumer_group(group, coordinator))


def _consumer_group(
    group: ConsumerGroupDescribeResponse.DescribedGroup, coordinator: BrokerNode
) -> ConsumerGroupDescription:
    return ConsumerGroupDescription(
        group.group_id,
        "Consumer",
        group.group_state,
        coordinator,
        group.assignor_name,
        [_member(member) for member in group.members],
        group.group_epoch,
        group.assignment_epoch,
        operations_of(group.authorized_operations),
    )


async def _describe_classic(
    self: AsyncAdmin, group_ids: list[str], authorized: bool, deadline: Deadline
) -> Outcomes[str, ClassicGroupDescription]:
    async def ask(node: int, ids: list[str]) -> Outcomes[str, ClassicGroupDescription]:
        coordinator = self.driver.node(node)
        request = DescribeGroupsRequest(groups=ids, include_authorized_operations=authorized)
        answer = await self.driver.call(node, request, DescribeGroupsResponse, deadline)
        return {group.group_id: _classic(group, coordinator) for group in answer.groups}

    return await self.driver.by_coordinator(group_ids, deadline, ask)


def _classic(
    group: DescribeGroupsResponse.DescribedGroup, node: BrokerNode
) -> ClassicGroupDescription | KafkaError:
    error = error_from(group.error_code, group.error_message, f"group {group.group_id!r}")
    if error is not None:
        return error
    if group.group_state == "Dead":
        # The state that brokers before DescribeGroups 6 report for a group that does not exist.
        return GroupIdNotFound(f"group {group.group_id!r} does not exist")
    return ClassicGroupDescription(
        group.group_id,
        group.protocol_type,
        group.protocol_data,
        group.group_state,
        node,
        [
            ClassicMember(
                member.member_id,
                member.group_instance_id,
                member.client_id,
                member.client_host,
                member.member_metadata,
                member.member_assignment,
            )
            for member in group.members
        ],
        operations_of(group.authorized_operations),
    )


def _as_consumer_group(group: ClassicGroupDescription) -> ConsumerGroupDescription | KafkaError:
    if group.protocol not in ("", CONSUMER_PROTOCOL):
        # The message of Kafka's client, which scripts around its tool know.
        return InconsistentGroupProtocol(
            f"GroupId {group.group_id} is not a consumer group ({group.protocol})."
        )
    return ConsumerGroupDescription(
        group.group_id,
        "Classic",
        group.state,
        group.coordinator,
        group.protocol_data,
        [
            MemberDescription(
                member.member_id,
                member.group_instance_id,
                member.client_id,
                member.host,
                decode_assignment(member.assignment),
            )
            for member in group.members
        ],
        authorized_operations=group.authorized_operations,
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
        member.rack_id,
        member.subscribed_topic_names,
        member.subscribed_topic_regex,
    )


def _partitions(assignment: ConsumerGroupDescribeResponse.Assignment) -> list[PartitionKey]:
    return [(topic.topic_name, index) for topic in assignment.topic_partitions for index in topic.partitions]


def decode_assignment(data: bytes) -> list[PartitionKey]:
    """The partitions in an assignment of the consumer protocol; none for empty bytes."""
    if not data:
        return []
    (version,) = struct.unpack_from(">h", data)
    # A newer version begins with the fields of the newest known one: ignore the rest.
    known = min(version, ConsumerProtocolAssignment.VERSIONS.high)
    assignment, _end = decode(ConsumerProtocolAssignment, known, data, 2)
    return [(topic.topic, index) for topic in assignment.assigned_partitions for index in topic.partitions]


class AnsweredGroup(Protocol):
    """The part of an answer about one group."""

    @property
    def group_id(self) -> str: ...

    @property
    def error_code(self) -> int: ...

    @property
    def error_message(self) -> str | None: ...


def by_group(groups: Iterable[G], kind: str, describe: Callable[[G], T]) -> Outcomes[str, T]:
    """The description of each group of an answer, or its error; `kind` names the group in a message."""
    return {
        group.group_id: error_from(group.error_code, group.error_message, f"{kind} {group.group_id!r}")
        or describe(group)
        for group in groups
    }


def raise_retried(codes: Iterable[int], what: str) -> None:
    """Raise if a part of an answer has an error that is retried, so that the whole request is retried."""
    for code in codes:
        if code and issubclass(error_class(code), RETRIED):
            raise error_from(code, None, what) or UnknownServerError(what)
