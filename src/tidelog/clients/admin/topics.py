"""Topics, partitions and records: create, list, describe, delete, add partitions, list offsets."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TypeVar

from tidelog.clients.admin.acls import AclOperation, operations_of
from tidelog.clients.admin.client import AsyncAdmin
from tidelog.clients.admin.driver import NO_LEADER, Deadline, Outcomes, by_topic
from tidelog.clients.admin.results import Results, error_from, first_code, names_in, settled
from tidelog.config.entries import ConfigEntry, ConfigSource
from tidelog.errors import (
    KafkaError,
    ThrottlingQuotaExceeded,
    UnknownTopicId,
    UnknownTopicOrPartition,
    UnsupportedVersion,
)
from tidelog.partitions import PartitionKey
from tidelog.protocol import offset_specs
from tidelog.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsResponse
from tidelog.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from tidelog.protocol.messages.delete_records import DeleteRecordsRequest, DeleteRecordsResponse
from tidelog.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from tidelog.protocol.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
)
from tidelog.protocol.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from tidelog.protocol.messages.metadata import MetadataRequest, MetadataResponse
from tidelog.protocol.wire import ZERO_UUID, uuid_from_text, uuid_to_text

T = TypeVar("T")
Item = TypeVar("Item")

BY_ID_VERSION = 6  # the first version of DeleteTopics with topic ids
METADATA_BY_ID = 12
PAGE = 2000  # partitions in an answer, as many as Kafka's client requests


class OffsetSpec(IntEnum):
    """Offsets with a name. Any number from 0 on is a timestamp in milliseconds."""

    LATEST = offset_specs.LATEST
    EARLIEST = offset_specs.EARLIEST
    MAX_TIMESTAMP = offset_specs.MAX_TIMESTAMP
    EARLIEST_LOCAL = offset_specs.EARLIEST_LOCAL
    LATEST_TIERED = offset_specs.LATEST_TIERED
    EARLIEST_PENDING_UPLOAD = offset_specs.EARLIEST_PENDING_UPLOAD


@dataclass(slots=True, frozen=True)
class NewTopic:
    """A topic to create. -1 uses the cluster's default; an assignment names the replicas instead."""

    name: str
    num_partitions: int = -1
    replication_factor: int = -1
    replica_assignments: Mapping[int, Sequence[int]] = field(default_factory=dict)
    configs: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True, frozen=True)
class CreatedTopic:
    """A created topic. Without the right to see them its counts are -1 and it has no configs."""

    name: str
    topic_id: str
    num_partitions: int
    replication_factor: int
    configs: dict[str, ConfigEntry]


@dataclass(slots=True, frozen=True)
class NewPartitions:
    """Add partitions up to `total_count`; the assignments have the replicas of the new partitions."""

    total_count: int
    assignments: Sequence[Sequence[int]] | None = None


@dataclass(slots=True, frozen=True)
class TopicListing:
    name: str
    topic_id: str
    is_internal: bool


@dataclass(slots=True, frozen=True)
class TopicPartitionInfo:
    """A partition. The eligible leader replicas are None if the cluster does not have them."""

    partition: int
    leader: int | None
    replicas: list[int]
    isr: list[int]
    offline_replicas: list[int]
    elr: list[int] | None = None
    last_known_elr: list[int] | None = None


@dataclass(slots=True, frozen=True)
class TopicDescription:
    name: str
    topic_id: str
    is_internal: bool
    partitions: list[TopicPartitionInfo]
    authorized_operations: frozenset[AclOperation] | None


@dataclass(slots=True, frozen=True)
class OffsetInfo:
    """An offset and the timestamp of its record, -1 if it has none."""

    offset: int
    timestamp: int
    leader_epoch: int | None


