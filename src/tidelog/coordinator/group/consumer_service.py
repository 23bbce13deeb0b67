"""ConsumerGroups: serves ConsumerGroupHeartbeat and ConsumerGroupDescribe, and resolves subscription
patterns.

`consumer_decisions` has the decisions. This service runs them on a shard, writes their records, and answers
when these are committed.
"""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable, Iterator

from tidelog.cluster.metadata_cache import MetadataCache
from tidelog.coordinator.group import consumer_decisions, patterns
from tidelog.coordinator.group.classic import ClassicGroup
from tidelog.coordinator.group.classic_state import Client
from tidelog.coordinator.group.consumer import ConsumerGroup
from tidelog.coordinator.group.consumer_decisions import Draft, Heartbeat, HeartbeatAnswer
from tidelog.coordinator.group.consumer_describe import described
from tidelog.coordinator.group.consumer_events import LEAVE_EPOCH, STATIC_LEAVE_EPOCH, ResolvedPattern
from tidelog.coordinator.group.consumer_members import ClassicMemberRequests
from tidelog.coordinator.group.consumer_store import ConsumerStore
from tidelog.coordinator.group.migration import MigrationPolicy, check_upgrade, upgrade
from tidelog.coordinator.group.settings import GroupSettings
from tidelog.coordinator.group.shard import GroupShard
from tidelog.coordinator.runtime import CoordinatorRuntime, NewRecord
from tidelog.errors import (
    GroupIdNotFound,
    InvalidRequest,
    KafkaError,
    UnsupportedAssignor,
    UnsupportedVersion,
)
from tidelog.metadata.state import TopicState
from tidelog.protocol.messages.consumer_group_describe import ConsumerGroupDescribeResponse
from tidelog.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from tidelog.protocol.wire import uuid_to_text

HeartbeatDone = Callable[[ConsumerGroupHeartbeatResponse], None]

# From this version on members generate their ids.
CLIENT_MAKES_ID_VERSION = 1
VisibleTopics = Callable[[set[str]], set[str]]
"""Which of these topics a client may describe."""

# The longest time in one turn of the loop for matching topics.
SECONDS_A_TURN = 0.003


