"""Decisions of a consumer group about heartbeats, expired members and resolved patterns, as events.

A decision is made on a draft, a copy of the group: each event is applied to it at once, for the next steps of
the decision. The group itself changes when the records of the events are replayed.
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

# The shortest time between two resolutions of a group's patterns.
PATTERN_REFRESH_MIN_MS = 10_000


class Rules(NamedTuple):
    """The settings of the group at the time of a decision."""

    default_assignor: str = "uniform"
    assignment_interval_ms: int = 1000
    max_size: int = 2**31 - 1
    pattern_refresh_ms: int = 600_000


class Heartbeat(NamedTuple):
    """The fields of a heartbeat; None for those that have not changed."""

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
        """Whether all fields are set, as after a join or a lost answer."""
        return (
            self.rebalance_timeout_ms is not None
            and (self.topics is not None or self.pattern is not None)
            and self.reported is not None
        )


class HeartbeatAnswer(NamedTuple):
    member_id: str
    member_epoch: int
    assigned: Owned | None
    """The assignment of the member; None if it has not changed."""


@dataclass(slots=True)
class Draft:
    """A decision: its events, a copy of the group with these events applied, and the timers to set."""

    group: ConsumerGroup
    cluster: ClusterState
    rules: Rules
    now_ms: int
    events: list[Event] = field(default_factory=list)
    # Members that have to revoke partitions within their rebalance timeout, and those that have done so.
    must_revoke: dict[str, bool] = field(default_factory=dict)
    # Removed members.
    gone: list[str] = field(default_factory=list)
    # Patterns to resolve, all of the group at once.
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
        """Bump the group epoch if a subscription or a subscribed topic has changed."""
        found = metadata_hash(self.group.subscribed_topics(), self.cluster)
        if force or found != self.group.metadata_hash:
            self.add(EpochEvent(self.group.group_epoch + 1, found))
        if self.group.has_partition_metadata:
            self.add(PartitionMetadataEvent(False))

    def assign(self) -> None:
        """Compute a new target assignment for a new group epoch, unless the last one is too recent."""
        group = self.group
        if group.assignment_epoch >= group.group_epoch:
            return
        # With a timestamp in the future, the wall clock was set back: do not wait.
        age_ms = self.now_ms - group.assignment_timestamp
        if group.assignment_timestamp and 0 <= age_ms < self.rules.assignment_interval_ms:
            return
        assignor = ASSIGNORS[group.preferred_assignor() or self.rules.default_assignor]
        topics = {
            topic.topic_id: len(topic.partitions)
            for name in group.subscribed_topics()
            if (topic := self.cluster.topics.get(name)) is not None
        }
        # Most members have the same subscription: its topics are looked up once.
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
        """Replace the member id of a static member, which keeps its assignment."""
        heir = replace(member.current, epoch=0, previous_epoch=0)
        target = self.group.targets.get(member.member_id, {})
        self.remove(member.member_id)
        self.add(MemberEvent(member_id, member.metadata))
        self.add(TargetEvent(member_id, target))
        self.add(CurrentEvent(member_id, heir))

    def update(self, member_id: str, metadata: MemberMetadata) -> bool:
        """Update the member; returns whether its subscribed topics have changed."""
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
    request: Heartbeat,
    *,
    topics_changed: bool,
    newest_topics: int,
    is_resolving: bool,
    check_pattern: Callable[[str], None],
) -> HeartbeatAnswer:
    """Decide about the heartbeat of a member that joins or is part of the group.

    `topics_changed`: whether topics may have changed since the last check of the group.
    `newest_topics`: the version of the cluster's topics, which rises when one is created.
    `check_pattern` raises InvalidRegularExpression.
    """
    draft.check_room(request.member_id)
    before = _member_for(draft, request)
    metadata = _updated_metadata(before.metadata, request)
    names_changed = draft.update(request.member_id, metadata)
    pattern_changed, is_resolved = _update_patterns(
        draft, before.metadata.pattern, metadata.pattern, newest_topics, is_resolving, check_pattern
    )
    # A new pattern bumps the epoch when it is resolved: once is enough.
    force = names_changed or is_resolved
    if force or topics_changed:
        draft.bump_if_changed(force=force)
    draft.assign()
    member = draft.reconcile(
        request.member_id, request.reported, subscription_changed=names_changed or pattern_changed
    )
    tell = request.member_epoch == 0 or request.is_full or member.current.assigned != before.current.assigned
    return HeartbeatAnswer(request.member_id, member.current.epoch, member.current.assigned if tell else None)


def _member_for(draft: Draft, request: Heartbeat) -> Member:
    """The member before this heartbeat; a new one if it joins."""
    group = draft.group
    if request.instance_id is None:
        if request.member_epoch == 0:
            return group.members.get(request.member_id) or Member(request.member_id)
        member = group.member(request.member_id)
        check_epoch(member, request.member_epoch, request.reported)
        return member
    static_member = group.static_member(request.instance_id)
    if request.member_epoch == 0:
        if static_member is None:
            return group.members.get(request.member_id) or Member(request.member_id)
        if not static_member.is_classic and static_member.current.epoch != STATIC_LEAVE_EPOCH:
            raise UnreleasedInstanceId(
                f"the instance id {request.instance_id} belongs to the member {static_member.member_id}, "
                "which has not left"
            )
        draft.take_over(static_member, request.member_id)
        return draft.group.members[request.member_id]
    member = check_instance(group, request.instance_id, request.member_id)
    check_epoch(member, request.member_epoch, request.reported)
    return member


def check_instance(group: ConsumerGroup, instance_id: str, member_id: str) -> Member:
    """The static member of an instance id, if it has this member id."""
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
    # The answer with the new epoch may have been lost: the previous epoch is accepted, if the member owns no
    # partitions outside of its assignment.
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


def _updated_metadata(before: MemberMetadata, request: Heartbeat) -> MemberMetadata:
    timeout = request.rebalance_timeout_ms
    return MemberMetadata(
        instance_id=before.instance_id if request.instance_id is None else request.instance_id,
        rack_id=before.rack_id if request.rack_id is None else request.rack_id,
        client_id=request.client_id,
        client_host=request.client_host,
        topics=before.topics if request.topics is None else request.topics,
        pattern=before.pattern if request.pattern is None else request.pattern,
        rebalance_timeout_ms=before.rebalance_timeout_ms if timeout is None else timeout,
        assignor=before.assignor if request.assignor is None else request.assignor,
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
    """Whether the member's pattern has changed, and whether its topics are known."""
    is_new = is_resolved = False
    if old != new:
        if new and draft.group.pattern_members[new] == 1:  # only this member has it
            check_pattern(new)
            is_new = True
        else:
            is_resolved = not new or new in draft.group.patterns
        draft.forget_unused_patterns()
    if _is_refresh_due(draft, is_new, newest_topics, is_resolving):
        draft.to_resolve = frozenset(draft.group.pattern_members)
    return old != new, is_resolved


