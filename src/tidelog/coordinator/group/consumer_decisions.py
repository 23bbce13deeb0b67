"""What a consumer group does about a heartbeat, a silent member, a resolved pattern: events and an answer.

A decision is made on a draft of the group, to which every event is applied as it is made, so that each step
sees what the one before it has done; the group itself changes when the events come back as records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from tidelog.coordinator.group.assignors import ASSIGNORS, MemberSpec
from tidelog.coordinator.group.consumer import ConsumerGroup, metadata_hash
from tidelog.coordinator.group.consumer_events import (
    STATIC_LEAVE_EPOCH,
    CurrentAssignment,
    CurrentEvent,
    EpochEvent,
    Event,
    Member,
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
from tidelog.coordinator.group.reconcile import Reconciler, Reported
from tidelog.errors import (
    FencedInstanceId,
    FencedMemberEpoch,
    GroupMaxSizeReached,
    UnknownMemberId,
    UnreleasedInstanceId,
)
from tidelog.metadata.state import ClusterState

# Patterns of a group are looked at again this long after the last time at the earliest.
PATTERN_REFRESH_MIN_MS = 10_000


class Rules(NamedTuple):
    """The settings that a decision depends on, as they are for the group at that moment."""

    default_assignor: str = "uniform"
    assignment_interval_ms: int = 1000
    max_size: int = 2**31 - 1
    pattern_refresh_ms: int = 600_000


class Heartbeat(NamedTuple):
    """What a member says of itself; None where it says nothing new."""

    member_id: str
    member_epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int | None = None
    topics: frozenset[str] | None = None
    pattern: str | None = None
    assignor: str | None = None
    reported: Reported | None = None
    client_id: str = ""
    client_host: str = ""

    @property
    def is_full(self) -> bool:
        """Members say everything when they join, and when they do not know what reached the coordinator."""
        return (
            self.rebalance_timeout_ms is not None
            and (self.topics is not None or self.pattern is not None)
            and self.reported is not None
        )


class HeartbeatAnswer(NamedTuple):
    member_id: str
    member_epoch: int
    assigned: Owned | None
    """What the member is to have; None where nothing has changed for it."""


@dataclass(slots=True)
class Draft:
    """A decision in the making: the group as it will be, the events that make it so, what is to follow."""

    group: ConsumerGroup
    cluster: ClusterState
    rules: Rules
    now_ms: int
    events: list[Event] = field(default_factory=list)
    # Members that are to give up partitions within their rebalance time-out, and those that are done with it.
    must_revoke: dict[str, bool] = field(default_factory=dict)
    # Members that are gone.
    gone: list[str] = field(default_factory=list)
    # Patterns that are to be resolved, all of the group's at once.
    to_resolve: frozenset[str] = frozenset()
    _is_copied: bool = False

    def add(self, event: Event) -> None:
        if not self._is_copied:
            self.group = self.group.copy()
            self._is_copied = True
        self.events.append(event)
        self.group.apply(event)

    # -- epochs and targets ------------------------------------------------------------------------

    def bump_if_changed(self, *, force: bool) -> None:
        """Raise the group epoch where a subscription, or a topic that is subscribed to, has changed."""
        found = metadata_hash(self.group.subscribed_topics(), self.cluster)
        if force or found != self.group.metadata_hash:
            self.add(EpochEvent(self.group.group_epoch + 1, found))
        if self.group.has_partition_metadata:
            self.add(PartitionMetadataEvent(False))

    def assign(self) -> None:
        """Make a new target where the group has moved on, unless the last one is too young for that."""
        group = self.group
        if group.assignment_epoch >= group.group_epoch:
            return
        rests_until = group.assignment_timestamp + self.rules.assignment_interval_ms
        if group.assignment_timestamp and self.rules.assignment_interval_ms and self.now_ms < rests_until:
            return
        assignor = ASSIGNORS[group.preferred_assignor() or self.rules.default_assignor]
        topics = {
            topic.topic_id: len(topic.partitions)
            for name in group.subscribed_topics()
            if (topic := self.cluster.topics.get(name)) is not None
        }
        # Most members want the same: what that is has to be looked up once.
        ids: dict[tuple[frozenset[str], str], frozenset[bytes]] = {}
        specs = {}
        for member_id, member in group.members.items():
            wants = member.metadata.topics, member.metadata.pattern
            if wants not in ids:
                ids[wants] = self.topic_ids(member.metadata)
            specs[member_id] = MemberSpec(
                member.metadata.instance_id, ids[wants], group.targets.get(member_id, {})
            )
        for member_id, target in assignor(specs, topics).items():
            if target != group.targets.get(member_id):
                self.add(TargetEvent(member_id, target))
        self.add(TargetEpochEvent(group.group_epoch, self.now_ms))

    def topic_ids(self, metadata: MemberMetadata) -> frozenset[bytes]:
        topics = self.cluster.topics
        return frozenset(topics[name].topic_id for name in self.group.topics_of(metadata) if name in topics)

    def reconcile(self, member_id: str, reported: Reported | None, *, subscription_changed: bool) -> Member:
        group = self.group
        member = group.members[member_id]
        if not subscription_changed and member.current.is_reconciled_to(group.assignment_epoch):
            return member
        current = Reconciler(
            group.assignment_epoch,
            group.targets.get(member_id, {}),
            self.topic_ids(member.metadata),
            group.owners,
            reported,
        ).step(member, subscription_changed=subscription_changed)
        if current != member.current:
            self.add(CurrentEvent(member_id, current))
            if not member.is_classic:
                self.must_revoke[member_id] = current.state is MemberState.UNREVOKED_PARTITIONS
        return self.group.members[member_id]

    # -- members -----------------------------------------------------------------------------------

    def check_room(self, member_id: str) -> None:
        if len(self.group.members) >= self.rules.max_size and member_id not in self.group.members:
            raise GroupMaxSizeReached(
                f"the group {self.group.group_id} has {self.rules.max_size} members, and may have no more"
            )

    def take_over(self, member: Member, member_id: str) -> None:
        """Let a static member go on under another member id, with everything it had."""
        heir = replace(member.current, epoch=0, previous_epoch=0)
        target = self.group.targets.get(member.member_id, {})
        self.remove(member.member_id)
        self.add(MemberEvent(member_id, member.metadata))
        self.add(TargetEvent(member_id, target))
        self.add(CurrentEvent(member_id, heir))

    def update(self, member_id: str, metadata: MemberMetadata) -> bool:
        """Write down who the member is now; whether it names other topics than before."""
        before = self.group.members.get(member_id)
        if before is None or before.metadata != metadata:
            self.add(MemberEvent(member_id, metadata))
        return metadata.topics != (frozenset() if before is None else before.metadata.topics)

    def remove(self, member_id: str) -> None:
        self.add(CurrentEvent(member_id, None))
        self.add(TargetEvent(member_id, None))
        self.add(MemberEvent(member_id, None))
        self.gone.append(member_id)

    def forget_unused_patterns(self) -> None:
        for pattern in [name for name in self.group.patterns if name not in self.group.pattern_members]:
            self.add(PatternEvent(pattern, None))


def heartbeat(
    draft: Draft,
    said: Heartbeat,
    *,
    topics_changed: bool,
    newest_topics: int,
    is_resolving: bool,
    check_pattern: Callable[[str], None],
) -> HeartbeatAnswer:
    """A member that joins or goes on.

    `topics_changed`: topics may have come, gone or grown since this was last asked for the group.
    `newest_topics`: the version of the cluster's topics, which is raised when one is made.
    `check_pattern` raises InvalidRegularExpression.
    """
    draft.check_room(said.member_id)
    before = _member_for(draft, said)
    metadata = _told(before.metadata, said)
    names_changed = draft.update(said.member_id, metadata)
    pattern_changed, is_resolved = _update_patterns(
        draft, before.metadata.pattern, metadata.pattern, newest_topics, is_resolving, check_pattern
    )
    # A pattern that is not resolved yet raises the epoch when it is: once is enough.
    force = names_changed or is_resolved
    if force or topics_changed:
        draft.bump_if_changed(force=force)
    draft.assign()
    member = draft.reconcile(
        said.member_id, said.reported, subscription_changed=names_changed or pattern_changed
    )
    tell = said.member_epoch == 0 or said.is_full or member.current.assigned != before.current.assigned
    return HeartbeatAnswer(said.member_id, member.current.epoch, member.current.assigned if tell else None)


def _member_for(draft: Draft, said: Heartbeat) -> Member:
    """The member as it was before this heartbeat: a new one where it joins."""
    group = draft.group
    if said.instance_id is None:
        if said.member_epoch == 0:
            return group.members.get(said.member_id) or Member(said.member_id)
        member = group.member(said.member_id)
        check_epoch(member, said.member_epoch, said.reported)
        return member
    static = group.static_member(said.instance_id)
    if said.member_epoch == 0:
        if static is None:
            return group.members.get(said.member_id) or Member(said.member_id)
        if not static.is_classic and static.current.epoch != STATIC_LEAVE_EPOCH:
            raise UnreleasedInstanceId(
                f"the instance id {said.instance_id} belongs to the member {static.member_id}, "
                "which has not left"
            )
        draft.take_over(static, said.member_id)
        return draft.group.members[said.member_id]
    member = check_instance(group, said.instance_id, said.member_id)
    check_epoch(member, said.member_epoch, said.reported)
    return member


def check_instance(group: ConsumerGroup, instance_id: str, member_id: str) -> Member:
    """The static member of an instance id, if it is this one."""
    member = group.static_member(instance_id)
    if member is None:
        raise UnknownMemberId(f"the group {group.group_id} has no instance id {instance_id}")
    if member.member_id != member_id:
        raise FencedInstanceId(
            f"the instance id {instance_id} belongs to the member {member.member_id}, not {member_id}"
        )
    return member


def check_epoch(member: Member, epoch: int, reported: Reported | None) -> None:
    expected = member.current.epoch
    # The answer that raised the epoch may have been lost: one step back is no mistake of the member's, if it
    # has nothing that it should not have.
    if epoch == expected or (
        epoch < expected
        and epoch == member.current.previous_epoch
        and _is_subset(reported, member.current.assigned)
    ):
        return
    raise FencedMemberEpoch(
        f"the epoch of the member {member.member_id} is {expected}, not {epoch}: "
        "it must give up its partitions and join anew"
    )


def _is_subset(reported: Reported | None, assigned: Owned) -> bool:
    return reported is not None and all(
        topic_id in assigned and all(partition in assigned[topic_id] for partition in partitions)
        for topic_id, partitions in reported.items()
    )


def _told(before: MemberMetadata, said: Heartbeat) -> MemberMetadata:
    timeout = said.rebalance_timeout_ms
    return MemberMetadata(
        instance_id=before.instance_id if said.instance_id is None else said.instance_id,
        rack_id=before.rack_id if said.rack_id is None else said.rack_id,
        client_id=said.client_id,
        client_host=said.client_host,
        topics=before.topics if said.topics is None else said.topics,
        pattern=before.pattern if said.pattern is None else said.pattern,
        rebalance_timeout_ms=before.rebalance_timeout_ms if timeout is None else timeout,
        assignor=before.assignor if said.assignor is None else said.assignor,
        classic=None,
    )


def _update_patterns(
    draft: Draft,
    old: str,
    new: str,
    newest_topics: int,
    is_resolving: bool,
    check_pattern: Callable[[str], None],
) -> tuple[bool, bool]:
    """Whether the member has another pattern now, and whether its topics are known already."""
    is_new = is_resolved = False
    if old != new:
        if new and draft.group.pattern_members[new] == 1:  # only this member, which was written down above
            check_pattern(new)
            is_new = True
        else:
            is_resolved = not new or new in draft.group.patterns
        draft.forget_unused_patterns()
    if _is_refresh_due(draft, is_new, newest_topics, is_resolving):
        draft.to_resolve = frozenset(draft.group.pattern_members)
    return old != new, is_resolved


def _is_refresh_due(draft: Draft, is_new: bool, newest_topics: int, is_resolving: bool) -> bool:
    """All patterns of a group are resolved together, so that they cause one new target and not many."""
    group = draft.group
    if is_resolving or not group.pattern_members:
        return False
    last = next(iter(group.patterns.values()), None)
    if last is None:
        return True
    if draft.now_ms <= last.timestamp + PATTERN_REFRESH_MIN_MS:
        return False
    return (
        is_new
        or len(group.pattern_members) != len(group.patterns)
        or last.version < newest_topics
        or draft.now_ms > last.timestamp + draft.rules.pattern_refresh_ms
    )


def patterns_resolved(draft: Draft, resolved: Mapping[str, ResolvedPattern]) -> None:
    is_changed = False
    for pattern, found in resolved.items():
        if pattern in draft.group.pattern_members:  # nobody may want it any more
            before = draft.group.patterns.get(pattern)
            is_changed |= found.topics != (frozenset() if before is None else before.topics)
            draft.add(PatternEvent(pattern, found))
    draft.bump_if_changed(force=is_changed)


def leave_for_a_while(draft: Draft, member: Member) -> None:
    """A static member goes and means to come back: its partitions stay with its instance id."""
    current = CurrentAssignment(
        STATIC_LEAVE_EPOCH,
        member.current.previous_epoch,
        member.current.state,
        # Under the next member id they count as had from the start.
        {topic_id: dict.fromkeys(owned, 0) for topic_id, owned in member.current.assigned.items()},
    )
    draft.add(CurrentEvent(member.member_id, current))
    draft.must_revoke[member.member_id] = False


def remove_members(draft: Draft, member_ids: Iterable[str]) -> None:
    """Members that left, or were silent for too long."""
    for member_id in member_ids:
        draft.remove(member_id)
    draft.forget_unused_patterns()
    draft.bump_if_changed(force=True)
