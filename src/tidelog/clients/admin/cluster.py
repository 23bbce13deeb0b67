"""The cluster itself: brokers, features, quorum, log folders, reassignments, elections."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from tidelog.clients.admin.acls import AclOperation, operations_of
from tidelog.clients.admin.client import AsyncAdmin
from tidelog.clients.admin.driver import Outcomes, by_topic
from tidelog.clients.admin.results import Results, error_from, raise_for, settled
from tidelog.clients.controllers import CONTROLLERS
from tidelog.clients.metadata import BrokerNode
from tidelog.errors import ElectionNotNeeded, KafkaError, UnsupportedVersion
from tidelog.partitions import PartitionKey
from tidelog.protocol.election_type import ElectionType
from tidelog.protocol.messages.add_raft_voter import AddRaftVoterRequest, AddRaftVoterResponse
from tidelog.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
)
from tidelog.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
)
from tidelog.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from tidelog.protocol.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from tidelog.protocol.messages.describe_log_dirs import DescribeLogDirsRequest, DescribeLogDirsResponse
from tidelog.protocol.messages.describe_quorum import DescribeQuorumRequest, DescribeQuorumResponse
from tidelog.protocol.messages.elect_leaders import ElectLeadersRequest, ElectLeadersResponse
from tidelog.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from tidelog.protocol.messages.remove_raft_voter import RemoveRaftVoterRequest, RemoveRaftVoterResponse
from tidelog.protocol.messages.unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse
from tidelog.protocol.messages.update_features import UpdateFeaturesRequest, UpdateFeaturesResponse
from tidelog.protocol.wire import uuid_from_text, uuid_to_text

QUORUM_TOPIC = "__cluster_metadata"


@dataclass(slots=True, frozen=True)
class ClusterDescription:
    cluster_id: str
    controller: int | None
    nodes: list[BrokerNode]
    fenced: frozenset[int]
    authorized_operations: frozenset[AclOperation] | None


class VersionRange(NamedTuple):
    low: int
    high: int


@dataclass(slots=True, frozen=True)
class FeatureMetadata:
    """The finalized features, the features that the broker supports, and the epoch of the finalized ones."""

    finalized: dict[str, VersionRange]
    supported: dict[str, VersionRange]
    epoch: int | None


class UpgradeType(IntEnum):
    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


class FeatureUpdate(NamedTuple):
    """The wanted level of a feature; 0 removes it."""

    max_version_level: int
    upgrade_type: UpgradeType = UpgradeType.UPGRADE


@dataclass(slots=True, frozen=True)
class QuorumReplica:
    replica_id: int
    directory_id: str
    log_end_offset: int
    last_fetch_timestamp: int | None
    last_caught_up_timestamp: int | None


@dataclass(slots=True, frozen=True)
class QuorumInfo:
    leader_id: int
    leader_epoch: int
    high_watermark: int
    voters: list[QuorumReplica]
    observers: list[QuorumReplica]
    endpoints: dict[int, dict[str, tuple[str, int]]]
    """Host and port of each node by listener name."""


class ReplicaInfo(NamedTuple):
    """A replica in a log folder. A future replica is being moved there from another folder."""

    size: int
    offset_lag: int
    is_future: bool


@dataclass(slots=True, frozen=True)
class LogDirDescription:
    """A log folder of a broker: its replicas, or its error."""

    path: str
    error: KafkaError | None
    replicas: dict[PartitionKey, ReplicaInfo]
    total_bytes: int | None
    usable_bytes: int | None
    is_cordoned: bool


class Replica(NamedTuple):
    topic: str
    partition: int
    broker_id: int


@dataclass(slots=True, frozen=True)
class ReplicaLogDirInfo:
    """The log folder of a replica, and the folder that it is being moved to."""

    current_log_dir: str | None
    current_offset_lag: int
    future_log_dir: str | None
    future_offset_lag: int


class PartitionReassignment(NamedTuple):
    replicas: list[int]
    adding_replicas: list[int]
    removing_replicas: list[int]


async def describe_cluster(
    self: AsyncAdmin,
    *,
    include_authorized_operations: bool = False,
    include_fenced_brokers: bool = False,
    timeout: float | None = None,
) -> ClusterDescription:
    """The cluster's id, its brokers (with bootstrap.controllers its controllers) and its controller."""
    deadline = self.driver.deadline(timeout)
    connection = await self.driver.any_connection(deadline, "describe_cluster")
    if not connection.serves(DescribeClusterRequest):
        found = await self.driver.metadata((), deadline)
        nodes = [BrokerNode(node.node_id, node.host, node.port, node.rack) for node in found.brokers]
        controller = None if found.controller_id < 0 else found.controller_id
        return ClusterDescription(found.cluster_id or "", controller, nodes, frozenset(), None)
    if include_fenced_brokers and connection.version_for(DescribeClusterRequest) < 2:
        raise UnsupportedVersion(
            f"the broker {connection.node.address} does not tell of fenced brokers (DescribeCluster 2)"
        )
    request = DescribeClusterRequest(
        include_cluster_authorized_operations=include_authorized_operations,
        include_fenced_brokers=include_fenced_brokers,
    )
    if self.driver.client.speaks_with_controllers:
        request.endpoint_type = CONTROLLERS
    answer = await self.driver.ask_any(request, DescribeClusterResponse, deadline)
    raise_for(answer.error_code, answer.error_message, "the cluster")
    return ClusterDescription(
        answer.cluster_id,
        None if answer.controller_id < 0 else answer.controller_id,
        [BrokerNode(node.broker_id, node.host, node.port, node.rack) for node in answer.brokers],
        frozenset(node.broker_id for node in answer.brokers if node.is_fenced),
        operations_of(answer.cluster_authorized_operations),
    )


