"""The rounds of a classic group: everyone joins, the leader assigns, that is written, everyone syncs.

The half of the state machine that requests and deadlines set in motion; see `classic` for these.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from tidelog.coordinator.group.classic_state import ClassicGroupState, GroupState
from tidelog.coordinator.group.group_metadata import group_metadata
from tidelog.coordinator.group.members import NEVER, NO_ASSIGNMENT, Member, refused_join
from tidelog.errors import KafkaError, RebalanceInProgress, UnknownMemberId
from tidelog.protocol.messages.join_group import JoinGroupResponse
from tidelog.protocol.messages.sync_group import SyncGroupResponse

log = logging.getLogger("tidelog.coordinator.group")

A = TypeVar("A")


class RebalancingGroup(ClassicGroupState):
    __slots__ = ()

    # -- the rebalance -----------------------------------------------------------------------------

    def _rebalance_or_complete(self, reason: str, client_reason: str | None = None) -> None:
        if self.state is GroupState.PREPARING_REBALANCE:
            self._maybe_complete_join()
        else:
            self._prepare_rebalance(reason, client_reason)

    def _prepare_rebalance(self, reason: str, client_reason: str | None = None) -> None:
        """Have everyone join anew, and wait for them."""
        if self.state is GroupState.COMPLETING_REBALANCE:
            self._drop_assignments(RebalanceInProgress(reason))
        self.members.pending_syncs.clear()
        self._sync_deadline = NEVER
        self._is_initial = self.is_empty
        self._tell(
            "preparing to rebalance",
            state=self.state_name,
            generation=self.generation,
            reason=reason,
            client_reason=client_reason,
        )
        self._enter(GroupState.PREPARING_REBALANCE)
        if self._is_initial:
            self._new_member_added = False
            self._initial_delay_ms = delay = self._around.settings.initial_rebalance_delay_ms
            self._initial_left_ms = max(self.members.rebalance_timeout_ms - delay, 0)
            self._join_deadline = self._in(delay / 1000)
        elif self.members.have_all_joined:
            self._complete_join()
        else:
            self._join_deadline = self._in(self.members.rebalance_timeout_ms / 1000)

    def _maybe_complete_join(self) -> None:
        if (
            self.state is GroupState.PREPARING_REBALANCE
            and not self._is_initial
            and self.members.have_all_joined
        ):
            self._complete_join()

    def _initial_delay_over(self) -> None:
        """While members keep coming the first rebalance goes on waiting, up to the rebalance time-out."""
        if not self._new_member_added or self._initial_left_ms == 0:
            self._complete_join()
            return
        self._new_member_added = False
        delay = min(self._around.settings.initial_rebalance_delay_ms, self._initial_left_ms)
        self._initial_left_ms = max(self._initial_left_ms - self._initial_delay_ms, 0)
        self._initial_delay_ms = delay
        self._join_deadline = self._in(delay / 1000)

    def _complete_join(self) -> None:
        """Everyone who is to come has come: the next generation begins with those who have."""
        self._join_deadline = NEVER
        members = self.members
        absent = [m for m in members.by_id.values() if m.awaiting_join is None and m.instance_id is None]
        for member in absent:
            self._end_waits(member, UnknownMemberId(f"{member.member_id} did not join in time"))
            members.remove(member.member_id)
        if absent:
            self._tell("members did not join in time", members=[m.member_id for m in absent])
        if members and not members.elect_joined_leader():
            # Static members alone are left and none has come: their sessions decide.
            self._join_deadline = self._in(members.rebalance_timeout_ms / 1000)
            return
        self._is_initial = False
        self.generation += 1
        if not members:
            self._become_empty()
            return
        self.protocol = members.select_protocol()
        self.subscribed_topics = self.find_subscribed_topics()
        self._enter(GroupState.COMPLETING_REBALANCE)
        self._tell("joined", generation=self.generation, members=len(members), protocol=self.protocol)
        members.pending_syncs = dict.fromkeys(members.by_id)
        for member in members.by_id.values():
            member.is_new = False
            member.deadline = self._in(member.session_timeout_ms / 1000)
            if member.awaiting_join is not None:
                self._answer_join(member, self._joined(member))
        self._sync_deadline = self._in(members.rebalance_timeout_ms / 1000)

    def _become_empty(self) -> None:
        self.protocol = None
        self.members.pending_syncs.clear()
        self._sync_deadline = NEVER
        self.subscribed_topics = self.find_subscribed_topics()
        self._enter(GroupState.EMPTY)
        self._tell("empty", generation=self.generation)

        def written(error: KafkaError | None) -> None:
            if error is not None:
                log.warning("group %s: that it is empty was not written: %s", self.group_id, error)

        self._around.write(self, group_metadata(self, {}), written)

    def _joined(self, member: Member) -> JoinGroupResponse:
        """What a member of the present generation is told: the leader also who the others are."""
        answer = JoinGroupResponse(
            generation_id=self.generation,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol,
            leader=self.members.leader_id or "",
            member_id=member.member_id,
        )
        if self.members.is_leader(member.member_id):
            answer.members = [
                JoinGroupResponse.JoinGroupResponseMember(
                    member_id=other.member_id,
                    group_instance_id=other.instance_id,
                    metadata=other.metadata(self.protocol),
                )
                for other in self.members.by_id.values()
            ]
        return answer

    def _complete_join_without(self) -> None:
        """Somebody who was awaited is gone: perhaps nobody else was."""
        if self.state is GroupState.PREPARING_REBALANCE and self.members.have_all_joined:
            self._complete_join()

    # -- assignments -------------------------------------------------------------------------------

    def _write_assignments(self, given: dict[str, bytes]) -> None:
        generation = self.generation
        assignments = {id_: given.get(id_, NO_ASSIGNMENT) for id_ in self.members.by_id}
        left_out = [id_ for id_ in assignments if id_ not in given]
        if left_out:
            self._tell("the leader gave no assignment", generation=generation, members=left_out)

        def written(error: KafkaError | None) -> None:
            if self.state is not GroupState.COMPLETING_REBALANCE or self.generation != generation:
                return  # overtaken: everyone was told to join anew
            if error is not None:
                self._drop_assignments(error)
                self._prepare_rebalance(f"the assignment was not written: {error}")
            else:
                self._hand_out(assignments)
            self._send_answers()

        self._around.write(self, group_metadata(self, assignments), written)

    def _hand_out(self, assignments: dict[str, bytes]) -> None:
        self._enter(GroupState.STABLE)
        for member in self.members.by_id.values():
            member.assignment = assignments.get(member.member_id, NO_ASSIGNMENT)
            if member.awaiting_sync is not None:
                self._answer_sync(member, self._synced(member))
        self._tell("stable", generation=self.generation, members=len(self.members))
        self._around.rebalanced(self)

    def _drop_assignments(self, error: KafkaError) -> None:
        for member in self.members.by_id.values():
            member.assignment = NO_ASSIGNMENT
            if member.awaiting_sync is not None:
                self._answer_sync(member, SyncGroupResponse(error_code=error.code))

    def _synced(self, member: Member) -> SyncGroupResponse:
        return SyncGroupResponse(
            protocol_type=self.protocol_type, protocol_name=self.protocol, assignment=member.assignment
        )

    # -- time and answers --------------------------------------------------------------------------

    def _in(self, seconds: float) -> float:
        """The deadline that many seconds from now; the group is woken by then."""
        deadline = self._around.clock.monotonic() + seconds
        if deadline < self.wake_at:
            self._wake_by(deadline)
        return deadline

    def _wake_by(self, deadline: float) -> None:
        self.wake_at = deadline
        self._around.wake(self)

    def _drop(self, member_id: str) -> None:
        """Forget a member; one that waits is told that it is none, so that it joins anew if it is alive."""
        member = self.members.by_id.get(member_id)
        if member is not None:
            self._end_waits(member, UnknownMemberId(f"{member_id} is no member any more"))
        self.members.remove(member_id)
        if not self.members.pending_syncs:
            self._sync_deadline = NEVER

    def _enter(self, state: GroupState) -> None:
        self.state = state
        self.state_timestamp = self._around.clock.ms()

    def _end_waits(self, member: Member, error: KafkaError) -> None:
        if member.awaiting_join is not None:
            told = member.member_id if not isinstance(error, UnknownMemberId) else ""
            self._answer_join(member, refused_join(error.code, told))
        if member.awaiting_sync is not None:
            self._answer_sync(member, SyncGroupResponse(error_code=error.code))

    def _answer_join(self, member: Member, answer: JoinGroupResponse) -> None:
        done = self.members.set_awaiting_join(member, None)
        assert done is not None
        member.deadline = self._in(member.session_timeout_ms / 1000)
        self._answer(done, answer)

    def _answer_sync(self, member: Member, answer: SyncGroupResponse) -> None:
        done, member.awaiting_sync = member.awaiting_sync, None
        assert done is not None
        member.deadline = self._in(member.session_timeout_ms / 1000)
        self._answer(done, answer)

    def _answer(self, done: Callable[[A], None], answer: A) -> None:
        """Answer once the state is settled: the answer may bring the next request at once."""
        self._answers.append(lambda: done(answer))

    def _send_answers(self) -> None:
        while self._answers:
            answers, self._answers = self._answers, []
            for send in answers:
                send()

    def _tell(self, event: str, **fields: object) -> None:
        told = {name: value for name, value in fields.items() if value is not None}
        log.info("group %s: %s", self.group_id, event, extra={"fields": told})
