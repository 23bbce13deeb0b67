"""Classic members of consumer groups: the effects of requests of the classic protocol on a consumer group.

The generation is the member epoch. A heartbeat is answered with REBALANCE_IN_PROGRESS if the member has to
reconcile; its next JoinGroup reconciles, and SyncGroup fetches the assignment.
"""

from __future__ import annotations

from typing import NamedTuple

from tidelog.coordinator.group.consumer import ConsumerGroup
from tidelog.coordinator.group.consumer_decisions import Draft, check_instance
from tidelog.coordinator.group.consumer_events import ClassicMember, Member, MemberMetadata, MemberState
from tidelog.coordinator.group.group import CONSUMER_PROTOCOL_TYPE
from tidelog.coordinator.group.migration import read_subscription, write_assignment
from tidelog.errors import (
    IllegalGeneration,
    InconsistentGroupProtocol,
    RebalanceInProgress,
    UnknownMemberId,
)
from tidelog.metadata.state import ClusterState
from tidelog.protocol.messages.consumer_protocol import ConsumerProtocolSubscription
from tidelog.protocol.messages.sync_group import SyncGroupRequest
from tidelog.protocol.wire import ProtocolError


class ClassicJoin(NamedTuple):
    """The JoinGroup of a classic member; `is_new` if it had no member id."""

    member_id: str
    is_new: bool
    instance_id: str | None
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    session_timeout_ms: int
    rebalance_timeout_ms: int
    client_id: str
    client_host: str


def check_protocols(group: ConsumerGroup, join: ClassicJoin) -> None:
    if not group.supports_classic_protocols(join.protocol_type, [name for name, _ in join.protocols]):
        raise InconsistentGroupProtocol(
            f"the group {group.group_id} has no protocol in common with {join.member_id}: "
            f"{', '.join(name for name, _ in join.protocols)} of type {join.protocol_type}"
        )


def find_or_replace(draft: Draft, join: ClassicJoin) -> Member:
    """The joining member as it was before, or the static member that it replaces."""
    group = draft.group
    if join.instance_id is None:
        return group.members.get(join.member_id) or Member(join.member_id)
    static = group.static_member(join.instance_id)
    if not join.is_new:
        return check_instance(group, join.instance_id, join.member_id)
    if static is None:
        return Member(join.member_id)
    draft.take_over(static, join.member_id)
    return draft.group.members[join.member_id]


class Joined(NamedTuple):
    subscription: ConsumerProtocolSubscription
    is_changed: bool
    """Whether the member's subscription has changed."""


def update(draft: Draft, before: Member, join: ClassicJoin) -> Joined:
    """Update the member from its request."""
    try:
        subscription = read_subscription(join.protocols[0][1])
    except ProtocolError as error:
        raise InconsistentGroupProtocol(f"the subscription of {join.member_id}: {error}") from None
    old = before.metadata
    timeout = join.rebalance_timeout_ms
    metadata = MemberMetadata(
        instance_id=old.instance_id if join.instance_id is None else join.instance_id,
        rack_id=subscription.rack_id or old.rack_id,
        client_id=join.client_id,
        client_host=join.client_host,
        topics=frozenset(subscription.topics),
        pattern="",
        rebalance_timeout_ms=old.rebalance_timeout_ms if timeout == -1 else timeout,
        assignor=old.assignor,
        classic=ClassicMember(join.session_timeout_ms, join.protocols),
    )
    names_changed = draft.update(join.member_id, metadata)
    draft.forget_unused_patterns()  # the static member that it replaces may have had one
    return Joined(subscription, names_changed or bool(old.pattern))


def owned(subscription: ConsumerProtocolSubscription, cluster: ClusterState) -> dict[bytes, frozenset[int]]:
    """The owned partitions in the member's request, by topic id."""
    return {
        cluster.topics[topic.topic].topic_id: frozenset(topic.partitions)
        for topic in subscription.owned_partitions
        if topic.topic in cluster.topics
    }


def find(group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int) -> Member:
    """The classic member of a request; KafkaError unless it has the present generation."""
    if instance_id is None:
        member = group.member(member_id)
    else:
        member = check_instance(group, instance_id, member_id)
    if not member.is_classic:
        raise UnknownMemberId(f"the member {member_id} does not use the classic protocol")
    if generation != member.current.epoch:
        raise IllegalGeneration(
            f"the generation of the member {member_id} is {member.current.epoch}, not {generation}"
        )
    return member


def chosen_protocol(member: Member) -> tuple[str, bytes]:
    """The member's first protocol: the broker assigns, so any is right."""
    assert member.metadata.classic is not None
    return member.metadata.classic.protocols[0]


def sync(group: ConsumerGroup, request: SyncGroupRequest, cluster: ClusterState) -> bytes:
    """The assignment of a member that has joined."""
    member = find(group, request.member_id, request.group_instance_id, request.generation_id)
    name, subscription = chosen_protocol(member)
    if request.protocol_type not in (None, CONSUMER_PROTOCOL_TYPE) or request.protocol_name not in (
        None,
        name,
    ):
        raise InconsistentGroupProtocol(
            f"the member {member.member_id} uses {name} of type {CONSUMER_PROTOCOL_TYPE}, "
            f"not {request.protocol_name} of type {request.protocol_type}"
        )
    if must_join_to_sync(group, member):
        raise RebalanceInProgress(f"the group {group.group_id} has a new assignment: join again")
    target = {topic_id: frozenset(partitions) for topic_id, partitions in member.current.assigned.items()}
    return write_assignment(target, cluster, subscription)


def must_join_to_sync(group: ConsumerGroup, member: Member) -> bool:
    """A member that revokes partitions has joined already, and joins again when it has revoked them."""
    current = member.current
    return group.assignment_epoch > current.epoch and current.state is not MemberState.UNREVOKED_PARTITIONS


def must_join(group: ConsumerGroup, member: Member) -> bool:
    """Whether the member has to join again, because it has to reconcile."""
    current = member.current
    return (
        current.epoch < group.assignment_epoch
        or current.state is MemberState.UNREVOKED_PARTITIONS
        or (current.state is MemberState.UNRELEASED_PARTITIONS and not group.is_waiting_for_others(member))
    )
