"""DescribeTopicPartitions (key 75): partitions of topics, page by page."""

from __future__ import annotations

from tidelog.protocol.message import Message
from tidelog.protocol.schema import Struct, array, boolean, int16, int32, string, struct, uuid


class DescribeTopicPartitionsRequest(Message, key=75, versions="0", flexible="0+"):
    class TopicRequest(Struct):
        name: str = string("0+")

    class Cursor(Struct):
        topic_name: str = string("0+")
        partition_index: int = int32("0+")

    topics: list[DescribeTopicPartitionsRequest.TopicRequest] = array("0+")
    response_partition_limit: int = int32("0+", default=2000)
    cursor: DescribeTopicPartitionsRequest.Cursor | None = struct("0+", nullable="0+")


class DescribeTopicPartitionsResponse(Message, key=75, versions="0", flexible="0+"):
    class DescribeTopicPartitionsResponsePartition(Struct):
        error_code: int = int16("0+")
        partition_index: int = int32("0+")
        leader_id: int = int32("0+")
        leader_epoch: int = int32("0+", default=-1, ignorable=True)
        replica_nodes: list[int] = array("0+", "int32")
        isr_nodes: list[int] = array("0+", "int32")
        eligible_leader_replicas: list[int] | None = array("0+", "int32", nullable="0+", default=None)
        last_known_elr: list[int] | None = array("0+", "int32", nullable="0+", default=None)
        offline_replicas: list[int] = array("0+", "int32", ignorable=True)

    class DescribeTopicPartitionsResponseTopic(Struct):
        error_code: int = int16("0+")
        name: str | None = string("0+", nullable="0+")
        topic_id: bytes = uuid("0+", ignorable=True)
        is_internal: bool = boolean("0+", ignorable=True)
        partitions: list[DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponsePartition] = array(
            "0+"
        )
        topic_authorized_operations: int = int32("0+", default=-2147483648)

    class Cursor(Struct):
        topic_name: str = string("0+")
        partition_index: int = int32("0+")

    throttle_time_ms: int = int32("0+", ignorable=True)
    topics: list[DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic] = array("0+")
    next_cursor: DescribeTopicPartitionsResponse.Cursor | None = struct("0+", nullable="0+")
