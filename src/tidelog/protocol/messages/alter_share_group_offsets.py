"""AlterShareGroupOffsets (key 91): set the start offsets of a share group."""

from __future__ import annotations

from tidelog.protocol.message import Message
from tidelog.protocol.schema import Struct, array, int16, int32, int64, string, uuid


class AlterShareGroupOffsetsRequest(Message, key=91, versions="0", flexible="0+"):
    class AlterShareGroupOffsetsRequestPartition(Struct):
        partition_index: int = int32("0+")
        start_offset: int = int64("0+")

    class AlterShareGroupOffsetsRequestTopic(Struct):
        topic_name: str = string("0+")
        partitions: list[AlterShareGroupOffsetsRequest.AlterShareGroupOffsetsRequestPartition] = array("0+")

    group_id: str = string("0+")
    topics: list[AlterShareGroupOffsetsRequest.AlterShareGroupOffsetsRequestTopic] = array("0+")


class AlterShareGroupOffsetsResponse(Message, key=91, versions="0", flexible="0+"):
    class AlterShareGroupOffsetsResponsePartition(Struct):
        partition_index: int = int32("0+")
        error_code: int = int16("0+")
        error_message: str | None = string("0+", nullable="0+", default=None)

    class AlterShareGroupOffsetsResponseTopic(Struct):
        topic_name: str = string("0+")
        topic_id: bytes = uuid("0+")
        partitions: list[AlterShareGroupOffsetsResponse.AlterShareGroupOffsetsResponsePartition] = array("0+")

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", default=None)
    responses: list[AlterShareGroupOffsetsResponse.AlterShareGroupOffsetsResponseTopic] = array("0+")
