"""ShareGroupHeartbeat (key 76): be a member of a share group."""

from __future__ import annotations

from tidelog.protocol.message import Message
from tidelog.protocol.schema import Struct, array, int16, int32, string, struct, uuid


class ShareGroupHeartbeatRequest(Message, key=76, versions="1", flexible="0+"):
    group_id: str = string("0+")
    member_id: str = string("0+")
    member_epoch: int = int32("0+")
    rack_id: str | None = string("0+", nullable="0+", default=None)
    subscribed_topic_names: list[str] | None = array("0+", "string", nullable="0+", default=None)


class ShareGroupHeartbeatResponse(Message, key=76, versions="1", flexible="0+"):
    class Assignment(Struct):
        topic_partitions: list[ShareGroupHeartbeatResponse.TopicPartitions] = array("0+")

    class TopicPartitions(Struct):
        topic_id: bytes = uuid("0+")
        partitions: list[int] = array("0+", "int32")

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", default=None)
    member_id: str | None = string("0+", nullable="0+", default=None)
    member_epoch: int = int32("0+")
    heartbeat_interval_ms: int = int32("0+")
    assignment: ShareGroupHeartbeatResponse.Assignment | None = struct("0+", nullable="0+")
