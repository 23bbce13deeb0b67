"""AlterReplicaLogDirs (34) v1-2: moves partitions to other folders of log.dirs while clients use them.

- It needs ALTER on the cluster (CLUSTER_AUTHORIZATION_FAILED for each partition).
- The answer comes when the move begins. DescribeLogDirs shows its progress as a future replica.
- A move to the current folder cancels a running move. The path has to be spelled as in log.dirs
  (LOG_DIR_NOT_FOUND). While any log folder is offline, a new move is KAFKA_STORAGE_ERROR.
- A partition that does not exist is UNKNOWN_TOPIC_OR_PARTITION. If it is created later, the broker puts it
  into that folder. A partition without a replica on this broker is REPLICA_NOT_AVAILABLE.
"""

from __future__ import annotations

from tidelog.errors import ClusterAuthorizationFailed, KafkaError, NotLeaderOrFollower, ReplicaNotAvailable
from tidelog.network.request import Request
from tidelog.partitions import PartitionKey
from tidelog.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
)
from tidelog.server.apis.api import Api
from tidelog.server.apis.authorization import ALTER, CLUSTER, is_allowed
from tidelog.server.services import Services
from tidelog.slices import Slices


def alter_replica_log_dirs(
    services: Services, request: Request, body: AlterReplicaLogDirsRequest
) -> Slices[AlterReplicaLogDirsResponse]:
    wanted: dict[PartitionKey, str] = {}  # the last folder of a partition counts
    for folder in body.dirs:
        for topic in folder.topics:
            for index in topic.partitions:
                wanted[topic.name, index] = folder.path
    is_denied = services.authorizer is not None and not is_allowed(services, request, ALTER, CLUSTER)
    moved: list[PartitionKey] = []
    by_topic: dict[str, list[AlterReplicaLogDirsResponse.AlterReplicaLogDirPartitionResult]] = {}
    for key, path in wanted.items():
        code = ClusterAuthorizationFailed.code if is_denied else _alter(services, key, path)
        result = AlterReplicaLogDirsResponse.AlterReplicaLogDirPartitionResult(
            partition_index=key[1], error_code=code
        )
        by_topic.setdefault(key[0], []).append(result)
        if not code:
            moved.append(key)
        yield
    services.audit.changed_partitions(request, moved, "log folder changed")
    return AlterReplicaLogDirsResponse(
        results=[
            AlterReplicaLogDirsResponse.AlterReplicaLogDirTopicResult(topic_name=name, partitions=partitions)
            for name, partitions in by_topic.items()
        ]
    )


def _alter(services: Services, key: PartitionKey, path: str) -> int:
    try:
        services.moves.alter(key, path)
    except NotLeaderOrFollower:
        return ReplicaNotAvailable.code  # the replicas are on other brokers
    except KafkaError as error:
        return error.code
    return 0


APIS = (Api(34, 1, 2, alter_replica_log_dirs, access=("CLUSTER ALTER",)),)
