"""DescribeCluster (60) v0-2 and DescribeLogDirs (35) v1-5.

- DescribeCluster v1 has an endpoint type. Controllers have no endpoints here: they are
  MISMATCHED_ENDPOINT_TYPE. An unknown type is UNSUPPORTED_ENDPOINT_TYPE.
- DescribeLogDirs lists the replicas and future replicas (is_future_key) of each log folder with their sizes,
  and from v4 on the total and usable bytes of its disk. An offline folder is KAFKA_STORAGE_ERROR.
  It needs DESCRIBE on the cluster (CLUSTER_AUTHORIZATION_FAILED).
"""

from __future__ import annotations

from collections.abc import Coroutine

from tidelog.errors import ErrorCode
from tidelog.network.request import Request
from tidelog.partitions import PartitionKey
from tidelog.protocol.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from tidelog.protocol.messages.describe_log_dirs import DescribeLogDirsRequest, DescribeLogDirsResponse
from tidelog.server.apis.api import Api
from tidelog.server.apis.authorization import CLUSTER, DESCRIBE, is_allowed
from tidelog.server.apis.metadata import NOT_ASKED_FOR, cluster_operations, wait_for_brokers
from tidelog.server.services import Services
from tidelog.slices import Slices

BROKERS = 1
CONTROLLERS = 2


def describe_cluster(
    services: Services, request: Request, body: DescribeClusterRequest
) -> DescribeClusterResponse | Coroutine[None, None, DescribeClusterResponse]:
    if not services.metadata.snapshot.brokers:
        return _describe_with_brokers(services, request, body)
    return _describe_cluster(services, request, body)


async def _describe_with_brokers(
    services: Services, request: Request, body: DescribeClusterRequest
) -> DescribeClusterResponse:
    await wait_for_brokers(services, request)
    return _describe_cluster(services, request, body)


def _describe_cluster(
    services: Services, request: Request, body: DescribeClusterRequest
) -> DescribeClusterResponse:
    state = services.metadata.snapshot
    if body.endpoint_type == CONTROLLERS:
        return DescribeClusterResponse(
            error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE,
            error_message="this is a broker's listener, the endpoints of controllers are not here",
        )
    if body.endpoint_type != BROKERS:
        return DescribeClusterResponse(
            error_code=ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
            error_message=f"endpoint type {body.endpoint_type} is not known: 1 is brokers, 2 is controllers",
        )
    return DescribeClusterResponse(
        cluster_id=state.cluster_id,
        controller_id=state.controller_id,
        brokers=[
            DescribeClusterResponse.DescribeClusterBroker(
                broker_id=broker.broker_id, host=endpoint.host, port=endpoint.port, rack=broker.rack
            )
            for broker in state.brokers.values()
            if (endpoint := broker.endpoint(request.listener)) is not None
        ],
        cluster_authorized_operations=(
            cluster_operations(services, request)
            if body.include_cluster_authorized_operations
            else NOT_ASKED_FOR
        ),
    )


def describe_log_dirs(
    services: Services, request: Request, body: DescribeLogDirsRequest
) -> Slices[DescribeLogDirsResponse]:
    if services.authorizer is not None and not is_allowed(services, request, DESCRIBE, CLUSTER):
        return DescribeLogDirsResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    wanted: set[PartitionKey] | None = None
    if body.topics is not None:
        wanted = set()
        for topic in body.topics:
            wanted.update((topic.topic, index) for index in topic.partitions)
            yield
    results = []
    for folder in services.logs.describe_log_dirs():
        result = DescribeLogDirsResponse.DescribeLogDirsResult(log_dir=folder.path)
        if folder.offline is not None:
            result.error_code = ErrorCode.KAFKA_STORAGE_ERROR
            results.append(result)
            continue
        result.total_bytes, result.usable_bytes = folder.total_bytes, folder.usable_bytes
        by_topic: dict[str, list[DescribeLogDirsResponse.DescribeLogDirsPartition]] = {}
        for key, size in folder.sizes.items():
            yield
            if wanted is None or key in wanted:
                # The leader's own log never lags behind its high watermark.
                partition = DescribeLogDirsResponse.DescribeLogDirsPartition(
                    partition_index=key[1], partition_size=size
                )
                by_topic.setdefault(key[0], []).append(partition)
        for key, (size, lag) in folder.futures.items():
            yield
            if wanted is None or key in wanted:
                partition = DescribeLogDirsResponse.DescribeLogDirsPartition(
                    partition_index=key[1], partition_size=size, offset_lag=lag, is_future_key=True
                )
                by_topic.setdefault(key[0], []).append(partition)
        result.topics = [
            DescribeLogDirsResponse.DescribeLogDirsTopic(name=name, partitions=partitions)
            for name, partitions in by_topic.items()
        ]
        results.append(result)
    return DescribeLogDirsResponse(results=results)


APIS = (
    # Every client may describe the cluster; its authorized operations are those of the client.
    Api(60, 0, 2, describe_cluster, access=("CLUSTER DESCRIBE",)),
    Api(35, 1, 5, describe_log_dirs, access=("CLUSTER DESCRIBE",)),
)
