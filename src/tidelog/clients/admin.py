"""The administrator's questions and commands to a cluster, blocking: what the command line tools need.

Each method raises the exception class of the error code that the cluster answered with.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar

from tidelog.clients.connection import Connection, split_address
from tidelog.errors import (
    KafkaError,
    LeaderNotAvailable,
    NetworkException,
    NotController,
    RequestTimedOut,
    UnknownTopicOrPartition,
    error_class,
    error_name,
)
from tidelog.partitions import PartitionKey
from tidelog.protocol.message import Message
from tidelog.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsResponse
from tidelog.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from tidelog.protocol.messages.delete_records import DeleteRecordsRequest, DeleteRecordsResponse
from tidelog.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from tidelog.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResponse
from tidelog.protocol.messages.describe_log_dirs import DescribeLogDirsRequest, DescribeLogDirsResponse
from tidelog.protocol.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
)
from tidelog.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from tidelog.protocol.messages.metadata import MetadataRequest, MetadataResponse

if TYPE_CHECKING:
    from tidelog.clients.security import Security

R = TypeVar("R", bound=Message)

TOPIC_RESOURCE = 2
DEFAULT_CONFIG_SOURCE = 5  # nobody set it: the value that the setting is defined with
NO_LEADER = -1
GRACE_SECONDS = 5.0


@dataclass(slots=True, frozen=True)
class Node:
    id: int
    host: str
    port: int
    rack: str | None = None


@dataclass(slots=True, frozen=True)
class TopicListing:
    name: str
    topic_id: bytes
    is_internal: bool


@dataclass(slots=True, frozen=True)
class PartitionDescription:
    """A partition; the two lists of eligible leaders are None where the cluster does not keep them."""

    index: int
    leader: int | None
    replicas: list[int]
    isr: list[int]
    eligible_leader_replicas: list[int] | None
    last_known_elr: list[int] | None


@dataclass(slots=True)
class TopicDescription:
    name: str
    topic_id: bytes
    is_internal: bool
    partitions: list[PartitionDescription] = field(default_factory=list)


@dataclass(slots=True, frozen=True)
class ConfigEntry:
    name: str
    value: str | None
    source: int
    is_sensitive: bool

    @property
    def is_default(self) -> bool:
        return self.source == DEFAULT_CONFIG_SOURCE


@dataclass(slots=True, frozen=True)
class NewTopic:
    """A topic to be made; -1 leaves a count to the cluster, an assignment names the replicas instead."""

    name: str
    partitions: int = -1
    replication_factor: int = -1
    assignment: Sequence[Sequence[int]] = ()
    configs: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True, frozen=True)
class Reassignment:
    adding: list[int]
    removing: list[int]


@dataclass(slots=True, frozen=True)
class ReplicaInfo:
    """A partition in a log folder; a future one is on its way there from another folder."""

    topic: str
    partition: int
    size: int
    offset_lag: int
    is_future: bool


@dataclass(slots=True, frozen=True)
class LogDirDescription:
    """A log folder of a broker: what lies in it, or why nothing can be said about it."""

    path: str
    error: KafkaError | None
    replicas: list[ReplicaInfo]
    total_bytes: int
    usable_bytes: int


class Admin:
    """`with Admin("localhost:9092") as admin: admin.list_topics()`."""

    def __init__(
        self,
        bootstrap: str,
        *,
        client_id: str = "tidelog-admin",
        connect_timeout: float = 10.0,
        request_timeout: float = 30.0,
        security: Security | None = None,
    ) -> None:
        self._client_id = client_id
        self._security = security
        self._connect_timeout = connect_timeout
        self._request_timeout = request_timeout
        self._bootstrap = self._connect_to_any(bootstrap)
        self._controller: Connection | None = None
        self._nodes: dict[tuple[str, int], Connection] = {}

    def close(self) -> None:
        self._bootstrap.close()
        if self._controller is not None:
            self._controller.close()
        for connection in self._nodes.values():
            connection.close()

    @property
    def any_broker(self) -> Connection:
        """The broker that was found first: for what every broker can answer."""
        return self._bootstrap

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def nodes(self) -> list[Node]:
        """The live brokers."""
        answer = self._metadata(MetadataRequest(topics=[], allow_auto_topic_creation=False))
        return [Node(broker.node_id, broker.host, broker.port, broker.rack) for broker in answer.brokers]

    def list_topics(self) -> list[TopicListing]:
        answer = self._metadata(MetadataRequest(topics=None, allow_auto_topic_creation=False))
        return [
            TopicListing(topic.name, topic.topic_id, topic.is_internal)
            for topic in sorted(answer.topics, key=lambda topic: topic.name or "")
            if topic.name is not None
        ]

    def describe_topics(self, names: Iterable[str], *, page_size: int = 2000) -> list[TopicDescription]:
        """Topics by name; one that is not there raises."""
        wanted = sorted(set(names))
        if not wanted:
            return []
        if self._bootstrap.serves(DescribeTopicPartitionsRequest):
            return self._describe_in_pages(wanted, page_size)
        return self._describe_by_metadata(wanted)

    def topic_configs(self, names: Iterable[str]) -> dict[str, list[ConfigEntry]]:
        """Every setting in force for each topic."""
        resources = [
            DescribeConfigsRequest.DescribeConfigsResource(
                resource_type=TOPIC_RESOURCE, resource_name=name, configuration_keys=None
            )
            for name in names
        ]
        answer = self._bootstrap.call(DescribeConfigsRequest(resources=resources), DescribeConfigsResponse)
        configs: dict[str, list[ConfigEntry]] = {}
        for result in answer.results:
            raise_for(result.error_code, result.error_message, f"settings of topic {result.resource_name!r}")
            configs[result.resource_name] = [
                ConfigEntry(entry.name, entry.value, entry.config_source, entry.is_sensitive)
                for entry in result.configs
            ]
        return configs

    def reassignments(self) -> dict[tuple[str, int], Reassignment]:
        """Partitions on their way to other replicas; none where the cluster does not say."""
        if not self._bootstrap.serves(ListPartitionReassignmentsRequest):
            return {}
        request = ListPartitionReassignmentsRequest(timeout_ms=self._timeout_ms, topics=None)
        try:
            answer = self._call_controller(request, ListPartitionReassignmentsResponse)
        except NotController:
            return {}
        if answer.error_code:
            return {}
        return {
            (topic.name, partition.partition_index): Reassignment(
                partition.adding_replicas, partition.removing_replicas
            )
            for topic in answer.topics
            for partition in topic.partitions
        }

    def create_topic(self, topic: NewTopic, *, validate_only: bool = False) -> None:
        creatable = CreateTopicsRequest.CreatableTopic(
            name=topic.name,
            num_partitions=topic.partitions,
            replication_factor=topic.replication_factor,
            assignments=[
                CreateTopicsRequest.CreatableReplicaAssignment(
                    partition_index=index, broker_ids=list(replicas)
                )
                for index, replicas in enumerate(topic.assignment)
            ],
            configs=[
                CreateTopicsRequest.CreatableTopicConfig(name=name, value=value)
                for name, value in topic.configs.items()
            ],
        )
        request = CreateTopicsRequest(
            topics=[creatable], timeout_ms=self._timeout_ms, validate_only=validate_only
        )
        for result in self._call_controller(request, CreateTopicsResponse).topics:
            raise_for(result.error_code, result.error_message, f"topic {topic.name!r}")

    def delete_topics(self, names: Sequence[str]) -> None:
        """Delete topics by name; the first refusal is raised after all were asked for."""
        # Older versions take bare names, newer ones structs; each ignores the other's field.
        states = [DeleteTopicsRequest.DeleteTopicState(name=name) for name in names]
        request = DeleteTopicsRequest(timeout_ms=self._timeout_ms)
        if self._bootstrap.version_for(DeleteTopicsRequest) >= 6:
            request.topics = states
        else:
            request.topic_names = list(names)
        for result in self._call_controller(request, DeleteTopicsResponse).responses:
            raise_for(result.error_code, result.error_message, f"topic {result.name!r}")

    def create_partitions(
        self, name: str, count: int, assignment: Sequence[Sequence[int]] | None = None
    ) -> None:
        """Grow a topic to `count` partitions; the assignment names the replicas of the new ones alone."""
        new = None
        if assignment is not None:
            new = [
                CreatePartitionsRequest.CreatePartitionsAssignment(broker_ids=list(replicas))
                for replicas in assignment
            ]
        topic = CreatePartitionsRequest.CreatePartitionsTopic(name=name, count=count, assignments=new)
        request = CreatePartitionsRequest(topics=[topic], timeout_ms=self._timeout_ms, validate_only=False)
        for result in self._call_controller(request, CreatePartitionsResponse).results:
            raise_for(result.error_code, result.error_message, f"topic {name!r}")

    def log_dirs(self, brokers: Iterable[int]) -> dict[int, list[LogDirDescription]]:
        """The log folders of each of the brokers, with everything in them."""
        nodes = {node.id: node for node in self.nodes()}
        found: dict[int, list[LogDirDescription]] = {}
        for broker in brokers:
            if broker not in nodes:
                raise NetworkException(f"broker {broker} is not in the cluster, which has {sorted(nodes)}")
            answer = self.call_node(
                nodes[broker], DescribeLogDirsRequest(topics=None), DescribeLogDirsResponse
            )
            raise_for(answer.error_code, None, f"log folders of broker {broker}")
            found[broker] = [_described_log_dir(result) for result in answer.results]
        return found

    def delete_records(self, offsets: Mapping[PartitionKey, int]) -> dict[PartitionKey, int | KafkaError]:
        """Drop the records below the offset of each partition, all of them where it is -1.

        For each partition the offset that it begins with now, or why that was refused.
        """
        results: dict[PartitionKey, int | KafkaError] = {}
        by_leader: dict[Node, list[PartitionKey]] = {}
        for partition, leader in self.leaders(offsets).items():
            if isinstance(leader, Node):
                by_leader.setdefault(leader, []).append(partition)
            else:
                results[partition] = leader
        for node, partitions in by_leader.items():
            request = DeleteRecordsRequest(timeout_ms=self._timeout_ms)
            for topic in sorted({name for name, _ in partitions}):
                wanted = [
                    DeleteRecordsRequest.DeleteRecordsPartition(
                        partition_index=index, offset=offsets[topic, index]
                    )
                    for name, index in partitions
                    if name == topic
                ]
                request.topics.append(DeleteRecordsRequest.DeleteRecordsTopic(name=topic, partitions=wanted))
            for answered in self.call_node(node, request, DeleteRecordsResponse).topics:
                for result in answered.partitions:
                    key = (answered.name, result.partition_index)
                    results[key] = error_of(result.error_code) or result.low_watermark
        return results

    @property
    def _timeout_ms(self) -> int:
        return round(self._request_timeout * 1000)

    def _metadata(self, request: MetadataRequest) -> MetadataResponse:
        return self._bootstrap.call(request, MetadataResponse)

    def _describe_in_pages(self, names: list[str], page_size: int) -> list[TopicDescription]:
        """Ask for at most so many partitions at a time; a topic may go over several answers."""
        found: dict[str, TopicDescription] = {}
        request = DescribeTopicPartitionsRequest(
            topics=[DescribeTopicPartitionsRequest.TopicRequest(name=name) for name in names],
            response_partition_limit=page_size,
        )
        while True:
            answer = self._bootstrap.call(request, DescribeTopicPartitionsResponse)
            for topic in answer.topics:
                raise_for(topic.error_code, None, f"topic {topic.name!r}")
                name = topic.name or ""
                description = found.setdefault(
                    name, TopicDescription(name, topic.topic_id, topic.is_internal)
                )
                description.partitions += [
                    PartitionDescription(
                        partition.partition_index,
                        None if partition.leader_id == NO_LEADER else partition.leader_id,
                        partition.replica_nodes,
                        partition.isr_nodes,
                        partition.eligible_leader_replicas,
                        partition.last_known_elr,
                    )
                    for partition in topic.partitions
                ]
            cursor = answer.next_cursor
            if cursor is None:
                return list(found.values())
            request.cursor = DescribeTopicPartitionsRequest.Cursor(
                topic_name=cursor.topic_name, partition_index=cursor.partition_index
            )

    def _describe_by_metadata(self, names: list[str]) -> list[TopicDescription]:
        topics = [MetadataRequest.MetadataRequestTopic(name=name) for name in names]
        answer = self._metadata(MetadataRequest(topics=topics, allow_auto_topic_creation=False))
        descriptions: list[TopicDescription] = []
        for topic in answer.topics:
            raise_for(topic.error_code, None, f"topic {topic.name!r}")
            partitions = [
                PartitionDescription(
                    partition.partition_index,
                    None if partition.leader_id == NO_LEADER else partition.leader_id,
                    partition.replica_nodes,
                    partition.isr_nodes,
                    None,
                    None,
                )
                for partition in sorted(topic.partitions, key=lambda partition: partition.partition_index)
            ]
            descriptions.append(
                TopicDescription(topic.name or "", topic.topic_id, topic.is_internal, partitions)
            )
        return sorted(descriptions, key=lambda description: description.name)

    def leaders(self, partitions: Iterable[PartitionKey]) -> dict[PartitionKey, Node | KafkaError]:
        """Who leads each partition, or why nobody does."""
        wanted = list(partitions)
        topics = [
            MetadataRequest.MetadataRequestTopic(name=name) for name in sorted({name for name, _ in wanted})
        ]
        if not topics:
            return {}
        answer = self._metadata(MetadataRequest(topics=topics, allow_auto_topic_creation=False))
        nodes = {node.node_id: Node(node.node_id, node.host, node.port, node.rack) for node in answer.brokers}
        leaders = {
            (topic.name, partition.partition_index): partition.leader_id
            for topic in answer.topics
            for partition in topic.partitions
        }
        refused = {topic.name: error_of(topic.error_code) for topic in answer.topics}
        found: dict[PartitionKey, Node | KafkaError] = {}
        for name, index in wanted:
            leader = leaders.get((name, index))
            if leader is None:
                found[name, index] = refused.get(name) or UnknownTopicOrPartition(
                    f"partition {name}-{index} does not exist"
                )
            else:
                found[name, index] = nodes.get(leader) or LeaderNotAvailable(
                    f"partition {name}-{index} has no leader at present"
                )
        return found

    def call_node(self, node: Node, request: Message, answer: type[R], *, version: int | None = None) -> R:
        """Ask one broker, over a connection that is kept for the next question."""
        connection = self.connection_to(node)
        try:
            return connection.call(
                request, answer, version=version, timeout=self._request_timeout + GRACE_SECONDS
            )
        except (NetworkException, RequestTimedOut):
            self._nodes.pop((node.host, node.port), None)
            raise

    def connection_to(self, node: Node) -> Connection:
        connection = self._nodes.get((node.host, node.port))
        if connection is None:
            connection = self._nodes[node.host, node.port] = self._connect(node.host, node.port)
        return connection

    def _connect_to_any(self, bootstrap: str) -> Connection:
        """The first of the given addresses that answers."""
        refusals: list[KafkaError] = []
        for address in bootstrap.split(","):
            host, port = split_address(address)
            try:
                return self._connect(host, port)
            except KafkaError as error:
                refusals.append(error)
        if len(refusals) == 1:
            raise refusals[0]
        raise NetworkException("; ".join(map(str, refusals)))

    def _connect(self, host: str, port: int) -> Connection:
        return Connection(
            host,
            port,
            client_id=self._client_id,
            connect_timeout=self._connect_timeout,
            request_timeout=self._request_timeout,
            security=self._security,
        )

    def _call_controller(self, request: Message, answer: type[R]) -> R:
        """Changes go to the controller: with ZooKeeper's brokers no other node takes them."""
        if self._controller is None:
            self._controller = self._find_controller()
        # The cluster is told how long it may take; its own word that it took too long is worth waiting for.
        return self._controller.call(request, answer, timeout=self._request_timeout + GRACE_SECONDS)

    def _find_controller(self) -> Connection:
        metadata = self._metadata(MetadataRequest(topics=[], allow_auto_topic_creation=False))
        for broker in metadata.brokers:
            if broker.node_id == metadata.controller_id:
                return self._connect(broker.host, broker.port)
        raise NotController(f"the cluster has no controller at present (it named {metadata.controller_id})")


def _described_log_dir(result: DescribeLogDirsResponse.DescribeLogDirsResult) -> LogDirDescription:
    replicas = [
        ReplicaInfo(
            topic.name,
            partition.partition_index,
            partition.partition_size,
            partition.offset_lag,
            partition.is_future_key,
        )
        for topic in result.topics
        for partition in topic.partitions
    ]
    return LogDirDescription(
        result.log_dir, error_of(result.error_code), replicas, result.total_bytes, result.usable_bytes
    )


def error_of(code: int) -> KafkaError | None:
    """The exception of an error code that came without words, None where there is no error."""
    return error_from(code, None)


def error_from(code: int, message: str | None) -> KafkaError | None:
    """The exception of an error code, with the cluster's own words where it gave some."""
    return error_class(code)(message or error_name(code)) if code else None


def raise_for(code: int, message: str | None, what: str) -> None:
    """Raise what an error code stands for; the cluster's own words, where it gave some, come first."""
    if code == UnknownTopicOrPartition.code and not message:
        raise UnknownTopicOrPartition(f"{what} does not exist")
    if code:
        raise error_class(code)(message or f"{what}: {error_name(code)}")