async def create_topics(
    self: AsyncAdmin,
    topics: Iterable[NewTopic],
    *,
    validate_only: bool = False,
    retry_on_quota_violation: bool = True,
    partial: bool = False,
    timeout: float | None = None,
) -> Results[str, CreatedTopic]:
    """Create topics; with `validate_only` only check whether they could be created."""
    deadline = self.driver.deadline(timeout)

    async def ask(wanted: list[NewTopic]) -> Outcomes[str, CreatedTopic]:
        request = CreateTopicsRequest(
            topics=[_creatable(topic) for topic in wanted],
            timeout_ms=self.driver.timeout_ms(deadline),
            validate_only=validate_only,
        )
        answer = await self.driver.ask_controller(
            request, CreateTopicsResponse, deadline, lambda found: first_code(found.topics)
        )
        outcomes: Outcomes[str, CreatedTopic] = {}
        for result in answer.topics:
            error = _refused(result.error_code, result.error_message, result.name)
            outcomes[result.name] = error or _created(result)
        return outcomes

    asked = [(topic.name, topic) for topic in topics]
    return settled(await _by_quota(self, asked, ask, retry_on_quota_violation, deadline), partial)


async def delete_topics(
    self: AsyncAdmin,
    names: Iterable[str],
    *,
    retry_on_quota_violation: bool = True,
    partial: bool = False,
    timeout: float | None = None,
) -> Results[str, None]:
    """Delete topics with their records."""
    deadline = self.driver.deadline(timeout)
    asked = [(name, name) for name in names_in(names)]
    # Older versions have a list of names, newer ones structs; each ignores the other field.
    version = await _delete_version(self, deadline)

    async def ask(wanted: list[str]) -> Outcomes[str, None]:
        request = DeleteTopicsRequest(timeout_ms=self.driver.timeout_ms(deadline))
        if version >= BY_ID_VERSION:
            request.topics = [DeleteTopicsRequest.DeleteTopicState(name=name) for name in wanted]
        else:
            request.topic_names = wanted
        answer = await self.driver.ask_controller(
            request, DeleteTopicsResponse, deadline, lambda found: first_code(found.responses)
        )
        return {
            result.name or "": _refused(result.error_code, result.error_message, result.name or "")
            for result in answer.responses
        }

    return settled(await _by_quota(self, asked, ask, retry_on_quota_violation, deadline), partial)


async def delete_topics_by_id(
    self: AsyncAdmin,
    topic_ids: Iterable[str],
    *,
    retry_on_quota_violation: bool = True,
    partial: bool = False,
    timeout: float | None = None,
) -> Results[str, None]:
    """Delete topics by their ids, which `describe_topics` returns."""
    asked = [(text, uuid_from_text(text)) for text in names_in(topic_ids)]
    deadline = self.driver.deadline(timeout)
    if await _delete_version(self, deadline) < BY_ID_VERSION:
        raise UnsupportedVersion("the broker does not delete topics by id (DeleteTopics 6)")

    async def ask(wanted: list[bytes]) -> Outcomes[str, None]:
        states = [DeleteTopicsRequest.DeleteTopicState(topic_id=topic_id) for topic_id in wanted]
        request = DeleteTopicsRequest(topics=states, timeout_ms=self.driver.timeout_ms(deadline))
        answer = await self.driver.ask_controller(
            request, DeleteTopicsResponse, deadline, lambda found: first_code(found.responses)
        )
        outcomes: Outcomes[str, None] = {}
        for result in answer.responses:
            text = uuid_to_text(result.topic_id)
            outcomes[text] = error_from(result.error_code, result.error_message, f"topic id {text}")
        return outcomes

    return settled(await _by_quota(self, asked, ask, retry_on_quota_violation, deadline), partial)


async def list_topics(
    self: AsyncAdmin, *, list_internal: bool = False, timeout: float | None = None
) -> dict[str, TopicListing]:
    """The topics by name; internal topics only on request."""
    answer = await self.driver.metadata(None, self.driver.deadline(timeout))
    found = {
        topic.name: TopicListing(topic.name, uuid_to_text(topic.topic_id), topic.is_internal)
        for topic in answer.topics
        if topic.name is not None and (list_internal or not topic.is_internal)
    }
    return dict(sorted(found.items()))


