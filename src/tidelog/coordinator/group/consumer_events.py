"""Members of consumer groups, and the events that change a consumer group. All of them are immutable.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

Owned = Mapping[bytes, Mapping[int, int]]
"""Partitions by topic id, each with the assignment epoch since which its owner has it."""

Target = Mapping[bytes, frozenset[int]]
"""Partitions by topic id."""

LEAVE_EPOCH = -1
STATIC_LEAVE_EPOCH = -2
"""A static member that left for a while: the next member with its instance id gets its partitions."""

# The epoch of a new group. Not 0: a member joins with that.
FIRST_EPOCH = 1


class MemberState(IntEnum):
    """The progress of a member towards its target assignment; the numbers are in the records."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    UNRELEASED_PARTITIONS = 2
    UNKNOWN = 127


@dataclass(slots=True, frozen=True)
class ClassicMember:
    """The JoinGroup fields of a classic member."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]


@dataclass(slots=True, frozen=True)
class MemberMetadata:
    """The identity and subscription of a member (record type 5)."""

    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: frozenset[str] = frozenset()
    pattern: str = ""
    rebalance_timeout_ms: int = -1
    assignor: str | None = None
    classic: ClassicMember | None = None


@dataclass(slots=True, frozen=True)
class CurrentAssignment:
    """The current assignment of a member (record type 8)."""

    epoch: int = 0
    previous_epoch: int = 0
    state: MemberState = MemberState.STABLE
    assigned: Owned = field(default_factory=dict)
    revoking: Owned = field(default_factory=dict)

    def is_reconciled_to(self, epoch: int) -> bool:
        return self.state is MemberState.STABLE and self.epoch == epoch


@dataclass(slots=True, frozen=True)
class Member:
    member_id: str
    metadata: MemberMetadata = field(default_factory=MemberMetadata)
    current: CurrentAssignment = field(default_factory=CurrentAssignment)

    @property
    def is_classic(self) -> bool:
        return self.metadata.classic is not None


class ResolvedPattern(NamedTuple):
    """The topics that a pattern matched, with the version of the cluster's topics and the time."""

    topics: frozenset[str]
    version: int
    timestamp: int


# -- what the records stand for: None deletes ------------------------------------------------------


class EpochEvent(NamedTuple):
    """Type 3; None deletes the group."""

    epoch: int | None
    metadata_hash: int = 0


class PartitionMetadataEvent(NamedTuple):
    """Type 4, which brokers before 4.1 wrote."""

    is_there: bool


class MemberEvent(NamedTuple):
    """Type 5."""

    member_id: str
    metadata: MemberMetadata | None


class TargetEpochEvent(NamedTuple):
    """Type 6."""

    epoch: int | None
    timestamp: int = 0


class TargetEvent(NamedTuple):
    """Type 7."""

    member_id: str
    target: Target | None


class CurrentEvent(NamedTuple):
    """Type 8."""

    member_id: str
    current: CurrentAssignment | None


class PatternEvent(NamedTuple):
    """Type 16."""

    pattern: str
    resolved: ResolvedPattern | None


Event = (
    EpochEvent
    | PartitionMetadataEvent
    | MemberEvent
    | TargetEpochEvent
    | TargetEvent
    | CurrentEvent
    | PatternEvent
)
