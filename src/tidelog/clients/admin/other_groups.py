"""Descriptions of share groups and streams groups."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tidelog.clients.admin.acls import AclOperation, operations_of
from tidelog.clients.admin.client import AsyncAdmin
from tidelog.clients.admin.driver import Outcomes
from tidelog.clients.admin.groups import by_group
from tidelog.clients.admin.results import Results, settled
from tidelog.clients.metadata import BrokerNode
from tidelog.partitions import PartitionKey
from tidelog.protocol.messages.share_group_describe import (
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
)
from tidelog.protocol.messages.streams_group_describe import (
    StreamsGroupDescribeRequest,
    StreamsGroupDescribeResponse,
)

Tasks = dict[str, list[int]]
"""Partitions by subtopology."""


@dataclass(slots=True, frozen=True)
class ShareMemberDescription:
    member_id: str
    client_id: str
    host: str
    rack_id: str | None
    member_epoch: int
    subscribed_topics: list[str]
    assignment: list[PartitionKey]


@dataclass(slots=True, frozen=True)
class ShareGroupDescription:
    group_id: str
    state: str
    coordinator: BrokerNode
    group_epoch: int
    target_assignment_epoch: int
    assignor: str
    members: list[ShareMemberDescription]
    authorized_operations: frozenset[AclOperation] | None


@dataclass(slots=True, frozen=True)
class InternalTopic:
    """An internal topic of a streams application."""

    name: str
    partitions: int
    replication_factor: int
    configs: dict[str, str]


@dataclass(slots=True, frozen=True)
class Subtopology:
    subtopology_id: str
    source_topics: list[str]
    repartition_sink_topics: list[str]
    state_changelog_topics: list[InternalTopic]
    repartition_source_topics: list[InternalTopic]


@dataclass(slots=True, frozen=True)
class StreamsAssignment:
    active_tasks: Tasks
    standby_tasks: Tasks
    warmup_tasks: Tasks


@dataclass(slots=True, frozen=True)
class StreamsMemberDescription:
    member_id: str
    member_epoch: int
    group_instance_id: str | None
    rack_id: str | None
    client_id: str
    host: str
    topology_epoch: int
    process_id: str
    endpoint: tuple[str, int] | None
    client_tags: dict[str, str]
    task_offsets: dict[tuple[str, int], int]
    task_end_offsets: dict[tuple[str, int], int]
    assignment: StreamsAssignment
    target_assignment: StreamsAssignment
    is_classic: bool


@dataclass(slots=True, frozen=True)
class StreamsGroupDescription:
    group_id: str
    state: str
    coordinator: BrokerNode
    group_epoch: int
    target_assignment_epoch: int
    topology_epoch: int | None
    subtopologies: list[Subtopology]
    members: list[StreamsMemberDescription]
    authorized_operations: frozenset[AclOperation] | None


async def describe_share_groups(
    self: AsyncAdmin,
    group_ids: Iterable[str],
    *,
    include_authorized_operations: bool = False,
    partial: bool = False,
    timeout: float | None = None,
) -> Results[str, ShareGroupDescription]:
    """Describe share groups with their members."""
    deadline = self.driver.deadline(timeout)

    async def ask(node: int, ids: list[str]) -> Outcomes[str, ShareGroupDescription]:
        coordinator = self.driver.node(node)
        request = ShareGroupDescribeRequest(
            group_ids=ids, include_authorized_operations=include_authorized_operations
        )
        answer = await self.driver.call(node, request, ShareGroupDescribeResponse, deadline)
        return by_group(answer.groups, "share group", lambda group: _share_group(group, coordinator))

    return settled(await self.driver.by_coordinator(group_ids, deadline, ask), partial)


async def describe_streams_groups(
    self: AsyncAdmin,
    group_ids: Iterable[str],
    *,
    include_authorized_operations: bool = False,
    partial: bool = False,
    timeout: float | None = None,
) -> Results[str, StreamsGroupDescription]:
    """Describe streams groups with their topologies, members and tasks."""
    deadline = self.driver.deadline(timeout)

    async def ask(node: int, ids: list[str]) -> Outcomes[str, StreamsGroupDescription]:
        coordinator = self.driver.node(node)
        request = StreamsGroupDescribeRequest(
            group_ids=ids, include_authorized_operations=include_authorized_operations
        )
        answer = await self.driver.call(node, request, StreamsGroupDescribeResponse, deadline)
        return by_group(answer.groups, "streams group", lambda group: _streams_group(group, coordinator))

    return settled(await self.driver.by_coordinator(group_ids, deadline, ask), partial)


def _share_group(
    group: ShareGroupDescribeResponse.DescribedGroup, coordinator: BrokerNode
) -> ShareGroupDescription:
    return ShareGroupDescription(
        group.group_id,
        group.group_state,
        coordinator,
        group.group_epoch,
        group.assignment_epoch,
        group.assignor_name,
        [_share_member(member) for member in group.members],
        operations_of(group.authorized_operations),
    )


def _share_member(member: ShareGroupDescribeResponse.Member) -> ShareMemberDescription:
    return ShareMemberDescription(
        member.member_id,
        member.client_id,
        member.client_host,
        member.rack_id,
        member.member_epoch,
        member.subscribed_topic_names,
        [
            (topic.topic_name, index)
            for topic in member.assignment.topic_partitions
            for index in topic.partitions
        ],
    )


def _streams_group(
    group: StreamsGroupDescribeResponse.DescribedGroup, coordinator: BrokerNode
) -> StreamsGroupDescription:
    topology = group.topology
    return StreamsGroupDescription(
        group.group_id,
        group.group_state,
        coordinator,
        group.group_epoch,
        group.assignment_epoch,
        None if topology is None else topology.epoch,
        [] if topology is None else [_subtopology(found) for found in topology.subtopologies or ()],
        [_streams_member(member) for member in group.members],
        operations_of(group.authorized_operations),
    )


def _streams_member(member: StreamsGroupDescribeResponse.Member) -> StreamsMemberDescription:
    endpoint = member.user_endpoint
    return StreamsMemberDescription(
        member.member_id,
        member.member_epoch,
        member.instance_id,
        member.rack_id,
        member.client_id,
        member.client_host,
        member.topology_epoch,
        member.process_id,
        None if endpoint is None else (endpoint.host, endpoint.port),
        {tag.key: tag.value for tag in member.client_tags},
        {(found.subtopology_id, found.partition): found.offset for found in member.task_offsets},
        {(found.subtopology_id, found.partition): found.offset for found in member.task_end_offsets},
        _streams_assignment(member.assignment),
        _streams_assignment(member.target_assignment),
        member.is_classic,
    )


def _streams_assignment(assignment: StreamsGroupDescribeResponse.Assignment) -> StreamsAssignment:
    return StreamsAssignment(
        _tasks(assignment.active_tasks), _tasks(assignment.standby_tasks), _tasks(assignment.warmup_tasks)
    )


def _tasks(found: list[StreamsGroupDescribeResponse.TaskIds]) -> Tasks:
    return {task.subtopology_id: task.partitions for task in found}


def _subtopology(found: StreamsGroupDescribeResponse.Subtopology) -> Subtopology:
    return Subtopology(
        found.subtopology_id,
        found.source_topics,
        found.repartition_sink_topics,
        [_topic(topic) for topic in found.state_changelog_topics],
        [_topic(topic) for topic in found.repartition_source_topics],
    )


def _topic(topic: StreamsGroupDescribeResponse.TopicInfo) -> InternalTopic:
    configs = {entry.key: entry.value for entry in topic.topic_configs}
    return InternalTopic(topic.name, topic.partitions, topic.replication_factor, configs)