async def describe_topics(
    self: AsyncAdmin,
    names: Iterable[str],
    *,
    include_authorized_operations: bool = False,
    partition_size_limit_per_response: int = PAGE,
    partial: bool = False,
    timeout: float | None = None,
) -> Results[str, TopicDescription]:
    """Describe topics with their partitions, leaders and replicas.

    An answer has at most `partition_size_limit_per_response` partitions. The client requests the rest.
    """
    deadline = self.driver.deadline(timeout)
    wanted = sorted(names_in(names))
    if not wanted:
        return settled({}, partial)
    connection = await self.driver.any_connection(deadline, "describe_topics")
    if connection.serves(DescribeTopicPartitionsRequest):
        outcomes = await _describe_in_pages(
            self, wanted, include_authorized_operations, partition_size_limit_per_response, deadline
        )
    else:
        topics = [MetadataRequest.MetadataRequestTopic(name=name) for name in wanted]
        outcomes = await _describe_by_metadata(self, topics, include_authorized_operations, deadline)
    return settled({name: outcomes[name] for name in wanted if name in outcomes}, partial)


async def describe_topics_by_id(
    self: AsyncAdmin,
    topic_ids: Iterable[str],
    *,
    include_authorized_operations: bool = False,
    partial: bool = False,
    timeout: float | None = None,
) -> Results[str, TopicDescription]:
    """Describe topics by id; the results are by id."""
    deadline = self.driver.deadline(timeout)
    wanted = names_in(topic_ids)
    connection = await self.driver.any_connection(deadline, "describe_topics_by_id")
    if connection.version_for(MetadataRequest) < METADATA_BY_ID:
        raise UnsupportedVersion("the broker does not describe topics by id (Metadata 12)")
    topics = [
        MetadataRequest.MetadataRequestTopic(name=None, topic_id=uuid_from_text(text)) for text in wanted
    ]
    found = await _describe_by_metadata(self, topics, include_authorized_operations, deadline)
    by_id: Outcomes[str, TopicDescription] = {
        topic.topic_id: topic for topic in found.values() if isinstance(topic, TopicDescription)
    }
    missing = {
        text: UnknownTopicId(f"topic id {text} does not exist") for text in wanted if text not in by_id
    }
    return settled({text: {**by_id, **missing}[text] for text in wanted}, partial)


async def create_partitions(
    self: AsyncAdmin,
    new_partitions: Mapping[str, NewPartitions],
    *,
    validate_only: bool = False,
    retry_on_quota_violation: bool = True,
    partial: bool = False,
    timeout: float | None = None,
) -> Results[str, None]:
    """Add partitions to topics."""
    deadline = self.driver.deadline(timeout)

    async def ask(wanted: list[CreatePartitionsRequest.CreatePartitionsTopic]) -> Outcomes[str, None]:
        request = CreatePartitionsRequest(
            topics=wanted, timeout_ms=self.driver.timeout_ms(deadline), validate_only=validate_only
        )
        answer = await self.driver.ask_controller(
            request, CreatePartitionsResponse, deadline, lambda found: first_code(found.results)
        )
        return {
            result.name: _refused(result.error_code, result.error_message, result.name)
            for result in answer.results
        }

    asked = [(name, _grown(name, new)) for name, new in new_partitions.items()]
    return settled(await _by_quota(self, asked, ask, retry_on_quota_violation, deadline), partial)


async def delete_records(
    self: AsyncAdmin,
    before: Mapping[PartitionKey, int],
    *,
    partial: bool = False,
    timeout: float | None = None,
) -> Results[PartitionKey, int]:
    """Delete the records before an offset of each partition; -1 deletes all records.

    Returns the new log start offset of each partition.
    """
    deadline = self.driver.deadline(timeout)

    async def ask(node: int, partitions: list[PartitionKey]) -> Outcomes[PartitionKey, int]:
        request = DeleteRecordsRequest(timeout_ms=self.driver.timeout_ms(deadline))
        for topic, indexes in by_topic(partitions).items():
            wanted = [
                DeleteRecordsRequest.DeleteRecordsPartition(partition_index=i, offset=before[topic, i])
                for i in indexes
            ]
            request.topics.append(DeleteRecordsRequest.DeleteRecordsTopic(name=topic, partitions=wanted))
        answer = await self.driver.call(node, request, DeleteRecordsResponse, deadline)
        outcomes: Outcomes[PartitionKey, int] = {}
        for found in answer.topics:
            for result in found.partitions:
                key = (found.name, result.partition_index)
                what = f"records of {found.name}-{result.partition_index} before offset {before.get(key)}"
                outcomes[key] = error_from(result.error_code, None, what) or result.low_watermark
        return outcomes

    return settled(await self.driver.by_leader(before, deadline, ask), partial)


