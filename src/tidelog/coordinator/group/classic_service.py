"""ClassicGroups: finds the classic group of a request, sets its timers and writes its records.

`classic` has the decisions of a group. Requests of classic members in consumer groups go to the service of
consumer groups.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, Protocol

from tidelog.clock import Clock, TimerHandle
from tidelog.coordinator.group.classic import ClassicGroup
from tidelog.coordinator.group.classic_state import Client
from tidelog.coordinator.group.group import Group
from tidelog.coordinator.group.group_metadata import new_group
from tidelog.coordinator.group.members import NEVER, JoinDone, SyncDone, refused_join
from tidelog.coordinator.group.records import read_group_key, read_group_value
from tidelog.coordinator.group.settings import GroupSettings
from tidelog.coordinator.group.shard import GroupShard
from tidelog.coordinator.runtime import CoordinatorRuntime, Done, NewRecord
from tidelog.errors import (
    CoordinatorLoadInProgress,
    ErrorCode,
    InvalidGroupId,
    InvalidSessionTimeout,
    KafkaError,
    NotCoordinator,
    RebalanceInProgress,
    UnknownMemberId,
)
from tidelog.protocol.messages.heartbeat import HeartbeatRequest
from tidelog.protocol.messages.join_group import JoinGroupRequest
from tidelog.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse
from tidelog.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse

log = logging.getLogger("tidelog.coordinator.group")

LeaveDone = Callable[[LeaveGroupResponse], None]

MEMBER_NAME = 255
"""Characters of the client id or the group instance id in a member id."""


class ClassicMembers(Protocol):
    """Requests of the classic protocol to consumer groups: `group` is of kind "consumer".

    A request that breaks a rule raises its KafkaError, and `done` is not called.
    """

    def classic_join(
        self, shard: GroupShard, group: Group, request: JoinGroupRequest, client: Client, done: JoinDone
    ) -> None: ...

    def classic_sync(
        self, shard: GroupShard, group: Group, request: SyncGroupRequest, done: SyncDone
    ) -> None: ...

    def classic_heartbeat(self, shard: GroupShard, group: Group, request: HeartbeatRequest) -> int:
        """Extend the member's session; returns the error code of the answer."""

    def classic_leave(
        self,
        shard: GroupShard,
        group: Group,
        leaving: Sequence[LeaveGroupRequest.MemberIdentity],
        done: LeaveDone,
    ) -> None: ...


class _Timer(NamedTuple):
    due: float
    handle: TimerHandle


