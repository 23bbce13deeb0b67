"""AlterPartitionReassignments (key 45): move partitions to other replicas, or stop doing so."""

from __future__ import annotations

from tidelog.protocol.message import Message
from tidelog.protocol.schema import Struct, array, boolean, int16, int32, string


class AlterPartitionReassignmentsRequest(Message, key=45, versions="0-1", flexible="0+"):
    class ReassignablePartition(Struct):
        partition_index: int = int32("0+")
        replicas: list[int] | None = array("0+", "int32", nullable="0+", default=None)

    class ReassignableTopic(Struct):
        name: str = string("0+")
        partitions: list[AlterPartitionReassignmentsRequest.ReassignablePartition] = array("0+")

    timeout_ms: int = int32("0+", default=60000)
    allow_replication_factor_change: bool = boolean("1+", default=True)
    topics: list[AlterPartitionReassignmentsRequest.ReassignableTopic] = array("0+")


class AlterPartitionReassignmentsResponse(Message, key=45, versions="0-1", flexible="0+"):
    class ReassignablePartitionResponse(Struct):
        partition_index: int = int32("0+")
        error_code: int = int16("0+")
        error_message: str | None = string("0+", nullable="0+")

    class ReassignableTopicResponse(Struct):
        name: str = string("0+")
        partitions: list[AlterPartitionReassignmentsResponse.ReassignablePartitionResponse] = array("0+")

    throttle_time_ms: int = int32("0+")
    allow_replication_factor_change: bool = boolean("1+", default=True, ignorable=True)
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+")
    responses: list[AlterPartitionReassignmentsResponse.ReassignableTopicResponse] = array("0+")
