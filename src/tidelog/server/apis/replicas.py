"""ElectLeaders (43) v0-2, AlterPartitionReassignments (45) v0-1, ListPartitionReassignments (46) v0.

- ElectLeaders: a partition with the wanted leader is ELECTION_NOT_NEEDED. Where no replica may lead it is
  PREFERRED_LEADER_NOT_AVAILABLE, in an unclean election ELIGIBLE_LEADERS_NOT_AVAILABLE. An election of all
  partitions leaves out those that needed none. An unknown type is INVALID_REQUEST.
- AlterPartitionReassignments: the answer comes when the reassignment is in the tree. No replicas, one twice
  or a new replica on a broker that is not alive are INVALID_REPLICA_ASSIGNMENT; null cancels, without a
  reassignment NO_REASSIGNMENT_IN_PROGRESS. v1 can forbid another replication factor.
- ListPartitionReassignments: the running reassignments; topics that do not exist are left out.
- The first two need ALTER on the cluster, the last DESCRIBE (CLUSTER_AUTHORIZATION_FAILED).
- A broker alone has every partition: only a reassignment to its current replicas succeeds.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from tidelog.errors import (
    ClusterAuthorizationFailed,
    ElectionNotNeeded,
    EligibleLeadersNotAvailable,
    ErrorCode,
    InvalidReplicaAssignment,
    InvalidRequest,
    KafkaError,
    NoReassignmentInProgress,
    PreferredLeaderNotAvailable,
    UnknownTopicOrPartition,
)
from tidelog.metadata.state import NO_LEADER, ClusterState, PartitionState
from tidelog.network.request import Request
from tidelog.partitions import TopicPartition
from tidelog.protocol.election_type import ElectionType
from tidelog.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
)
from tidelog.protocol.messages.elect_leaders import ElectLeadersRequest, ElectLeadersResponse
from tidelog.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from tidelog.server.apis.api import Answer, Api
from tidelog.server.apis.authorization import ALTER, CLUSTER, DESCRIBE, is_allowed
from tidelog.server.services import Services
from tidelog.slices import Slices, mapped

if TYPE_CHECKING:
    from tidelog.server.cluster_services import ClusterServices  # a broker alone does not load it

ERROR_FROM = 1
"""ElectLeaders answers have a top-level error from this version on."""
PREFERRED = ElectionType.PREFERRED
UNCLEAN = ElectionType.UNCLEAN


def elect_leaders(services: Services, request: Request, body: ElectLeadersRequest) -> Answer:
    if services.authorizer is not None and not is_allowed(services, request, ALTER, CLUSTER):
        return _elections_denied(body, request.api_version)
    if services.cluster is None or body.election_type not in (PREFERRED, UNCLEAN):
        return _elect_alone(services, body)
    return _elect_in_cluster(services, services.cluster, request, body)


def _elections_denied(body: ElectLeadersRequest, version: int) -> ElectLeadersResponse:
    code = ClusterAuthorizationFailed.code
    return ElectLeadersResponse(
        error_code=code if version >= ERROR_FROM else ErrorCode.NONE,
        replica_election_results=[
            ElectLeadersResponse.ReplicaElectionResult(
                topic=topic.topic,
                partition_result=[
                    ElectLeadersResponse.PartitionResult(partition_id=index, error_code=code)
                    for index in topic.partitions
                ],
            )
            for topic in body.topic_partitions or ()
        ],
    )


async def _elect_in_cluster(
    services: Services, cluster: ClusterServices, request: Request, body: ElectLeadersRequest
) -> ElectLeadersResponse:
    wanted = None
    if body.topic_partitions is not None:
        wanted = [
            TopicPartition(topic.topic, index)
            for topic in body.topic_partitions
            for index in topic.partitions
        ]
    results = await cluster.controller.elect_leaders(
        wanted, ElectionType(body.election_type), timeout=body.timeout_ms / 1000
    )
    elected = [key for key, error in results.items() if error is None]
    kind = "preferred" if body.election_type == PREFERRED else "unclean"
    services.audit.changed_partitions(request, elected, f"leader elected ({kind})")
    answer = ElectLeadersResponse()
    topics: dict[str, ElectLeadersResponse.ReplicaElectionResult] = {}
    for (name, index), error in results.items():
        if wanted is None and isinstance(error, ElectionNotNeeded):
            continue
        if name not in topics:
            topics[name] = ElectLeadersResponse.ReplicaElectionResult(topic=name)
            answer.replica_election_results.append(topics[name])
        topics[name].partition_result.append(
            ElectLeadersResponse.PartitionResult(
                partition_id=index, error_code=_code(error), error_message=_message(error)
            )
        )
    return answer


def _code(error: KafkaError | None) -> int:
    return 0 if error is None else error.code


def _message(error: KafkaError | None) -> str | None:
    return None if error is None else str(error)


def _elect_alone(services: Services, body: ElectLeadersRequest) -> Slices[ElectLeadersResponse]:
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
) -> Answer:
    if services.authorizer is not None and not is_allowed(services, request, ALTER, CLUSTER):
        return _reassignments_denied(body)
    if services.cluster is None:
        return _reassign_alone(services, body)
    return _reassign_in_cluster(services, services.cluster, request, body)


def _reassignments_denied(body: AlterPartitionReassignmentsRequest) -> AlterPartitionReassignmentsResponse:
    code = ClusterAuthorizationFailed.code
    return AlterPartitionReassignmentsResponse(
        error_code=code,
        error_message=None,
        responses=[
            AlterPartitionReassignmentsResponse.ReassignableTopicResponse(
                name=topic.name,
                partitions=[
                    AlterPartitionReassignmentsResponse.ReassignablePartitionResponse(
                        partition_index=partition.partition_index, error_code=code, error_message=None
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in body.topics
        ],
    )


async def _reassign_in_cluster(
    services: Services, cluster: ClusterServices, request: Request, body: AlterPartitionReassignmentsRequest
) -> AlterPartitionReassignmentsResponse:
    wanted = {
        TopicPartition(topic.name, partition.partition_index): partition.replicas
        for topic in body.topics
        for partition in topic.partitions
    }
    errors = await cluster.controller.alter_partition_reassignments(
        wanted, allow_replication_factor_change=body.allow_replication_factor_change
    )
    accepted = [key for key, error in errors.items() if error is None]
    moved = [key for key in accepted if wanted[key] is not None]
    cancelled = [key for key in accepted if wanted[key] is None]
    services.audit.changed_partitions(request, moved, "reassigned")
    services.audit.changed_partitions(request, cancelled, "reassignment cancelled")
    answer = AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=body.allow_replication_factor_change, error_message=None
    )
    for topic in body.topics:
        results = [
            AlterPartitionReassignmentsResponse.ReassignablePartitionResponse(
                partition_index=index, error_code=_code(error), error_message=_message(error)
            )
            for index in (partition.partition_index for partition in topic.partitions)
            for error in (errors[TopicPartition(topic.name, index)],)
        ]
        answer.responses.append(
            AlterPartitionReassignmentsResponse.ReassignableTopicResponse(name=topic.name, partitions=results)
        )
    return answer


def _reassign_alone(
    services: Services, body: AlterPartitionReassignmentsRequest
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
) -> Answer:
    if services.authorizer is not None and not is_allowed(services, request, DESCRIBE, CLUSTER):
        code = ClusterAuthorizationFailed.code
        return ListPartitionReassignmentsResponse(error_code=code, error_message=None)
    if services.cluster is None:
        return ListPartitionReassignmentsResponse(error_message=None)
    return _list_in_cluster(services.cluster, body)


async def _list_in_cluster(
    cluster: ClusterServices, body: ListPartitionReassignmentsRequest
) -> ListPartitionReassignmentsResponse:
    wanted = None
    if body.topics is not None:
        wanted = [
            TopicPartition(topic.name, index) for topic in body.topics for index in topic.partition_indexes
        ]
    answer = ListPartitionReassignmentsResponse(error_message=None)
    topics: dict[str, ListPartitionReassignmentsResponse.OngoingTopicReassignment] = {}
    for (name, index), state in (await cluster.controller.list_partition_reassignments(wanted)).items():
        if name not in topics:
            topics[name] = ListPartitionReassignmentsResponse.OngoingTopicReassignment(name=name)
            answer.topics.append(topics[name])
        topics[name].partitions.append(
            ListPartitionReassignmentsResponse.OngoingPartitionReassignment(
                partition_index=index,
                replicas=state.replicas,
                adding_replicas=state.adding,
                removing_replicas=state.removing,
            )
        )
    return answer


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
    Api(43, 0, 2, elect_leaders, forwarded=True, access=("CLUSTER ALTER",)),
    Api(45, 0, 1, alter_partition_reassignments, forwarded=True, access=("CLUSTER ALTER",)),
    Api(46, 0, 0, list_partition_reassignments, forwarded=True, access=("CLUSTER DESCRIBE",)),
)
