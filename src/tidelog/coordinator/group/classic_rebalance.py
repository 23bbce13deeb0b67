"""ClassicRebalance: a rebalance of a classic group.

Members join, the leader assigns, the group is written, members sync.

The requests and deadlines of `classic` start these steps.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from tidelog.coordinator.group.classic_state import ClassicGroupHost, GroupState
from tidelog.coordinator.group.group_metadata import group_metadata
from tidelog.coordinator.group.members import NEVER, NO_ASSIGNMENT, Member, refused_join
from tidelog.errors import KafkaError, RebalanceInProgress, UnknownMemberId
from tidelog.protocol.messages.join_group import JoinGroupResponse
from tidelog.protocol.messages.sync_group import SyncGroupResponse

if TYPE_CHECKING:
    from tidelog.coordinator.group.classic import ClassicGroup

log = logging.getLogger("tidelog.coordinator.group")

A = TypeVar("A")


class ClassicRebalance:
    """The rebalances of one group: their deadlines, and the answers that members wait for."""

    __slots__ = (
        "_answers",
        "_group",
        "_host",
        "_initial_delay_ms",
        "_initial_left_ms",
        "_is_initial",
        "_join_deadline",
        "_new_member_added",
        "_sync_deadline",
    )

    def __init__(self, group: ClassicGroup, host: ClassicGroupHost) -> None:
        self._group = group
        self._host = host
        self._answers: list[Callable[[], None]] = []
        self._join_deadline = self._sync_deadline = NEVER
        # The time for which the first rebalance of an empty group may still wait for members.
        self._is_initial = False
        self._new_member_added = False
        self._initial_delay_ms = self._initial_left_ms = 0

    # -- the rebalance -----------------------------------------------------------------------------

    def prepare_or_complete(self, reason: str, client_reason: str | None = None) -> None:
        if self._group.state is GroupState.PREPARING_REBALANCE:
            self.maybe_complete_join()
        else:
            self.prepare(reason, client_reason)

    def prepare(self, reason: str, client_reason: str | None = None) -> None:
        """Start a rebalance: all members have to join again."""
        if self._group.state is GroupState.COMPLETING_REBALANCE:
            self._drop_assignments(RebalanceInProgress(reason))
        self._group.members.pending_syncs.clear()
        self._sync_deadline = NEVER
        self._is_initial = self._group.is_empty
        self.log_event(
            "preparing to rebalance",
            state=self._group.state_name,
            generation=self._group.generation,
            reason=reason,
            client_reason=client_reason,
        )
        self._enter(GroupState.PREPARING_REBALANCE)
        if self._is_initial:
            self._new_member_added = False
            self._initial_delay_ms = delay = self._host.settings.initial_rebalance_delay_ms
            self._initial_left_ms = max(self._group.members.rebalance_timeout_ms - delay, 0)
            self._join_deadline = self.deadline_in(delay / 1000)
        elif self._group.members.have_all_joined:
            self._complete_join()
        else:
            self._join_deadline = self.deadline_in(self._group.members.rebalance_timeout_ms / 1000)

    def maybe_complete_join(self) -> None:
        if (
            self._group.state is GroupState.PREPARING_REBALANCE
            and not self._is_initial
            and self._group.members.have_all_joined
        ):
            self._complete_join()

    def _initial_delay_over(self) -> None:
        """Complete the first rebalance, or wait longer if members have joined since, up to the rebalance
        timeout.
        """
        if not self._new_member_added or self._initial_left_ms == 0:
            self._complete_join()
            return
        self._new_member_added = False
        delay = min(self._host.settings.initial_rebalance_delay_ms, self._initial_left_ms)
        self._initial_left_ms = max(self._initial_left_ms - self._initial_delay_ms, 0)
        self._initial_delay_ms = delay
        self._join_deadline = self.deadline_in(delay / 1000)

    def _complete_join(self) -> None:
        """All awaited members have joined or timed out: start the next generation."""
        self._join_deadline = NEVER
        members = self._group.members
        absent = [m for m in members.by_id.values() if m.awaiting_join is None and m.instance_id is None]
        for member in absent:
            self.end_waits(member, UnknownMemberId(f"{member.member_id} did not join in time"))
            members.remove(member.member_id)
        if absent:
            self.log_event("members did not join in time", members=[m.member_id for m in absent])
        if members and not members.elect_joined_leader():
            # The remaining members are static and have not joined: they leave when their sessions expire.
            self._join_deadline = self.deadline_in(members.rebalance_timeout_ms / 1000)
            return
        self._is_initial = False
        self._group.generation += 1
        if not members:
            self._become_empty()
            return
        self._group.protocol = members.select_protocol()
        self._group.subscribed_topics = self._group.find_subscribed_topics()
        self._enter(GroupState.COMPLETING_REBALANCE)
        self.log_event(
            "joined",
            generation=self._group.generation,
            members=len(members),
            protocol=self._group.protocol,
        )
        members.pending_syncs = dict.fromkeys(members.by_id)
        for member in members.by_id.values():
            member.is_new = False
            member.deadline = self.session_deadline(member)
            if member.awaiting_join is not None:
                self.answer_join(member, self.joined(member))
        self._sync_deadline = self.deadline_in(members.rebalance_timeout_ms / 1000)

    def _become_empty(self) -> None:
        self._group.protocol = None
        self._group.members.pending_syncs.clear()
        self._sync_deadline = NEVER
        self._group.subscribed_topics = self._group.find_subscribed_topics()
        self._enter(GroupState.EMPTY)
        self.log_event("empty", generation=self._group.generation)

        def written(error: KafkaError | None) -> None:
            if error is not None:
                log.warning("group %s: that it is empty was not written: %s", self._group.group_id, error)

        self._host.write(self._group, group_metadata(self._group, {}), written)

    def joined(self, member: Member) -> JoinGroupResponse:
        """The answer to a member of the present generation; the leader also gets all members."""
        answer = JoinGroupResponse(
            generation_id=self._group.generation,
            protocol_type=self._group.protocol_type,
            protocol_name=self._group.protocol,
            leader=self._group.members.leader_id or "",
            member_id=member.member_id,
        )
        if self._group.members.is_leader(member.member_id):
            answer.members = [
                JoinGroupResponse.JoinGroupResponseMember(
                    member_id=other.member_id,
                    group_instance_id=other.instance_id,
                    metadata=other.metadata(self._group.protocol),
                )
                for other in self._group.members.by_id.values()
            ]
        return answer

    def complete_join_without(self) -> None:
        """Complete the rebalance if it only waited for a member that is gone."""
        if self._group.state is GroupState.PREPARING_REBALANCE and self._group.members.have_all_joined:
            self._complete_join()

    def member_added(self) -> None:
        """Note that a new member has joined, for the delay of the first rebalance."""
        if self._is_initial and self._group.state is GroupState.PREPARING_REBALANCE:
            self._new_member_added = True

    def member_synced(self, member_id: str) -> None:
        self._group.members.pending_syncs.pop(member_id, None)
        if not self._group.members.pending_syncs:
            self._sync_deadline = NEVER

    def expire(self, now: float) -> float:
        """Handle the deadlines of this rebalance that have passed; returns the next one."""
        if self._sync_deadline <= now:
            self._expire_syncs()
        if self._join_deadline <= now:
            if self._is_initial:
                self._initial_delay_over()
            else:
                self._complete_join()
        return min(self._join_deadline, self._sync_deadline)

    def _expire_syncs(self) -> None:
        self._sync_deadline = NEVER
        late_members = list(self._group.members.pending_syncs)
        if not late_members or self._group.state not in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE):
            return
        for member_id in late_members:
            self.drop(member_id)
        self.prepare(f"members did not sync in time: {', '.join(late_members)}")

    def end(self) -> None:
        """Clear the deadlines of a dead group."""
        self._join_deadline = self._sync_deadline = NEVER

    # -- assignments -------------------------------------------------------------------------------

    def write_assignments(self, leader_assignments: dict[str, bytes]) -> None:
        generation = self._group.generation
        assignments = {id_: leader_assignments.get(id_, NO_ASSIGNMENT) for id_ in self._group.members.by_id}
        without_assignment = [id_ for id_ in assignments if id_ not in leader_assignments]
        if without_assignment:
            self.log_event("the leader gave no assignment", generation=generation, members=without_assignment)

        def written(error: KafkaError | None) -> None:
            is_waiting = self._group.state is GroupState.COMPLETING_REBALANCE
            if not is_waiting or self._group.generation != generation:
                return  # another rebalance has begun
            if error is not None:
                self._drop_assignments(error)
                self.prepare(f"the assignment was not written: {error}")
            else:
                self._hand_out(assignments)
            self.send_answers()

        self._host.write(self._group, group_metadata(self._group, assignments), written)

    def _hand_out(self, assignments: dict[str, bytes]) -> None:
        self._enter(GroupState.STABLE)
        for member in self._group.members.by_id.values():
            member.assignment = assignments.get(member.member_id, NO_ASSIGNMENT)
            if member.awaiting_sync is not None:
                self._answer_sync(member, self.synced(member))
        self.log_event("stable", generation=self._group.generation, members=len(self._group.members))
        self._host.rebalanced(self._group)

    def _drop_assignments(self, error: KafkaError) -> None:
        for member in self._group.members.by_id.values():
            member.assignment = NO_ASSIGNMENT
            if member.awaiting_sync is not None:
                self._answer_sync(member, SyncGroupResponse(error_code=error.code))

    def synced(self, member: Member) -> SyncGroupResponse:
        return SyncGroupResponse(
            protocol_type=self._group.protocol_type,
            protocol_name=self._group.protocol,
            assignment=member.assignment,
        )

    # -- time and answers --------------------------------------------------------------------------

    def deadline_in(self, seconds: float) -> float:
        """The deadline in that many seconds; the group is woken at that time."""
        deadline = self._host.clock.monotonic() + seconds
        if deadline < self._group.wake_at:
            self.wake_by(deadline)
        return deadline

    def session_deadline(self, member: Member) -> float:
        return self.deadline_in(member.session_timeout_ms / 1000)

    def wake_by(self, deadline: float) -> None:
        self._group.wake_at = deadline
        self._host.wake(self._group)

    def drop(self, member_id: str) -> None:
        """Remove a member; a waiting one gets UNKNOWN_MEMBER_ID, so that it joins again if it is alive."""
        member = self._group.members.by_id.get(member_id)
        if member is not None:
            self.end_waits(member, UnknownMemberId(f"{member_id} is no member any more"))
        self._group.members.remove(member_id)
        if not self._group.members.pending_syncs:
            self._sync_deadline = NEVER

    def _enter(self, state: GroupState) -> None:
        self._group.state = state
        self._group.state_timestamp = self._host.clock.ms()

    def end_waits(self, member: Member, error: KafkaError) -> None:
        if member.awaiting_join is not None:
            member_id = member.member_id if not isinstance(error, UnknownMemberId) else ""
            self.answer_join(member, refused_join(error.code, member_id))
        if member.awaiting_sync is not None:
            self._answer_sync(member, SyncGroupResponse(error_code=error.code))

    def answer_join(self, member: Member, answer: JoinGroupResponse) -> None:
        done = self._group.members.set_awaiting_join(member, None)
        assert done is not None
        member.deadline = self.session_deadline(member)
        self.answer(done, answer)

    def _answer_sync(self, member: Member, answer: SyncGroupResponse) -> None:
        done, member.awaiting_sync = member.awaiting_sync, None
        assert done is not None
        member.deadline = self.session_deadline(member)
        self.answer(done, answer)

    def answer(self, done: Callable[[A], None], answer: A) -> None:
        """Queue an answer until the state has changed: the client may send its next request at once."""
        self._answers.append(lambda: done(answer))

    def send_answers(self) -> None:
        while self._answers:
            answers, self._answers = self._answers, []
            for send in answers:
                send()

    def log_event(self, event: str, **fields: object) -> None:
        known_fields = {name: value for name, value in fields.items() if value is not None}
        log.info("group %s: %s", self._group.group_id, event, extra={"fields": known_fields})
