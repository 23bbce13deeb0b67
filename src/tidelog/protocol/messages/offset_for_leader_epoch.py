"""OffsetForLeaderEpoch (key 23): where a leader epoch ends in a partition's log."""

from __future__ import annotations

from tidelog.protocol.message import Message
from tidelog.protocol.schema import Struct, array, int16, int32, int64, string


class OffsetForLeaderEpochRequest(Message, key=23, versions="2-4", flexible="4+"):
    class OffsetForLeaderPartition(Struct):
        partition: int = int32("0+")
        current_leader_epoch: int = int32("2+", default=-1, ignorable=True)
        leader_epoch: int = int32("0+")

    class OffsetForLeaderTopic(Struct):
        topic: str = string("0+")
        partitions: list[OffsetForLeaderEpochRequest.OffsetForLeaderPartition] = array("0+")

    replica_id: int = int32("3+", default=-2, ignorable=True)
    topics: list[OffsetForLeaderEpochRequest.OffsetForLeaderTopic] = array("0+")


class OffsetForLeaderEpochResponse(Message, key=23, versions="2-4", flexible="4+"):
    class EpochEndOffset(Struct):
        error_code: int = int16("0+")
        partition: int = int32("0+")
        leader_epoch: int = int32("1+", default=-1, ignorable=True)
        end_offset: int = int64("0+", default=-1)

    class OffsetForLeaderTopicResult(Struct):
        topic: str = string("0+")
        partitions: list[OffsetForLeaderEpochResponse.EpochEndOffset] = array("0+")

    throttle_time_ms: int = int32("2+", ignorable=True)
    topics: list[OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult] = array("0+")
