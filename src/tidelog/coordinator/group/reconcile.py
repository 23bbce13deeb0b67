"""Reconciles a member of a consumer group: from its current assignment to its target assignment.

A member first revokes, then gets partitions. It keeps its epoch while it has unrevoked partitions. Then it
gets the epoch of the target and the partitions that other members have released; it waits for the others
(unreleased partitions). So no partition has two owners at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Set

from tidelog.coordinator.group.consumer_events import (
    CurrentAssignment,
    Member,
    MemberState,
    Owned,
    Target,
)
from tidelog.errors import FencedMemberEpoch

Reported = Mapping[bytes, Set[int]]
"""The owned partitions that a member reports, by topic id."""


class Reconciler:
    """The input of a step beside the member itself."""

    __slots__ = ("_owners", "_reported", "_target", "_target_epoch", "_topic_ids")

    def __init__(
        self,
        target_epoch: int,
        target: Target,
        topic_ids: Set[bytes],
        owners: Mapping[tuple[bytes, int], str],
        reported: Reported | None,
    ) -> None:
        """`topic_ids` are the subscribed topics; `reported` the owned partitions in the heartbeat."""
        self._target_epoch = target_epoch
        self._target = target
        self._topic_ids = topic_ids
        self._owners = owners
        self._reported = reported

    def step(self, member: Member, *, subscription_changed: bool) -> CurrentAssignment:
        """The member after the next step; the same member if nothing changes."""
        current = member.current
        if current.state is MemberState.STABLE:
            if current.epoch != self._target_epoch:
                return self._advance(member, current.epoch)
            return self._without_unsubscribed(current) if subscription_changed else current
        if current.state is MemberState.UNREVOKED_PARTITIONS:
            if self._still_has(current.revoking):
                return self._without_unsubscribed(current) if subscription_changed else current
            return self._advance(member, current.epoch)
        if current.state is MemberState.UNRELEASED_PARTITIONS:
            return self._advance(member, current.epoch)
        if self._reported is None or any(self._reported.values()):
            raise FencedMemberEpoch(
                f"the state of {member.member_id} was written by a newer coordinator: it must join anew"
            )
        return self._advance(member, self._target_epoch)

    def _still_has(self, revoking: Owned) -> bool:
        if self._reported is None:
            return True
        return any(
            partition in revoking.get(topic_id, {})
            for topic_id, partitions in self._reported.items()
            for partition in partitions
        )

    def _without_unsubscribed(self, current: CurrentAssignment) -> CurrentAssignment:
        """Revoke topics that the member has unsubscribed from at once, whatever the target is."""
        unwanted = {
            topic_id: partitions
            for topic_id, partitions in current.assigned.items()
            if topic_id not in self._topic_ids
        }
        if not unwanted:
            return current
        assigned = {
            topic_id: partitions
            for topic_id, partitions in current.assigned.items()
            if topic_id not in unwanted
        }
        revoking = {
            topic_id: {**current.revoking.get(topic_id, {}), **unwanted.get(topic_id, {})}
            for topic_id in {**current.revoking, **unwanted}
        }
        if self._still_has(revoking):
            return CurrentAssignment(
                current.epoch, current.epoch, MemberState.UNREVOKED_PARTITIONS, assigned, revoking
            )
        return CurrentAssignment(current.epoch, current.epoch, current.state, assigned, current.revoking)

    def _advance(self, member: Member, epoch: int) -> CurrentAssignment:
        current = member.current
        assigned: dict[bytes, dict[int, int]] = {}
        revoking: dict[bytes, dict[int, int]] = {}
        new: dict[bytes, list[int]] = {}
        is_waiting = False
        for topic_id in {**self._target, **current.assigned}:
            target = self._target.get(topic_id, frozenset()) if topic_id in self._topic_ids else frozenset()
            mine = current.assigned.get(topic_id, {})
            if keeps := {partition: since for partition, since in mine.items() if partition in target}:
                assigned[topic_id] = keeps
            if loses := {partition: since for partition, since in mine.items() if partition not in target}:
                revoking[topic_id] = loses
            for partition in target - mine.keys():
                # Partitions that this member has just revoked are free.
                if self._owners.get((topic_id, partition), member.member_id) == member.member_id:
                    new.setdefault(topic_id, []).append(partition)
                else:
                    is_waiting = True
        if revoking and self._still_has(revoking):
            return CurrentAssignment(
                epoch, current.epoch, MemberState.UNREVOKED_PARTITIONS, assigned, revoking
            )
        for topic_id, partitions in new.items():
            gets = dict.fromkeys(partitions, self._target_epoch)
            assigned[topic_id] = {**assigned.get(topic_id, {}), **gets}
        state = MemberState.UNRELEASED_PARTITIONS if is_waiting else MemberState.STABLE
        return CurrentAssignment(self._target_epoch, current.epoch, state, assigned)
