"""ReadShareGroupState (key 84): the state of share partitions."""

from __future__ import annotations

from tidelog.protocol.message import Message
from tidelog.protocol.schema import Struct, array, int8, int16, int32, int64, string, uuid


class ReadShareGroupStateRequest(Message, key=84, versions="0", flexible="0+"):
    class PartitionData(Struct):
        partition: int = int32("0+")
        leader_epoch: int = int32("0+")

    class ReadStateData(Struct):
        topic_id: bytes = uuid("0+")
        partitions: list[ReadShareGroupStateRequest.PartitionData] = array("0+")

    group_id: str = string("0+")
    topics: list[ReadShareGroupStateRequest.ReadStateData] = array("0+")


class ReadShareGroupStateResponse(Message, key=84, versions="0", flexible="0+"):
    class StateBatch(Struct):
        first_offset: int = int64("0+")
        last_offset: int = int64("0+")
        delivery_state: int = int8("0+")
        delivery_count: int = int16("0+")

    class PartitionResult(Struct):
        partition: int = int32("0+")
        error_code: int = int16("0+")
        error_message: str | None = string("0+", nullable="0+", default=None)
        state_epoch: int = int32("0+")
        start_offset: int = int64("0+")
        state_batches: list[ReadShareGroupStateResponse.StateBatch] = array("0+")

    class ReadStateResult(Struct):
        topic_id: bytes = uuid("0+")
        partitions: list[ReadShareGroupStateResponse.PartitionResult] = array("0+")

    results: list[ReadShareGroupStateResponse.ReadStateResult] = array("0+")