class ConsumerGroups:
    def __init__(
        self, runtime: CoordinatorRuntime[GroupShard], settings: GroupSettings, metadata: MetadataCache
    ) -> None:
        self.store = ConsumerStore(runtime, settings, metadata)
        self.classic_members = ClassicMemberRequests(self.store)
        self._runtime = runtime
        self._settings = settings
        self._topics = _TopicVersions(metadata)

    # -- ConsumerGroupHeartbeat --------------------------------------------------------------------

    def heartbeat(
        self,
        request: ConsumerGroupHeartbeatRequest,
        client: Client,
        done: HeartbeatDone,
        visible: VisibleTopics | None = None,
    ) -> None:
        """Handle a heartbeat. If it leads to the resolution of patterns, `visible` limits the topics they
        find.
        """

        def failed(error: KafkaError) -> None:
            done(ConsumerGroupHeartbeatResponse(error_code=error.code, error_message=str(error)))

        def operation(shard: GroupShard) -> None:
            try:
                if request.member_epoch in (LEAVE_EPOCH, STATIC_LEAVE_EPOCH):
                    self._leave(shard, request, done, failed)
                else:
                    self._go_on(shard, request, client, done, failed, visible)
            except KafkaError as error:
                failed(error)

        try:
            self._check(request, client.api_version)
            partition = self._runtime.partition_for(request.group_id)
        except KafkaError as error:
            failed(error)
            return
        self._runtime.run(partition, operation, failed)

    def _check(self, request: ConsumerGroupHeartbeatRequest, version: int) -> None:
        if self._settings.group_version < 1:
            raise UnsupportedVersion("this cluster has classic groups only: group.version is 0")
        if "consumer" not in self._settings.rebalance_protocols:
            raise UnsupportedVersion("group.coordinator.rebalance.protocols has no consumer protocol")
        epoch = request.member_epoch
        if not request.member_id and (
            version >= CLIENT_MAKES_ID_VERSION or epoch > 0 or epoch == LEAVE_EPOCH
        ):
            raise InvalidRequest("the member id is missing")
        for name, value in (
            ("group id", request.group_id),
            ("instance id", request.instance_id),
            ("rack id", request.rack_id),
        ):
            if value == "":
                raise InvalidRequest(f"the {name} is empty")
        if epoch == 0:
            _check_join(request)
        elif epoch == STATIC_LEAVE_EPOCH and request.instance_id is None:
            raise InvalidRequest(f"the epoch {epoch} is for members with an instance id")
        elif epoch < STATIC_LEAVE_EPOCH:
            raise InvalidRequest(f"there is no member epoch {epoch}")
        assignors = self._settings.consumer_assignors
        if request.server_assignor is not None and request.server_assignor not in assignors:
            raise UnsupportedAssignor(
                f"there is no assignor {request.server_assignor!r}: {', '.join(assignors)} are known"
            )

    def _go_on(
        self,
        shard: GroupShard,
        request: ConsumerGroupHeartbeatRequest,
        client: Client,
        done: HeartbeatDone,
        failed: Callable[[KafkaError], None],
        visible: VisibleTopics | None,
    ) -> None:
        draft, before = self._draft_for(shard, request)
        soft = self.store.soft(shard, request.group_id)
        topics = draft.cluster.topics
        answer = consumer_decisions.heartbeat(
            draft,
            _heartbeat_of(request, client),
            topics_changed=soft.seen_topics is not topics,
            newest_topics=self._topics.newest(draft.now_ms) if soft.has_resolved else sys.maxsize,
            is_resolving=soft.is_resolving,
            check_pattern=patterns.check,
        )

        def written(error: KafkaError | None) -> None:
            if error is not None:
                failed(error)
                return
            group = shard.groups.get(request.group_id)
            if isinstance(group, ConsumerGroup) and answer.member_id in group.members:
                self.store.soft(shard, request.group_id).seen_topics = topics
                self.store.heard_from(shard, group, group.members[answer.member_id])
                if draft.to_resolve:
                    self._resolve(shard, request.group_id, draft.to_resolve, visible)
            done(self._answer(request.group_id, answer))

        self.store.commit(shard, draft, written, before)

    def _draft_for(
        self, shard: GroupShard, request: ConsumerGroupHeartbeatRequest
    ) -> tuple[Draft, list[NewRecord]]:
        """A draft of the group, and the records that delete a classic group before it."""
        group_id = request.group_id
        group = shard.groups.get(group_id)
        if isinstance(group, ConsumerGroup):
            return self.store.draft(group), []
        if request.member_epoch != 0:
            raise GroupIdNotFound(f"there is no consumer group {group_id}")
        draft = self.store.draft(ConsumerGroup(group_id))
        if group is None:
            return draft, []
        if not group.is_empty:
            assert isinstance(group, ClassicGroup)
            policy = MigrationPolicy.of(self._settings.consumer_migration_policy)
            check_upgrade(group, policy, self._settings.consumer_max_size)
            upgrade(draft, group)
        return draft, group.tombstones()

    def _answer(self, group_id: str, answer: HeartbeatAnswer) -> ConsumerGroupHeartbeatResponse:
        assigned = answer.assigned
        return ConsumerGroupHeartbeatResponse(
            member_id=answer.member_id,
            member_epoch=answer.member_epoch,
            heartbeat_interval_ms=self._settings.consumer_heartbeat_interval_ms(group_id),
            assignment=None
            if assigned is None
            else ConsumerGroupHeartbeatResponse.Assignment(
                topic_partitions=[
                    ConsumerGroupHeartbeatResponse.TopicPartitions(
                        topic_id=topic_id, partitions=sorted(partitions)
                    )
                    for topic_id, partitions in assigned.items()
                ]
            ),
        )

    def _leave(
        self,
        shard: GroupShard,
        request: ConsumerGroupHeartbeatRequest,
        done: HeartbeatDone,
        failed: Callable[[KafkaError], None],
    ) -> None:
        group = shard.groups.get(request.group_id)
        if not isinstance(group, ConsumerGroup):
            raise GroupIdNotFound(f"there is no consumer group {request.group_id}")
        if request.instance_id is None:
            member = group.member(request.member_id)
        else:
            member = consumer_decisions.check_instance(group, request.instance_id, request.member_id)

        def written(error: KafkaError | None) -> None:
            if error is not None:
                failed(error)
            else:
                done(
                    ConsumerGroupHeartbeatResponse(
                        member_id=member.member_id, member_epoch=request.member_epoch
                    )
                )

        if request.member_epoch == STATIC_LEAVE_EPOCH:
            draft = self.store.draft(group)
            consumer_decisions.leave_for_a_while(draft, member)
            self.store.commit(shard, draft, written)
        else:
            self.store.remove(shard, group, (member.member_id,), written)

    # -- patterns ----------------------------------------------------------------------------------

    def _resolve(
        self, shard: GroupShard, group_id: str, names: frozenset[str], visible: VisibleTopics | None
    ) -> None:
        """Match the topics with all patterns of a group, in turns of the loop, and write the result."""
        soft = self.store.soft(shard, group_id)
        soft.is_resolving = True
        started_ms = self.store.clock.ms()
        version = self._topics.newest(started_ms)
        matches: dict[str, set[str]] = {}
        steps = patterns.resolve(sorted(names), self.store.metadata.snapshot.topics, matches)

        def ended(error: KafkaError | None = None) -> None:
            soft.is_resolving = False
            soft.has_resolved |= error is None

        def operation(shard: GroupShard) -> None:
            group = shard.groups.get(group_id)
            if not isinstance(group, ConsumerGroup):
                ended()
                return
            draft = self.store.draft(group)
            visible_topics = None if visible is None else visible(set().union(*matches.values()))
            resolved = {
                pattern: ResolvedPattern(
                    frozenset(topics if visible_topics is None else topics & visible_topics),
                    version,
                    started_ms,
                )
                for pattern, topics in matches.items()
            }
            consumer_decisions.patterns_resolved(draft, resolved)
            self.store.commit(shard, draft, ended)

        self._in_turns(steps, lambda: self._runtime.run(shard.partition, operation, ended))

    def _in_turns(self, steps: Iterator[None], done: Callable[[], None]) -> None:
        until = self.store.clock.monotonic() + SECONDS_A_TURN
        for _ in steps:
            if self.store.clock.monotonic() >= until:
                self._runtime.schedule(lambda: self._in_turns(steps, done))
                return
        done()

    # -- ConsumerGroupDescribe ---------------------------------------------------------------------

    def describe(self, group_id: str) -> ConsumerGroupDescribeResponse.DescribedGroup:
        """Describe a consumer group. Raises GroupIdNotFound if it does not exist or is of another kind."""
        group = self._runtime.committed_for(group_id).committed_group(group_id)
        if group is None:
            raise GroupIdNotFound(f"Group {group_id} not found.")
        if not isinstance(group, ConsumerGroup):
            raise GroupIdNotFound(f"Group {group_id} is not a consumer group.")
        return described(group, self._settings.consumer_assignors[0], self.store.metadata.snapshot)


