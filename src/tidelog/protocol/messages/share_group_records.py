"""Records of share groups in `__consumer_offsets`."""

from __future__ import annotations

from tidelog.protocol.message import Message
from tidelog.protocol.schema import Struct, array, int8, int32, int64, string, uuid


class ShareGroupMemberMetadataKey(Message, key=10, versions="0", flexible="none"):
    group_id: str = string("0")
    member_id: str = string("0")


class ShareGroupMemberMetadataValue(Message, key=10, versions="0", flexible="0+"):
    rack_id: str | None = string("0+", nullable="0+")
    client_id: str = string("0+")
    client_host: str = string("0+")
    subscribed_topic_names: list[str] = array("0+", "string")


class ShareGroupMetadataKey(Message, key=11, versions="0", flexible="none"):
    group_id: str = string("0")


class ShareGroupMetadataValue(Message, key=11, versions="0", flexible="0+"):
    epoch: int = int32("0+")
    metadata_hash: int = int64("0+")


class ShareGroupTargetAssignmentMetadataKey(Message, key=12, versions="0", flexible="none"):
    group_id: str = string("0")


class ShareGroupTargetAssignmentMetadataValue(Message, key=12, versions="0", flexible="0+"):
    assignment_epoch: int = int32("0+")
    assignment_timestamp: int = int64("0+", tag=0, ignorable=True)


class ShareGroupTargetAssignmentMemberKey(Message, key=13, versions="0", flexible="none"):
    group_id: str = string("0")
    member_id: str = string("0")


class ShareGroupTargetAssignmentMemberValue(Message, key=13, versions="0", flexible="0+"):
    class TopicPartition(Struct):
        topic_id: bytes = uuid("0+")
        partitions: list[int] = array("0+", "int32")

    topic_partitions: list[ShareGroupTargetAssignmentMemberValue.TopicPartition] = array("0+")


class ShareGroupCurrentMemberAssignmentKey(Message, key=14, versions="0", flexible="none"):
    group_id: str = string("0")
    member_id: str = string("0")


class ShareGroupCurrentMemberAssignmentValue(Message, key=14, versions="0", flexible="0+"):
    class TopicPartitions(Struct):
        topic_id: bytes = uuid("0+")
        partitions: list[int] = array("0+", "int32")

    member_epoch: int = int32("0+")
    previous_member_epoch: int = int32("0+")
    state: int = int8("0+")
    assigned_partitions: list[ShareGroupCurrentMemberAssignmentValue.TopicPartitions] = array("0+")


class ShareGroupStatePartitionMetadataKey(Message, key=15, versions="0", flexible="none"):
    group_id: str = string("0")


class ShareGroupStatePartitionMetadataValue(Message, key=15, versions="0", flexible="0+"):
    class TopicPartitionsInfo(Struct):
        topic_id: bytes = uuid("0+")
        topic_name: str = string("0+")
        partitions: list[int] = array("0+", "int32")

    class TopicInfo(Struct):
        topic_id: bytes = uuid("0+")
        topic_name: str = string("0+")

    initializing_topics: list[ShareGroupStatePartitionMetadataValue.TopicPartitionsInfo] = array("0+")
    initialized_topics: list[ShareGroupStatePartitionMetadataValue.TopicPartitionsInfo] = array("0+")
    deleting_topics: list[ShareGroupStatePartitionMetadataValue.TopicInfo] = array("0+")
