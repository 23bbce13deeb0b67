"""ClassicGroup: the state machine of a classic group, as in Kafka's class of this name.

Members join, the leader assigns, members sync and send heartbeats. The group has no I/O: it gets requests
with their callbacks, and reads a clock. Each callback is called exactly once, after the state has changed.
Later work is a deadline: the owner of the group calls `expire` at `wake_at`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Self

from tidelog.coordinator.group.classic_rebalance import ClassicRebalance
from tidelog.coordinator.group.classic_state import ClassicGroupHost, Client, GroupState
from tidelog.coordinator.group.group import CONSUMER_PROTOCOL_TYPE, CommitCheck, GroupKind
from tidelog.coordinator.group.group_metadata import (
    group_metadata,
    group_tombstone,
    restored_members,
    subscribed_topics,
)
from tidelog.coordinator.group.members import (
    NEVER,
    JoinDone,
    Member,
    Members,
    Protocol,
    SyncDone,
    protocols_of,
    refused_join,
)
from tidelog.coordinator.runtime import NewRecord
from tidelog.errors import (
    CoordinatorNotAvailable,
    ErrorCode,
    FencedInstanceId,
    GroupIdNotFound,
    GroupMaxSizeReached,
    IllegalGeneration,
    InconsistentGroupProtocol,
    KafkaError,
    NonEmptyGroup,
    RebalanceInProgress,
    UnknownMemberId,
    UnknownServerError,
)
from tidelog.protocol.messages.group_records import GroupMetadataValue
from tidelog.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from tidelog.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse
from tidelog.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse

log = logging.getLogger("tidelog.coordinator.group")

NEW_MEMBER_JOIN_SECONDS = 300.0
"""How long the first join of a new member may wait: a client that is gone must not delay the others."""

MEMBER_ID_REQUIRED_VERSION = 4
SKIP_ASSIGNMENT_VERSION = 9


class ClassicGroup:
    __slots__ = (
        "_host",
        "_rebalance",
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

    def __init__(self, group_id: str, host: ClassicGroupHost) -> None:
        self.group_id = group_id
        self.members = Members()
        self.state = GroupState.EMPTY
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        # When the state was entered, by the wall clock; -1 if an old record does not have it.
        self.state_timestamp = host.clock.ms()
        # The subscribed topics, if the members are consumers and their metadata can be decoded.
        self.subscribed_topics: frozenset[str] | None = None
        # Not later than the first deadline; equal to it after `expire`.
        self.wake_at = NEVER
        self._host = host
        self._rebalance = ClassicRebalance(self, host)

    @classmethod
    def restore(cls, group_id: str, value: GroupMetadataValue, host: ClassicGroupHost) -> Self:
        """The group of a record."""
        group = cls(group_id, host)
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

    # -- the interface of all groups ---------------------------------------------------------------

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
            return None  # a group without members that only commits offsets
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
            return self.uses_consumer_protocol  # the topics are not known: it may be any
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
        """Raise a KafkaError unless this is a member, with the present member id of its instance."""
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

    # -- joining -----------------------------------------------------------------------------------

    def join(self, request: JoinGroupRequest, client: Client, done: JoinDone) -> None:
        """Add a member, or join again with the protocols that it supports now."""
        try:
            self._join(request, client, done)
        except KafkaError as error:
            self._rebalance.answer(done, refused_join(error.code, _id_in_answer(request, error)))
        self._rebalance.send_answers()

    def _join(self, request: JoinGroupRequest, client: Client, done: JoinDone) -> None:
        member_id = request.member_id
        if not self._has_room_for(member_id):
            self._rebalance.drop(member_id)
            self._rebalance.maybe_complete_join()
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
        new_id = self._host.new_member_id(client.client_id if instance_id is None else instance_id)
        if instance_id is not None:
            old_id = self.members.static_ids.get(instance_id)
            if old_id is None:
                self._add(request, client, new_id, done)
            else:
                self._replace_static(request, client, self.members.by_id[old_id], new_id, done)
        elif client.api_version >= MEMBER_ID_REQUIRED_VERSION:
            # The client joins again with its id. So a lost answer leaves no member without a client.
            deadline = self._rebalance.deadline_in(request.session_timeout_ms / 1000)
            self.members.pending_joins[new_id] = deadline
            self._rebalance.answer(done, refused_join(ErrorCode.MEMBER_ID_REQUIRED, new_id))
        else:
            self._add(request, client, new_id, done)

    def _rejoin(self, request: JoinGroupRequest, member: Member, done: JoinDone) -> None:
        """Let a known member join again.

        Starts a rebalance, unless the member only missed the last answer.
        """
        changed = member.protocols != protocols_of(request)
        leads = self.members.is_leader(member.member_id)
        is_under_way = self.state is GroupState.COMPLETING_REBALANCE
        if not changed and (is_under_way or (self.state is GroupState.STABLE and not leads)):
            self._rebalance.answer(done, self._rebalance.joined(member))
        elif self.state is GroupState.EMPTY:
            raise UnknownMemberId(f"{member.member_id} is not awaited in the empty group {self.group_id}")
        else:
            self._update(member, request, done)
            reason = "supports other protocols now" if changed else "joined again"
            role = "leader" if leads else "member"
            self._rebalance.prepare_or_complete(f"{role} {member.member_id} {reason}", request.reason)

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
            deadline=self._rebalance.deadline_in(NEW_MEMBER_JOIN_SECONDS),
            awaiting_join=done,
        )
        self._rebalance.member_added()
        if not self.members:
            self.protocol_type = request.protocol_type
        self.members.add(member)
        self._rebalance.prepare_or_complete(f"member {member_id} is new", request.reason)

    def _update(self, member: Member, request: JoinGroupRequest, done: JoinDone) -> None:
        self.members.set_protocols(member, protocols_of(request))
        member.session_timeout_ms = request.session_timeout_ms
        member.rebalance_timeout_ms = _rebalance_timeout(request)
        self._await_join(member, done)

    def _await_join(self, member: Member, done: JoinDone) -> None:
        before = self.members.set_awaiting_join(member, done)
        if before is not None:  # asked again, most likely over a new connection
            self._rebalance.answer(
                before,
                refused_join(ErrorCode.REBALANCE_IN_PROGRESS, member.member_id),
            )

    def _has_room_for(self, member_id: str) -> bool:
        members = self.members
        if self.state is GroupState.PREPARING_REBALANCE:
            known = members.by_id.get(member_id)
            if known is not None and known.awaiting_join is not None:
                return True
            return members.awaiting_join < self._host.settings.max_size
        if self.state in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE):
            return member_id in members.by_id or len(members) < self._host.settings.max_size
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
        """Replace the former member id of a static member that has restarted. The former id is fenced."""
        old = _Replaced(member, self.members.leader_id)
        self._rebalance.log_event(
            "a static member was replaced", instance=member.instance_id, before=old.member_id, now=new_id
        )
        self._rebalance.end_waits(member, FencedInstanceId(f"{old.member_id} was replaced by {new_id}"))
        self.members.rename(member, new_id)
        member.deadline = self._rebalance.session_deadline(member)
        self._update(member, request, done)
        if self.state is GroupState.STABLE:
            if self.members.select_protocol() == self.protocol:
                self._keep_replaced(client, member, old)
                return
            reason = f"static member {new_id} changed the protocol of the group"
            self._rebalance.prepare_or_complete(reason, request.reason)
        elif self.state is GroupState.COMPLETING_REBALANCE:
            self._rebalance.prepare(f"static member {new_id} was started again", request.reason)
        else:
            self._rebalance.maybe_complete_join()

    def _keep_replaced(self, client: Client, member: Member, old: _Replaced) -> None:
        """Keep the group stable, and write the new member id before the member gets it."""
        generation, new_id = self.generation, member.member_id

        def written(error: KafkaError | None) -> None:
            if self.members.by_id.get(new_id) is not member or member.awaiting_join is None:
                return  # the member left or was replaced meanwhile
            if self.state is not GroupState.STABLE or self.generation != generation:
                return  # a rebalance began meanwhile, and answers it
            if error is not None:
                log.warning("group %s: %s was not written: %s", self.group_id, new_id, error)
                self._put_back(member, old, error)
            else:
                self._rebalance.answer_join(member, self._rejoined_static(client, member, old))
            self._rebalance.send_answers()

        record = group_metadata(self, {m.member_id: m.assignment for m in self.members.by_id.values()})
        self._host.write(self, record, written)

    def _rejoined_static(self, client: Client, member: Member, old: _Replaced) -> JoinGroupResponse:
        answer = self._rebalance.joined(member)
        if client.api_version >= SKIP_ASSIGNMENT_VERSION:
            # It is the leader and gets the members, but must not assign: the others do not sync.
            answer.skip_assignment = self.members.is_leader(member.member_id)
        else:
            # With the old leader id in its answer it acts as a follower, and only fetches its assignment.
            answer.leader, answer.members = old.leader_id or "", []
        return answer

    def _put_back(self, member: Member, old: _Replaced, error: KafkaError) -> None:
        answer = self._rebalance.joined(member)
        answer.error_code, answer.member_id = error.code, ""
        answer.leader, answer.members = old.leader_id or "", []
        self._rebalance.answer_join(member, answer)
        self.members.rename(member, old.member_id)
        self.members.set_protocols(member, old.protocols)
        member.session_timeout_ms = old.session_timeout_ms
        member.rebalance_timeout_ms = old.rebalance_timeout_ms
        member.deadline = self._rebalance.session_deadline(member)

    # -- syncing -----------------------------------------------------------------------------------

    def sync(self, request: SyncGroupRequest, done: SyncDone) -> None:
        """Take the assignments from the leader; answer each member with its own when they are written."""
        try:
            self._sync(request, done)
        except KafkaError as error:
            self._rebalance.answer(done, SyncGroupResponse(error_code=error.code))
        self._rebalance.send_answers()

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
        self._rebalance.member_synced(member_id)
        if self.state is GroupState.STABLE:
            self._rebalance.answer(done, self._rebalance.synced(member))
            return
        if member.awaiting_sync is not None:  # asked again, most likely over a new connection
            answer = SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS)
            self._rebalance.answer(member.awaiting_sync, answer)
        member.awaiting_sync = done
        if self.members.is_leader(member_id):
            self._rebalance.write_assignments({a.member_id: bytes(a.assignment) for a in request.assignments})

    # -- staying and leaving -----------------------------------------------------------------------

    def heartbeat(self, member_id: str, instance_id: str | None, generation: int) -> int:
        """Extend a member's session; returns the error code of the answer."""
        member = self.members.by_id.get(member_id)
        if member is None or instance_id is not None or self.state is GroupState.DEAD:
            if self.state is GroupState.DEAD:
                raise CoordinatorNotAvailable(f"group {self.group_id} is dead")
            self.validate_member(member_id, instance_id)
            member = self.members.by_id[member_id]
        if generation != self.generation:
            self._validate_generation(generation)
        member.deadline = deadline = self._host.clock.monotonic() + member.session_timeout_ms / 1000
        if deadline < self.wake_at:
            self._rebalance.wake_by(deadline)
        if self.state is GroupState.PREPARING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return 0

    def heard_from(self, member_id: str) -> None:
        """Extend the session of a member after another request that shows that it is alive."""
        member = self.members.by_id.get(member_id)
        if member is not None and member.deadline < NEVER:
            member.deadline = max(member.deadline, self._rebalance.session_deadline(member))

    def leave(
        self, leaving: Iterable[LeaveGroupRequest.MemberIdentity]
    ) -> list[LeaveGroupResponse.MemberResponse]:
        """Remove members independently of each other; returns the results in the order of the request."""
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
            self._rebalance.prepare(f"members left: {', '.join(gone)}")
        elif gone:
            self._rebalance.maybe_complete_join()
        self._rebalance.send_answers()
        return answers

    def _leave(self, identity: LeaveGroupRequest.MemberIdentity) -> str:
        member_id, instance_id = identity.member_id, identity.group_instance_id
        if not member_id:
            member_id = self.members.static_ids.get(instance_id or "", "")
            if instance_id is None or not member_id:
                raise UnknownMemberId(f"no member of group {self.group_id} has the instance {instance_id}")
        elif member_id not in self.members.pending_joins:
            self.validate_member(member_id, instance_id)
        self._rebalance.log_event(
            "a member left", member=member_id, instance=instance_id, client_reason=identity.reason
        )
        self._rebalance.drop(member_id)
        return member_id

    # -- time --------------------------------------------------------------------------------------

    def expire(self) -> None:
        """Handle the deadlines that have passed, and set `wake_at` to the next one."""
        now = self._host.clock.monotonic()
        members = self.members
        for member_id in [id_ for id_, until in members.pending_joins.items() if until <= now]:
            self._rebalance.log_event("a member id was not used in time", member=member_id)
            members.remove(member_id)
            self._rebalance.complete_join_without()
        for member in [m for m in members.by_id.values() if m.deadline <= now]:
            if member.keeps_waiting:
                member.deadline = NEVER  # set again with the answer
            elif member.member_id in members.by_id:
                self._expire_member(member)
        rebalance_deadline = self._rebalance.expire(now)
        self.wake_at = min(
            rebalance_deadline,
            min(members.pending_joins.values(), default=NEVER),
            min((member.deadline for member in members.by_id.values()), default=NEVER),
        )
        self._host.wake(self)
        self._rebalance.send_answers()

    def _expire_member(self, member: Member) -> None:
        self._rebalance.drop(member.member_id)
        reason = f"member {member.member_id} was silent for {member.session_timeout_ms} ms"
        if self.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
            self._rebalance.prepare(reason)
        else:
            self._rebalance.log_event("a member failed", reason=reason)
            self._rebalance.complete_join_without()

    def start(self) -> None:
        """Begin the sessions of the members after the group was loaded."""
        for member in self.members.by_id.values():
            member.deadline = self._rebalance.session_deadline(member)
        if len(self.members) > self._host.settings.max_size:
            self._rebalance.prepare(
                f"it was loaded with {len(self.members)} members, of which {self._host.settings.max_size}"
                " are allowed"
            )
            self._rebalance.send_answers()

    def rebalance(self, reason: str) -> None:
        """Start a rebalance for a reason outside of the group."""
        self._rebalance.prepare(reason)
        self._rebalance.send_answers()

    def end(self, error: KafkaError) -> None:
        """Answer all waiting members: the group was deleted or moved to another broker."""
        for member in self.members.by_id.values():
            self._rebalance.end_waits(member, error)
        self.state = GroupState.DEAD
        self._rebalance.end()
        self.wake_at = NEVER
        self._host.wake(self)
        self._rebalance.send_answers()


class _Replaced:
    """The state of a static member before its restart, to restore if the new one cannot be written."""

    __slots__ = ("leader_id", "member_id", "protocols", "rebalance_timeout_ms", "session_timeout_ms")

    def __init__(self, member: Member, leader_id: str | None) -> None:
        self.member_id = member.member_id
        self.leader_id = leader_id
        self.protocols: list[Protocol] = member.protocols
        self.session_timeout_ms = member.session_timeout_ms
        self.rebalance_timeout_ms = member.rebalance_timeout_ms


def _rebalance_timeout(request: JoinGroupRequest) -> int:
    """The rebalance timeout of a request; version 0 has none, so it is the session timeout."""
    timeout = request.rebalance_timeout_ms
    return timeout if timeout >= 0 else request.session_timeout_ms


def _id_in_answer(request: JoinGroupRequest, error: KafkaError) -> str:
    """The member id in the answer to a refused member."""
    return "" if isinstance(error, GroupMaxSizeReached | UnknownServerError) else request.member_id