async def list_offsets(
    self: AsyncAdmin,
    specs: Mapping[PartitionKey, OffsetSpec | int],
    *,
    isolation_level: str = "read_uncommitted",
    partial: bool = False,
    timeout: float | None = None,
) -> Results[PartitionKey, OffsetInfo]:
    """Offsets of partitions: the earliest, the latest, that of the newest timestamp, or that of a time.

    For a time it is the offset of the first record with that timestamp or a later one, or -1.
    """
    deadline = self.driver.deadline(timeout)
    needed = max((offset_specs.SINCE_VERSION.get(int(spec), 1) for spec in specs.values()), default=1)

    async def ask(node: int, partitions: list[PartitionKey]) -> Outcomes[PartitionKey, OffsetInfo]:
        connection = await self.driver.client.connection(node, timeout=deadline.left)
        if connection.version_for(ListOffsetsRequest) < needed:
            raise UnsupportedVersion(
                f"the broker {connection.node.address} does not know the kind of offset that was asked "
                f"for: it needs version {needed} of ListOffsets"
            )
        request = ListOffsetsRequest(
            replica_id=-1,
            isolation_level=1 if isolation_level == "read_committed" else 0,
            timeout_ms=self.driver.timeout_ms(deadline),
        )
        for topic, indexes in by_topic(partitions).items():
            wanted = [
                ListOffsetsRequest.ListOffsetsPartition(partition_index=i, timestamp=int(specs[topic, i]))
                for i in indexes
            ]
            request.topics.append(ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=wanted))
        answer = await self.driver.call(node, request, ListOffsetsResponse, deadline)
        return {
            (topic.name, partition.partition_index): error_from(
                partition.error_code, None, f"offset of {topic.name}-{partition.partition_index}"
            )
            or OffsetInfo(
                partition.offset,
                partition.timestamp,
                None if partition.leader_epoch < 0 else partition.leader_epoch,
            )
            for topic in answer.topics
            for partition in topic.partitions
        }

    return settled(await self.driver.by_leader(specs, deadline, ask), partial)


async def _by_quota(
    self: AsyncAdmin,
    asked: list[tuple[str, Item]],
    ask: Callable[[list[Item]], Awaitable[Outcomes[str, T]]],
    again: bool,
    deadline: Deadline,
) -> Outcomes[str, T]:
    """The answers of the controller. Requests over a quota are retried after the throttle time."""
    outcomes = await ask([item for _, item in asked])
    while again:
        waiting = [
            (key, item) for key, item in asked if isinstance(outcomes.get(key), ThrottlingQuotaExceeded)
        ]
        if not waiting:
            break
        first = outcomes[waiting[0][0]]
        assert isinstance(first, KafkaError)
        try:
            await self.driver.pause(deadline, first, f"topic {waiting[0][0]!r}")
        except KafkaError:
            break  # out of time: the result is the quota's error
        try:
            outcomes |= await ask([item for _, item in waiting])
        except KafkaError as error:
            outcomes |= {key: error for key, _ in waiting}
    return outcomes


async def _delete_version(self: AsyncAdmin, deadline: Deadline) -> int:
    """The version of DeleteTopics that the client will use."""
    connection = await self.driver.any_connection(deadline, "delete_topics")
    return connection.version_for(DeleteTopicsRequest)


