"""ConsumerGroupHeartbeat (key 68): be a member of a consumer group whose partitions the broker assigns."""

from __future__ import annotations

from tidelog.protocol.message import Message
from tidelog.protocol.schema import Struct, array, int16, int32, string, struct, uuid


class ConsumerGroupHeartbeatRequest(Message, key=68, versions="0-1", flexible="0+"):
    class TopicPartitions(Struct):
        topic_id: bytes = uuid("0+")
        partitions: list[int] = array("0+", "int32")

    group_id: str = string("0+")
    member_id: str = string("0+")
    member_epoch: int = int32("0+")
    instance_id: str | None = string("0+", nullable="0+", default=None)
    rack_id: str | None = string("0+", nullable="0+", default=None)
    rebalance_timeout_ms: int = int32("0+", default=-1)
    subscribed_topic_names: list[str] | None = array("0+", "string", nullable="0+", default=None)
    subscribed_topic_regex: str | None = string("1+", nullable="1+", default=None)
    server_assignor: str | None = string("0+", nullable="0+", default=None)
    topic_partitions: list[ConsumerGroupHeartbeatRequest.TopicPartitions] | None = array(
        "0+", nullable="0+", default=None
    )


class ConsumerGroupHeartbeatResponse(Message, key=68, versions="0-1", flexible="0+"):
    class Assignment(Struct):
        topic_partitions: list[ConsumerGroupHeartbeatResponse.TopicPartitions] = array("0+")

    class TopicPartitions(Struct):
        topic_id: bytes = uuid("0+")
        partitions: list[int] = array("0+", "int32")

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", default=None)
    member_id: str | None = string("0+", nullable="0+", default=None)
    member_epoch: int = int32("0+")
    heartbeat_interval_ms: int = int32("0+")
    assignment: ConsumerGroupHeartbeatResponse.Assignment | None = struct("0+", nullable="0+")
