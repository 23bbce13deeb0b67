"""OffsetDelete (key 47): delete a group's offsets of partitions."""

from __future__ import annotations

from tidelog.protocol.message import Message
from tidelog.protocol.schema import Struct, array, int16, int32, string


class OffsetDeleteRequest(Message, key=47, versions="0", flexible="none"):
    class OffsetDeleteRequestPartition(Struct):
        partition_index: int = int32("0+")

    class OffsetDeleteRequestTopic(Struct):
        name: str = string("0+")
        partitions: list[OffsetDeleteRequest.OffsetDeleteRequestPartition] = array("0+")

    group_id: str = string("0+")
    topics: list[OffsetDeleteRequest.OffsetDeleteRequestTopic] = array("0+")


class OffsetDeleteResponse(Message, key=47, versions="0", flexible="none"):
    class OffsetDeleteResponsePartition(Struct):
        partition_index: int = int32("0+")
        error_code: int = int16("0+")

    class OffsetDeleteResponseTopic(Struct):
        name: str = string("0+")
        partitions: list[OffsetDeleteResponse.OffsetDeleteResponsePartition] = array("0+")

    error_code: int = int16("0+")
    throttle_time_ms: int = int32("0+", ignorable=True)
    topics: list[OffsetDeleteResponse.OffsetDeleteResponseTopic] = array("0+")
