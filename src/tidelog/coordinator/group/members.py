"""Members: the members of a classic group, their protocols, the leader, and the members that are awaited.

This is data without deadlines: the group decides when something happens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tidelog.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from tidelog.protocol.messages.sync_group import SyncGroupResponse

JoinDone = Callable[[JoinGroupResponse], None]
SyncDone = Callable[[SyncGroupResponse], None]

NEVER = math.inf
NO_ASSIGNMENT = b""


class Protocol(NamedTuple):
    """A protocol that a member supports, with its metadata for the leader."""

    name: str
    metadata: bytes


def protocols_of(request: JoinGroupRequest) -> list[Protocol]:
    """The protocols of a member in its order of preference. Of duplicates the first one counts."""
    found: dict[str, Protocol] = {}
    for entry in request.protocols:
        found.setdefault(entry.name, Protocol(entry.name, bytes(entry.metadata)))
    return list(found.values())


def refused_join(code: int, member_id: str) -> JoinGroupResponse:
    """The answer to a member without a generation."""
    return JoinGroupResponse(error_code=code, protocol_name=None, member_id=member_id)


@dataclass(slots=True)
class Member:
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: list[Protocol]
    assignment: bytes = NO_ASSIGNMENT
    # Whether the member waits for the answer to its first join, which has a time limit.
    is_new: bool = False
    # When its session expires, in seconds of the monotonic clock. A heartbeat changes only this.
    deadline: float = NEVER
    awaiting_join: JoinDone | None = None
    awaiting_sync: SyncDone | None = None

    @property
    def keeps_waiting(self) -> bool:
        """Whether the member waits for the group, so that it need not send heartbeats."""
        return not self.is_new and (self.awaiting_join is not None or self.awaiting_sync is not None)

    def metadata(self, protocol: str | None) -> bytes:
        return next((entry.metadata for entry in self.protocols if entry.name == protocol), b"")


class Members:
    """The members by id, in the order in which they joined."""

    __slots__ = (
        "_supported",
        "awaiting_join",
        "by_id",
        "leader_id",
        "pending_joins",
        "pending_syncs",
        "static_ids",
    )

    def __init__(self) -> None:
        self.by_id: dict[str, Member] = {}
        self.static_ids: dict[str, str] = {}
        self.leader_id: str | None = None
        # Member ids from MEMBER_ID_REQUIRED answers that no member has used yet, with their deadlines.
        self.pending_joins: dict[str, float] = {}
        # Members of the present generation that have not synced yet.
        self.pending_syncs: dict[str, None] = {}
        self.awaiting_join = 0
        self._supported: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self.by_id)

    def is_leader(self, member_id: str) -> bool:
        return self.leader_id == member_id

    @property
    def have_all_joined(self) -> bool:
        return len(self.by_id) == self.awaiting_join and not self.pending_joins

    @property
    def rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self.by_id.values()), default=0)

    # -- coming and going --------------------------------------------------------------------------

    def add(self, member: Member) -> None:
        if member.instance_id is not None:
            self.static_ids[member.instance_id] = member.member_id
        if self.leader_id is None:
            self.leader_id = member.member_id
        self.by_id[member.member_id] = member
        self.pending_joins.pop(member.member_id, None)
        self._count(member, 1)
        if member.awaiting_join is not None:
            self.awaiting_join += 1

    def remove(self, member_id: str) -> None:
        """Remove a member, after its waiting requests were answered."""
        self.pending_joins.pop(member_id, None)
        self.pending_syncs.pop(member_id, None)
        member = self.by_id.pop(member_id, None)
        if member is None:
            return
        self._count(member, -1)
        if member.awaiting_join is not None:
            self.awaiting_join -= 1
        if member.instance_id is not None:
            self.static_ids.pop(member.instance_id, None)
        if self.leader_id == member_id:
            self.leader_id = next(iter(self.by_id), None)

    def rename(self, member: Member, new_id: str) -> None:
        """Replace the member id of a static member, which keeps its position, leadership and assignment."""
        old_id = member.member_id
        member.member_id = new_id
        self.by_id = {
            (new_id if member_id == old_id else member_id): entry for member_id, entry in self.by_id.items()
        }
        if member.instance_id is not None:
            self.static_ids[member.instance_id] = new_id
        if self.leader_id == old_id:
            self.leader_id = new_id
        if old_id in self.pending_syncs:
            del self.pending_syncs[old_id]
            self.pending_syncs[new_id] = None

    def set_awaiting_join(self, member: Member, done: JoinDone | None) -> JoinDone | None:
        """Set the callback of the member's join; returns the former one."""
        before = member.awaiting_join
        self.awaiting_join += (done is not None) - (before is not None)
        member.awaiting_join = done
        return before

    def set_protocols(self, member: Member, protocols: list[Protocol]) -> None:
        self._count(member, -1)
        member.protocols = protocols
        self._count(member, 1)

    def elect_joined_leader(self) -> bool:
        """Choose a leader among the joined members; returns whether there is one."""
        leader = self.by_id.get(self.leader_id) if self.leader_id is not None else None
        if leader is not None and leader.awaiting_join is not None:
            return True
        for member in self.by_id.values():
            if member.awaiting_join is not None:
                self.leader_id = member.member_id
                return True
        return False

    # -- protocols ---------------------------------------------------------------------------------

    def supports_any(self, names: Sequence[str]) -> bool:
        """Whether all members support one of these protocols."""
        size = len(self.by_id)
        return any(self._supported.get(name, 0) == size for name in names)

    def select_protocol(self) -> str:
        """The protocol that most members prefer, among those that all members support."""
        size = len(self.by_id)
        votes = {name: 0 for name, count in self._supported.items() if count == size}
        for member in self.by_id.values():
            choice = next(entry.name for entry in member.protocols if entry.name in votes)
            votes[choice] += 1
        return max(votes, key=lambda name: votes[name])

    def _count(self, member: Member, step: int) -> None:
        supported = self._supported
        for name, _ in member.protocols:
            count = supported.get(name, 0) + step
            if count:
                supported[name] = count
            else:
                supported.pop(name, None)
