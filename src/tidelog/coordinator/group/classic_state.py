"""What a classic group is at a moment: its state, its members, and the rules that follow from these alone."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import NamedTuple, Protocol, Self

from tidelog.clock import Clock
from tidelog.coordinator.group.group import CONSUMER_PROTOCOL_TYPE, CommitCheck, GroupKind
from tidelog.coordinator.group.group_metadata import group_tombstone, restored_members, subscribed_topics
from tidelog.coordinator.group.members import NEVER, Members
from tidelog.coordinator.group.settings import GroupSettings
from tidelog.coordinator.runtime import Done, NewRecord
from tidelog.errors import (
    CoordinatorNotAvailable,
    FencedInstanceId,
    GroupIdNotFound,
    IllegalGeneration,
    NonEmptyGroup,
    RebalanceInProgress,
    UnknownMemberId,
)
from tidelog.protocol.messages.group_records import GroupMetadataValue


class GroupState(Enum):
    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class Client(NamedTuple):
    """Who sent a request, as descriptions of the group show it."""

    client_id: str
    host: str
    api_version: int


class ClassicGroupHost(Protocol):
    """What a group needs of the world."""

    @property
    def clock(self) -> Clock: ...

    @property
    def settings(self) -> GroupSettings: ...

    def write(self, group: ClassicGroupState, record: NewRecord, done: Done) -> None:
        """Append a record; `done` when it is committed, or with the error."""

    def wake(self, group: ClassicGroupState) -> None:
        """The group has to be woken earlier than was said before."""

    def new_member_id(self, prefix: str) -> str: ...

    def rebalanced(self, group: ClassicGroupState) -> None:
        """Every member can have its assignment now."""


class ClassicGroupState:
    """What a classic group is at a moment, and the rules that follow from that alone."""

    __slots__ = (
        "_answers",
        "_around",
        "_initial_delay_ms",
        "_initial_left_ms",
        "_is_initial",
        "_join_deadline",
        "_new_member_added",
        "_sync_deadline",
        "generation",
        "group_id",
        "members",
        "protocol",
        "protocol_type",
        "state",
        "state_timestamp",
        "subscribed_topics",
        "wake_at",
    )

    def __init__(self, group_id: str, around: ClassicGroupHost) -> None:
        self.group_id = group_id
        self.members = Members()
        self.state = GroupState.EMPTY
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        # When the state was entered, by the wall clock; -1 in records too old to tell.
        self.state_timestamp = around.clock.ms()
        # What the members read, as far as they are consumers and it could be made out.
        self.subscribed_topics: frozenset[str] | None = None
        # Not later than the first of all deadlines; exact after `expire`.
        self.wake_at = NEVER
        self._around = around
        self._answers: list[Callable[[], None]] = []
        self._join_deadline = self._sync_deadline = NEVER
        # The first rebalance of an empty group waits for members to come: how long still, at most.
        self._is_initial = False
        self._new_member_added = False
        self._initial_delay_ms = self._initial_left_ms = 0

    @classmethod
    def restore(cls, group_id: str, value: GroupMetadataValue, around: ClassicGroupHost) -> Self:
        """The group that a record tells of."""
        group = cls(group_id, around)
        members = restored_members(value)
        group.state = GroupState.STABLE if members else GroupState.EMPTY
        group.state_timestamp = value.current_state_timestamp
        group.generation = value.generation
        group.protocol_type = value.protocol_type or None
        group.protocol = value.protocol
        for member in members:
            group.members.add(member)
        if value.leader in group.members.by_id:
            group.members.leader_id = value.leader
        group.subscribed_topics = group.find_subscribed_topics()
        return group

    # -- what every group tells --------------------------------------------------------------------

    @property
    def kind(self) -> GroupKind:
        return "classic"

    @property
    def state_name(self) -> str:
        return self.state.value

    @property
    def is_empty(self) -> bool:
        return self.state is GroupState.EMPTY

    @property
    def is_simple(self) -> bool:
        """Whether it only has offsets, and nobody ever joined it."""
        return self.protocol_type is None and self.is_empty and not self.members.pending_joins

    @property
    def uses_consumer_protocol(self) -> bool:
        return self.protocol_type == CONSUMER_PROTOCOL_TYPE

    def validate_offset_commit(
        self,
        member_id: str,
        instance_id: str | None,
        generation_or_epoch: int,
        *,
        transactional: bool,
        api_version: int,
    ) -> CommitCheck | None:
        if self.state is GroupState.DEAD:
            raise CoordinatorNotAvailable(f"group {self.group_id} is dead")
        if generation_or_epoch < 0 and self.is_empty:
            return None  # offsets of a group that is not used for membership
        if generation_or_epoch >= 0 or member_id or instance_id is not None:
            self.validate_member(member_id, instance_id)
            self._validate_generation(generation_or_epoch)
        elif not transactional and not self.is_empty:
            raise UnknownMemberId(f"group {self.group_id} has members: only they commit")
        if not transactional and self.state is GroupState.COMPLETING_REBALANCE:
            raise RebalanceInProgress(f"group {self.group_id} waits for its leader's assignment")
        return None

    def validate_offset_fetch(self, member_id: str | None, member_epoch: int) -> None:
        if self.state is GroupState.DEAD:
            raise GroupIdNotFound(f"Group {self.group_id} is in dead state.")

    def validate_offset_delete(self) -> None:
        if self.state is GroupState.DEAD:
            raise GroupIdNotFound(f"Group {self.group_id} is in dead state.")
        if not self.is_empty and not self.uses_consumer_protocol:
            raise NonEmptyGroup(f"group {self.group_id} has members whose topics are not known")

    def validate_delete(self) -> None:
        if self.state is GroupState.DEAD:
            raise GroupIdNotFound(f"Group {self.group_id} is in dead state.")
        if not self.is_empty:
            raise NonEmptyGroup(f"group {self.group_id} is {self.state_name}")

    def is_subscribed_to(self, topic: str) -> bool:
        if self.subscribed_topics is None:
            return self.uses_consumer_protocol  # not known which: rather too many
        return topic in self.subscribed_topics

    def offset_expiry_base(self, commit_timestamp: int) -> int | None:
        if self.protocol_type is None:
            return commit_timestamp
        if self.is_empty:
            return self.state_timestamp if self.state_timestamp >= 0 else commit_timestamp
        topics_are_known = self.uses_consumer_protocol and self.subscribed_topics is not None
        if self.state is GroupState.STABLE and topics_are_known:
            return commit_timestamp
        return None

    def find_subscribed_topics(self) -> frozenset[str] | None:
        if not self.uses_consumer_protocol:
            return None
        return subscribed_topics(member.metadata(self.protocol) for member in self.members.by_id.values())

    def tombstones(self) -> list[NewRecord]:
        return [group_tombstone(self.group_id)]

    def validate_member(self, member_id: str, instance_id: str | None) -> None:
        """Raise unless this is a member, under the id that its instance has now."""
        if instance_id is not None:
            known = self.members.static_ids.get(instance_id)
            if known is None:
                raise UnknownMemberId(f"no member of group {self.group_id} has the instance {instance_id}")
            if known != member_id:
                raise FencedInstanceId(f"instance {instance_id} of group {self.group_id} is {known} now")
        if member_id not in self.members.by_id:
            raise UnknownMemberId(f"group {self.group_id} has no member {member_id}")

    def _validate_generation(self, generation: int) -> None:
        if generation != self.generation:
            raise IllegalGeneration(
                f"group {self.group_id} is in generation {self.generation}, not {generation}"
            )
