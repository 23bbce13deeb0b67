"""AlterReplicaLogDirs (key 34): move replicas between the log folders of a broker."""

from __future__ import annotations

from tidelog.protocol.message import Message
from tidelog.protocol.schema import Struct, array, int16, int32, string


class AlterReplicaLogDirsRequest(Message, key=34, versions="1-2", flexible="2+"):
    class AlterReplicaLogDirTopic(Struct):
        name: str = string("0+")
        partitions: list[int] = array("0+", "int32")

    class AlterReplicaLogDir(Struct):
        path: str = string("0+")
        topics: list[AlterReplicaLogDirsRequest.AlterReplicaLogDirTopic] = array("0+")

    dirs: list[AlterReplicaLogDirsRequest.AlterReplicaLogDir] = array("0+")


class AlterReplicaLogDirsResponse(Message, key=34, versions="1-2", flexible="2+"):
    class AlterReplicaLogDirPartitionResult(Struct):
        partition_index: int = int32("0+")
        error_code: int = int16("0+")

    class AlterReplicaLogDirTopicResult(Struct):
        topic_name: str = string("0+")
        partitions: list[AlterReplicaLogDirsResponse.AlterReplicaLogDirPartitionResult] = array("0+")

    throttle_time_ms: int = int32("0+")
    results: list[AlterReplicaLogDirsResponse.AlterReplicaLogDirTopicResult] = array("0+")
