"""ConsumerGroupDescribe (key 69): state and members of consumer groups."""

from __future__ import annotations

from tidelog.protocol.message import Message
from tidelog.protocol.schema import Struct, array, boolean, int8, int16, int32, string, struct, uuid


class ConsumerGroupDescribeRequest(Message, key=69, versions="0-1", flexible="0+"):
    group_ids: list[str] = array("0+", "string")
    include_authorized_operations: bool = boolean("0+")


class ConsumerGroupDescribeResponse(Message, key=69, versions="0-1", flexible="0+"):
    class Member(Struct):
        member_id: str = string("0+")
        instance_id: str | None = string("0+", nullable="0+", default=None)
        rack_id: str | None = string("0+", nullable="0+", default=None)
        member_epoch: int = int32("0+")
        client_id: str = string("0+")
        client_host: str = string("0+")
        subscribed_topic_names: list[str] = array("0+", "string")
        subscribed_topic_regex: str | None = string("0+", nullable="0+", default=None)
        assignment: ConsumerGroupDescribeResponse.Assignment = struct("0+")
        target_assignment: ConsumerGroupDescribeResponse.Assignment = struct("0+")
        member_type: int = int8("1+", default=-1, ignorable=True)

    class DescribedGroup(Struct):
        error_code: int = int16("0+")
        error_message: str | None = string("0+", nullable="0+", default=None)
        group_id: str = string("0+")
        group_state: str = string("0+")
        group_epoch: int = int32("0+")
        assignment_epoch: int = int32("0+")
        assignor_name: str = string("0+")
        members: list[ConsumerGroupDescribeResponse.Member] = array("0+")
        authorized_operations: int = int32("0+", default=-2147483648)

    class TopicPartitions(Struct):
        topic_id: bytes = uuid("0+")
        topic_name: str = string("0+")
        partitions: list[int] = array("0+", "int32")

    class Assignment(Struct):
        topic_partitions: list[ConsumerGroupDescribeResponse.TopicPartitions] = array("0+")

    throttle_time_ms: int = int32("0+")
    groups: list[ConsumerGroupDescribeResponse.DescribedGroup] = array("0+")
