"""ElectLeaders (43) v0-2, AlterPartitionReassignments (45) v0-1, ListPartitionReassignments (46) v0.

- One broker has every partition, so it answers like a Kafka cluster of one broker.
- ElectLeaders: a partition with a leader is ELECTION_NOT_NEEDED. A partition without a leader, whose log is
  offline, is PREFERRED_LEADER_NOT_AVAILABLE, in an unclean election ELIGIBLE_LEADERS_NOT_AVAILABLE. An
  election of all partitions answers with the failed ones only. An unknown type is INVALID_REQUEST.
- AlterPartitionReassignments: a reassignment to the current replicas succeeds at once. Other replicas, none,
  one twice or an unknown broker are INVALID_REPLICA_ASSIGNMENT. Cancelling is NO_REASSIGNMENT_IN_PROGRESS.
- ListPartitionReassignments: the answer is empty, also for topics that do not exist.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from tidelog.errors import (
    ElectionNotNeeded,
    EligibleLeadersNotAvailable,
    InvalidReplicaAssignment,
    InvalidRequest,
    KafkaError,
    NoReassignmentInProgress,
    PreferredLeaderNotAvailable,
    UnknownTopicOrPartition,
)
from tidelog.metadata.state import NO_LEADER, ClusterState, PartitionState
from tidelog.network.request import Request
from tidelog.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
)
from tidelog.protocol.messages.elect_leaders import ElectLeadersRequest, ElectLeadersResponse
from tidelog.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from tidelog.server.apis.api import Api
from tidelog.server.services import Services
from tidelog.slices import Slices, mapped

PREFERRED = 0
UNCLEAN = 1


def elect_leaders(
    services: Services, request: Request, body: ElectLeadersRequest
) -> Slices[ElectLeadersResponse]:
    state = services.metadata.snapshot
    if body.topic_partitions is None:
        wanted = [(topic.name, list(topic.partitions)) for topic in state.topics.values()]
    else:
        wanted = [(topic.topic, topic.partitions) for topic in body.topic_partitions]
    unknown_kind = body.election_type not in (PREFERRED, UNCLEAN)
    answer = ElectLeadersResponse(error_code=InvalidRequest.code if unknown_kind else 0)
    for name, indexes in wanted:
        results = yield from mapped(partial(_elect, state, body.election_type, name), indexes)
        if body.topic_partitions is None:
            results = [result for result in results if result.error_code != ElectionNotNeeded.code]
        answer.replica_election_results.append(
            ElectLeadersResponse.ReplicaElectionResult(topic=name, partition_result=results)
        )
        yield
    return answer


def _elect(state: ClusterState, kind: int, name: str, index: int) -> ElectLeadersResponse.PartitionResult:
    reason = _why_no_election(state, name, index, kind)
    return ElectLeadersResponse.PartitionResult(
        partition_id=index, error_code=reason.code, error_message=str(reason)
    )


def _why_no_election(state: ClusterState, name: str, index: int, kind: int) -> KafkaError:
    if kind not in (PREFERRED, UNCLEAN):
        return InvalidRequest(f"election type {kind} is not known: 0 is preferred, 1 is unclean")
    try:
        partition = _partition(state, name, index)
    except UnknownTopicOrPartition as error:
        return error
    if partition.leader != NO_LEADER:
        return ElectionNotNeeded(f"partition {name}-{index} is led by the broker that should lead it")
    if kind == PREFERRED:
        return PreferredLeaderNotAvailable(f"the preferred replica of partition {name}-{index} is offline")
    return EligibleLeadersNotAvailable(f"every replica of partition {name}-{index} is offline")


def alter_partition_reassignments(
    services: Services, request: Request, body: AlterPartitionReassignmentsRequest
) -> Slices[AlterPartitionReassignmentsResponse]:
    state = services.metadata.snapshot
    answer = AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=body.allow_replication_factor_change, error_message=None
    )
    for topic in body.topics:
        partitions = yield from mapped(partial(_reassign, state, topic.name), topic.partitions)
        answer.responses.append(
            AlterPartitionReassignmentsResponse.ReassignableTopicResponse(
                name=topic.name, partitions=partitions
            )
        )
        yield
    return answer


def _reassign(
    state: ClusterState, name: str, wanted: AlterPartitionReassignmentsRequest.ReassignablePartition
) -> AlterPartitionReassignmentsResponse.ReassignablePartitionResponse:
    result = AlterPartitionReassignmentsResponse.ReassignablePartitionResponse(
        partition_index=wanted.partition_index, error_message=None
    )
    try:
        _check_reassignment(state, name, wanted.partition_index, wanted.replicas)
    except KafkaError as error:
        result.error_code, result.error_message = error.code, str(error)
    return result


def _check_reassignment(state: ClusterState, name: str, index: int, replicas: Sequence[int] | None) -> None:
    partition = _partition(state, name, index)
    what = f"the assignment {replicas} of partition {name}-{index}"
    if replicas is None:
        raise NoReassignmentInProgress(f"partition {name}-{index} is not being moved")
    if not replicas:
        raise InvalidReplicaAssignment(f"{what} names no broker")
    absent = next((replica for replica in replicas if replica not in state.brokers), None)
    if absent is not None:
        raise InvalidReplicaAssignment(f"{what} names broker {absent}, which is not there")
    if len(set(replicas)) < len(replicas):
        raise InvalidReplicaAssignment(f"{what} names a broker more than once")
    if list(replicas) != partition.replicas:
        raise InvalidReplicaAssignment(
            f"{what} is another than {partition.replicas}, and replicas do not move between brokers"
        )


def list_partition_reassignments(
    services: Services, request: Request, body: ListPartitionReassignmentsRequest
) -> ListPartitionReassignmentsResponse:
    return ListPartitionReassignmentsResponse(error_message=None)


def _partition(state: ClusterState, name: str, index: int) -> PartitionState:
    topic = state.topics.get(name)
    if topic is None:
        raise UnknownTopicOrPartition(f"there is no topic {name}")
    if index not in topic.partitions:
        raise UnknownTopicOrPartition(
            f"there is no partition {index} in topic {name}, which has {len(topic.partitions)}"
        )
    return topic.partitions[index]


APIS = (
    Api(43, 0, 2, elect_leaders, forwarded=True),
    Api(45, 0, 1, alter_partition_reassignments, forwarded=True),
    Api(46, 0, 0, list_partition_reassignments, forwarded=True),
)
