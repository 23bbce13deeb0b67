"""A classic group: members join, one of them assigns the work, everyone syncs, and heartbeats keep it so.

A pure state machine. It takes requests and the time of its clock, and answers through the callbacks that
came with the requests: each exactly once, after its own state is settled. What has to happen later is a
deadline: whoever runs the group calls `expire` once `wake_at` has come.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from tidelog.coordinator.group.classic_rebalance import RebalancingGroup
from tidelog.coordinator.group.classic_state import Client, GroupState
from tidelog.coordinator.group.group_metadata import group_metadata
from tidelog.coordinator.group.members import (
    NEVER,
    JoinDone,
    Member,
    Protocol,
    SyncDone,
    protocols_of,
    refused_join,
)
from tidelog.errors import (
    CoordinatorNotAvailable,
    ErrorCode,
    FencedInstanceId,
    GroupMaxSizeReached,
    InconsistentGroupProtocol,
    KafkaError,
    RebalanceInProgress,
    UnknownMemberId,
    UnknownServerError,
)
from tidelog.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from tidelog.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse
from tidelog.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse

log = logging.getLogger("tidelog.coordinator.group")

NEW_MEMBER_JOIN_SECONDS = 300.0
"""How long the first join of a member may wait: its client may be long gone, and would hold up the others."""

MEMBER_ID_REQUIRED_VERSION = 4
SKIP_ASSIGNMENT_VERSION = 9


class ClassicGroup(RebalancingGroup):
    __slots__ = ()

    # -- joining -----------------------------------------------------------------------------------

    def join(self, request: JoinGroupRequest, client: Client, done: JoinDone) -> None:
        """Become a member, or say that one is still there and what it supports now."""
        try:
            self._join(request, client, done)
        except KafkaError as error:
            self._answer(done, refused_join(error.code, _told_id(request, error)))
        self._send_answers()

    def _join(self, request: JoinGroupRequest, client: Client, done: JoinDone) -> None:
        member_id = request.member_id
        if not self._has_room_for(member_id):
            self._drop(member_id)
            self._maybe_complete_join()
            raise GroupMaxSizeReached(f"group {self.group_id} has {len(self.members)} members")
        if self.state is GroupState.DEAD:
            raise CoordinatorNotAvailable(f"group {self.group_id} is dead")
        self._validate_protocols(request)
        if not member_id:
            self._join_new(request, client, done)
        elif member_id in self.members.pending_joins:
            if request.group_instance_id is not None:
                raise UnknownServerError(f"{member_id} was given to a member without a group.instance.id")
            self._add(request, client, member_id, done)
        else:
            self.validate_member(member_id, request.group_instance_id)
            self._rejoin(request, self.members.by_id[member_id], done)

    def _join_new(self, request: JoinGroupRequest, client: Client, done: JoinDone) -> None:
        instance_id = request.group_instance_id
        new_id = self._around.new_member_id(client.client_id if instance_id is None else instance_id)
        if instance_id is not None:
            old_id = self.members.static_ids.get(instance_id)
            if old_id is None:
                self._add(request, client, new_id, done)
            else:
                self._replace_static(request, client, self.members.by_id[old_id], new_id, done)
        elif client.api_version >= MEMBER_ID_REQUIRED_VERSION:
            # It joins again with its id, so that an answer lost on the way leaves no member behind.
            self.members.pending_joins[new_id] = self._in(request.session_timeout_ms / 1000)
            self._answer(done, refused_join(ErrorCode.MEMBER_ID_REQUIRED, new_id))
        else:
            self._add(request, client, new_id, done)

    def _rejoin(self, request: JoinGroupRequest, member: Member, done: JoinDone) -> None:
        """A known member joins: a new round, unless it only missed the answer of the present one."""
        changed = member.protocols != protocols_of(request)
        leads = self.members.is_leader(member.member_id)
        is_under_way = self.state is GroupState.COMPLETING_REBALANCE
        if not changed and (is_under_way or (self.state is GroupState.STABLE and not leads)):
            self._answer(done, self._joined(member))
        elif self.state is GroupState.EMPTY:
            raise UnknownMemberId(f"{member.member_id} is not awaited in the empty group {self.group_id}")
        else:
            self._update(member, request, done)
            what = "supports other protocols now" if changed else "joined again"
            who = "leader" if leads else "member"
            self._rebalance_or_complete(f"{who} {member.member_id} {what}", request.reason)

    def _add(self, request: JoinGroupRequest, client: Client, member_id: str, done: JoinDone) -> None:
        member = Member(
            member_id,
            request.group_instance_id,
            client.client_id,
            client.host,
            request.session_timeout_ms,
            _rebalance_timeout(request),
            protocols_of(request),
            is_new=True,
            deadline=self._in(NEW_MEMBER_JOIN_SECONDS),
            awaiting_join=done,
        )
        if self._is_initial and self.state is GroupState.PREPARING_REBALANCE:
            self._new_member_added = True
        if not self.members:
            self.protocol_type = request.protocol_type
        self.members.add(member)
        self._rebalance_or_complete(f"member {member_id} is new", request.reason)

    def _update(self, member: Member, request: JoinGroupRequest, done: JoinDone) -> None:
        self.members.set_protocols(member, protocols_of(request))
        member.session_timeout_ms = request.session_timeout_ms
        member.rebalance_timeout_ms = _rebalance_timeout(request)
        self._await_join(member, done)

    def _await_join(self, member: Member, done: JoinDone) -> None:
        before = self.members.set_awaiting_join(member, done)
        if before is not None:  # asked again, most likely over a new connection
            self._answer(
                before,
                refused_join(ErrorCode.REBALANCE_IN_PROGRESS, member.member_id),
            )

    def _has_room_for(self, member_id: str) -> bool:
        members = self.members
        if self.state is GroupState.PREPARING_REBALANCE:
            known = members.by_id.get(member_id)
            if known is not None and known.awaiting_join is not None:
                return True
            return members.awaiting_join < self._around.settings.max_size
        if self.state in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE):
            return member_id in members.by_id or len(members) < self._around.settings.max_size
        return True

    def _validate_protocols(self, request: JoinGroupRequest) -> None:
        names = [entry.name for entry in request.protocols]
        if self.is_empty:
            if request.protocol_type and names:
                return
            raise InconsistentGroupProtocol("a member needs a protocol type and at least one protocol")
        if request.protocol_type != self.protocol_type or not self.members.supports_any(names):
            raise InconsistentGroupProtocol(
                f"group {self.group_id} of type {self.protocol_type} has no protocol in common with"
                f" {request.protocol_type}: {', '.join(names)}"
            )

    # -- static members ----------------------------------------------------------------------------

    def _replace_static(
        self, request: JoinGroupRequest, client: Client, member: Member, new_id: str, done: JoinDone
    ) -> None:
        """An instance was started again: it takes its place under a new id, the one before is fenced."""
        old = _Replaced(member, self.members.leader_id)
        self._tell(
            "a static member was replaced", instance=member.instance_id, before=old.member_id, now=new_id
        )
        self._end_waits(member, FencedInstanceId(f"{old.member_id} was replaced by {new_id}"))
        self.members.rename(member, new_id)
        member.deadline = self._in(member.session_timeout_ms / 1000)
        self._update(member, request, done)
        if self.state is GroupState.STABLE:
            if self.members.select_protocol() == self.protocol:
                self._keep_replaced(client, member, old)
                return
            reason = f"static member {new_id} changed the protocol of the group"
            self._rebalance_or_complete(reason, request.reason)
        elif self.state is GroupState.COMPLETING_REBALANCE:
            self._prepare_rebalance(f"static member {new_id} was started again", request.reason)
        else:
            self._maybe_complete_join()

    def _keep_replaced(self, client: Client, member: Member, old: _Replaced) -> None:
        """The group stays as it is; its record has to know the new id before the member does."""
        generation, new_id = self.generation, member.member_id

        def written(error: KafkaError | None) -> None:
            if self.members.by_id.get(new_id) is not member or member.awaiting_join is None:
                return  # it left, or was replaced again
            if self.state is not GroupState.STABLE or self.generation != generation:
                return  # a rebalance came in between: it is answered as everyone else
            if error is not None:
                log.warning("group %s: %s was not written: %s", self.group_id, new_id, error)
                self._put_back(member, old, error)
            else:
                self._answer_join(member, self._rejoined_static(client, member, old))
            self._send_answers()

        record = group_metadata(self, {m.member_id: m.assignment for m in self.members.by_id.values()})
        self._around.write(self, record, written)

    def _rejoined_static(self, client: Client, member: Member, old: _Replaced) -> JoinGroupResponse:
        answer = self._joined(member)
        if client.api_version >= SKIP_ASSIGNMENT_VERSION:
            # It leads, and is told the members, but must not assign: nobody else would sync.
            answer.skip_assignment = self.members.is_leader(member.member_id)
        else:
            # Told an older leader's id, it takes itself for a follower and only fetches its assignment.
            answer.leader, answer.members = old.leader_id or "", []
        return answer

    def _put_back(self, member: Member, old: _Replaced, error: KafkaError) -> None:
        answer = self._joined(member)
        answer.error_code, answer.member_id = error.code, ""
        answer.leader, answer.members = old.leader_id or "", []
        self._answer_join(member, answer)
        self.members.rename(member, old.member_id)
        self.members.set_protocols(member, old.protocols)
        member.session_timeout_ms = old.session_timeout_ms
        member.rebalance_timeout_ms = old.rebalance_timeout_ms
        member.deadline = self._in(member.session_timeout_ms / 1000)

    # -- syncing -----------------------------------------------------------------------------------

    def sync(self, request: SyncGroupRequest, done: SyncDone) -> None:
        """Hand in the assignments as the leader; get one's own when they are written."""
        try:
            self._sync(request, done)
        except KafkaError as error:
            self._answer(done, SyncGroupResponse(error_code=error.code))
        self._send_answers()

    def _sync(self, request: SyncGroupRequest, done: SyncDone) -> None:
        member_id = request.member_id
        if self.state is GroupState.DEAD:
            raise CoordinatorNotAvailable(f"group {self.group_id} is dead")
        self.validate_member(member_id, request.group_instance_id)
        self._validate_generation(request.generation_id)
        if request.protocol_type not in (None, self.protocol_type) or request.protocol_name not in (
            None,
            self.protocol,
        ):
            raise InconsistentGroupProtocol(
                f"group {self.group_id} is of type {self.protocol_type} and uses {self.protocol}"
            )
        if self.state is GroupState.PREPARING_REBALANCE:
            raise RebalanceInProgress(f"group {self.group_id} waits for its members to join")
        member = self.members.by_id[member_id]
        self._has_synced(member_id)
        if self.state is GroupState.STABLE:
            self._answer(done, self._synced(member))
            return
        if member.awaiting_sync is not None:  # asked again, most likely over a new connection
            answer = SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS)
            self._answer(member.awaiting_sync, answer)
        member.awaiting_sync = done
        if self.members.is_leader(member_id):
            self._write_assignments({a.member_id: bytes(a.assignment) for a in request.assignments})

    def _has_synced(self, member_id: str) -> None:
        self.members.pending_syncs.pop(member_id, None)
        if not self.members.pending_syncs:
            self._sync_deadline = NEVER

    # -- staying and leaving -----------------------------------------------------------------------

    def heartbeat(self, member_id: str, instance_id: str | None, generation: int) -> int:
        """Note that a member is alive; the error code that tells it what it has to do."""
        member = self.members.by_id.get(member_id)
        if member is None or instance_id is not None or self.state is GroupState.DEAD:
            if self.state is GroupState.DEAD:
                raise CoordinatorNotAvailable(f"group {self.group_id} is dead")
            self.validate_member(member_id, instance_id)
            member = self.members.by_id[member_id]
        if generation != self.generation:
            self._validate_generation(generation)
        member.deadline = deadline = self._around.clock.monotonic() + member.session_timeout_ms / 1000
        if deadline < self.wake_at:
            self._wake_by(deadline)
        if self.state is GroupState.PREPARING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return 0

    def heard_from(self, member_id: str) -> None:
        """A member did something that only a living one does."""
        member = self.members.by_id.get(member_id)
        if member is not None and member.deadline < NEVER:
            member.deadline = max(member.deadline, self._in(member.session_timeout_ms / 1000))

    def leave(
        self, leaving: Iterable[LeaveGroupRequest.MemberIdentity]
    ) -> list[LeaveGroupResponse.MemberResponse]:
        """Take members out, each on its own; what became of each, in the order of the request."""
        if self.state is GroupState.DEAD:
            raise CoordinatorNotAvailable(f"group {self.group_id} is dead")
        answers = []
        gone = []
        for identity in leaving:
            answer = LeaveGroupResponse.MemberResponse(
                member_id=identity.member_id, group_instance_id=identity.group_instance_id
            )
            answers.append(answer)
            try:
                gone.append(self._leave(identity))
            except KafkaError as error:
                answer.error_code = error.code
        if gone and self.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
            self._prepare_rebalance(f"members left: {', '.join(gone)}")
        elif gone:
            self._maybe_complete_join()
        self._send_answers()
        return answers

    def _leave(self, identity: LeaveGroupRequest.MemberIdentity) -> str:
        member_id, instance_id = identity.member_id, identity.group_instance_id
        if not member_id:
            member_id = self.members.static_ids.get(instance_id or "", "")
            if instance_id is None or not member_id:
                raise UnknownMemberId(f"no member of group {self.group_id} has the instance {instance_id}")
        elif member_id not in self.members.pending_joins:
            self.validate_member(member_id, instance_id)
        self._tell("a member left", member=member_id, instance=instance_id, client_reason=identity.reason)
        self._drop(member_id)
        return member_id

    # -- time --------------------------------------------------------------------------------------

    def expire(self) -> None:
        """Do what is due, and say in `wake_at` when to come again."""
        now = self._around.clock.monotonic()
        members = self.members
        for member_id in [id_ for id_, until in members.pending_joins.items() if until <= now]:
            self._tell("a member id was not used in time", member=member_id)
            members.remove(member_id)
            self._complete_join_without()
        for member in [m for m in members.by_id.values() if m.deadline <= now]:
            if member.keeps_waiting:
                member.deadline = NEVER  # set again when it is answered
            elif member.member_id in members.by_id:
                self._expire_member(member)
        if self._sync_deadline <= now:
            self._expire_syncs()
        if self._join_deadline <= now:
            if self._is_initial:
                self._initial_delay_over()
            else:
                self._complete_join()
        self.wake_at = min(
            self._join_deadline,
            self._sync_deadline,
            min(members.pending_joins.values(), default=NEVER),
            min((member.deadline for member in members.by_id.values()), default=NEVER),
        )
        self._around.wake(self)
        self._send_answers()

    def _expire_member(self, member: Member) -> None:
        self._drop(member.member_id)
        reason = f"member {member.member_id} was silent for {member.session_timeout_ms} ms"
        if self.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
            self._prepare_rebalance(reason)
        else:
            self._tell("a member failed", reason=reason)
            self._complete_join_without()

    def _expire_syncs(self) -> None:
        self._sync_deadline = NEVER
        late = list(self.members.pending_syncs)
        if not late or self.state not in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE):
            return
        for member_id in late:
            self._drop(member_id)
        self._prepare_rebalance(f"members did not sync in time: {', '.join(late)}")

    def start(self) -> None:
        """The group was loaded: its members have their whole session from now on."""
        for member in self.members.by_id.values():
            member.deadline = self._in(member.session_timeout_ms / 1000)
        if len(self.members) > self._around.settings.max_size:
            self._prepare_rebalance(
                f"it was loaded with {len(self.members)} members, of which {self._around.settings.max_size}"
                " are allowed"
            )
            self._send_answers()

    def rebalance(self, reason: str) -> None:
        """Have everyone join anew for a reason that is none of the members'."""
        self._prepare_rebalance(reason)
        self._send_answers()

    def end(self, error: KafkaError) -> None:
        """The group lives elsewhere or is gone: everyone who waits is told so."""
        for member in self.members.by_id.values():
            self._end_waits(member, error)
        self.state = GroupState.DEAD
        self._join_deadline = self._sync_deadline = self.wake_at = NEVER
        self._around.wake(self)
        self._send_answers()


class _Replaced:
    """What a static member was before it was started again, for the case that the new one is not written."""

    __slots__ = ("leader_id", "member_id", "protocols", "rebalance_timeout_ms", "session_timeout_ms")

    def __init__(self, member: Member, leader_id: str | None) -> None:
        self.member_id = member.member_id
        self.leader_id = leader_id
        self.protocols: list[Protocol] = member.protocols
        self.session_timeout_ms = member.session_timeout_ms
        self.rebalance_timeout_ms = member.rebalance_timeout_ms


def _rebalance_timeout(request: JoinGroupRequest) -> int:
    """Version 0 has none of its own: there a rebalance may take as long as a session."""
    given = request.rebalance_timeout_ms
    return given if given >= 0 else request.session_timeout_ms


def _told_id(request: JoinGroupRequest, error: KafkaError) -> str:
    """Under which id a refused member is told so."""
    return "" if isinstance(error, GroupMaxSizeReached | UnknownServerError) else request.member_id
