"""What members of classic consumer groups tell each other: subscriptions and assignments."""

from __future__ import annotations

from tidelog.protocol.message import Message
from tidelog.protocol.schema import Struct, array, binary, int32, string


class ConsumerProtocolAssignment(Message, versions="0-3", flexible="none"):
    class TopicPartition(Struct):
        topic: str = string("0+")
        partitions: list[int] = array("0+", "int32")

    assigned_partitions: list[ConsumerProtocolAssignment.TopicPartition] = array("0+")
    user_data: bytes | None = binary("0+", nullable="0+", default=None)


class ConsumerProtocolSubscription(Message, versions="0-3", flexible="none"):
    class TopicPartition(Struct):
        topic: str = string("1+")
        partitions: list[int] = array("1+", "int32")

    topics: list[str] = array("0+", "string")
    user_data: bytes | None = binary("0+", nullable="0+", default=None)
    owned_partitions: list[ConsumerProtocolSubscription.TopicPartition] = array("1+", ignorable=True)
    generation_id: int = int32("2+", default=-1, ignorable=True)
    rack_id: str | None = string("3+", nullable="3+", default=None, ignorable=True)
