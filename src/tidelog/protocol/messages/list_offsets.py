"""ListOffsets (key 2): find the offset of a time, or the first and last offsets of partitions."""

from __future__ import annotations

from tidelog.protocol.message import Message
from tidelog.protocol.schema import Struct, array, int8, int16, int32, int64, string


class ListOffsetsRequest(Message, key=2, versions="1-11", flexible="6+"):
    class ListOffsetsPartition(Struct):
        partition_index: int = int32("0+")
        current_leader_epoch: int = int32("4+", default=-1, ignorable=True)
        timestamp: int = int64("0+")

    class ListOffsetsTopic(Struct):
        name: str = string("0+")
        partitions: list[ListOffsetsRequest.ListOffsetsPartition] = array("0+")

    replica_id: int = int32("0+")
    isolation_level: int = int8("2+")
    topics: list[ListOffsetsRequest.ListOffsetsTopic] = array("0+")
    timeout_ms: int = int32("10+", ignorable=True)


class ListOffsetsResponse(Message, key=2, versions="1-11", flexible="6+"):
    class ListOffsetsPartitionResponse(Struct):
        partition_index: int = int32("0+")
        error_code: int = int16("0+")
        timestamp: int = int64("1+", default=-1)
        offset: int = int64("1+", default=-1)
        leader_epoch: int = int32("4+", default=-1)

    class ListOffsetsTopicResponse(Struct):
        name: str = string("0+")
        partitions: list[ListOffsetsResponse.ListOffsetsPartitionResponse] = array("0+")

    throttle_time_ms: int = int32("2+", ignorable=True)
    topics: list[ListOffsetsResponse.ListOffsetsTopicResponse] = array("0+")
