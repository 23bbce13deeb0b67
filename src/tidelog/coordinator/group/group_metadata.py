"""Converts classic groups to their records and back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from tidelog.coordinator.group.members import Member, Protocol
from tidelog.coordinator.group.records import group_key, group_value
from tidelog.coordinator.runtime import NewRecord
from tidelog.protocol.message import decode
from tidelog.protocol.messages.consumer_protocol import ConsumerProtocolSubscription
from tidelog.protocol.messages.group_records import GroupMetadataValue
from tidelog.protocol.wire import ProtocolError

if TYPE_CHECKING:
    from tidelog.coordinator.group.classic import ClassicGroup


def group_metadata(group: ClassicGroup, assignments: Mapping[str, bytes]) -> NewRecord:
    """The record of the group with these assignments."""
    members = [
        member_metadata(member, group.protocol, assignments[member.member_id])
        for member in group.members.by_id.values()
        if member.member_id in assignments
    ]
    value = GroupMetadataValue(
        protocol_type=group.protocol_type or "",
        generation=group.generation,
        protocol=group.protocol,
        leader=group.members.leader_id if members else None,
        current_state_timestamp=group.state_timestamp,
        members=members,
    )
    return NewRecord(group_key(group.group_id), group_value(value))


def member_metadata(
    member: Member, protocol: str | None, assignment: bytes
) -> GroupMetadataValue.MemberMetadata:
    """A member of the record, with its subscription for the protocol of the group."""
    return GroupMetadataValue.MemberMetadata(
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout=member.rebalance_timeout_ms,
        session_timeout=member.session_timeout_ms,
        subscription=member.metadata(protocol),
        assignment=assignment,
    )


def new_group(group_id: str, now_ms: int) -> NewRecord:
    """The first record of a new group, so that it exists after a restart."""
    value = GroupMetadataValue(protocol=None, leader=None, current_state_timestamp=now_ms)
    return NewRecord(group_key(group_id), group_value(value))


def group_tombstone(group_id: str) -> NewRecord:
    return NewRecord(group_key(group_id), None)


def restored_members(value: GroupMetadataValue) -> list[Member]:
    """The members of a record. Older versions have no rebalance timeout."""
    return [
        Member(
            member.member_id,
            member.group_instance_id,
            member.client_id,
            member.client_host,
            member.session_timeout,
            member.session_timeout if member.rebalance_timeout == -1 else member.rebalance_timeout,
            [Protocol(value.protocol or "", bytes(member.subscription))],
            assignment=bytes(member.assignment),
        )
        for member in value.members
    ]


def subscribed_topics(subscriptions: Iterable[bytes]) -> frozenset[str] | None:
    """The subscribed topics of the members; None if one has metadata that cannot be decoded."""
    topics: set[str] = set()
    for subscription in subscriptions:
        try:
            if len(subscription) < 2:
                raise ProtocolError("the version is missing")
            # Every version begins with the fields of version 0.
            topics.update(decode(ConsumerProtocolSubscription, 0, subscription, 2)[0].topics)
        except ProtocolError:
            return None
    return frozenset(topics)
