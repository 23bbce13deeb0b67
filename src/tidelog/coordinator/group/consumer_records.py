"""The records of consumer groups in `__consumer_offsets`: types 3 to 8 and 16, in Kafka's formats.

`encode` and `decode` are inverse to each other for every event of a group.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import TypeVar

from tidelog.coordinator.group.consumer_events import (
    ClassicMember,
    CurrentAssignment,
    CurrentEvent,
    EpochEvent,
    Event,
    MemberEvent,
    MemberMetadata,
    MemberState,
    Owned,
    PartitionMetadataEvent,
    PatternEvent,
    ResolvedPattern,
    TargetEpochEvent,
    TargetEvent,
)
from tidelog.coordinator.runtime import NewRecord
from tidelog.protocol.message import Message
from tidelog.protocol.messages.group_records import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
)

M = TypeVar("M", bound=Message)

EPOCH, PARTITION_METADATA, MEMBER, TARGET_EPOCH, TARGET, CURRENT, PATTERN = 3, 4, 5, 6, 7, 8, 16

# For Kafka a member record without this tagged field belongs to a classic member: a null value of one byte
# says that the member is not classic.
_NO_CLASSIC_METADATA = {0: b"\0"}

_VERSION = struct.Struct(">h")
_V0 = _VERSION.pack(0)


def encode(group_id: str, event: Event) -> NewRecord:
    match event:
        case CurrentEvent(member_id, current):
            return _record(
                CURRENT,
                ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member_id),
                None if current is None else _current_value(current),
            )
        case TargetEvent(member_id, target):
            topics = ConsumerGroupTargetAssignmentMemberValue.TopicPartition
            return _record(
                TARGET,
                ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id),
                None
                if target is None
                else ConsumerGroupTargetAssignmentMemberValue(
                    topic_partitions=[
                        topics(topic_id=topic_id, partitions=sorted(partitions))
                        for topic_id, partitions in target.items()
                    ]
                ),
            )
        case MemberEvent(member_id, metadata):
            return _record(
                MEMBER,
                ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=member_id),
                None if metadata is None else _member_value(metadata),
            )
        case EpochEvent(epoch, metadata_hash):
            return _record(
                EPOCH,
                ConsumerGroupMetadataKey(group_id=group_id),
                None
                if epoch is None
                else ConsumerGroupMetadataValue(epoch=epoch, metadata_hash=metadata_hash),
            )
        case TargetEpochEvent(epoch, timestamp):
            return _record(
                TARGET_EPOCH,
                ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id),
                None
                if epoch is None
                else ConsumerGroupTargetAssignmentMetadataValue(
                    assignment_epoch=epoch, assignment_timestamp=timestamp
                ),
            )
        case PatternEvent(pattern, resolved):
            return _record(
                PATTERN,
                ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=pattern),
                None
                if resolved is None
                else ConsumerGroupRegularExpressionValue(
                    topics=sorted(resolved.topics), version=resolved.version, timestamp=resolved.timestamp
                ),
            )
        case PartitionMetadataEvent(False):
            return _record(PARTITION_METADATA, ConsumerGroupPartitionMetadataKey(group_id=group_id), None)
    raise ValueError(f"{event} is read, and not written")


def encode_all(group_id: str, events: Iterable[Event]) -> list[NewRecord]:
    return [encode(group_id, event) for event in events]


def decode(record_type: int, key: bytes, value: bytes | None) -> tuple[str, Event]:
    """The group id and the event of a record."""
    body = key[2:]
    if record_type == CURRENT:
        current = ConsumerGroupCurrentMemberAssignmentKey.decode(body, 0)
        return current.group_id, CurrentEvent(current.member_id, _read_current(value))
    if record_type == TARGET:
        target = ConsumerGroupTargetAssignmentMemberKey.decode(body, 0)
        assignment = _read(ConsumerGroupTargetAssignmentMemberValue, value)
        return target.group_id, TargetEvent(
            target.member_id,
            None
            if assignment is None
            else {topic.topic_id: frozenset(topic.partitions) for topic in assignment.topic_partitions},
        )
    if record_type == MEMBER:
        member = ConsumerGroupMemberMetadataKey.decode(body, 0)
        return member.group_id, MemberEvent(member.member_id, _read_member(value))
    if record_type == EPOCH:
        group_id = ConsumerGroupMetadataKey.decode(body, 0).group_id
        epoch = _read(ConsumerGroupMetadataValue, value)
        return group_id, EpochEvent(None) if epoch is None else EpochEvent(epoch.epoch, epoch.metadata_hash)
    if record_type == TARGET_EPOCH:
        group_id = ConsumerGroupTargetAssignmentMetadataKey.decode(body, 0).group_id
        made = _read(ConsumerGroupTargetAssignmentMetadataValue, value)
        if made is None:
            return group_id, TargetEpochEvent(None)
        return group_id, TargetEpochEvent(made.assignment_epoch, made.assignment_timestamp)
    if record_type == PATTERN:
        pattern = ConsumerGroupRegularExpressionKey.decode(body, 0)
        found = _read(ConsumerGroupRegularExpressionValue, value)
        return pattern.group_id, PatternEvent(
            pattern.regular_expression,
            None
            if found is None
            else ResolvedPattern(frozenset(found.topics), found.version, found.timestamp),
        )
    group_id = ConsumerGroupPartitionMetadataKey.decode(body, 0).group_id
    return group_id, PartitionMetadataEvent(value is not None)


def _record(record_type: int, key: Message, value: Message | None) -> NewRecord:
    return NewRecord(
        _VERSION.pack(record_type) + key.encode(0), None if value is None else _V0 + value.encode(0)
    )


def _read(cls: type[M], value: bytes | None) -> M | None:
    return None if value is None else cls.decode(value[2:], _VERSION.unpack_from(value)[0])


def _member_value(metadata: MemberMetadata) -> ConsumerGroupMemberMetadataValue:
    classic = metadata.classic
    value = ConsumerGroupMemberMetadataValue(
        instance_id=metadata.instance_id,
        rack_id=metadata.rack_id,
        client_id=metadata.client_id,
        client_host=metadata.client_host,
        subscribed_topic_names=sorted(metadata.topics),
        subscribed_topic_regex=metadata.pattern,
        rebalance_timeout_ms=metadata.rebalance_timeout_ms,
        server_assignor=metadata.assignor,
        classic_member_metadata=None
        if classic is None
        else ConsumerGroupMemberMetadataValue.ClassicMemberMetadata(
            session_timeout_ms=classic.session_timeout_ms,
            supported_protocols=[
                ConsumerGroupMemberMetadataValue.ClassicProtocol(name=name, metadata=data)
                for name, data in classic.protocols
            ],
        ),
    )
    if classic is None:
        value.unknown_tags = _NO_CLASSIC_METADATA
    return value


def _read_member(value: bytes | None) -> MemberMetadata | None:
    fields = _read(ConsumerGroupMemberMetadataValue, value)
    if fields is None:
        return None
    classic = fields.classic_member_metadata
    return MemberMetadata(
        instance_id=fields.instance_id,
        rack_id=fields.rack_id,
        client_id=fields.client_id,
        client_host=fields.client_host,
        topics=frozenset(fields.subscribed_topic_names),
        pattern=fields.subscribed_topic_regex or "",
        rebalance_timeout_ms=fields.rebalance_timeout_ms,
        assignor=fields.server_assignor,
        classic=None
        if classic is None
        else ClassicMember(
            classic.session_timeout_ms,
            tuple((protocol.name, bytes(protocol.metadata)) for protocol in classic.supported_protocols),
        ),
    )


def _current_value(current: CurrentAssignment) -> ConsumerGroupCurrentMemberAssignmentValue:
    return ConsumerGroupCurrentMemberAssignmentValue(
        member_epoch=current.epoch,
        previous_member_epoch=current.previous_epoch,
        state=current.state,
        assigned_partitions=_owned_value(current.assigned),
        partitions_pending_revocation=_owned_value(current.revoking),
    )


def _owned_value(owned: Owned) -> list[ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions]:
    return [
        ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions(
            topic_id=topic_id,
            partitions=sorted(partitions),
            assignment_epochs=[partitions[partition] for partition in sorted(partitions)],
        )
        for topic_id, partitions in owned.items()
    ]


def _read_current(value: bytes | None) -> CurrentAssignment | None:
    fields = _read(ConsumerGroupCurrentMemberAssignmentValue, value)
    if fields is None:
        return None
    try:
        state = MemberState(fields.state)
    except ValueError:
        state = MemberState.UNKNOWN  # of a later version
    return CurrentAssignment(
        fields.member_epoch,
        fields.previous_member_epoch,
        state,
        _read_owned(fields.assigned_partitions, fields.member_epoch),
        _read_owned(fields.partitions_pending_revocation, fields.member_epoch),
    )


def _read_owned(
    topics: list[ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions], member_epoch: int
) -> Owned:
    """Brokers before 4.3 wrote no assignment epochs: the member epoch is a safe value."""
    return {
        topic.topic_id: dict(zip(topic.partitions, topic.assignment_epochs, strict=False))
        if topic.assignment_epochs is not None and len(topic.assignment_epochs) == len(topic.partitions)
        else dict.fromkeys(topic.partitions, member_epoch)
        for topic in topics
    }