async def describe_api_versions(
    self: AsyncAdmin, broker_id: int, *, timeout: float | None = None
) -> dict[int, VersionRange]:
    """The versions of each API that a broker supports, by API key."""
    answer = await _api_versions(self, broker_id, timeout)
    return {entry.api_key: VersionRange(entry.min_version, entry.max_version) for entry in answer.api_keys}


# Features


async def describe_features(
    self: AsyncAdmin, *, broker_id: int | None = None, timeout: float | None = None
) -> FeatureMetadata:
    """The finalized features of the cluster, and the features that one broker supports."""
    answer = await _api_versions(self, broker_id, timeout)
    return FeatureMetadata(
        {
            feature.name: VersionRange(feature.min_version_level, feature.max_version_level)
            for feature in answer.finalized_features
        },
        {
            feature.name: VersionRange(feature.min_version, feature.max_version)
            for feature in answer.supported_features
        },
        None if answer.finalized_features_epoch < 0 else answer.finalized_features_epoch,
    )


async def update_features(
    self: AsyncAdmin,
    updates: Mapping[str, FeatureUpdate],
    *,
    validate_only: bool = False,
    timeout: float | None = None,
) -> None:
    """Change the levels of features, all of them or none."""
    deadline = self.driver.deadline(timeout)
    request = UpdateFeaturesRequest(
        timeout_ms=self.driver.timeout_ms(deadline),
        feature_updates=[
            UpdateFeaturesRequest.FeatureUpdateKey(
                feature=name, max_version_level=update.max_version_level, upgrade_type=update.upgrade_type
            )
            for name, update in updates.items()
        ],
        validate_only=validate_only,
    )
    answer = await self.driver.ask_controller(
        request, UpdateFeaturesResponse, deadline, lambda found: found.error_code
    )
    raise_for(answer.error_code, answer.error_message, "features")
    for result in answer.results:
        raise_for(result.error_code, result.error_message, f"feature {result.feature}")


