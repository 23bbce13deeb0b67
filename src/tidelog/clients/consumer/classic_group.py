"""ClassicGroup: membership by the classic protocol (ConsumerCoordinator in Kafka's client).

Members join, their leader assigns, and heartbeats keep the membership. A rebalance starts in `poll`, which
revokes partitions. A task joins and syncs. A later `poll` takes over the assigned partitions. So a poll keeps
its time limit even if other members are slow.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass

from tidelog.clients.async_connection import AsyncConnection
from tidelog.clients.consumer.assignors import (
    Assignor,
    Member,
    assignment_bytes,
    assignors_of,
    read_assignment,
    read_member,
    subscription_bytes,
)
from tidelog.clients.consumer.commits import MOVED, Membership
from tidelog.clients.consumer.membership import LOST, REVOKED, GroupMembership, MembershipContext
from tidelog.clients.consumer.racks import ReplicaRacks, replica_racks
from tidelog.clients.errors import CommitFailedException, TimeoutException
from tidelog.clients.metadata import ClusterView
from tidelog.errors import (
    CoordinatorLoadInProgress,
    FencedInstanceId,
    IllegalGeneration,
    InconsistentGroupProtocol,
    KafkaError,
    MemberIdRequired,
    RebalanceInProgress,
    UnknownMemberId,
    error_class,
)
from tidelog.protocol.message import Message
from tidelog.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from tidelog.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from tidelog.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse
from tidelog.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from tidelog.protocol.wire import ProtocolError

log = logging.getLogger("tidelog.clients")

CONSUMER = "consumer"
FIRST_VERSION_WITH_INSTANCE: dict[type[Message], int] = {
    JoinGroupRequest: 5,
    SyncGroupRequest: 3,
    HeartbeatRequest: 3,
}
LEAVE_VERSION_WITH_MEMBERS = 3
# Added to the rebalance timeout of a join, as in Kafka's clients.
JOIN_MARGIN_SECONDS = 5.0
METADATA_SECONDS = 10.0


@dataclass(slots=True, frozen=True)
class Generation:
    id: int
    member_id: str
    protocol: str


@dataclass(slots=True, frozen=True)
class _Joined:
    generation: Generation
    assignment: bytes


class ClassicGroup(GroupMembership):
    """A member of a classic group."""

    def __init__(self, context: MembershipContext) -> None:
        super().__init__(context)
        settings = context.settings
        self.assignors = assignors_of(settings.partition_assignment_strategy)
        # Members may keep partitions during a rebalance only if every strategy they could agree on allows it.
        self.cooperative = all(assignor.cooperative for assignor in self.assignors)
        self.generation: Generation | None = None
        self.member_id = ""
        self.rejoin_reason: str | None = "the first join"
        self._lost = False
        """Whether the next poll has to give up all partitions as lost."""
        self._join: asyncio.Task[_Joined | None] | None = None
        self._began = 0.0
        self._heartbeat_now = asyncio.Event()
        self._beating: asyncio.Task[None] | None = None
        self._to_assign: dict[str, bytes] = {}
        self._led: dict[str, int] | None = None
        """The partition counts at the last assignment, if this member is the leader."""
        self._led_racks: ReplicaRacks = {}
        self._seen_version = 0

    @property
    def quiet(self) -> bool:
        is_stable = self.rejoin_reason is None and self._join is None
        return is_stable and self.error is None and self.failure is None

    def identity(self) -> Membership:
        instance = self.context.settings.group_instance_id
        if self.context.subscription.by_hand:
            return Membership("", -1, None, losses=self.losses)
        if self.generation is None:
            return Membership("", -1, instance, losses=self.losses)
        return Membership(self.generation.member_id, self.generation.id, instance, losses=self.losses)

    def check_commit(self) -> None:
        if self.error is not None:
            raise self.error
        if self.generation is not None and not self._lost:
            return
        if self._lost or self._join is None:
            raise CommitFailedException(
                f"group {self.group_id!r}: this consumer is not a member (any more), so it cannot commit; "
                "poll to become one again"
            )
        raise RebalanceInProgress(f"group {self.group_id!r}: it is rebalancing; poll, and commit then")

    def subscription_changed(self, reason: str) -> None:
        self.request_rejoin(reason)

    def request_rejoin(self, reason: str) -> None:
        if self.rejoin_reason is None:
            log.debug("group %r: rejoining, %s", self.group_id, reason)
            self.rejoin_reason = reason
            self.context.wake()

    def metadata_changed(self) -> None:
        if self._led is None or not self.context.subscription.is_subscribed:
            return
        view = self.context.client.view
        for topic, count in self._led.items():
            found = view.partition_count(topic) or 0
            if found != count and (found or topic in view.errors):
                self.request_rejoin(f"topic {topic!r} has {found} partitions now instead of {count}")
                return
        if self._led_racks and view.version != self._seen_version:
            self._seen_version = view.version
            self._look_at_racks(view)

    def _look_at_racks(self, view: ClusterView) -> None:
        for place, racks in replica_racks(view, self._led or ()).items():
            # A rack that disappears with its broker causes no rebalance, because the broker will be back.
            if place in self._led_racks and not racks <= self._led_racks[place]:
                self.request_rejoin(f"{place} has replicas in racks {sorted(racks)} now")
                return

    def refused(self, error: KafkaError, member: Membership) -> None:
        present = self.identity()
        if member.epoch == -1 or (present.member_id, present.epoch) != (member.member_id, member.epoch):
            return  # of an earlier generation
        if isinstance(error, RebalanceInProgress):
            self.request_rejoin("a commit fell into a rebalance")
        elif isinstance(error, FencedInstanceId):
            self._fatal(error)
        else:
            self._lose(keep_id=isinstance(error, IllegalGeneration), reason=f"a commit was refused: {error}")

    # Polling

    async def poll(self, deadline: float | None) -> None:
        self.last_poll = self.now()
        self.raise_failure()
        if self._beating is None:
            self._beating = self.start(self._heartbeats(), "heartbeats")
        self.polling += 1
        try:
            while not self.quiet and await self._rebalance(deadline):
                pass
        finally:
            self.polling -= 1
            self.last_poll = self.now()

    async def _rebalance(self, deadline: float | None) -> bool:
        """One step of a rebalance; False if the time is over."""
        if self.error is not None:
            raise self.error
        if self._join is None:
            self._began = self._began or self.now()
            await self._prepare()
            self._join = asyncio.get_running_loop().create_task(self._join_group(), name="join group")
        wait = None if deadline is None else max(0.0, deadline - self.now())
        done, _ = await asyncio.wait((self._join,), timeout=wait)
        if not done:
            return False
        join, self._join = self._join, None
        try:
            joined = join.result()
        except BaseException:
            self.context.metrics.failed_rebalance_total += 1
            self.rejoin_reason = self.rejoin_reason or "the last attempt failed"
            raise
        if joined is not None:
            await self._complete(joined)
        return True

    async def _prepare(self) -> None:
        """Revoke the partitions that other members may get."""
        if self._lost:
            await self.give_up(self.owned, LOST)
            self._lost = False
        elif not self.cooperative:
            await self.give_up(self.owned, REVOKED)
        else:
            wants = self.context.subscription.wants
            await self.give_up({name for name in self.owned if not wants(name.topic)}, REVOKED)

    async def _complete(self, joined: _Joined) -> None:
        """Take over the assignment. Partitions outside of it are revoked, and the group rebalances again."""
        if self._lost:
            # A commit or a heartbeat was refused while this member joined: others had its partitions since. A
            # commit of them would be valid in the new generation, and set the offsets of the others back.
            await self.give_up(self.owned, LOST)
            self._lost = False
        subscription = self.context.subscription
        assigned = set(read_assignment(joined.assignment))
        protocol = joined.generation.protocol
        generation, instance = joined.generation, self.context.settings.group_instance_id
        self.owner = Membership(generation.member_id, generation.id, instance)
        assignor = next(entry for entry in self.assignors if entry.name == protocol)
        assignor.on_assignment(assigned, joined.generation.id)
        self.context.metrics.rebalance_total += 1
        self.context.metrics.rebalance_latency.add(self.now() - self._began)
        self._began = 0.0
        unwanted = {name.topic for name in assigned if not subscription.wants(name.topic)}
        if unwanted:
            self.request_rejoin(f"it was assigned {sorted(unwanted)}, which it does not want any more")
        revoked = self.owned - assigned
        if revoked:
            self.request_rejoin("it has given up partitions that others wait for")
            await self.give_up(revoked, REVOKED)
        log.debug("group %r: generation %d, %s", self.group_id, joined.generation.id, sorted(assigned))
        await self.take_over(assigned, assigned - self.owned)

    # Join and sync, in a task

    async def _join_group(self) -> _Joined | None:
        """Join and sync until it succeeds; None if partitions have to be revoked before another try."""
        attempt = 0
        while True:
            try:
                connection = await self.context.coordinator.connection()
                self.rejoin_reason, reason = None, self.rejoin_reason or "the last join was not finished"
                try:
                    joined = await self._join_once(connection, reason)
                    assignment = await self._sync(connection, joined)
                except BaseException:
                    self.rejoin_reason = self.rejoin_reason or reason
                    raise
                self._heartbeat_now.set()
                return _Joined(joined, assignment)
            except MemberIdRequired:
                continue
            except (*MOVED, CoordinatorLoadInProgress) as error:
                self.context.coordinator.note(error)
                log.debug("group %r: %s", self.group_id, error)
            except RebalanceInProgress:
                continue
            except (UnknownMemberId, IllegalGeneration) as error:
                self._lose(keep_id=isinstance(error, IllegalGeneration), reason=str(error))
                return None
            except FencedInstanceId as error:
                self._fatal(error)
                raise
            await asyncio.sleep(self.context.client.retry_backoff.delay(attempt))
            attempt += 1

    async def _join_once(self, connection: AsyncConnection, reason: str) -> Generation:
        settings, subscription = self.context.settings, self.context.subscription
        version = connection.version_for(JoinGroupRequest)
        before = self.generation.id if self.generation is not None else -1
        # The leader would wait for this member to revoke partitions that it has lost already.
        owned = self.owned if self.cooperative and not self._lost else ()
        request = JoinGroupRequest(
            group_id=self.group_id,
            session_timeout_ms=settings.session_timeout_ms,
            rebalance_timeout_ms=settings.max_poll_interval_ms,
            member_id=self.member_id,
            group_instance_id=self._instance(JoinGroupRequest, version),
            protocol_type=CONSUMER,
            protocols=[
                JoinGroupRequest.JoinGroupRequestProtocol(
                    name=assignor.name,
                    metadata=subscription_bytes(
                        subscription.wanted, owned, before, assignor.user_data(), settings.client_rack
                    ),
                )
                for assignor in self.assignors
            ],
            reason=reason[:255],
        )
        self.generation = None if not self.cooperative else self.generation
        limit = settings.max_poll_interval_ms / 1000 + JOIN_MARGIN_SECONDS
        answer = await connection.call(
            request,
            JoinGroupResponse,
            version=version,
            timeout=max(limit, settings.request_timeout_ms / 1000),
        )
        if answer.error_code == MemberIdRequired.code:
            self.member_id = answer.member_id
        self._raise(answer.error_code, "join")
        self.member_id = answer.member_id
        self.generation = Generation(answer.generation_id, answer.member_id, answer.protocol_name or "")
        if self.cooperative and not self._lost:  # it keeps its partitions meanwhile
            self.owner = self.identity()
        self._heartbeat_now.set()
        self._to_assign = await self._assignments(answer) if answer.leader == answer.member_id else {}
        return self.generation

    async def _sync(self, connection: AsyncConnection, joined: Generation) -> bytes:
        version = connection.version_for(SyncGroupRequest)
        request = SyncGroupRequest(
            group_id=self.group_id,
            generation_id=joined.id,
            member_id=joined.member_id,
            group_instance_id=self._instance(SyncGroupRequest, version),
            protocol_type=CONSUMER,
            protocol_name=joined.protocol,
            assignments=[
                SyncGroupRequest.SyncGroupRequestAssignment(member_id=member_id, assignment=data)
                for member_id, data in self._to_assign.items()
            ],
        )
        limit = self.context.settings.max_poll_interval_ms / 1000 + JOIN_MARGIN_SECONDS
        answer = await connection.call(request, SyncGroupResponse, version=version, timeout=limit)
        self._raise(answer.error_code, "sync")
        return bytes(answer.assignment)

    def _raise(self, code: int, what: str) -> None:
        if code:
            kind = error_class(code)
            raise kind(f"group {self.group_id!r}, {what}: {kind()}")

    def _instance(self, request: type[Message], version: int) -> str | None:
        return (
            self.context.settings.group_instance_id
            if version >= FIRST_VERSION_WITH_INSTANCE[request]
            else None
        )

    # The leader

    async def _assignments(self, answer: JoinGroupResponse) -> dict[str, bytes]:
        """The assignments that the leader makes; nothing if the coordinator keeps the current ones."""
        assignor = self._assignor(answer.protocol_name)
        members: list[Member] = []
        for entry in answer.members:
            try:
                members.append(read_member(entry.member_id, entry.group_instance_id, bytes(entry.metadata)))
            except ProtocolError as error:
                raise InconsistentGroupProtocol(
                    f"group {self.group_id!r}: member {entry.member_id} has an invalid subscription: {error}"
                ) from None
        topics = {topic for member in members for topic in member.topics}
        counts = await self._partition_counts(topics)
        self._led = {topic: counts.get(topic, 0) for topic in topics}
        view = self.context.client.view
        self._led_racks = replica_racks(view, topics) if any(member.rack for member in members) else {}
        self._seen_version = view.version
        if answer.skip_assignment:
            return {}
        given = assignor.assign_near(members, counts, self._led_racks)
        return {member_id: assignment_bytes(partitions) for member_id, partitions in given.items()}

    def _assignor(self, name: str | None) -> Assignor:
        for assignor in self.assignors:
            if assignor.name == name:
                return assignor
        raise InconsistentGroupProtocol(
            f"group {self.group_id!r} agreed on {name!r}, which is not among partition.assignment.strategy"
        )

    async def _partition_counts(self, topics: set[str]) -> dict[str, int]:
        client = self.context.client
        client.want(topics)
        with contextlib.suppress(TimeoutException):
            await client.wait_for(
                lambda: all(topic in client.view.topics or topic in client.view.errors for topic in topics),
                METADATA_SECONDS,
                "topics of the group",
            )
        counts = {topic: client.view.partition_count(topic) for topic in topics}
        return {topic: count for topic, count in counts.items() if count}

    # Heartbeats

    async def _heartbeats(self) -> None:
        interval = self.context.settings.heartbeat_interval_ms / 1000
        pause = interval
        while True:
            await self.sleep(pause, self._heartbeat_now)
            self._heartbeat_now.clear()
            pause = interval
            if self.generation is None or self.error is not None:
                continue
            if self._join is not None and not self._join.done():
                continue  # the join itself keeps the membership
            if self.exceeds_poll_interval:
                self.warn_of_poll_interval()
                await self._leave_group("poll was not called for max.poll.interval.ms")
                self._lose(keep_id=False, reason="it polled too seldom")
                continue
            try:
                await self._heartbeat(self.generation)
            except (*MOVED, CoordinatorLoadInProgress) as error:
                self.context.coordinator.note(error)
                pause = self.context.client.retry_backoff.delay(0)
            except FencedInstanceId as error:
                self._fatal(error)
            except KafkaError as error:
                self.fail(error)

    async def _heartbeat(self, generation: Generation) -> None:
        connection = await self.context.coordinator.connection()
        version = connection.version_for(HeartbeatRequest)
        self.context.metrics.heartbeat_total += 1
        answer = await connection.call(
            HeartbeatRequest(
                group_id=self.group_id,
                generation_id=generation.id,
                member_id=generation.member_id,
                group_instance_id=self._instance(HeartbeatRequest, version),
            ),
            HeartbeatResponse,
            version=version,
            timeout=min(self.context.settings.session_timeout_ms, self.context.settings.request_timeout_ms)
            / 1000,
        )
        if generation is not self.generation:
            return
        try:
            self._raise(answer.error_code, "heartbeat")
        except RebalanceInProgress:
            if self._join is None:
                self.request_rejoin("the group is rebalancing")
        except (UnknownMemberId, IllegalGeneration) as error:
            if self._join is None:
                self._lose(keep_id=isinstance(error, IllegalGeneration), reason=str(error))

    def _lose(self, *, keep_id: bool, reason: str) -> None:
        """Give up the generation: the coordinator does not know this member any more."""
        self.generation = None
        self._led = None
        self._lost = True
        self.losses += 1
        if not keep_id:
            self.member_id = ""
        self.request_rejoin(reason)
        self.context.wake()

    def _fatal(self, error: KafkaError) -> None:
        if self.error is None:
            log.error("%s", error)
            self.error = error
            self.generation = None
            self.context.wake()

    # Leave

    async def leave(self, reason: str) -> None:
        if self._join is not None:
            self._join.cancel()
            await asyncio.gather(self._join, return_exceptions=True)
            self._join = None
        known = self.generation is not None
        try:
            await self.give_up(self.owned, REVOKED if known else LOST)
        finally:
            await self._leave_group(reason)
            self.generation = None
            self.member_id = ""
            self._led = None
            self._lost = False
            self.owner = None
            self.rejoin_reason = "it subscribed again"

    async def _leave_group(self, reason: str) -> None:
        """Send LeaveGroup, unless this is a static member: it keeps its place for its return."""
        if not self.member_id or self.context.settings.group_instance_id is not None:
            return
        try:
            connection = await self.context.coordinator.connection()
            version = connection.version_for(LeaveGroupRequest)
            request = LeaveGroupRequest(group_id=self.group_id)
            if version >= LEAVE_VERSION_WITH_MEMBERS:
                request.members = [
                    LeaveGroupRequest.MemberIdentity(member_id=self.member_id, reason=reason[:255])
                ]
            else:
                request.member_id = self.member_id
            await connection.call(request, LeaveGroupResponse, version=version)
        except KafkaError as error:
            log.debug("group %r: could not leave: %s", self.group_id, error)
