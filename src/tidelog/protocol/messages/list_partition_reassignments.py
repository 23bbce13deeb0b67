"""ListPartitionReassignments (key 46): the partitions that are being moved."""

from __future__ import annotations

from tidelog.protocol.message import Message
from tidelog.protocol.schema import Struct, array, int16, int32, string


class ListPartitionReassignmentsRequest(Message, key=46, versions="0", flexible="0+"):
    class ListPartitionReassignmentsTopics(Struct):
        name: str = string("0+")
        partition_indexes: list[int] = array("0+", "int32")

    timeout_ms: int = int32("0+", default=60000)
    topics: list[ListPartitionReassignmentsRequest.ListPartitionReassignmentsTopics] | None = array(
        "0+", nullable="0+", default=None
    )


class ListPartitionReassignmentsResponse(Message, key=46, versions="0", flexible="0+"):
    class OngoingPartitionReassignment(Struct):
        partition_index: int = int32("0+")
        replicas: list[int] = array("0+", "int32")
        adding_replicas: list[int] = array("0+", "int32")
        removing_replicas: list[int] = array("0+", "int32")

    class OngoingTopicReassignment(Struct):
        name: str = string("0+")
        partitions: list[ListPartitionReassignmentsResponse.OngoingPartitionReassignment] = array("0+")

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+")
    topics: list[ListPartitionReassignmentsResponse.OngoingTopicReassignment] = array("0+")
