"""InitializeShareGroupState (key 83): start keeping the state of share partitions."""

from __future__ import annotations

from tidelog.protocol.message import Message
from tidelog.protocol.schema import Struct, array, int16, int32, int64, string, uuid


class InitializeShareGroupStateRequest(Message, key=83, versions="0", flexible="0+"):
    class PartitionData(Struct):
        partition: int = int32("0+")
        state_epoch: int = int32("0+")
        start_offset: int = int64("0+")

    class InitializeStateData(Struct):
        topic_id: bytes = uuid("0+")
        partitions: list[InitializeShareGroupStateRequest.PartitionData] = array("0+")

    group_id: str = string("0+")
    topics: list[InitializeShareGroupStateRequest.InitializeStateData] = array("0+")


class InitializeShareGroupStateResponse(Message, key=83, versions="0", flexible="0+"):
    class PartitionResult(Struct):
        partition: int = int32("0+")
        error_code: int = int16("0+")
        error_message: str | None = string("0+", nullable="0+", default=None)

    class InitializeStateResult(Struct):
        topic_id: bytes = uuid("0+")
        partitions: list[InitializeShareGroupStateResponse.PartitionResult] = array("0+")

    results: list[InitializeShareGroupStateResponse.InitializeStateResult] = array("0+")
