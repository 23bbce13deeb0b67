"""WriteShareGroupState (key 85): keep a new state of share partitions."""

from __future__ import annotations

from tidelog.protocol.message import Message
from tidelog.protocol.schema import Struct, array, int8, int16, int32, int64, string, uuid


class WriteShareGroupStateRequest(Message, key=85, versions="0-1", flexible="0+"):
    class StateBatch(Struct):
        first_offset: int = int64("0+")
        last_offset: int = int64("0+")
        delivery_state: int = int8("0+")
        delivery_count: int = int16("0+")

    class PartitionData(Struct):
        partition: int = int32("0+")
        state_epoch: int = int32("0+")
        leader_epoch: int = int32("0+")
        start_offset: int = int64("0+")
        delivery_complete_count: int = int32("1+", default=-1, ignorable=True)
        state_batches: list[WriteShareGroupStateRequest.StateBatch] = array("0+")

    class WriteStateData(Struct):
        topic_id: bytes = uuid("0+")
        partitions: list[WriteShareGroupStateRequest.PartitionData] = array("0+")

    group_id: str = string("0+")
    topics: list[WriteShareGroupStateRequest.WriteStateData] = array("0+")


class WriteShareGroupStateResponse(Message, key=85, versions="0-1", flexible="0+"):
    class PartitionResult(Struct):
        partition: int = int32("0+")
        error_code: int = int16("0+")
        error_message: str | None = string("0+", nullable="0+", default=None)

    class WriteStateResult(Struct):
        topic_id: bytes = uuid("0+")
        partitions: list[WriteShareGroupStateResponse.PartitionResult] = array("0+")

    results: list[WriteShareGroupStateResponse.WriteStateResult] = array("0+")
