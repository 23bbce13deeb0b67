"""Converts running groups from the classic protocol to the consumer protocol and back (KIP-848).

Upgrade: a classic group of consumers becomes a consumer group when the first member with the new protocol
joins; the others stay as its classic members. Downgrade: when the last member with the new protocol leaves,
the others become a classic group again. A conversion is one batch of records: the tombstones of the old group
and the records of the new one.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from tidelog.coordinator.group.classic import ClassicGroup
from tidelog.coordinator.group.consumer import ConsumerGroup, metadata_hash
from tidelog.coordinator.group.consumer_decisions import Draft
from tidelog.coordinator.group.consumer_events import (
    ClassicMember,
    CurrentAssignment,
    CurrentEvent,
    EpochEvent,
    Member,
    MemberEvent,
    MemberMetadata,
    Target,
    TargetEpochEvent,
    TargetEvent,
)
from tidelog.coordinator.group.group import CONSUMER_PROTOCOL_TYPE
from tidelog.coordinator.group.group_metadata import member_metadata
from tidelog.coordinator.group.members import Member as OfClassicGroup
from tidelog.coordinator.group.members import Members, Protocol
from tidelog.coordinator.group.records import group_key, group_value
from tidelog.coordinator.runtime import NewRecord
from tidelog.errors import GroupIdNotFound
from tidelog.metadata.state import ClusterState
from tidelog.protocol.message import decode
from tidelog.protocol.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
)
from tidelog.protocol.messages.group_records import GroupMetadataValue
from tidelog.protocol.wire import ProtocolError

NEWEST_VERSION = 3


class MigrationPolicy(NamedTuple):
    upgrade: bool
    downgrade: bool

    @classmethod
    def of(cls, name: str) -> MigrationPolicy:
        """The policy for a value of `group.consumer.migration.policy`."""
        name = name.lower()
        return cls(name in ("upgrade", "bidirectional"), name in ("downgrade", "bidirectional"))


# -- subscriptions and assignments of classic members ----------------------------------------------


def read_subscription(data: bytes) -> ConsumerProtocolSubscription:
    """Decode a subscription. A newer version begins with the fields of the newest known version."""
    return decode(ConsumerProtocolSubscription, _version(data), data, 2)[0]


def read_assignment(data: bytes) -> ConsumerProtocolAssignment:
    return decode(ConsumerProtocolAssignment, _version(data), data, 2)[0]


def _version(data: bytes) -> int:
    if len(data) < 2:
        raise ProtocolError(f"a subscription or assignment of {len(data)} bytes has no version")
    version = int.from_bytes(data[:2], "big", signed=True)
    if version < 0:
        raise ProtocolError(f"a subscription or assignment has the version {version}")
    return min(version, NEWEST_VERSION)


def write_assignment(target: Target, cluster: ClusterState, subscription: bytes) -> bytes:
    """An assignment for a classic member, in the version of its subscription."""
    version = _version(subscription)
    topics = [
        ConsumerProtocolAssignment.TopicPartition(topic=name, partitions=sorted(partitions))
        for topic_id, partitions in target.items()
        if (name := cluster.names_by_id.get(topic_id)) is not None
    ]
    body = ConsumerProtocolAssignment(assigned_partitions=topics).encode(version)
    return version.to_bytes(2, "big") + body


# -- classic to consumer ---------------------------------------------------------------------------


def check_upgrade(group: ClassicGroup, policy: MigrationPolicy, max_size: int) -> None:
    if not policy.upgrade:
        raise GroupIdNotFound(
            f"the classic group {group.group_id} cannot become a consumer group: "
            "group.consumer.migration.policy forbids it"
        )
    if not group.uses_consumer_protocol:
        raise GroupIdNotFound(
            f"the classic group {group.group_id} cannot become a consumer group: "
            f"its protocol type is {group.protocol_type}"
        )
    if len(group.members) > max_size:
        raise GroupIdNotFound(
            f"the classic group {group.group_id} cannot become a consumer group: "
            f"of its {len(group.members)} members, {max_size} are allowed there"
        )


def upgrade(draft: Draft, group: ClassicGroup) -> None:
    """Convert a classic group to a consumer group: members keep their last assignment."""
    try:
        members = [_upgraded(member, group, draft.cluster) for member in group.members.by_id.values()]
    except ProtocolError as error:
        raise GroupIdNotFound(
            f"the classic group {group.group_id} cannot become a consumer group: {error}"
        ) from None
    for member in members:
        draft.add(MemberEvent(member.member_id, member.metadata))
    topics = {topic for member in members for topic in member.metadata.topics}
    draft.add(EpochEvent(group.generation, metadata_hash(topics, draft.cluster)))
    for member in members:
        target = {topic_id: frozenset(owned) for topic_id, owned in member.current.assigned.items()}
        draft.add(TargetEvent(member.member_id, target))
    draft.add(TargetEpochEvent(group.generation))
    for member in members:
        draft.add(CurrentEvent(member.member_id, member.current))


def _upgraded(member: OfClassicGroup, group: ClassicGroup, cluster: ClusterState) -> Member:
    # Before its first rebalance is complete, a group has no protocol.
    chosen = group.protocol if group.protocol is not None else member.protocols[0].name
    subscription = read_subscription(member.metadata(chosen))
    assigned: dict[bytes, dict[int, int]] = {}
    if member.assignment:
        assignment = read_assignment(member.assignment)
        if assignment.user_data:
            raise ProtocolError("its assignor leaves data of its own with the members, which would be lost")
        for topic in assignment.assigned_partitions:
            state = cluster.topics.get(topic.topic)
            if state is not None:
                assigned[state.topic_id] = dict.fromkeys(topic.partitions, group.generation)
    return Member(
        member.member_id,
        MemberMetadata(
            instance_id=member.instance_id,
            rack_id=subscription.rack_id or None,
            client_id=member.client_id,
            client_host=member.client_host,
            topics=frozenset(subscription.topics),
            rebalance_timeout_ms=member.rebalance_timeout_ms,
            classic=ClassicMember(member.session_timeout_ms, tuple(member.protocols)),
        ),
        CurrentAssignment(group.generation, group.generation, assigned=assigned),
    )


# -- consumer to classic ---------------------------------------------------------------------------


class Downgrade(NamedTuple):
    """A consumer group as a classic one: its record, and its members with all their protocols."""

    record: NewRecord
    members: Members


def may_downgrade(
    group: ConsumerGroup, leaving: Collection[str], policy: MigrationPolicy, max_size: int
) -> bool:
    """Whether the group can become a classic one when these members leave, because all others are classic."""
    staying = [member for member_id, member in group.members.items() if member_id not in leaving]
    return 0 < len(staying) <= max_size and policy.downgrade and all(member.is_classic for member in staying)


def downgrade(
    group: ConsumerGroup, leaving: Collection[str], cluster: ClusterState, now_ms: int
) -> Downgrade:
    members = Members()
    for member_id, member in group.members.items():
        if member_id not in leaving:
            members.add(_downgraded(member))
    protocol = members.select_protocol()
    for stays in members.by_id.values():
        target = group.targets.get(stays.member_id, {})
        stays.assignment = write_assignment(target, cluster, stays.metadata(protocol))
    value = GroupMetadataValue(
        protocol_type=CONSUMER_PROTOCOL_TYPE,
        generation=group.group_epoch,
        protocol=protocol,
        leader=members.leader_id,
        current_state_timestamp=now_ms,
        members=[member_metadata(member, protocol, member.assignment) for member in members.by_id.values()],
    )
    return Downgrade(NewRecord(group_key(group.group_id), group_value(value)), members)


def _downgraded(member: Member) -> OfClassicGroup:
    metadata = member.metadata
    assert metadata.classic is not None
    return OfClassicGroup(
        member.member_id,
        metadata.instance_id,
        metadata.client_id,
        metadata.client_host,
        metadata.classic.session_timeout_ms,
        metadata.rebalance_timeout_ms,
        [Protocol(name, data) for name, data in metadata.classic.protocols],
    )
