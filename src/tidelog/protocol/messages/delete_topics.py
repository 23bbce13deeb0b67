"""DeleteTopics (key 20): delete topics by name or id."""

from __future__ import annotations

from tidelog.protocol.message import Message
from tidelog.protocol.schema import Struct, array, int16, int32, string, uuid


class DeleteTopicsRequest(Message, key=20, versions="1-6", flexible="4+"):
    class DeleteTopicState(Struct):
        name: str | None = string("6+", nullable="6+", default=None)
        topic_id: bytes = uuid("6+")

    topics: list[DeleteTopicsRequest.DeleteTopicState] = array("6+")
    topic_names: list[str] = array("0-5", "string", ignorable=True)
    timeout_ms: int = int32("0+")


class DeleteTopicsResponse(Message, key=20, versions="1-6", flexible="4+"):
    class DeletableTopicResult(Struct):
        name: str | None = string("0+", nullable="6+")
        topic_id: bytes = uuid("6+", ignorable=True)
        error_code: int = int16("0+")
        error_message: str | None = string("5+", nullable="5+", default=None, ignorable=True)

    throttle_time_ms: int = int32("1+", ignorable=True)
    responses: list[DeleteTopicsResponse.DeletableTopicResult] = array("0+")
