"""ConsumerGroup: the state of a consumer group (KIP-848), which follows from its records.

A group changes only by `apply`, with the events of its records. So a loaded group and a running one have the
same state. `consumer_decisions` decides on the events.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from hashlib import blake2b

from tidelog.coordinator.group.consumer_events import (
    FIRST_EPOCH,
    LEAVE_EPOCH,
    CurrentAssignment,
    CurrentEvent,
    EpochEvent,
    Event,
    Member,
    MemberEvent,
    MemberMetadata,
    MemberState,
    PartitionMetadataEvent,
    PatternEvent,
    ResolvedPattern,
    Target,
    TargetEpochEvent,
    TargetEvent,
)
from tidelog.coordinator.group.consumer_records import encode_all
from tidelog.coordinator.group.group import CONSUMER_PROTOCOL_TYPE, CommitCheck, GroupKind
from tidelog.coordinator.runtime import NewRecord
from tidelog.errors import (
    IllegalGeneration,
    KafkaError,
    NonEmptyGroup,
    StaleMemberEpoch,
    UnknownMemberId,
    UnsupportedVersion,
)
from tidelog.metadata.state import ClusterState


class ConsumerGroup:
    """Implements coordinator.group.group.Group."""

    __slots__ = (
        "assignment_epoch",
        "assignment_timestamp",
        "group_epoch",
        "group_id",
        "has_partition_metadata",
        "members",
        "metadata_hash",
        "owners",
        "pattern_members",
        "patterns",
        "static_members",
        "targets",
    )

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.group_epoch = FIRST_EPOCH
        self.metadata_hash = 0
        self.assignment_epoch = FIRST_EPOCH
        self.assignment_timestamp = 0
        self.has_partition_metadata = False
        self.members: dict[str, Member] = {}
        self.targets: dict[str, Target] = {}
        self.patterns: dict[str, ResolvedPattern] = {}
        # Derived from the members: instance ids, the owner of each partition, the members of each pattern.
        self.static_members: dict[str, str] = {}
        self.owners: dict[tuple[bytes, int], str] = {}
        self.pattern_members: Counter[str] = Counter()

    def copy(self) -> ConsumerGroup:
        """A copy of the group. It shares the values, which are immutable."""
        other = ConsumerGroup(self.group_id)
        other.group_epoch = self.group_epoch
        other.metadata_hash = self.metadata_hash
        other.assignment_epoch = self.assignment_epoch
        other.assignment_timestamp = self.assignment_timestamp
        other.has_partition_metadata = self.has_partition_metadata
        other.members = self.members.copy()
        other.targets = self.targets.copy()
        other.patterns = self.patterns.copy()
        other.static_members = self.static_members.copy()
        other.owners = self.owners.copy()
        other.pattern_members = self.pattern_members.copy()
        return other

    # -- changes -----------------------------------------------------------------------------------

    def apply(self, event: Event) -> None:
        """Apply an event. The owner of the group handles its deletion."""
        match event:
            case CurrentEvent(member_id, current):
                member = self.members.get(member_id)
                if current is not None:
                    self._put(replace(member or Member(member_id), current=current))
                elif member is not None:
                    self._put(replace(member, current=CurrentAssignment(LEAVE_EPOCH, LEAVE_EPOCH)))
            case MemberEvent(member_id, metadata):
                if metadata is not None:
                    self._put(replace(self.members.get(member_id) or Member(member_id), metadata=metadata))
                else:
                    self._remove(member_id)
            case TargetEvent(member_id, target):
                if target is not None:
                    self.targets[member_id] = target
                else:
                    self.targets.pop(member_id, None)
            case EpochEvent(epoch, metadata_hash):
                if epoch is not None:
                    self.group_epoch, self.metadata_hash = epoch, metadata_hash
            case TargetEpochEvent(epoch, timestamp):
                self.assignment_epoch = -1 if epoch is None else epoch
                self.assignment_timestamp = timestamp
            case PatternEvent(pattern, resolved):
                if resolved is not None:
                    self.patterns[pattern] = resolved
                else:
                    self.patterns.pop(pattern, None)
            case PartitionMetadataEvent(is_there):
                self.has_partition_metadata = is_there

    def _put(self, member: Member) -> None:
        before = self.members.get(member.member_id)
        self.members[member.member_id] = member
        if before is None or before.metadata is not member.metadata:
            self._count_pattern(before, -1)
            self._count_pattern(member, +1)
            if member.metadata.instance_id is not None:
                self.static_members[member.metadata.instance_id] = member.member_id
        if before is None or before.current is not member.current:
            self._disown(before)
            for owned in (member.current.assigned, member.current.revoking):
                for topic_id, partitions in owned.items():
                    for partition in partitions:
                        self.owners[topic_id, partition] = member.member_id

    def _remove(self, member_id: str) -> None:
        member = self.members.pop(member_id, None)
        if member is None:
            return
        self._disown(member)
        self._count_pattern(member, -1)
        instance_id = member.metadata.instance_id
        # A member that has taken over the instance id keeps it.
        if instance_id is not None and self.static_members.get(instance_id) == member_id:
            del self.static_members[instance_id]

    def _disown(self, member: Member | None) -> None:
        if member is None:
            return
        for owned in (member.current.assigned, member.current.revoking):
            for topic_id, partitions in owned.items():
                for partition in partitions:
                    # In a compacted log the record of the next owner may come before the release by this one.
                    if self.owners.get((topic_id, partition)) == member.member_id:
                        del self.owners[topic_id, partition]

    def _count_pattern(self, member: Member | None, difference: int) -> None:
        if member is None or not member.metadata.pattern:
            return
        pattern = member.metadata.pattern
        self.pattern_members[pattern] += difference
        if not self.pattern_members[pattern]:
            del self.pattern_members[pattern]

    # -- what follows ------------------------------------------------------------------------------

    @property
    def kind(self) -> GroupKind:
        return "consumer"

    @property
    def protocol_type(self) -> str:
        return CONSUMER_PROTOCOL_TYPE

    @property
    def is_empty(self) -> bool:
        return not self.members

    @property
    def state_name(self) -> str:
        if not self.members:
            return "Empty"
        if self.group_epoch > self.assignment_epoch:
            return "Assigning"
        if all(member.current.is_reconciled_to(self.assignment_epoch) for member in self.members.values()):
            return "Stable"
        return "Reconciling"

    def static_member(self, instance_id: str | None) -> Member | None:
        member_id = None if instance_id is None else self.static_members.get(instance_id)
        return None if member_id is None else self.members.get(member_id)

    def member(self, member_id: str) -> Member:
        member = self.members.get(member_id)
        if member is None:
            raise UnknownMemberId(f"{member_id} is not a member of the group {self.group_id}")
        return member

    def preferred_assignor(self) -> str | None:
        """The assignor that most members prefer; the first of equals."""
        votes = Counter(member.metadata.assignor for member in self.members.values())
        del votes[None]
        return votes.most_common(1)[0][0] if votes else None

    def topics_of(self, metadata: MemberMetadata) -> frozenset[str]:
        """The topics that a member is subscribed to, by name and by pattern."""
        resolved = self.patterns.get(metadata.pattern) if metadata.pattern else None
        return metadata.topics if resolved is None else metadata.topics | resolved.topics

    def subscribed_topics(self) -> set[str]:
        topics = {topic for member in self.members.values() for topic in member.metadata.topics}
        for resolved in self.patterns.values():
            topics |= resolved.topics
        return topics

    def is_subscribed_to(self, topic: str) -> bool:
        return any(topic in resolved.topics for resolved in self.patterns.values()) or any(
            topic in member.metadata.topics for member in self.members.values()
        )

    def is_waiting_for_others(self, member: Member) -> bool:
        """Whether another member still owns a partition of this member's target."""
        assigned = member.current.assigned
        return member.current.state is MemberState.UNRELEASED_PARTITIONS and any(
            partition not in assigned.get(topic_id, {}) and (topic_id, partition) in self.owners
            for topic_id, partitions in self.targets.get(member.member_id, {}).items()
            for partition in partitions
        )

    def classic_members(self) -> list[Member]:
        return [member for member in self.members.values() if member.is_classic]

    def supports_classic_protocols(self, protocol_type: str, protocols: Iterable[str]) -> bool:
        """Whether all classic members support one of these protocols."""
        if protocol_type != CONSUMER_PROTOCOL_TYPE:
            return False
        others = [
            {name for name, _ in member.metadata.classic.protocols}
            for member in self.members.values()
            if member.metadata.classic is not None
        ]
        return any(all(name in names for names in others) for name in protocols)

    # -- offsets and deletion ----------------------------------------------------------------------

    def validate_offset_commit(
        self,
        member_id: str,
        instance_id: str | None,
        generation_or_epoch: int,
        *,
        transactional: bool,
        api_version: int,
    ) -> CommitCheck | None:
        """A member with an older epoch may commit partitions that it has owned since then."""
        if generation_or_epoch < 0 and not self.members:
            return None
        # Transactional commits may have no member id.
        if transactional and generation_or_epoch == -1 and not member_id and instance_id is None:
            return None
        member = self.member(member_id)
        if not transactional and not member.is_classic and api_version < 9:
            raise UnsupportedVersion(
                f"members of consumer groups commit with OffsetCommit version 9 or newer, not {api_version}"
            )
        epoch = member.current.epoch
        if generation_or_epoch == epoch:
            return None
        if generation_or_epoch > epoch:
            raise _stale(member, f"the epoch {generation_or_epoch} is newer than {epoch}, the member's")

        def check(topic_id: bytes, partition: int) -> None:
            since = member.current.assigned.get(topic_id, {}).get(partition)
            if since is None:
                since = member.current.revoking.get(topic_id, {}).get(partition)
            if since is None or generation_or_epoch < since:
                raise _stale(
                    member,
                    f"the epoch {generation_or_epoch} is older than {epoch}, the member's, "
                    f"and partition {partition} was not its own then",
                )

        return check

    def validate_offset_fetch(self, member_id: str | None, member_epoch: int) -> None:
        # Tools and simple consumers send neither.
        if member_id is None and member_epoch < 0:
            return
        member = self.member(member_id or "")
        if member_epoch != member.current.epoch:
            raise _stale(member, f"the epoch is {member.current.epoch}, not {member_epoch}")

    def validate_offset_delete(self) -> None:
        """Allow deletions. Offsets of subscribed topics are refused topic by topic."""

    def validate_delete(self) -> None:
        if self.members:
            raise NonEmptyGroup(f"the group {self.group_id} has {len(self.members)} members")

    def offset_expiry_base(self, commit_timestamp: int) -> int | None:
        return commit_timestamp

    def tombstones(self) -> list[NewRecord]:
        return encode_all(self.group_id, deletion_of(self))


