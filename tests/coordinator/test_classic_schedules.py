"""Whatever comes in whatever order, a classic group keeps its promises; and the checker would see if not."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

import pytest

from tests.coordinator.classic_schedules import Schedule
from tests.support.scale import scale
from tidelog.coordinator.group.classic import ClassicGroup
from tidelog.coordinator.group.classic_rebalance import ClassicRebalance
from tidelog.coordinator.group.classic_state import ClassicGroupHost, GroupState
from tidelog.coordinator.group.group_metadata import group_metadata
from tidelog.coordinator.group.members import NEVER, JoinDone, Member
from tidelog.errors import KafkaError
from tidelog.protocol.messages.group_records import GroupMetadataValue
from tidelog.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse

SEEDS = scale(240, 5000)
CHUNKS = 8


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_every_schedule_keeps_what_groups_promise(chunk: int) -> None:
    for seed in range(chunk, SEEDS, CHUNKS):
        try:
            Schedule(seed).run()
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error!r}") from error


# -- the checker ---------------------------------------------------------------------------------------
# Each of these groups breaks one promise, in a way that a tired programmer could.


class LeavesTheFirstOfTwoJoins(ClassicGroup):
    __slots__ = ()

    def _await_join(self, member: Member, done: JoinDone) -> None:
        self.members.set_awaiting_join(member, done)


class LeavesAReplacedSync(ClassicRebalance):
    __slots__ = ()

    def end_waits(self, member: Member, error: KafkaError) -> None:
        member.awaiting_sync = None
        super().end_waits(member, error)


class KeepsItsGeneration(ClassicRebalance):
    __slots__ = ()

    def _complete_join(self) -> None:
        before = self._group.generation
        super()._complete_join()
        if self._group.state is GroupState.COMPLETING_REBALANCE and before:
            self._group.generation = before


class KeepsAnAbsentLeader(ClassicRebalance):
    __slots__ = ()

    def _complete_join(self) -> None:
        leader = self._group.members.leader_id
        super()._complete_join()
        if self._group.state is GroupState.COMPLETING_REBALANCE:
            self._group.members.leader_id = leader


class MixesUpAssignments(ClassicRebalance):
    __slots__ = ()

    def _hand_out(self, assignments: dict[str, bytes]) -> None:
        shifted = [*list(assignments.values())[1:], *list(assignments.values())[:1]]
        super()._hand_out(dict(zip(assignments, shifted, strict=True)))


class HandsOutWhatWasOvertaken(ClassicRebalance):
    __slots__ = ()

    def write_assignments(self, given: dict[str, bytes]) -> None:
        def written(error: KafkaError | None) -> None:
            if error is None and self._group.members and self._group.state is not GroupState.DEAD:
                self._hand_out(given)
            self.send_answers()

        group = self._group
        self._host.write(group, group_metadata(group, dict.fromkeys(group.members.by_id, b"")), written)


class WritesSomethingElse(ClassicGroup):
    """Right until the coordinator is restarted."""

    __slots__ = ()

    @classmethod
    def restore(cls, group_id: str, value: GroupMetadataValue, host: ClassicGroupHost) -> Self:
        for member in value.members:
            member.assignment = b""
        return super().restore(group_id, value, host)


class LetsReplacedMembersIn(ClassicGroup):
    __slots__ = ()

    def heartbeat(self, member_id: str, instance_id: str | None, generation: int) -> int:
        current = self.members.static_ids.get(instance_id or "", member_id)
        return super().heartbeat(current, instance_id, generation)


class TakesAnyGeneration(ClassicGroup):
    __slots__ = ()

    def _validate_generation(self, generation: int) -> None:
        pass


class NeverExpiresAnybody(ClassicGroup):
    __slots__ = ()

    def _expire_member(self, member: Member) -> None:
        member.deadline = NEVER


class ExpiresThoseWhoWait(ClassicGroup):
    __slots__ = ()

    def expire(self) -> None:
        for member in list(self.members.by_id.values()):
            if member.keeps_waiting and member.deadline <= self._host.clock.monotonic():
                self.members.set_awaiting_join(member, None)
                self._expire_member(member)
        super().expire()


class WaitsForEverForJoins(ClassicRebalance):
    __slots__ = ()

    def prepare(self, reason: str, client_reason: str | None = None) -> None:
        super().prepare(reason, client_reason)
        if not self._is_initial:
            self._join_deadline = NEVER


class WaitsForEverForSyncs(ClassicRebalance):
    __slots__ = ()

    def _complete_join(self) -> None:
        super()._complete_join()
        self._sync_deadline = NEVER


class ForgetsThoseWhoLeft(ClassicGroup):
    """Takes them out, and does not tell the others."""

    __slots__ = ()

    def leave(
        self, leaving: Iterable[LeaveGroupRequest.MemberIdentity]
    ) -> list[LeaveGroupResponse.MemberResponse]:
        state = self.state
        answers = []
        for identity in leaving:
            answer = LeaveGroupResponse.MemberResponse(member_id=identity.member_id)
            try:
                self._leave(identity)
            except KafkaError as error:
                answer.error_code = error.code
            answers.append(answer)
        assert self.state is state
        self._rebalance.send_answers()
        return answers


class KeepsThoseWhoLeft(ClassicRebalance):
    __slots__ = ()

    def drop(self, member_id: str) -> None:
        if self._group.state is not GroupState.STABLE:
            super().drop(member_id)


BROKEN: list[type[ClassicGroup] | type[ClassicRebalance]] = [
    LeavesTheFirstOfTwoJoins,
    LeavesAReplacedSync,
    KeepsItsGeneration,
    KeepsAnAbsentLeader,
    MixesUpAssignments,
    HandsOutWhatWasOvertaken,
    WritesSomethingElse,
    LetsReplacedMembersIn,
    TakesAnyGeneration,
    NeverExpiresAnybody,
    ExpiresThoseWhoWait,
    WaitsForEverForJoins,
    WaitsForEverForSyncs,
    ForgetsThoseWhoLeft,
    KeepsThoseWhoLeft,
]


def rebalanced_by(broken: type[ClassicRebalance]) -> type[ClassicGroup]:
    class Group(ClassicGroup):
        __slots__ = ()

        def __init__(self, group_id: str, host: ClassicGroupHost) -> None:
            super().__init__(group_id, host)
            self._rebalance = broken(self, host)

    return Group


@pytest.mark.parametrize("broken", BROKEN, ids=lambda kind: kind.__name__)
def test_the_checker_finds_a_planted_fault(broken: type[ClassicGroup] | type[ClassicRebalance]) -> None:
    group = broken if issubclass(broken, ClassicGroup) else rebalanced_by(broken)
    for seed in range(200):
        try:
            Schedule(seed, group).run()
        except AssertionError:
            return
    pytest.fail(f"no schedule found what is wrong with {broken.__name__}")