def _is_refresh_due(draft: Draft, is_new: bool, newest_topics: int, is_resolving: bool) -> bool:
    """Resolve all patterns of a group together, so that they cause one new target."""
    group = draft.group
    if is_resolving or not group.pattern_members:
        return False
    last = next(iter(group.patterns.values()), None)
    if last is None:
        return True
    # A timestamp in the future is of a coordinator with another clock.
    if last.timestamp <= draft.now_ms <= last.timestamp + PATTERN_REFRESH_MIN_MS:
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
        if pattern in draft.group.pattern_members:  # no member may have it any more
            before = draft.group.patterns.get(pattern)
            is_changed |= found.topics != (frozenset() if before is None else before.topics)
            draft.add(PatternEvent(pattern, found))
    draft.bump_if_changed(force=is_changed)


def leave_for_a_while(draft: Draft, member: Member) -> None:
    """A static member leaves for a while: its instance id keeps the partitions."""
    current = CurrentAssignment(
        STATIC_LEAVE_EPOCH,
        member.current.previous_epoch,
        member.current.state,
        # For the next member id they count as owned from the beginning.
        {topic_id: dict.fromkeys(owned, 0) for topic_id, owned in member.current.assigned.items()},
    )
    draft.add(CurrentEvent(member.member_id, current))
    draft.must_revoke[member.member_id] = False


def remove_members(draft: Draft, member_ids: Iterable[str]) -> None:
    """Remove members that left or whose session expired."""
    for member_id in member_ids:
        draft.remove(member_id)
    draft.forget_unused_patterns()
    draft.bump_if_changed(force=True)
