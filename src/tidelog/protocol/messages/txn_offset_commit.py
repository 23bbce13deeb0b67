"""TxnOffsetCommit (key 28): commit a group's offsets within a transaction."""

from __future__ import annotations

from tidelog.protocol.message import Message
from tidelog.protocol.schema import Struct, array, int16, int32, int64, string


class TxnOffsetCommitRequest(Message, key=28, versions="0-5", flexible="3+"):
    class TxnOffsetCommitRequestPartition(Struct):
        partition_index: int = int32("0+")
        committed_offset: int = int64("0+")
        committed_leader_epoch: int = int32("2+", default=-1, ignorable=True)
        committed_metadata: str | None = string("0+", nullable="0+")

    class TxnOffsetCommitRequestTopic(Struct):
        name: str = string("0+")
        partitions: list[TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition] = array("0+")

    transactional_id: str = string("0+")
    group_id: str = string("0+")
    producer_id: int = int64("0+")
    producer_epoch: int = int16("0+")
    generation_id: int = int32("3+", default=-1)
    member_id: str = string("3+")
    group_instance_id: str | None = string("3+", nullable="3+", default=None)
    topics: list[TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic] = array("0+")


class TxnOffsetCommitResponse(Message, key=28, versions="0-5", flexible="3+"):
    class TxnOffsetCommitResponsePartition(Struct):
        partition_index: int = int32("0+")
        error_code: int = int16("0+")

    class TxnOffsetCommitResponseTopic(Struct):
        name: str = string("0+")
        partitions: list[TxnOffsetCommitResponse.TxnOffsetCommitResponsePartition] = array("0+")

    throttle_time_ms: int = int32("0+")
    topics: list[TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic] = array("0+")
