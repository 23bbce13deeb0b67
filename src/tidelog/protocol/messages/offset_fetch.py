"""OffsetFetch (key 9): the offsets that groups have committed."""

from __future__ import annotations

from tidelog.protocol.message import Message
from tidelog.protocol.schema import Struct, array, boolean, int16, int32, int64, string, uuid


class OffsetFetchRequest(Message, key=9, versions="1-10", flexible="6+"):
    class OffsetFetchRequestTopic(Struct):
        name: str = string("0-7")
        partition_indexes: list[int] = array("0-7", "int32")

    class OffsetFetchRequestTopics(Struct):
        name: str = string("8-9", ignorable=True)
        topic_id: bytes = uuid("10+", ignorable=True)
        partition_indexes: list[int] = array("8+", "int32")

    class OffsetFetchRequestGroup(Struct):
        group_id: str = string("8+")
        member_id: str | None = string("9+", nullable="9+", default=None, ignorable=True)
        member_epoch: int = int32("9+", default=-1, ignorable=True)
        topics: list[OffsetFetchRequest.OffsetFetchRequestTopics] | None = array("8+", nullable="8+")

    group_id: str = string("0-7")
    topics: list[OffsetFetchRequest.OffsetFetchRequestTopic] | None = array("0-7", nullable="2-7")
    groups: list[OffsetFetchRequest.OffsetFetchRequestGroup] = array("8+")
    require_stable: bool = boolean("7+")


class OffsetFetchResponse(Message, key=9, versions="1-10", flexible="6+"):
    class OffsetFetchResponsePartition(Struct):
        partition_index: int = int32("0-7")
        committed_offset: int = int64("0-7")
        committed_leader_epoch: int = int32("5-7", default=-1, ignorable=True)
        metadata: str | None = string("0-7", nullable="0-7")
        error_code: int = int16("0-7")

    class OffsetFetchResponseTopic(Struct):
        name: str = string("0-7")
        partitions: list[OffsetFetchResponse.OffsetFetchResponsePartition] = array("0-7")

    class OffsetFetchResponsePartitions(Struct):
        partition_index: int = int32("8+")
        committed_offset: int = int64("8+")
        committed_leader_epoch: int = int32("8+", default=-1, ignorable=True)
        metadata: str | None = string("8+", nullable="8+")
        error_code: int = int16("8+")

    class OffsetFetchResponseTopics(Struct):
        name: str = string("8-9", ignorable=True)
        topic_id: bytes = uuid("10+", ignorable=True)
        partitions: list[OffsetFetchResponse.OffsetFetchResponsePartitions] = array("8+")

    class OffsetFetchResponseGroup(Struct):
        group_id: str = string("8+")
        topics: list[OffsetFetchResponse.OffsetFetchResponseTopics] = array("8+")
        error_code: int = int16("8+")

    throttle_time_ms: int = int32("3+", ignorable=True)
    topics: list[OffsetFetchResponse.OffsetFetchResponseTopic] = array("0-7")
    error_code: int = int16("2-7", ignorable=True)
    groups: list[OffsetFetchResponse.OffsetFetchResponseGroup] = array("8+")