class ClassicGroups:
    """Implements ClassicGroupHost for its groups and ShardClassicGroups for the shards."""

    def __init__(
        self,
        runtime: CoordinatorRuntime[GroupShard],
        settings: GroupSettings,
        in_consumer_groups: Callable[[], ClassicMembers],
    ) -> None:
        self.settings = settings
        self.clock: Clock = runtime.scheduler.clock
        self.completed_rebalances = 0
        self._runtime = runtime
        self._in_consumer_groups = in_consumer_groups
        self._timers: dict[ClassicGroup, _Timer] = {}

    @property
    def timers(self) -> int:
        """How many groups have a timer."""
        return len(self._timers)

    # -- requests ----------------------------------------------------------------------------------

    def join(self, request: JoinGroupRequest, client: Client, done: JoinDone) -> None:
        def failed(error: KafkaError, member_id: str = "") -> None:
            done(refused_join(error.code, member_id))

        def operation(shard: GroupShard) -> None:
            try:
                self._join(shard, request, client, done)
            except KafkaError as error:
                failed(error, request.member_id)

        try:
            _check_group_id(request.group_id)
            self._check_session_timeout(request.session_timeout_ms)
        except KafkaError as error:
            failed(error, request.member_id)
            return
        self._run(request.group_id, operation, failed)

    def _join(self, shard: GroupShard, request: JoinGroupRequest, client: Client, done: JoinDone) -> None:
        group = shard.groups.get(request.group_id)
        if isinstance(group, ClassicGroup):
            group.join(request, client, done)
        elif group is not None and not group.is_empty:
            self._in_consumer_groups().classic_join(shard, group, request, client, done)
        elif request.member_id:
            raise UnknownMemberId(f"there is no group {request.group_id} with {request.member_id}")
        elif group is not None:
            self._delete_then_join(shard, group, request, client, done)
        else:
            self._make_known(shard, request.group_id).join(request, client, done)

    def _delete_then_join(
        self, shard: GroupShard, group: Group, request: JoinGroupRequest, client: Client, done: JoinDone
    ) -> None:
        """Replace an empty consumer group by a classic one."""

        def deleted(error: KafkaError | None) -> None:
            if error is None:
                self.join(request, client, done)
            else:
                done(refused_join(error.code, request.member_id))

        self._runtime.append(shard.partition, group.tombstones(), deleted)

    def _make_known(self, shard: GroupShard, group_id: str) -> ClassicGroup:
        """A new group. Its first record makes it exist after a restart, too."""
        group = self.make(shard, group_id)

        def written(error: KafkaError | None) -> None:
            if error is not None:
                log.warning("group %s: that it is new was not written: %s", group_id, error)

        self._runtime.append(shard.partition, [new_group(group_id, group.state_timestamp)], written)
        return group

    def sync(self, request: SyncGroupRequest, done: SyncDone) -> None:
        def failed(error: KafkaError) -> None:
            # The load has lost a running rebalance, so members join again. Old clients know no other error.
            is_loading = isinstance(error, CoordinatorLoadInProgress)
            done(SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS if is_loading else error.code))

        def operation(shard: GroupShard) -> None:
            try:
                group = self._existing(shard, request.group_id)
                if group.is_empty:
                    raise UnknownMemberId(f"group {request.group_id} is empty")
                if isinstance(group, ClassicGroup):
                    group.sync(request, done)
                else:
                    self._in_consumer_groups().classic_sync(shard, group, request, done)
            except KafkaError as error:
                failed(error)

        try:
            _check_group_id(request.group_id)
        except KafkaError as error:
            failed(error)
            return
        self._run(request.group_id, operation, failed)

    def heartbeat(self, request: HeartbeatRequest) -> int:
        """The error code of the answer; KafkaError if the group or the member is unknown.

        The most frequent request changes nothing in the log: it is answered at once.
        """
        group_id = request.group_id
        try:
            shard = self._runtime.shard_for(group_id)
        except CoordinatorLoadInProgress:
            return 0  # sessions begin after the load; clients know no error for this
        group = shard.groups.get(group_id)
        if isinstance(group, ClassicGroup):
            return group.heartbeat(request.member_id, request.group_instance_id, request.generation_id)
        _check_group_id(group_id)
        group = self._existing(shard, group_id)
        return self._in_consumer_groups().classic_heartbeat(shard, group, request)

    def leave(
        self, group_id: str, leaving: Sequence[LeaveGroupRequest.MemberIdentity], done: LeaveDone
    ) -> None:
        def failed(error: KafkaError) -> None:
            if isinstance(error, UnknownMemberId):  # the group does not exist: each member gets that error
                done(LeaveGroupResponse(members=[_not_left(identity) for identity in leaving]))
            else:
                done(LeaveGroupResponse(error_code=error.code))

        def operation(shard: GroupShard) -> None:
            try:
                group = self._existing(shard, group_id)
                if isinstance(group, ClassicGroup):
                    done(LeaveGroupResponse(members=group.leave(leaving)))
                else:
                    self._in_consumer_groups().classic_leave(shard, group, leaving, done)
            except KafkaError as error:
                failed(error)

        try:
            _check_group_id(group_id)
        except KafkaError as error:
            failed(error)
            return
        self._run(group_id, operation, failed)

    def _run(
        self, group_id: str, operation: Callable[[GroupShard], None], failed: Callable[[KafkaError], None]
    ) -> None:
        try:
            partition = self._runtime.partition_for(group_id)
        except KafkaError as error:
            failed(error)
            return
        self._runtime.run(partition, operation, failed)

    def _existing(self, shard: GroupShard, group_id: str) -> Group:
        group = shard.groups.get(group_id)
        if group is None:
            raise UnknownMemberId(f"there is no group {group_id}")
        return group

    def _check_session_timeout(self, timeout_ms: int) -> None:
        low, high = self.settings.min_session_timeout_ms, self.settings.max_session_timeout_ms
        if not low <= timeout_ms <= high:
            raise InvalidSessionTimeout(f"a session of {timeout_ms} ms: {low} to {high} ms are allowed")

    # -- shards ------------------------------------------------------------------------------------

    def make(self, shard: GroupShard, group_id: str) -> ClassicGroup:
        group = shard.groups[group_id] = ClassicGroup(group_id, self)
        return group

    def replay(self, shard: GroupShard, record_type: int, key: bytes, value: bytes | None) -> None:
        """Load a group from its record. The state of a running group is newer than its records."""
        group_id = read_group_key(key)
        group = shard.groups.get(group_id)
        if value is None:
            if isinstance(group, ClassicGroup):
                shard.note_group(group_id, partial(self._empty_like, group))
                del shard.groups[group_id]
                group.end(RebalanceInProgress(f"group {group_id} was deleted or is a consumer group now"))
        elif not shard.is_loaded or not isinstance(group, ClassicGroup):
            shard.note_group(group_id, lambda: group)
            group = shard.groups[group_id] = ClassicGroup.restore(group_id, read_group_value(value), self)
            if shard.is_loaded:
                group.start()

    def _empty_like(self, group: ClassicGroup) -> ClassicGroup:
        """An empty group for readers, until the deletion of the group is committed."""
        empty = ClassicGroup(group.group_id, self)
        empty.protocol_type, empty.generation = group.protocol_type, group.generation
        empty.state_timestamp = group.state_timestamp
        return empty

    def loaded(self, shard: GroupShard) -> None:
        for group in list(shard.groups.values()):
            if isinstance(group, ClassicGroup):
                group.start()

    def unload(self, shard: GroupShard) -> None:
        for group in shard.groups.values():
            if isinstance(group, ClassicGroup):
                group.end(NotCoordinator(f"group {group.group_id} is coordinated elsewhere"))

    # -- what groups need --------------------------------------------------------------------------

    def write(self, group: ClassicGroup, record: NewRecord, done: Done) -> None:
        try:
            partition = self._runtime.partition_for(group.group_id)
        except KafkaError as error:
            done(error)
            return
        self._runtime.append(partition, [record], done)

    def wake(self, group: ClassicGroup) -> None:
        """Set the timer of the group to `wake_at`. A timer that fires too early is set again."""
        assert isinstance(group, ClassicGroup)
        timer = self._timers.get(group)
        due = group.wake_at
        if timer is not None:
            if timer.due <= due < NEVER:
                return
            timer.handle.cancel()
            del self._timers[group]
        if due < NEVER:
            delay = max(due - self.clock.monotonic(), 0.0)
            handle = self._runtime.scheduler.schedule(delay, lambda: self._woken(group))
            self._timers[group] = _Timer(due, handle)

    def _woken(self, group: ClassicGroup) -> None:
        del self._timers[group]
        group.expire()

    def new_member_id(self, prefix: str) -> str:
        # The id has to fit into a string of the protocol, also with a long client id.
        return f"{prefix[:MEMBER_NAME]}-{uuid.uuid4()}"

    def rebalanced(self, group: ClassicGroup) -> None:
        self.completed_rebalances += 1


def _check_group_id(group_id: str) -> None:
    if not group_id:
        raise InvalidGroupId("a group that is to be joined needs an id")


def _not_left(identity: LeaveGroupRequest.MemberIdentity) -> LeaveGroupResponse.MemberResponse:
    return LeaveGroupResponse.MemberResponse(
        member_id=identity.member_id,
        group_instance_id=identity.group_instance_id,
        error_code=UnknownMemberId.code,
    )
