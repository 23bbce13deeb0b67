"""ConsumerGroup: membership by the consumer group protocol (KIP-848).

The broker assigns, by answers to heartbeats. The heartbeat task sends the subscription and the owned
partitions, and receives the target assignment. `poll` revokes and takes over partitions until the member owns
its target, and the next heartbeat reports that.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Iterable

from tidelog.clients.consumer.commits import MOVED, Membership
from tidelog.clients.consumer.membership import LOST, REVOKED, GroupMembership, MembershipContext
from tidelog.clients.errors import CommitFailedException
from tidelog.errors import (
    CoordinatorLoadInProgress,
    FencedInstanceId,
    FencedMemberEpoch,
    KafkaError,
    TopicAuthorizationFailed,
    UnknownMemberId,
    UnsupportedVersion,
    error_class,
)
from tidelog.partitions import TopicPartition
from tidelog.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from tidelog.protocol.messages.metadata import MetadataRequest, MetadataResponse

log = logging.getLogger("tidelog.clients")

JOIN = 0
LEAVE = -1
LEAVE_FOR_A_WHILE = -2  # of a static member that will return
VERSION_WITH_PATTERNS = 1
FIRST_INTERVAL = 1.0

Target = dict[bytes, frozenset[int]]


class ConsumerGroup(GroupMembership):
    """A member of a consumer group; `epoch` is 0 until it has joined."""

    def __init__(self, context: MembershipContext) -> None:
        super().__init__(context)
        self.member_id = str(uuid.uuid4())
        self.epoch = JOIN
        self.target: Target = {}
        self._away = True
        """Whether this consumer is no member: before its first poll, and after it left."""
        self._lost = False
        self._unnamed = False
        """Whether the target assignment has topic ids whose names are not known yet."""
        self._reconciled = True
        self._sent: dict[str, object] = {}
        self._interval = FIRST_INTERVAL
        self._heartbeat_now = asyncio.Event()
        self._beating: asyncio.Task[None] | None = None

    @property
    def quiet(self) -> bool:
        is_stable = self._reconciled and not self._lost and not self._away
        return is_stable and self.error is None and self.failure is None

    def identity(self) -> Membership:
        subscription = self.context.subscription
        if subscription.by_hand:
            return Membership()
        return Membership(
            self.member_id if self.epoch > 0 else "",
            self.epoch if self.epoch > 0 else -1,
            self.context.settings.group_instance_id,
            has_member_epoch=True,
            losses=self.losses,
        )

    def check_commit(self) -> None:
        if self.error is not None:
            raise self.error
        if self.epoch <= 0 or self._lost:
            raise CommitFailedException(
                f"group {self.group_id!r}: this consumer is not a member (any more), so it cannot commit; "
                "poll to become one again"
            )

    def refused(self, error: KafkaError, member: Membership) -> None:
        if isinstance(error, FencedInstanceId):
            self._fatal(error)
        elif isinstance(error, UnknownMemberId | FencedMemberEpoch) and member.member_id == self.member_id:
            self._lose(str(error))

    def subscription_changed(self, reason: str) -> None:
        self._heartbeat_now.set()
        self.context.wake()

    def metadata_changed(self) -> None:
        if self._unnamed or not self._reconciled:
            self.context.wake()

    # Polling

    async def poll(self, deadline: float | None) -> None:
        self.last_poll = self.now()
        self.raise_failure()
        self.polling += 1
        try:
            if self._lost:
                await self.give_up(self.owned, LOST)
                self._lost = False
                self._reconciled = True
                self.epoch = JOIN
                self._heartbeat_now.set()
            if self._away:
                self._away = False
                self._heartbeat_now.set()
            if self._beating is None:
                self._beating = self.start(self._heartbeats(), "heartbeats")
            if not self._reconciled:
                await self._reconcile()
        finally:
            self.polling -= 1
            self.last_poll = self.now()

    async def _reconcile(self) -> None:
        """Revoke partitions that are not in the target assignment, then take over its new ones."""
        target = self.target
        wanted = await self._named(target)
        began = self.now()
        revoked = self.owned - wanted
        if revoked:
            await self.give_up(revoked, REVOKED)
            self._heartbeat_now.set()  # other members wait for the revoked partitions
        added = wanted - self.owned
        if added or revoked or not self.owned:
            self.context.metrics.rebalance_total += 1
            self.context.metrics.rebalance_latency.add(self.now() - began)
            await self.take_over(wanted, added)
        if target is self.target:
            self._reconciled = not self._unnamed
        self._heartbeat_now.set()

    async def _named(self, target: Target) -> set[TopicPartition]:
        """The target assignment by topic names, without topics whose name is not known yet."""
        client = self.context.client
        unknown = [topic_id for topic_id in target if topic_id not in client.view.topic_names]
        if unknown:
            await self._ask_names(unknown)
        found: set[TopicPartition] = set()
        self._unnamed = False
        for topic_id, partitions in target.items():
            name = client.view.topic_names.get(topic_id)
            if name is None:
                self._unnamed = True
                client.request_refresh()
            else:
                found |= {TopicPartition(name, partition) for partition in partitions}
        return found

    async def _ask_names(self, topic_ids: list[bytes]) -> None:
        """Request the metadata of topics that the broker assigned by id, for their names."""
        client = self.context.client
        request = MetadataRequest(
            topics=[MetadataRequest.MetadataRequestTopic(topic_id=entry, name=None) for entry in topic_ids],
            allow_auto_topic_creation=False,
        )
        try:
            answer = await client.call_any(request, MetadataResponse)
            names = [topic.name for topic in answer.topics if topic.name and not topic.error_code]
            client.want(names)
            if names:
                await client.refresh(timeout=self.context.settings.request_timeout_ms / 1000)
        except KafkaError as error:
            log.debug("group %r: names of topics: %s", self.group_id, error)

    # Heartbeats

    async def _heartbeats(self) -> None:
        while True:
            if self._away or self._lost or self.error is not None:
                await self._heartbeat_now.wait()
                self._heartbeat_now.clear()
                continue
            pause = self._interval
            try:
                if self.epoch > 0 and self.exceeds_poll_interval:
                    self.warn_of_poll_interval()
                    await self._send_leave()
                    self._lose("it polled too seldom", away=True)
                    continue
                await self._heartbeat()
                pause = self._interval
            except (*MOVED, CoordinatorLoadInProgress) as error:
                self.context.coordinator.note(error)
                self._sent = {}
                pause = self.context.client.retry_backoff.delay(0)
            except (UnknownMemberId, FencedMemberEpoch) as error:
                self._lose(str(error))
                continue
            except TopicAuthorizationFailed as error:
                self.fail(error)  # it stays a member, as in Kafka's client
            except KafkaError as error:
                self._fatal(error)
                continue
            await self.sleep(pause, self._heartbeat_now)
            self._heartbeat_now.clear()

    async def _heartbeat(self) -> None:
        connection = await self.context.coordinator.connection()
        if not connection.serves(ConsumerGroupHeartbeatRequest):
            raise self._not_offered()
        version = connection.version_for(ConsumerGroupHeartbeatRequest)
        request = self._request(version)
        self.context.metrics.heartbeat_total += 1
        answer = await connection.call(request, ConsumerGroupHeartbeatResponse, version=version)
        if answer.error_code:
            self._sent = {}
            kind = error_class(answer.error_code)
            if kind is UnsupportedVersion:
                raise self._not_offered()
            raise kind(f"group {self.group_id!r}: {answer.error_message or kind()}")
        self._interval = answer.heartbeat_interval_ms / 1000
        if self._lost or self._away:
            return
        if answer.member_id:
            self.member_id = answer.member_id
        self.epoch = answer.member_epoch
        if self.epoch > 0:
            self.owner = self.identity()
        if answer.assignment is not None:
            self.target = {
                entry.topic_id: frozenset(entry.partitions) for entry in answer.assignment.topic_partitions
            }
            self._reconciled = False
            self.context.wake()

    def _not_offered(self) -> KafkaError:
        return UnsupportedVersion(
            f"group {self.group_id!r}: the broker does not offer group.protocol=consumer; use classic"
        )

    def _request(self, version: int) -> ConsumerGroupHeartbeatRequest:
        """The next heartbeat: with all fields for a join, then with the changed fields."""
        settings, subscription = self.context.settings, self.context.subscription
        if self.epoch == JOIN:
            self._sent = {}
            if version < VERSION_WITH_PATTERNS:
                self.member_id = ""  # these brokers choose the id
        request = ConsumerGroupHeartbeatRequest(
            group_id=self.group_id,
            member_id=self.member_id,
            member_epoch=self.epoch,
            instance_id=settings.group_instance_id,
        )
        pattern = subscription.server_pattern
        if pattern is not None and version < VERSION_WITH_PATTERNS:
            raise UnsupportedVersion(
                f"group {self.group_id!r}: the broker matches no patterns; subscribe with re.compile(...)"
            )
        state: dict[str, object] = {
            "names": sorted(subscription.wanted),
            "pattern": pattern or "",
            "owned": sorted(self.owned) if self.epoch != JOIN else [],
        }
        if not self._sent:
            request.rack_id = settings.client_rack or None
            request.rebalance_timeout_ms = settings.max_poll_interval_ms
            request.server_assignor = settings.group_remote_assignor
        if state["names"] != self._sent.get("names"):
            request.subscribed_topic_names = sorted(subscription.wanted)
        if version >= VERSION_WITH_PATTERNS and state["pattern"] != self._sent.get("pattern", ""):
            request.subscribed_topic_regex = pattern or ""
        if state["owned"] != self._sent.get("owned"):
            request.topic_partitions = self._by_id(self.owned if self.epoch != JOIN else ())
        self._sent = state
        return request

    def _by_id(
        self, partitions: Iterable[TopicPartition]
    ) -> list[ConsumerGroupHeartbeatRequest.TopicPartitions]:
        topics: dict[bytes, list[int]] = {}
        for topic, partition in sorted(partitions):
            topics.setdefault(self.context.client.view.topic_id(topic), []).append(partition)
        return [
            ConsumerGroupHeartbeatRequest.TopicPartitions(topic_id=topic_id, partitions=found)
            for topic_id, found in topics.items()
        ]

    def _lose(self, reason: str, *, away: bool = False) -> None:
        log.debug("group %r: lost, %s", self.group_id, reason)
        self.epoch = JOIN
        self.target = {}
        self._lost = True
        self.losses += 1
        self._away = away
        self._sent = {}
        self._heartbeat_now.clear()
        self.context.wake()

    def _fatal(self, error: KafkaError) -> None:
        if self.error is None:
            log.error("%s", error)
            self.error = error
            self.epoch = JOIN
            self.context.wake()

    # Leave

    async def leave(self, reason: str) -> None:
        try:
            await self.give_up(self.owned, REVOKED if self.epoch > 0 and not self._lost else LOST)
        finally:
            known = self.epoch > 0
            self._away = True
            if known:
                await self._send_leave()
            self.epoch = JOIN
            self.target = {}
            self._lost = False
            self.owner = None
            self._reconciled = True

    async def _send_leave(self) -> None:
        static = self.context.settings.group_instance_id
        request = ConsumerGroupHeartbeatRequest(
            group_id=self.group_id,
            member_id=self.member_id,
            member_epoch=LEAVE if static is None else LEAVE_FOR_A_WHILE,
            instance_id=static,
        )
        try:
            connection = await self.context.coordinator.connection()
            await connection.call(request, ConsumerGroupHeartbeatResponse)
        except KafkaError as error:
            log.debug("group %r: could not leave: %s", self.group_id, error)