def deletion_of(group: ConsumerGroup) -> list[Event]:
    """The events that delete a group, in an order that Kafka's coordinator can replay."""
    return [
        *(CurrentEvent(member_id, None) for member_id in group.members),
        *(TargetEvent(member_id, None) for member_id in group.targets),
        TargetEpochEvent(None),
        *(MemberEvent(member_id, None) for member_id in group.members),
        *(PatternEvent(pattern, None) for pattern in group.patterns),
        *([PartitionMetadataEvent(False)] if group.has_partition_metadata else []),
        EpochEvent(None),
    ]


def _stale(member: Member, text: str) -> KafkaError:
    return IllegalGeneration(text) if member.is_classic else StaleMemberEpoch(text)


def metadata_hash(topics: Iterable[str], cluster: ClusterState) -> int:
    """A hash that changes when topics are created, deleted or get partitions; 0 if none of them exists.

    Kafka's hash is different: a Kafka broker that takes over the group computes a new assignment.
    """
    digest = blake2b(digest_size=8)
    is_empty = True
    for name in sorted(topics):
        topic = cluster.topics.get(name)
        if topic is not None:
            is_empty = False
            digest.update(b"%b\0%b%d\0" % (name.encode(), topic.topic_id, len(topic.partitions)))
    return 0 if is_empty else int.from_bytes(digest.digest(), "big", signed=True) or 1
