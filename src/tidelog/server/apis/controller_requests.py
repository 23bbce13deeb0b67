"""LeaderAndIsr (4) v5-7, StopReplica (5) v3-4 and UpdateMetadata (6) v7-8: requests of the controller.

- Served in a cluster alone, over the listeners of the brokers; over others CLUSTER_AUTHORIZATION_FAILED.
  They need CLUSTER_ACTION: brokers are super users, or have a rule.
  The connection of a controller does not wait while the request queue is full.
- A broker epoch below that of this broker's registration is STALE_BROKER_EPOCH: the request is for an
  earlier registration. -1 passes, and so does a newer one, which the controller may know first.
- A controller epoch below the highest one seen is STALE_CONTROLLER_EPOCH. Other than in Kafka, so is a
  request over an older connection than the newest one of the same controller. A KRaft controller is
  INVALID_REQUEST.
- LeaderAndIsr: a newer leader epoch is applied, and so is a newer partition epoch of the same leader epoch.
  Any other state is STALE_CONTROLLER_EPOCH for its partition, and another topic id INCONSISTENT_TOPIC_ID. The
  answer comes when the logs are durable and the partitions are led or followed. v5 answers by topic id.
  `type` has no meaning here: a controller on ZooKeeper leaves it 0.
- StopReplica: an older leader epoch is FENCED_LEADER_EPOCH; -1 and -2 (the topic is deleted) pass. The answer
  comes when the deletions are durable. A leader that is stopped without a deletion leads no more.
  A tagged field of ours asks whether the address of another broker refuses a connection from here.
- UpdateMetadata has all live brokers, and the partitions that changed. The leader -2 deletes a partition.
"""

from __future__ import annotations

import logging

from tidelog.errors import (
    ClusterAuthorizationFailed,
    InvalidRequest,
    KafkaError,
    StaleBrokerEpoch,
    UnsupportedVersion,
)
from tidelog.network.request import Request
from tidelog.protocol.messages.leader_and_isr import LeaderAndIsrRequest, LeaderAndIsrResponse
from tidelog.protocol.messages.stop_replica import StopReplicaRequest, StopReplicaResponse
from tidelog.protocol.messages.update_metadata import UpdateMetadataRequest, UpdateMetadataResponse
from tidelog.server.apis.api import Api
from tidelog.server.apis.authorization import CLUSTER_ACTION, check_cluster
from tidelog.server.cluster_services import ClusterServices
from tidelog.server.services import Services

log = logging.getLogger("tidelog.server.apis.controller_requests")

NO_BROKER_EPOCH = -1


async def leader_and_isr(
    services: Services, request: Request, body: LeaderAndIsrRequest
) -> LeaderAndIsrResponse:
    return await _accepted(services, request, body).states.leader_and_isr(body)


async def stop_replica(services: Services, request: Request, body: StopReplicaRequest) -> StopReplicaResponse:
    try:
        cluster = _accepted(services, request, body)
    except ClusterAuthorizationFailed as error:
        return _not_stopped(body, error.code)
    response = await cluster.states.stop_replica(body)
    if _is_question(body) and not response.error_code:
        response.is_refused = await cluster.refuses_connections(body.refusing_broker_id)
    return response


def _not_stopped(body: StopReplicaRequest, code: int) -> StopReplicaResponse:
    return StopReplicaResponse(
        error_code=code,
        partition_errors=[
            StopReplicaResponse.StopReplicaPartitionError(
                topic_name=topic.topic_name, partition_index=partition.partition_index, error_code=code
            )
            for topic in body.topic_states
            for partition in topic.partition_states
        ],
    )


async def update_metadata(
    services: Services, request: Request, body: UpdateMetadataRequest
) -> UpdateMetadataResponse:
    return await _accepted(services, request, body).states.update_metadata(body)


def _accepted(
    services: Services,
    request: Request,
    body: LeaderAndIsrRequest | StopReplicaRequest | UpdateMetadataRequest,
) -> ClusterServices:
    """The parts that apply a request of the controller; raises the KafkaError of a refused one."""
    cluster = services.cluster
    if cluster is None:
        raise UnsupportedVersion("this broker belongs to no cluster")
    cluster.check_listener(request)
    check_cluster(services, request, CLUSTER_ACTION)
    request.exempt_connection()
    try:
        _check_controller(cluster, request, body)
    except KafkaError as error:
        log.warning("%s of controller %d is refused: %s", request.entry.name, body.controller_id, error)
        raise
    return cluster


def _check_controller(
    cluster: ClusterServices,
    request: Request,
    body: LeaderAndIsrRequest | StopReplicaRequest | UpdateMetadataRequest,
) -> None:
    if body.is_kraft_controller:
        raise InvalidRequest("a KRaft controller cannot control a broker on ZooKeeper")
    epoch = cluster.broker_epoch()
    if body.broker_epoch != NO_BROKER_EPOCH and body.broker_epoch < epoch:
        raise StaleBrokerEpoch(f"the request is for the broker epoch {body.broker_epoch}, this is {epoch}")
    if not _is_question(body):
        cluster.states.check_connection(body.controller_epoch, _connection_number(request))


def _connection_number(request: Request) -> int:
    """The broker numbers connections in the order in which it accepts them."""
    return int(request.channel.connection_id.rpartition("-")[2])


def _is_question(body: LeaderAndIsrRequest | StopReplicaRequest | UpdateMetadataRequest) -> bool:
    """Whether the controller asks about another broker, over a connection for this question alone."""
    return isinstance(body, StopReplicaRequest) and body.refusing_broker_id >= 0


APIS = (
    Api(4, 5, 7, leader_and_isr, from_brokers=True, access=("CLUSTER CLUSTER_ACTION",)),
    Api(5, 3, 4, stop_replica, from_brokers=True, access=("CLUSTER CLUSTER_ACTION",)),
    Api(6, 7, 8, update_metadata, from_brokers=True, access=("CLUSTER CLUSTER_ACTION",)),
)