async def describe_metadata_quorum(self: AsyncAdmin, *, timeout: float | None = None) -> QuorumInfo:
    """The voters and observers of the metadata quorum, and their log end offsets."""
    request = DescribeQuorumRequest(
        topics=[
            DescribeQuorumRequest.TopicData(
                topic_name=QUORUM_TOPIC,
                partitions=[DescribeQuorumRequest.PartitionData(partition_index=0)],
            )
        ]
    )
    answer = await self.driver.ask_any(request, DescribeQuorumResponse, self.driver.deadline(timeout))
    raise_for(answer.error_code, answer.error_message, "the quorum")
    partition = answer.topics[0].partitions[0]
    raise_for(partition.error_code, partition.error_message, "the quorum")
    return QuorumInfo(
        partition.leader_id,
        partition.leader_epoch,
        partition.high_watermark,
        [_quorum_replica(found) for found in partition.current_voters],
        [_quorum_replica(found) for found in partition.observers],
        {
            node.node_id: {listener.name: (listener.host, listener.port) for listener in node.listeners}
            for node in answer.nodes
        },
    )


async def add_raft_voter(
    self: AsyncAdmin,
    voter_id: int,
    directory_id: str,
    endpoints: Mapping[str, tuple[str, int]],
    *,
    cluster_id: str | None = None,
    timeout: float | None = None,
) -> None:
    """Add a controller to the voters; `endpoints` has host and port by listener name."""
    deadline = self.driver.deadline(timeout)
    request = AddRaftVoterRequest(
        cluster_id=cluster_id,
        timeout_ms=self.driver.timeout_ms(deadline),
        voter_id=voter_id,
        voter_directory_id=uuid_from_text(directory_id),
        listeners=[
            AddRaftVoterRequest.Listener(name=name, host=host, port=port)
            for name, (host, port) in endpoints.items()
        ],
    )
    answer = await self.driver.ask_any(request, AddRaftVoterResponse, deadline)
    raise_for(answer.error_code, answer.error_message, f"voter {voter_id}")


async def remove_raft_voter(
    self: AsyncAdmin,
    voter_id: int,
    directory_id: str,
    *,
    cluster_id: str | None = None,
    timeout: float | None = None,
) -> None:
    """Remove a controller from the voters."""
    request = RemoveRaftVoterRequest(
        cluster_id=cluster_id, voter_id=voter_id, voter_directory_id=uuid_from_text(directory_id)
    )
    answer = await self.driver.ask_any(request, RemoveRaftVoterResponse, self.driver.deadline(timeout))
    raise_for(answer.error_code, answer.error_message, f"voter {voter_id}")


async def unregister_broker(self: AsyncAdmin, broker_id: int, *, timeout: float | None = None) -> None:
    """Remove the registration of a broker that will not come back."""
    request = UnregisterBrokerRequest(broker_id=broker_id)
    answer = await self.driver.ask_any(request, UnregisterBrokerResponse, self.driver.deadline(timeout))
    raise_for(answer.error_code, answer.error_message, f"broker {broker_id}")


# Log folders


async def describe_log_dirs(
    self: AsyncAdmin,
    broker_ids: Iterable[int] | None = None,
    *,
    partial: bool = False,
    timeout: float | None = None,
) -> Results[int, dict[str, LogDirDescription]]:
    """The log folders of brokers and their replicas; of all brokers without an argument."""
    deadline = self.driver.deadline(timeout)
    outcomes: Outcomes[int, dict[str, LogDirDescription]] = {}
    for broker in await self.driver.nodes(deadline) if broker_ids is None else broker_ids:
        try:
            answer = await self.driver.ask_node(
                broker, DescribeLogDirsRequest(topics=None), DescribeLogDirsResponse, deadline
            )
        except KafkaError as error:
            outcomes[broker] = error
            continue
        outcomes[broker] = error_from(answer.error_code, None, f"log folders of broker {broker}") or {
            result.log_dir: _log_dir(result) for result in answer.results
        }
    return settled(outcomes, partial)


