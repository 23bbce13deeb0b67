"""ControlledShutdown (7) v2-3, AlterPartition (56) v0-3 and AllocateProducerIds (67) v0: requests of brokers.

- Served in a cluster alone, over the listeners of the brokers; over others CLUSTER_AUTHORIZATION_FAILED.
- They need CLUSTER_ACTION: brokers are super users, or have a rule.
- Only the active controller answers. Other brokers say NOT_CONTROLLER, and the caller looks for it again.
- ControlledShutdown moves the leaders of a broker that is about to stop, and answers with the partitions
  that the broker still leads: it asks again until none is left.
- AlterPartition writes the in-sync replicas that a leader asks for. v1 has the recovery state of the leader,
  v2 names topics by id, v3 has the epoch of each replica's broker. A replica that may not be in sync is
  INELIGIBLE_REPLICA since v2, OPERATION_NOT_ATTEMPTED before.
- AllocateProducerIds gives a block of producer ids, which no other broker gets.
"""

from __future__ import annotations

from tidelog.errors import NotController, UnsupportedVersion
from tidelog.network.request import Request
from tidelog.protocol.messages.allocate_producer_ids import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
)
from tidelog.protocol.messages.alter_partition import AlterPartitionRequest, AlterPartitionResponse
from tidelog.protocol.messages.controlled_shutdown import (
    ControlledShutdownRequest,
    ControlledShutdownResponse,
)
from tidelog.server.apis.api import Api
from tidelog.server.apis.authorization import CLUSTER_ACTION, check_cluster
from tidelog.server.cluster_services import ActiveController
from tidelog.server.services import Services


async def controlled_shutdown(
    services: Services, request: Request, body: ControlledShutdownRequest
) -> ControlledShutdownResponse:
    controller = _controller(services, request)
    remaining = await controller.controlled_shutdown(body.broker_id, body.broker_epoch)
    return ControlledShutdownResponse(
        remaining_partitions=[
            ControlledShutdownResponse.RemainingPartition(topic_name=topic, partition_index=index)
            for topic, index in remaining
        ]
    )


async def alter_partition(
    services: Services, request: Request, body: AlterPartitionRequest
) -> AlterPartitionResponse:
    return await _controller(services, request).alter_partition(body, request.api_version)


async def allocate_producer_ids(
    services: Services, request: Request, body: AllocateProducerIdsRequest
) -> AllocateProducerIdsResponse:
    controller = _controller(services, request)
    block = await controller.allocate_producer_ids(body.broker_id, body.broker_epoch)
    return AllocateProducerIdsResponse(producer_id_start=block.start, producer_id_len=len(block))


def _controller(services: Services, request: Request) -> ActiveController:
    cluster = services.cluster
    if cluster is None:
        raise UnsupportedVersion("this broker belongs to no cluster")
    cluster.check_listener(request)
    check_cluster(services, request, CLUSTER_ACTION)
    if not cluster.controller.is_active:
        raise NotController(f"broker {services.broker_id} is not the controller")
    return cluster.controller


APIS = (
    Api(7, 2, 3, controlled_shutdown, from_brokers=True, access=("CLUSTER CLUSTER_ACTION",)),
    Api(56, 0, 3, alter_partition, from_brokers=True, access=("CLUSTER CLUSTER_ACTION",)),
    Api(67, 0, 0, allocate_producer_ids, from_brokers=True, access=("CLUSTER CLUSTER_ACTION",)),
)