async def _describe_in_pages(
    self: AsyncAdmin, names: list[str], authorized: bool, page_size: int, deadline: Deadline
) -> dict[str, TopicDescription | KafkaError]:
    """Request a limited number of partitions at a time. A topic may span several answers."""
    found: dict[str, TopicDescription | KafkaError] = {}
    request = DescribeTopicPartitionsRequest(
        topics=[DescribeTopicPartitionsRequest.TopicRequest(name=name) for name in names],
        response_partition_limit=page_size,
    )
    while True:
        answer = await self.driver.ask_any(request, DescribeTopicPartitionsResponse, deadline)
        for topic in answer.topics:
            name = topic.name or ""
            error = _refused(topic.error_code, None, name)
            if error is not None:
                found[name] = error
                continue
            before = found.get(name)
            if not isinstance(before, TopicDescription):
                # This API reports it even if it was not requested.
                operations = operations_of(topic.topic_authorized_operations) if authorized else None
                before = found[name] = TopicDescription(
                    name, uuid_to_text(topic.topic_id), topic.is_internal, [], operations
                )
            before.partitions.extend(
                _partition(found, found.eligible_leader_replicas, found.last_known_elr)
                for found in topic.partitions
            )
        cursor = answer.next_cursor
        if cursor is None:
            return found
        request.cursor = DescribeTopicPartitionsRequest.Cursor(
            topic_name=cursor.topic_name, partition_index=cursor.partition_index
        )


async def _describe_by_metadata(
    self: AsyncAdmin,
    topics: list[MetadataRequest.MetadataRequestTopic],
    authorized: bool,
    deadline: Deadline,
) -> dict[str, TopicDescription | KafkaError]:
    request = MetadataRequest(
        topics=topics,
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=authorized,
    )
    answer = await self.driver.ask_any(request, MetadataResponse, deadline)
    found: dict[str, TopicDescription | KafkaError] = {}
    for topic in answer.topics:
        name = topic.name or uuid_to_text(topic.topic_id)
        error = _refused(topic.error_code, None, name)
        if error is not None:
            found[name] = error
            continue
        partitions = [
            _partition(partition)
            for partition in sorted(topic.partitions, key=lambda partition: partition.partition_index)
        ]
        operations = operations_of(topic.topic_authorized_operations)
        found[name] = TopicDescription(
            name, uuid_to_text(topic.topic_id), topic.is_internal, partitions, operations
        )
    return found


def _partition(
    found: DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponsePartition
    | MetadataResponse.MetadataResponsePartition,
    elr: list[int] | None = None,
    last_known_elr: list[int] | None = None,
) -> TopicPartitionInfo:
    return TopicPartitionInfo(
        found.partition_index,
        None if found.leader_id == NO_LEADER else found.leader_id,
        found.replica_nodes,
        found.isr_nodes,
        found.offline_replicas,
        elr,
        last_known_elr,
    )


def _refused(code: int, message: str | None, name: str) -> KafkaError | None:
    """The error of a topic, with the message of the cluster if there is one."""
    if code == UnknownTopicOrPartition.code and not message:
        return UnknownTopicOrPartition(f"topic {name!r} does not exist")
    return error_from(code, message, f"topic {name!r}")


def _grown(name: str, new: NewPartitions) -> CreatePartitionsRequest.CreatePartitionsTopic:
    topic = CreatePartitionsRequest.CreatePartitionsTopic(name=name, count=new.total_count, assignments=None)
    if new.assignments is not None:
        topic.assignments = [
            CreatePartitionsRequest.CreatePartitionsAssignment(broker_ids=list(replicas))
            for replicas in new.assignments
        ]
    return topic


def _creatable(topic: NewTopic) -> CreateTopicsRequest.CreatableTopic:
    return CreateTopicsRequest.CreatableTopic(
        name=topic.name,
        num_partitions=topic.num_partitions,
        replication_factor=topic.replication_factor,
        assignments=[
            CreateTopicsRequest.CreatableReplicaAssignment(partition_index=index, broker_ids=list(replicas))
            for index, replicas in topic.replica_assignments.items()
        ],
        configs=[
            CreateTopicsRequest.CreatableTopicConfig(name=name, value=value)
            for name, value in topic.configs.items()
        ],
    )


def _created(result: CreateTopicsResponse.CreatableTopicResult) -> CreatedTopic:
    configs = {
        entry.name: ConfigEntry(
            entry.name,
            entry.value,
            ConfigSource(entry.config_source),
            is_sensitive=entry.is_sensitive,
            is_read_only=entry.read_only,
        )
        for entry in result.configs or ()
    }
    topic_id = "" if result.topic_id == ZERO_UUID else uuid_to_text(result.topic_id)
    return CreatedTopic(result.name, topic_id, result.num_partitions, result.replication_factor, configs)