async def describe_replica_log_dirs(
    self: AsyncAdmin, replicas: Iterable[Replica], *, partial: bool = False, timeout: float | None = None
) -> Results[Replica, ReplicaLogDirInfo]:
    """The log folders of replicas."""
    wanted = list(replicas)
    found = await describe_log_dirs(
        self, sorted({replica.broker_id for replica in wanted}), partial=True, timeout=timeout
    )
    outcomes: Outcomes[Replica, ReplicaLogDirInfo] = {}
    for replica in wanted:
        error = found.errors.get(replica.broker_id)
        outcomes[replica] = error or _where(replica, found[replica.broker_id])
    return settled(outcomes, partial)


async def alter_replica_log_dirs(
    self: AsyncAdmin,
    assignment: Mapping[Replica, str],
    *,
    partial: bool = False,
    timeout: float | None = None,
) -> Results[Replica, None]:
    """Move replicas to other log folders of their brokers."""
    deadline = self.driver.deadline(timeout)
    outcomes: Outcomes[Replica, None] = {}
    for broker in sorted({replica.broker_id for replica in assignment}):
        own = [replica for replica in assignment if replica.broker_id == broker]
        request = AlterReplicaLogDirsRequest()
        for path in dict.fromkeys(assignment[replica] for replica in own):
            moved = [(found.topic, found.partition) for found in own if assignment[found] == path]
            topics = [
                AlterReplicaLogDirsRequest.AlterReplicaLogDirTopic(name=topic, partitions=indexes)
                for topic, indexes in by_topic(moved).items()
            ]
            request.dirs.append(AlterReplicaLogDirsRequest.AlterReplicaLogDir(path=path, topics=topics))
        try:
            answer = await self.driver.ask_node(broker, request, AlterReplicaLogDirsResponse, deadline)
        except KafkaError as error:
            outcomes |= dict.fromkeys(own, error)
            continue
        for topic in answer.results:
            for partition in topic.partitions:
                replica = Replica(topic.topic_name, partition.partition_index, broker)
                what = f"replica {replica.topic}-{replica.partition} of broker {broker}"
                outcomes[replica] = error_from(partition.error_code, None, what)
    return settled(outcomes, partial)


# Reassignments and elections


async def alter_partition_reassignments(
    self: AsyncAdmin,
    reassignments: Mapping[PartitionKey, Sequence[int] | None],
    *,
    allow_replication_factor_change: bool = True,
    partial: bool = False,
    timeout: float | None = None,
) -> Results[PartitionKey, None]:
    """Reassign partitions to other replicas; None cancels a running reassignment."""
    deadline = self.driver.deadline(timeout)
    request = AlterPartitionReassignmentsRequest(
        timeout_ms=self.driver.timeout_ms(deadline),
        allow_replication_factor_change=allow_replication_factor_change,
    )
    for topic, indexes in by_topic(reassignments).items():
        partitions = []
        for index in indexes:
            replicas = reassignments[topic, index]
            partitions.append(
                AlterPartitionReassignmentsRequest.ReassignablePartition(
                    partition_index=index, replicas=None if replicas is None else list(replicas)
                )
            )
        request.topics.append(
            AlterPartitionReassignmentsRequest.ReassignableTopic(name=topic, partitions=partitions)
        )
    answer = await self.driver.ask_controller(
        request, AlterPartitionReassignmentsResponse, deadline, lambda found: found.error_code
    )
    raise_for(answer.error_code, answer.error_message, "reassignments")
    outcomes: Outcomes[PartitionKey, None] = {
        (found.name, partition.partition_index): error_from(
            partition.error_code,
            partition.error_message,
            f"partition {found.name}-{partition.partition_index}",
        )
        for found in answer.responses
        for partition in found.partitions
    }
    return settled(outcomes, partial)


