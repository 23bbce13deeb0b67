"""Seeded lives of groups that commit offsets while their coordinator moves between two brokers.

Each group commits rising offsets, and reads them back. The checker's rules: what was acknowledged is never
lost, and what was read is never undone.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.coordinator.two_brokers import Node, TwoBrokers
from tidelog.config.values import ConfigValue
from tidelog.coordinator.group.coordinator import OFFSETS_TOPIC, GroupCoordinator
from tidelog.coordinator.group.settings import GroupSettings
from tidelog.errors import ErrorCode
from tidelog.partitions import PartitionKey
from tidelog.protocol.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from tidelog.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchResponse

READ = "orders"
PARTITIONS = 2
RETRIABLE = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)
SETTINGS: dict[str, ConfigValue] = {
    "offset.metadata.max.bytes": 4096,
    "offsets.commit.timeout.ms": 500,
    "offsets.retention.minutes": 10_080,
    "offsets.retention.check.interval.ms": 600_000,
    "offsets.load.buffer.size": 1 << 20,
    "group.initial.rebalance.delay.ms": 0,
    "group.max.size": 100,
    "group.min.session.timeout.ms": 6000,
    "group.max.session.timeout.ms": 1_800_000,
}


class Violation(AssertionError):
    pass


def group_coordinator(node: Node) -> GroupCoordinator:
    groups = GroupCoordinator(
        node.replicas, node.metadata, node.cluster.scheduler, GroupSettings(SETTINGS.__getitem__)
    )
    node.coordinators[OFFSETS_TOPIC] = groups.runtime
    return groups


def commit_request(group_id: str, offset: int) -> OffsetCommitRequest:
    return OffsetCommitRequest(
        group_id=group_id,
        generation_id_or_member_epoch=-1,
        topics=[
            OffsetCommitRequest.OffsetCommitRequestTopic(
                name=READ,
                partitions=[
                    OffsetCommitRequest.OffsetCommitRequestPartition(
                        partition_index=0, committed_offset=offset, committed_metadata=""
                    )
                ],
            )
        ],
    )


def fetch_request(group_id: str, *, stable: bool = False) -> OffsetFetchRequest:
    topic = OffsetFetchRequest.OffsetFetchRequestTopics(name=READ, partition_indexes=[0])
    group = OffsetFetchRequest.OffsetFetchRequestGroup(group_id=group_id, topics=[topic])
    return OffsetFetchRequest(groups=[group], require_stable=stable)


class Reader:
    """A group of one simple consumer, which commits and fetches in turn."""

    def __init__(self, schedule: OffsetsSchedule, group_id: str) -> None:
        self.schedule = schedule
        self.group_id = group_id
        self.sent = self.acknowledged = self.read = -1
        self.waits = 0
        self._later(self.act)

    def _later(self, callback: Callable[[], None]) -> None:
        self.schedule.later(callback)

    def act(self) -> None:
        if self.schedule.is_over:
            return
        if self.schedule.random.random() < 0.5:
            self.commit()
        else:
            self.fetch()
        self._later(self.act)

    def commit(self) -> None:
        self.sent += 1
        offset = self.sent
        self.waits += 1

        def done(answer: OffsetCommitResponse) -> None:
            self.waits -= 1
            code = answer.topics[0].partitions[0].error_code
            if not code:
                self.acknowledged = max(self.acknowledged, offset)
            elif code not in RETRIABLE:
                raise Violation(f"{self.group_id} is told {code}")

        self.schedule.coordinator.offsets.commit(commit_request(self.group_id, offset), 8, done)

    def fetch(self) -> None:
        acknowledged = self.acknowledged

        def done(answer: OffsetFetchResponse) -> None:
            (group,) = answer.groups
            if group.error_code:
                if group.error_code not in RETRIABLE:
                    raise Violation(f"{self.group_id} is told {group.error_code}")
                return
            self.check(group.topics[0].partitions[0].committed_offset, acknowledged)

        work = self.schedule.coordinator.offsets.fetch(fetch_request(self.group_id), 8, done)
        for _ in work:
            pass

    def check(self, offset: int, acknowledged: int) -> None:
        if offset < acknowledged:
            raise Violation(f"{self.group_id} committed {acknowledged} and reads {offset}")
        if offset < self.read:
            raise Violation(f"{self.group_id} read {self.read} before and reads {offset} now")
        self.read = offset


class OffsetsSchedule:
    def __init__(self, folder: Path, seed: int, *, groups: int = 4, seconds: float = 20.0) -> None:
        self.world = TwoBrokers(folder, seed, {OFFSETS_TOPIC: 1, READ: PARTITIONS})
        self.world.metadata_delay = 0.3
        self.random = self.world.random
        self.is_over = False
        self._seconds = seconds
        self.groups = [group_coordinator(node) for node in self.world.nodes]
        for key in self.world.partitions:
            self.world.elect(key, 0)
        self.world.advance(0.1)
        self.readers = [Reader(self, f"g{number}") for number in range(groups)]

    @property
    def coordinator(self) -> GroupCoordinator:
        return self.groups[self.world.partitions[OFFSETS_TOPIC, 0].leader]

    def later(self, callback: Callable[[], None]) -> None:
        self.world.scheduler.schedule(self.random.uniform(0.0, 0.2), callback)

    def run(self) -> None:
        passed = 0.0
        while passed < self._seconds:
            step = self.random.uniform(0.1, 1.5)
            self.world.advance(step)
            passed += step
            self._move((OFFSETS_TOPIC, 0))
        self.is_over = True
        self.world.advance(10.0)
        for reader in self.readers:
            self.world.in_loop(reader.fetch)
            if reader.waits:
                raise Violation(f"{reader.waits} commits of {reader.group_id} were never answered")

    def _move(self, key: PartitionKey) -> None:
        target = self.random.randrange(2)
        if self.random.random() < 0.3:
            self.world.elect(key, target)
            return
        stalled = self.random.choice([0.1, 0.4, 1.0])
        self.world.stall(key, stalled * 1.5)
        self.world.scheduler.schedule(stalled, lambda: self.world.elect(key, target))

    def close(self) -> None:
        for groups in self.groups:
            self.world.in_loop(groups.close)
        self.world.close()
