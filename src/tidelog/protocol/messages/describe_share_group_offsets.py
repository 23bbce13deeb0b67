"""DescribeShareGroupOffsets (key 90): the start offsets of share groups."""

from __future__ import annotations

from tidelog.protocol.message import Message
from tidelog.protocol.schema import Struct, array, int16, int32, int64, string, uuid


class DescribeShareGroupOffsetsRequest(Message, key=90, versions="0-1", flexible="0+"):
    class DescribeShareGroupOffsetsRequestTopic(Struct):
        topic_name: str = string("0+")
        partitions: list[int] = array("0+", "int32")

    class DescribeShareGroupOffsetsRequestGroup(Struct):
        group_id: str = string("0+")
        topics: list[DescribeShareGroupOffsetsRequest.DescribeShareGroupOffsetsRequestTopic] | None = array(
            "0+", nullable="0+"
        )

    groups: list[DescribeShareGroupOffsetsRequest.DescribeShareGroupOffsetsRequestGroup] = array("0+")


class DescribeShareGroupOffsetsResponse(Message, key=90, versions="0-1", flexible="0+"):
    class DescribeShareGroupOffsetsResponsePartition(Struct):
        partition_index: int = int32("0+")
        start_offset: int = int64("0+")
        leader_epoch: int = int32("0+")
        lag: int = int64("1+", default=-1, ignorable=True)
        error_code: int = int16("0+")
        error_message: str | None = string("0+", nullable="0+", default=None)

    class DescribeShareGroupOffsetsResponseTopic(Struct):
        topic_name: str = string("0+")
        topic_id: bytes = uuid("0+")
        partitions: list[DescribeShareGroupOffsetsResponse.DescribeShareGroupOffsetsResponsePartition] = (
            array("0+")
        )

    class DescribeShareGroupOffsetsResponseGroup(Struct):
        group_id: str = string("0+")
        topics: list[DescribeShareGroupOffsetsResponse.DescribeShareGroupOffsetsResponseTopic] = array("0+")
        error_code: int = int16("0+")
        error_message: str | None = string("0+", nullable="0+", default=None)

    throttle_time_ms: int = int32("0+")
    groups: list[DescribeShareGroupOffsetsResponse.DescribeShareGroupOffsetsResponseGroup] = array("0+")
