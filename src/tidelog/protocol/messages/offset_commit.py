"""OffsetCommit (key 8): keep the offsets up to which a group has read."""

from __future__ import annotations

from tidelog.protocol.message import Message
from tidelog.protocol.schema import Struct, array, int16, int32, int64, string, uuid


class OffsetCommitRequest(Message, key=8, versions="2-10", flexible="8+"):
    class OffsetCommitRequestPartition(Struct):
        partition_index: int = int32("0+")
        committed_offset: int = int64("0+")
        committed_leader_epoch: int = int32("6+", default=-1, ignorable=True)
        committed_metadata: str | None = string("0+", nullable="0+")

    class OffsetCommitRequestTopic(Struct):
        name: str = string("0-9", ignorable=True)
        topic_id: bytes = uuid("10+", ignorable=True)
        partitions: list[OffsetCommitRequest.OffsetCommitRequestPartition] = array("0+")

    group_id: str = string("0+")
    generation_id_or_member_epoch: int = int32("1+", default=-1, ignorable=True)
    member_id: str = string("1+", ignorable=True)
    group_instance_id: str | None = string("7+", nullable="7+", default=None)
    retention_time_ms: int = int64("2-4", default=-1, ignorable=True)
    topics: list[OffsetCommitRequest.OffsetCommitRequestTopic] = array("0+")


class OffsetCommitResponse(Message, key=8, versions="2-10", flexible="8+"):
    class OffsetCommitResponsePartition(Struct):
        partition_index: int = int32("0+")
        error_code: int = int16("0+")

    class OffsetCommitResponseTopic(Struct):
        name: str = string("0-9", ignorable=True)
        topic_id: bytes = uuid("10+", ignorable=True)
        partitions: list[OffsetCommitResponse.OffsetCommitResponsePartition] = array("0+")

    throttle_time_ms: int = int32("3+", ignorable=True)
    topics: list[OffsetCommitResponse.OffsetCommitResponseTopic] = array("0+")
