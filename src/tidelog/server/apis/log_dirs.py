"""AlterReplicaLogDirs (34) v1-2: moves partitions to other folders of log.dirs while they are used.

- The answer says that the move began, not that it is done: DescribeLogDirs tells of future replicas.
- The present folder as target gives a move up. A folder that is not in log.dirs to the letter is
  LOG_DIR_NOT_FOUND, one that is offline (or any being so) KAFKA_STORAGE_ERROR.
- A partition that does not exist is UNKNOWN_TOPIC_OR_PARTITION, and will be made in that folder.
"""

from __future__ import annotations

from tidelog.errors import KafkaError, ReplicaNotAvailable, UnknownTopicOrPartition
from tidelog.network.request import Request
from tidelog.partitions import PartitionKey
from tidelog.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
)
from tidelog.server.apis.api import Api
from tidelog.server.services import Services
from tidelog.slices import Slices


def alter_replica_log_dirs(
    services: Services, request: Request, body: AlterReplicaLogDirsRequest
) -> Slices[AlterReplicaLogDirsResponse]:
    wanted: dict[PartitionKey, str] = {}  # of a partition that is named twice the last counts
    for folder in body.dirs:
        for topic in folder.topics:
            for index in topic.partitions:
                wanted[topic.name, index] = folder.path
    by_topic: dict[str, list[AlterReplicaLogDirsResponse.AlterReplicaLogDirPartitionResult]] = {}
    for key, path in wanted.items():
        result = AlterReplicaLogDirsResponse.AlterReplicaLogDirPartitionResult(
            partition_index=key[1], error_code=_alter(services, key, path)
        )
        by_topic.setdefault(key[0], []).append(result)
        yield
    return AlterReplicaLogDirsResponse(
        results=[
            AlterReplicaLogDirsResponse.AlterReplicaLogDirTopicResult(topic_name=name, partitions=partitions)
            for name, partitions in by_topic.items()
        ]
    )


def _alter(services: Services, key: PartitionKey, path: str) -> int:
    try:
        services.moves.alter(key, path)
    except UnknownTopicOrPartition as error:
        topic = services.metadata.snapshot.topics.get(key[0])
        known = topic is not None and key[1] in topic.partitions
        return ReplicaNotAvailable.code if known else error.code
    except KafkaError as error:
        return error.code
    return 0


APIS = (Api(34, 1, 2, alter_replica_log_dirs),)