async def list_partition_reassignments(
    self: AsyncAdmin, partitions: Iterable[PartitionKey] | None = None, *, timeout: float | None = None
) -> dict[PartitionKey, PartitionReassignment]:
    """The running reassignments."""
    deadline = self.driver.deadline(timeout)
    request = ListPartitionReassignmentsRequest(timeout_ms=self.driver.timeout_ms(deadline), topics=None)
    if partitions is not None:
        request.topics = [
            ListPartitionReassignmentsRequest.ListPartitionReassignmentsTopics(
                name=topic, partition_indexes=indexes
            )
            for topic, indexes in by_topic(partitions).items()
        ]
    answer = await self.driver.ask_controller(
        request, ListPartitionReassignmentsResponse, deadline, lambda found: found.error_code
    )
    raise_for(answer.error_code, answer.error_message, "reassignments")
    return {
        (topic.name, found.partition_index): PartitionReassignment(
            found.replicas, found.adding_replicas, found.removing_replicas
        )
        for topic in answer.topics
        for found in topic.partitions
    }


async def elect_leaders(
    self: AsyncAdmin,
    election_type: ElectionType,
    partitions: Iterable[PartitionKey] | None = None,
    *,
    partial: bool = False,
    timeout: float | None = None,
) -> Results[PartitionKey, bool]:
    """Elect the leaders of partitions, or of all partitions; False if an election was not needed."""
    deadline = self.driver.deadline(timeout)
    request = ElectLeadersRequest(
        election_type=election_type, topic_partitions=None, timeout_ms=self.driver.timeout_ms(deadline)
    )
    if partitions is not None:
        request.topic_partitions = [
            ElectLeadersRequest.TopicPartitions(topic=topic, partitions=indexes)
            for topic, indexes in by_topic(partitions).items()
        ]
    answer = await self.driver.ask_controller(
        request, ElectLeadersResponse, deadline, lambda found: found.error_code
    )
    raise_for(answer.error_code, None, "elections")
    outcomes: Outcomes[PartitionKey, bool] = {}
    for topic in answer.replica_election_results:
        for found in topic.partition_result:
            what = f"partition {topic.topic}-{found.partition_id}"
            error = error_from(found.error_code, found.error_message, what)
            needed = not isinstance(error, ElectionNotNeeded)
            outcomes[topic.topic, found.partition_id] = (error or True) if needed else False
    return settled(outcomes, partial)


async def _api_versions(
    self: AsyncAdmin, broker_id: int | None, timeout: float | None
) -> ApiVersionsResponse:
    deadline = self.driver.deadline(timeout)
    request = ApiVersionsRequest(client_software_name="tidelog", client_software_version="admin")
    if broker_id is None:
        answer = await self.driver.ask_any(request, ApiVersionsResponse, deadline)
    else:
        answer = await self.driver.ask_node(broker_id, request, ApiVersionsResponse, deadline)
    raise_for(answer.error_code, None, "versions")
    return answer


def _log_dir(result: DescribeLogDirsResponse.DescribeLogDirsResult) -> LogDirDescription:
    return LogDirDescription(
        result.log_dir,
        error_from(result.error_code, None, f"log folder {result.log_dir}"),
        {
            (topic.name, found.partition_index): ReplicaInfo(
                found.partition_size, found.offset_lag, found.is_future_key
            )
            for topic in result.topics
            for found in topic.partitions
        },
        None if result.total_bytes < 0 else result.total_bytes,
        None if result.usable_bytes < 0 else result.usable_bytes,
        result.is_cordoned,
    )


def _where(replica: Replica, folders: Mapping[str, LogDirDescription]) -> ReplicaLogDirInfo:
    current: tuple[str | None, int] = (None, -1)
    future: tuple[str | None, int] = (None, -1)
    for folder in folders.values():
        found = folder.replicas.get((replica.topic, replica.partition))
        if found is None:
            continue
        if found.is_future:
            future = (folder.path, found.offset_lag)
        else:
            current = (folder.path, found.offset_lag)
    return ReplicaLogDirInfo(*current, *future)


def _quorum_replica(found: DescribeQuorumResponse.ReplicaState) -> QuorumReplica:
    return QuorumReplica(
        found.replica_id,
        uuid_to_text(found.replica_directory_id),
        found.log_end_offset,
        None if found.last_fetch_timestamp < 0 else found.last_fetch_timestamp,
        None if found.last_caught_up_timestamp < 0 else found.last_caught_up_timestamp,
    )