class _TopicVersions:
    """The version of the cluster's topics: rises when this broker sees a new topic."""

    __slots__ = ("_metadata", "_seen", "_version")

    def __init__(self, metadata: MetadataCache) -> None:
        self._metadata = metadata
        self._seen: dict[str, TopicState] = {}
        self._version = 0

    def newest(self, now_ms: int) -> int:
        topics = self._metadata.snapshot.topics
        if topics is not self._seen:
            if topics.keys() - self._seen.keys():
                # Milliseconds, so that it also rises over a restart.
                self._version = max(self._version + 1, now_ms)
            self._seen = topics
        return self._version


def _check_join(request: ConsumerGroupHeartbeatRequest) -> None:
    if request.rebalance_timeout_ms == -1:
        raise InvalidRequest("a member that joins has to tell its rebalance time-out")
    if request.topic_partitions is None or request.topic_partitions:
        raise InvalidRequest("a member that joins has no partitions")
    if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
        raise InvalidRequest("a member that joins has to subscribe, by names or by a pattern")


def _heartbeat_of(request: ConsumerGroupHeartbeatRequest, client: Client) -> Heartbeat:
    names, timeout, reported = (
        request.subscribed_topic_names,
        request.rebalance_timeout_ms,
        request.topic_partitions,
    )
    return Heartbeat(
        member_id=request.member_id or uuid_to_text(uuid.uuid4().bytes),
        member_epoch=request.member_epoch,
        instance_id=request.instance_id,
        rack_id=request.rack_id,
        rebalance_timeout_ms=None if timeout == -1 else timeout,
        topics=None if names is None else frozenset(names),
        pattern=request.subscribed_topic_regex,
        assignor=request.server_assignor,
        reported=None
        if reported is None
        else {topic.topic_id: frozenset(topic.partitions) for topic in reported},
        client_id=client.client_id,
        client_host=client.host,
    )
