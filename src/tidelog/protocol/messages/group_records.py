"""Records of classic and consumer groups in `__consumer_offsets`: committed offsets, members, assignments.

The key of a message is the record type, which stands in the first two bytes of the stored key.
"""

from __future__ import annotations

from tidelog.protocol.message import Message
from tidelog.protocol.schema import Struct, array, binary, int8, int32, int64, string, struct, uuid


class LegacyOffsetCommitKey(Message, key=0, versions="0", flexible="none"):
    group: str = string("0")
    topic: str = string("0")
    partition: int = int32("0")


class LegacyOffsetCommitValue(Message, key=0, versions="0", flexible="none"):
    offset: int = int64("0")
    metadata: str = string("0")
    commit_timestamp: int = int64("0")


class OffsetCommitKey(Message, key=1, versions="0", flexible="none"):
    group: str = string("0")
    topic: str = string("0")
    partition: int = int32("0")


class OffsetCommitValue(Message, key=1, versions="0-4", flexible="4+"):
    offset: int = int64("0+")
    leader_epoch: int = int32("3+", default=-1, ignorable=True)
    metadata: str = string("0+")
    commit_timestamp: int = int64("0+")
    expire_timestamp: int = int64("1", default=-1, ignorable=True)
    topic_id: bytes = uuid("4+", tag=0, ignorable=True)


class GroupMetadataKey(Message, key=2, versions="0", flexible="none"):
    group: str = string("0")


class GroupMetadataValue(Message, key=2, versions="0-4", flexible="4+"):
    class MemberMetadata(Struct):
        member_id: str = string("0+")
        group_instance_id: str | None = string("3+", nullable="3+", default=None, ignorable=True)
        client_id: str = string("0+")
        client_host: str = string("0+")
        rebalance_timeout: int = int32("1+", default=-1, ignorable=True)
        session_timeout: int = int32("0+")
        subscription: bytes = binary("0+")
        assignment: bytes = binary("0+")

    protocol_type: str = string("0+")
    generation: int = int32("0+")
    protocol: str | None = string("0+", nullable="0+")
    leader: str | None = string("0+", nullable="0+")
    current_state_timestamp: int = int64("2+", default=-1, ignorable=True)
    members: list[GroupMetadataValue.MemberMetadata] = array("0+")


class ConsumerGroupMetadataKey(Message, key=3, versions="0", flexible="none"):
    group_id: str = string("0")


class ConsumerGroupMetadataValue(Message, key=3, versions="0", flexible="0+"):
    epoch: int = int32("0+")
    metadata_hash: int = int64("0+", tag=0)


class ConsumerGroupPartitionMetadataKey(Message, key=4, versions="0", flexible="none"):
    group_id: str = string("0")


class ConsumerGroupPartitionMetadataValue(Message, key=4, versions="0", flexible="0+"):
    class PartitionMetadata(Struct):
        partition: int = int32("0+")
        racks: list[str] = array("0+", "string")

    class TopicMetadata(Struct):
        topic_id: bytes = uuid("0+")
        topic_name: str = string("0+")
        num_partitions: int = int32("0+")
        partition_metadata: list[ConsumerGroupPartitionMetadataValue.PartitionMetadata] = array("0+")

    topics: list[ConsumerGroupPartitionMetadataValue.TopicMetadata] = array("0+")


class ConsumerGroupMemberMetadataKey(Message, key=5, versions="0", flexible="none"):
    group_id: str = string("0")
    member_id: str = string("0")


class ConsumerGroupMemberMetadataValue(Message, key=5, versions="0", flexible="0+"):
    class ClassicProtocol(Struct):
        name: str = string("0+")
        metadata: bytes = binary("0+")

    class ClassicMemberMetadata(Struct):
        session_timeout_ms: int = int32("0+")
        supported_protocols: list[ConsumerGroupMemberMetadataValue.ClassicProtocol] = array("0+")

    instance_id: str | None = string("0+", nullable="0+")
    rack_id: str | None = string("0+", nullable="0+")
    client_id: str = string("0+")
    client_host: str = string("0+")
    subscribed_topic_names: list[str] = array("0+", "string")
    subscribed_topic_regex: str | None = string("0+", nullable="0+")
    rebalance_timeout_ms: int = int32("0+", default=-1)
    server_assignor: str | None = string("0+", nullable="0+")
    classic_member_metadata: ConsumerGroupMemberMetadataValue.ClassicMemberMetadata | None = struct(
        "0+", nullable="0+", tag=0
    )


class ConsumerGroupTargetAssignmentMetadataKey(Message, key=6, versions="0", flexible="none"):
    group_id: str = string("0")


class ConsumerGroupTargetAssignmentMetadataValue(Message, key=6, versions="0", flexible="0+"):
    assignment_epoch: int = int32("0+")
    assignment_timestamp: int = int64("0+", tag=0, ignorable=True)


class ConsumerGroupTargetAssignmentMemberKey(Message, key=7, versions="0", flexible="none"):
    group_id: str = string("0")
    member_id: str = string("0")


class ConsumerGroupTargetAssignmentMemberValue(Message, key=7, versions="0", flexible="0+"):
    class TopicPartition(Struct):
        topic_id: bytes = uuid("0+")
        partitions: list[int] = array("0+", "int32")

    topic_partitions: list[ConsumerGroupTargetAssignmentMemberValue.TopicPartition] = array("0+")


class ConsumerGroupCurrentMemberAssignmentKey(Message, key=8, versions="0", flexible="none"):
    group_id: str = string("0")
    member_id: str = string("0")


class ConsumerGroupCurrentMemberAssignmentValue(Message, key=8, versions="0", flexible="0+"):
    class TopicPartitions(Struct):
        topic_id: bytes = uuid("0+")
        partitions: list[int] = array("0+", "int32")
        assignment_epochs: list[int] | None = array("0+", "int32", nullable="0+", default=None, tag=0)

    member_epoch: int = int32("0+")
    previous_member_epoch: int = int32("0+")
    state: int = int8("0+")
    assigned_partitions: list[ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions] = array("0+")
    partitions_pending_revocation: list[ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions] = array(
        "0+"
    )


class ConsumerGroupRegularExpressionKey(Message, key=16, versions="0", flexible="none"):
    group_id: str = string("0")
    regular_expression: str = string("0")


class ConsumerGroupRegularExpressionValue(Message, key=16, versions="0", flexible="0+"):
    topics: list[str] = array("0+", "string")
    version: int = int64("0+")
    timestamp: int = int64("0+")
