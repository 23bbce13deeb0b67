"""DeleteShareGroupState (key 86): drop the state of share partitions."""

from __future__ import annotations

from tidelog.protocol.message import Message
from tidelog.protocol.schema import Struct, array, int16, int32, string, uuid


class DeleteShareGroupStateRequest(Message, key=86, versions="0", flexible="0+"):
    class PartitionData(Struct):
        partition: int = int32("0+")

    class DeleteStateData(Struct):
        topic_id: bytes = uuid("0+")
        partitions: list[DeleteShareGroupStateRequest.PartitionData] = array("0+")

    group_id: str = string("0+")
    topics: list[DeleteShareGroupStateRequest.DeleteStateData] = array("0+")


class DeleteShareGroupStateResponse(Message, key=86, versions="0", flexible="0+"):
    class PartitionResult(Struct):
        partition: int = int32("0+")
        error_code: int = int16("0+")
        error_message: str | None = string("0+", nullable="0+", default=None)

    class DeleteStateResult(Struct):
        topic_id: bytes = uuid("0+")
        partitions: list[DeleteShareGroupStateResponse.PartitionResult] = array("0+")

    results: list[DeleteShareGroupStateResponse.DeleteStateResult] = array("0+")
