"""DeleteShareGroupOffsets (key 92): delete the start offsets of a share group."""

from __future__ import annotations

from tidelog.protocol.message import Message
from tidelog.protocol.schema import Struct, array, int16, int32, string, uuid


class DeleteShareGroupOffsetsRequest(Message, key=92, versions="0", flexible="0+"):
    class DeleteShareGroupOffsetsRequestTopic(Struct):
        topic_name: str = string("0+")

    group_id: str = string("0+")
    topics: list[DeleteShareGroupOffsetsRequest.DeleteShareGroupOffsetsRequestTopic] = array("0+")


class DeleteShareGroupOffsetsResponse(Message, key=92, versions="0", flexible="0+"):
    class DeleteShareGroupOffsetsResponseTopic(Struct):
        topic_name: str = string("0+")
        topic_id: bytes = uuid("0+")
        error_code: int = int16("0+")
        error_message: str | None = string("0+", nullable="0+", default=None)

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", default=None)
    responses: list[DeleteShareGroupOffsetsResponse.DeleteShareGroupOffsetsResponseTopic] = array("0+")
