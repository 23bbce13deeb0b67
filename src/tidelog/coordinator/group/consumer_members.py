"""ClassicMemberRequests: JoinGroup, SyncGroup, Heartbeat and LeaveGroup of classic members in consumer
groups.

`consumer_classic` has their effects on a group, this module their answers and deadlines.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from tidelog.coordinator.group import consumer_classic
from tidelog.coordinator.group.classic_service import LeaveDone
from tidelog.coordinator.group.classic_state import Client
from tidelog.coordinator.group.consumer import ConsumerGroup
from tidelog.coordinator.group.consumer_classic import ClassicJoin
from tidelog.coordinator.group.consumer_decisions import Draft, check_instance
from tidelog.coordinator.group.consumer_events import Member
from tidelog.coordinator.group.consumer_store import ConsumerStore
from tidelog.coordinator.group.consumer_timers import Kind
from tidelog.coordinator.group.group import CONSUMER_PROTOCOL_TYPE, Group
from tidelog.coordinator.group.members import JoinDone, SyncDone, protocols_of
from tidelog.coordinator.group.migration import MigrationPolicy, may_downgrade
from tidelog.coordinator.group.shard import GroupShard
from tidelog.errors import (
    ErrorCode,
    InconsistentGroupProtocol,
    KafkaError,
    RebalanceInProgress,
    UnknownMemberId,
)
from tidelog.protocol.messages.heartbeat import HeartbeatRequest
from tidelog.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from tidelog.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse
from tidelog.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from tidelog.protocol.wire import uuid_to_text

# From this version on a dynamic member first gets its id, and joins again with it.
MEMBER_ID_REQUIRED_VERSION = 4


class ClassicMemberRequests:
    """Implements coordinator.group.classic_service.ClassicMembers."""

    def __init__(self, store: ConsumerStore) -> None:
        self._store = store

    # -- joining -----------------------------------------------------------------------------------

    def classic_join(
        self, shard: GroupShard, group: Group, request: JoinGroupRequest, client: Client, done: JoinDone
    ) -> None:
        assert isinstance(group, ConsumerGroup)
        try:
            self._join(shard, group, request, client, done)
        except KafkaError as error:
            done(JoinGroupResponse(error_code=error.code, protocol_name=None))

    def _join(
        self,
        shard: GroupShard,
        group: ConsumerGroup,
        request: JoinGroupRequest,
        client: Client,
        done: JoinDone,
    ) -> None:
        if self._store.settings.consumer_migration_policy.lower() == "disabled":
            raise InconsistentGroupProtocol(
                f"{group.group_id} is a consumer group, and group.consumer.migration.policy is disabled"
            )
        join = _join_of(request, client)
        draft = self._store.draft(group)
        draft.check_room(join.member_id)
        consumer_classic.check_protocols(group, join)
        is_dynamic = request.group_instance_id is None
        if is_dynamic and join.is_new and client.api_version >= MEMBER_ID_REQUIRED_VERSION:
            done(
                JoinGroupResponse(
                    error_code=ErrorCode.MEMBER_ID_REQUIRED, member_id=join.member_id, protocol_name=None
                )
            )
            return
        self._reconcile(shard, group, draft, join, done)

    def _reconcile(
        self, shard: GroupShard, group: ConsumerGroup, draft: Draft, join: ClassicJoin, done: JoinDone
    ) -> None:
        """Write the joining member and its assignment; this may convert the group to a classic one."""
        replaced = group.static_member(join.instance_id)
        before = consumer_classic.find_or_replace(draft, join)
        joined = consumer_classic.update(draft, before, join)
        topics_changed = self._store.soft(shard, group.group_id).seen_topics is not draft.cluster.topics
        if joined.is_changed or topics_changed:
            draft.bump_if_changed(force=joined.is_changed)
        owned = consumer_classic.owned(joined.subscription, draft.cluster)
        policy = MigrationPolicy.of(self._store.settings.consumer_migration_policy)
        is_last = replaced is not None and not replaced.is_classic
        is_classic_now = is_last and may_downgrade(draft.group, (), policy, self._store.settings.max_size)
        if not is_classic_now:
            draft.assign()
        is_stale = draft.group.assignment_epoch < draft.group.group_epoch
        if not is_classic_now or not is_stale:
            draft.reconcile(join.member_id, owned, subscription_changed=joined.is_changed)
        member = draft.group.members[join.member_id]

        def written(error: KafkaError | None) -> None:
            if error is None and not is_classic_now:
                self._has_joined(shard, group, member)
            done(_joined(member, error))

        if is_classic_now:
            reason = "it became a classic group with an old assignment" if is_stale else None
            self._store.downgrade(shard, draft, (), reason, written)
        else:
            self._store.commit(shard, draft, written)

    def _has_joined(self, shard: GroupShard, group: ConsumerGroup, member: Member) -> None:
        deadlines = self._store.soft(shard, group.group_id).deadlines
        deadlines.clear(Kind.JOIN, member.member_id)
        self._store.heard_from(shard, group, member)
        deadlines.set(Kind.SYNC, member.member_id, member.metadata.rebalance_timeout_ms)

    # -- going on ----------------------------------------------------------------------------------

    def classic_sync(
        self, shard: GroupShard, group: Group, request: SyncGroupRequest, done: SyncDone
    ) -> None:
        assert isinstance(group, ConsumerGroup)
        try:
            assignment = consumer_classic.sync(group, request, self._store.metadata.snapshot)
        except RebalanceInProgress:
            self._await_join(shard, group, group.members[request.member_id])
            raise
        member = group.members[request.member_id]
        self._store.soft(shard, group.group_id).deadlines.clear(Kind.SYNC, member.member_id)
        self._store.heard_from(shard, group, member)

        def committed(error: KafkaError | None) -> None:
            if error is not None:
                done(SyncGroupResponse(error_code=error.code))
                return
            done(
                SyncGroupResponse(
                    protocol_type=request.protocol_type,
                    protocol_name=request.protocol_name,
                    assignment=assignment,
                )
            )

        self._store.runtime.when_committed(shard.partition, committed)

    def classic_heartbeat(self, shard: GroupShard, group: Group, request: HeartbeatRequest) -> int:
        assert isinstance(group, ConsumerGroup)
        member = consumer_classic.find(
            group, request.member_id, request.group_instance_id, request.generation_id
        )
        self._store.heard_from(shard, group, member)
        if consumer_classic.must_join(group, member):
            self._await_join(shard, group, member)
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def _await_join(self, shard: GroupShard, group: ConsumerGroup, member: Member) -> None:
        self._store.soft(shard, group.group_id).deadlines.set_if_absent(
            Kind.JOIN, member.member_id, member.metadata.rebalance_timeout_ms
        )

    # -- leaving -----------------------------------------------------------------------------------

    def classic_leave(
        self,
        shard: GroupShard,
        group: Group,
        leaving: Sequence[LeaveGroupRequest.MemberIdentity],
        done: LeaveDone,
    ) -> None:
        assert isinstance(group, ConsumerGroup)
        answer = LeaveGroupResponse()
        member_ids: dict[str, None] = {}
        for identity in leaving:
            member_answer = LeaveGroupResponse.MemberResponse(
                member_id=identity.member_id, group_instance_id=identity.group_instance_id
            )
            answer.members.append(member_answer)
            try:
                member_ids[_leaving(group, identity).member_id] = None
            except KafkaError as error:
                member_answer.error_code = error.code
        if not member_ids:
            done(answer)
            return

        def written(error: KafkaError | None) -> None:
            done(answer if error is None else LeaveGroupResponse(error_code=error.code))

        self._store.remove(shard, group, member_ids, written)


def _join_of(request: JoinGroupRequest, client: Client) -> ClassicJoin:
    return ClassicJoin(
        member_id=request.member_id or uuid_to_text(uuid.uuid4().bytes),
        is_new=not request.member_id,
        instance_id=request.group_instance_id,
        protocol_type=request.protocol_type,
        protocols=tuple((name, metadata) for name, metadata in protocols_of(request)),
        session_timeout_ms=request.session_timeout_ms,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        client_id=client.client_id,
        client_host=client.host,
    )


def _joined(member: Member, error: KafkaError | None) -> JoinGroupResponse:
    if error is not None:
        return JoinGroupResponse(error_code=error.code, protocol_name=None)
    name, _ = consumer_classic.chosen_protocol(member)
    return JoinGroupResponse(
        member_id=member.member_id,
        generation_id=member.current.epoch,
        protocol_type=CONSUMER_PROTOCOL_TYPE,
        protocol_name=name,
    )


def _leaving(group: ConsumerGroup, identity: LeaveGroupRequest.MemberIdentity) -> Member:
    if identity.group_instance_id is None:
        return group.member(identity.member_id)
    if identity.member_id:
        return check_instance(group, identity.group_instance_id, identity.member_id)
    # Administrators remove members by their instance id alone.
    member = group.static_member(identity.group_instance_id)
    if member is None:
        raise UnknownMemberId(f"the group {group.group_id} has no instance id {identity.group_instance_id}")
    return member
