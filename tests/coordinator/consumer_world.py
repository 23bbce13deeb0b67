"""Consumer and classic groups on one partition without a broker: a test moves the log, clock and topics."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from tidelog.clock import SimulatedScheduler
from tidelog.cluster.metadata_cache import MetadataCache
from tidelog.config.values import ConfigValue
from tidelog.coordinator.group.classic_service import ClassicGroups
from tidelog.coordinator.group.classic_state import Client
from tidelog.coordinator.group.consumer import ConsumerGroup
from tidelog.coordinator.group.consumer_service import ConsumerGroups
from tidelog.coordinator.group.settings import GroupSettings
from tidelog.coordinator.group.shard import GroupShard
from tidelog.coordinator.runtime import CoordinatorRuntime, Done, NewRecord
from tidelog.errors import KafkaError, NotCoordinator
from tidelog.metadata.state import ClusterState, PartitionState, TopicState
from tidelog.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from tidelog.protocol.messages.heartbeat import HeartbeatRequest
from tidelog.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from tidelog.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse
from tidelog.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse

A = TypeVar("A")

PARTITION = 0
GROUP = "g"
Assigned = dict[str, set[int]]
"""Partitions by topic name."""


class NoAnswer(Exception):
    """The answer waits for the replicas."""


class MemoryRuntime(CoordinatorRuntime[GroupShard]):
    """One partition whose log is a list. With `hold`, appends stay open until `finish`.

    While it `is_stalled`, records are written and not committed until `replicate`; `lose` forgets them, as
    the election of a follower does that has not fetched them.
    """

    def __init__(self, scheduler: SimulatedScheduler) -> None:
        self._scheduler = scheduler
        self.the_shard: GroupShard | None = None
        self.log: list[NewRecord] = []
        self.hold = False
        self.held: deque[tuple[Sequence[NewRecord], Done]] = deque()
        self.waiting: deque[Callable[[GroupShard], None]] = deque()
        self.is_stalled = False
        self.committed_end = 0
        self.uncommitted: list[Done] = []

    def partition_for(self, key: str) -> int:
        return PARTITION

    def shard(self, partition: int) -> GroupShard:
        assert self.the_shard is not None
        return self.the_shard

    def run(
        self, partition: int, operation: Callable[[GroupShard], None], failed: Callable[[KafkaError], None]
    ) -> None:
        if self.held:
            self.waiting.append(operation)
        else:
            operation(self.shard(partition))

    def append(
        self,
        partition: int,
        records: Sequence[NewRecord],
        done: Done,
        *,
        producer_id: int = -1,
        producer_epoch: int = -1,
    ) -> None:
        if self.is_stalled:
            self.log += records
            replay(self.shard(PARTITION), records)
            self.uncommitted.append(done)
            return
        self.held.append((records, done))
        if not self.hold:
            self.finish()

    def when_committed(self, partition: int, done: Done) -> None:
        if self.is_stalled and self.committed_end < len(self.log):
            self.uncommitted.append(done)
        else:
            done(None)

    def stall(self) -> None:
        self.is_stalled = True
        self.committed_end = len(self.log)

    def replicate(self) -> None:
        """The followers have everything: the waiting requests are answered."""
        self.is_stalled = False
        self._answer(None)

    def lose(self) -> None:
        """The partition is led by a replica without the uncommitted records."""
        self.is_stalled = False
        del self.log[self.committed_end :]
        self._answer(NotCoordinator("the leader moved"))

    def _answer(self, error: KafkaError | None) -> None:
        waiting, self.uncommitted = self.uncommitted, []
        for done in waiting:
            done(error)

    def finish(self, error: KafkaError | None = None) -> None:
        """Write the oldest append that is open, or fail it; those who waited for it go on."""
        records, done = self.held.popleft()
        if error is None:
            self.log += records
            replay(self.shard(PARTITION), records)
        done(error)
        while self.waiting and not self.held:
            self.waiting.popleft()(self.shard(PARTITION))


def replay(shard: GroupShard, records: Iterable[NewRecord]) -> None:
    for key, value in records:
        shard.replay(key, value, offset=0, timestamp=0, producer_id=-1, producer_epoch=-1)


def compacted(log: Sequence[NewRecord]) -> list[NewRecord]:
    """The last record of each key, in their order."""
    last = {key: at for at, (key, _) in enumerate(log)}
    return [record for at, record in enumerate(log) if last[record.key] == at]


class ConsumerWorld:
    def __init__(self, **settings: ConfigValue) -> None:
        self.scheduler = SimulatedScheduler()
        self.metadata = MetadataCache("cluster")
        self.values: dict[str, ConfigValue] = {
            "group.consumer.session.timeout.ms": 45_000,
            "group.consumer.heartbeat.interval.ms": 5000,
            "group.consumer.assignment.interval.ms": 0,
            "group.consumer.max.size": 2**31 - 1,
            "group.consumer.assignors": ("uniform", "range"),
            "group.consumer.migration.policy": "bidirectional",
            "group.coordinator.rebalance.protocols": ("classic", "consumer"),
            "group.initial.rebalance.delay.ms": 0,
            "group.max.size": 2**31 - 1,
            "group.min.session.timeout.ms": 6000,
            "group.max.session.timeout.ms": 1_800_000,
            **{f"group.{name.replace('_', '.')}": value for name, value in settings.items()},
        }
        self.overrides: dict[str, dict[str, str]] = {}
        self.runtime = MemoryRuntime(self.scheduler)
        self._ids = 0
        self._start()
        self.shard.loaded()

    def _start(self) -> None:
        settings = GroupSettings(self.values.__getitem__, lambda group_id: self.overrides.get(group_id, {}))
        self.consumer = ConsumerGroups(self.runtime, settings, self.metadata)
        self.classic = ClassicGroups(self.runtime, settings, lambda: self.consumer.classic_members)
        self.runtime.the_shard = self.new_shard()

    def new_shard(self) -> GroupShard:
        return GroupShard(PARTITION, 0, self.classic, self.consumer.store)

    @property
    def shard(self) -> GroupShard:
        return self.runtime.shard(PARTITION)

    @property
    def group(self) -> ConsumerGroup:
        group = self.shard.groups[GROUP]
        assert isinstance(group, ConsumerGroup)
        return group

    def loaded(self, log: Sequence[NewRecord]) -> GroupShard:
        """What a coordinator that reads this log has."""
        shard = self.new_shard()
        replay(shard, log)
        return shard

    def restart(self) -> None:
        """Another coordinator takes over: it knows what is in the log, and nothing else."""
        self.shard.unload()
        if self.runtime.is_stalled:
            self.runtime.lose()
        self._start()
        replay(self.shard, self.runtime.log)
        self.shard.loaded()

    def advance(self, seconds: float) -> None:
        self.scheduler.advance(seconds)

    # -- topics ------------------------------------------------------------------------------------

    def topic(self, name: str, partitions: int) -> bytes:
        """Make a topic, or let it grow; its id."""
        known = self.metadata.snapshot.topics.get(name)
        if known is None:
            self._ids += 1
        topic_id = self._ids.to_bytes(16, "big") if known is None else known.topic_id
        states = {index: PartitionState([0], 0, 0, [0]) for index in range(partitions)}
        self.metadata.update(self.metadata.snapshot.with_topics([TopicState(name, topic_id, states)]))
        return topic_id

    def delete_topic(self, name: str) -> None:
        self.metadata.update(self.metadata.snapshot.with_topics(removed=[name]))

    @property
    def cluster(self) -> ClusterState:
        return self.metadata.snapshot

    def by_name(self, answer: ConsumerGroupHeartbeatResponse) -> Assigned | None:
        if answer.assignment is None:
            return None
        # A member ignores ids that nobody knows: those of topics that are gone.
        return {
            self.cluster.names_by_id[topic.topic_id]: set(topic.partitions)
            for topic in answer.assignment.topic_partitions
            if topic.topic_id in self.cluster.names_by_id
        }

    # -- requests ----------------------------------------------------------------------------------

    def say(
        self,
        member: str,
        epoch: int,
        *,
        topics: Sequence[str] | None = None,
        pattern: str | None = None,
        owned: Assigned | None = None,
        instance: str | None = None,
        rebalance_ms: int = -1,
        assignor: str | None = None,
        version: int = 1,
        group: str = GROUP,
    ) -> ConsumerGroupHeartbeatResponse:
        request = ConsumerGroupHeartbeatRequest(
            group_id=group,
            member_id=member,
            member_epoch=epoch,
            instance_id=instance,
            rebalance_timeout_ms=rebalance_ms,
            subscribed_topic_names=None if topics is None else list(topics),
            subscribed_topic_regex=pattern,
            server_assignor=assignor,
            topic_partitions=None
            if owned is None
            else [
                ConsumerGroupHeartbeatRequest.TopicPartitions(
                    topic_id=self.cluster.topics[name].topic_id, partitions=sorted(partitions)
                )
                for name, partitions in owned.items()
                if name in self.cluster.topics
            ],
        )
        return self.send(request, version)

    def send(
        self, request: ConsumerGroupHeartbeatRequest, version: int = 1
    ) -> ConsumerGroupHeartbeatResponse:
        answers: list[ConsumerGroupHeartbeatResponse] = []
        self.consumer.heartbeat(request, Client("client", "/127.0.0.1", version), answers.append)
        return self._only(answers)

    def join(
        self,
        member: str,
        topics: Sequence[str] | None = None,
        *,
        pattern: str | None = None,
        instance: str | None = None,
        assignor: str | None = None,
        group: str = GROUP,
    ) -> ConsumerGroupHeartbeatResponse:
        return self.say(
            member,
            0,
            topics=topics,
            pattern=pattern,
            owned={},
            instance=instance,
            rebalance_ms=30_000,
            assignor=assignor,
            group=group,
        )

    def classic_join(
        self,
        member: str,
        protocols: Sequence[tuple[str, bytes]],
        *,
        instance: str | None = None,
        protocol_type: str = "consumer",
        version: int = 9,
    ) -> JoinGroupResponse:
        answers: list[JoinGroupResponse] = []
        request = JoinGroupRequest(
            group_id=GROUP,
            session_timeout_ms=10_000,
            rebalance_timeout_ms=20_000,
            member_id=member,
            group_instance_id=instance,
            protocol_type=protocol_type,
            protocols=[
                JoinGroupRequest.JoinGroupRequestProtocol(name=name, metadata=metadata)
                for name, metadata in protocols
            ],
        )
        self.classic.join(request, Client("client", "/127.0.0.1", version), answers.append)
        self.advance(0)  # a first rebalance waits for others, if only until the next turn
        return self._only(answers)

    def classic_sync(
        self, member: str, generation: int, assignments: dict[str, bytes] | None = None
    ) -> SyncGroupResponse:
        answers: list[SyncGroupResponse] = []
        request = SyncGroupRequest(
            group_id=GROUP,
            member_id=member,
            generation_id=generation,
            protocol_type="consumer",
            protocol_name="range",
            assignments=[
                SyncGroupRequest.SyncGroupRequestAssignment(member_id=member_id, assignment=assignment)
                for member_id, assignment in (assignments or {}).items()
            ],
        )
        self.classic.sync(request, answers.append)
        return self._only(answers)

    def classic_heartbeat(self, member: str, generation: int) -> int:
        request = HeartbeatRequest(group_id=GROUP, member_id=member, generation_id=generation)
        try:
            return self.classic.heartbeat(request)
        except KafkaError as error:
            return error.code

    def classic_leave(self, *members: tuple[str, str | None]) -> LeaveGroupResponse:
        answers: list[LeaveGroupResponse] = []
        leaving = [
            LeaveGroupRequest.MemberIdentity(member_id=member, group_instance_id=instance)
            for member, instance in members
        ]
        self.classic.leave(GROUP, leaving, answers.append)
        return self._only(answers)

    def _only(self, answers: list[A]) -> A:
        if not answers and self.runtime.is_stalled:
            raise NoAnswer
        return _only(answers)


def _only(answers: list[A]) -> A:
    assert len(answers) == 1, f"{len(answers)} answers instead of one"
    return answers[0]
