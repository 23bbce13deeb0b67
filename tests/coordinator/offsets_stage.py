"""What the tests of committed offsets share: one partition of `__consumer_offsets`, and obedient groups."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tests.cluster.world import SELF, World
from tidelog.cluster.metadata_cache import MetadataCache
from tidelog.cluster.partition import Partition
from tidelog.config.values import ConfigValue
from tidelog.coordinator.group.group import CommitCheck, Group, GroupKind
from tidelog.coordinator.group.offsets import Offsets, PendingOffset
from tidelog.coordinator.group.offsets_service import GroupOffsets
from tidelog.coordinator.group.records import group_key, read_group_key
from tidelog.coordinator.group.settings import GroupSettings
from tidelog.coordinator.journal import Journal
from tidelog.coordinator.runtime import CoordinatorRuntime, NewRecord
from tidelog.errors import KafkaError, UnknownMemberId
from tidelog.metadata.state import ClusterState, PartitionState, TopicState
from tidelog.partitions import PartitionKey
from tidelog.protocol.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from tidelog.protocol.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse
from tidelog.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchResponse
from tidelog.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest, TxnOffsetCommitResponse

TOPIC = "__consumer_offsets"
ORDERS_ID, PAYMENTS_ID = b"o" * 16, b"p" * 16
# Group and partition to value, for comparing.
Committed = dict[tuple[str, PartitionKey], bytes]


class PlainGroup:
    """A group of simple consumers until it is given a member; the test says what it refuses."""

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.kind: GroupKind = "classic"
        self.member: str | None = None
        self.protocol_type: str | None = None
        self.topics: set[str] = set()
        self.empty_since: int | None = None
        self.expires = True
        self.refuses: KafkaError | None = None
        self.check: CommitCheck | None = None

    @property
    def state_name(self) -> str:
        return "Empty" if self.is_empty else "Stable"

    @property
    def is_empty(self) -> bool:
        return self.member is None

    def validate_offset_commit(
        self,
        member_id: str,
        instance_id: str | None,
        generation_or_epoch: int,
        *,
        transactional: bool,
        api_version: int,
    ) -> CommitCheck | None:
        if self.refuses is not None:
            raise self.refuses
        if self.member is not None and member_id != self.member:
            raise UnknownMemberId
        return self.check

    def validate_offset_fetch(self, member_id: str | None, member_epoch: int) -> None:
        if self.refuses is not None:
            raise self.refuses

    def validate_offset_delete(self) -> None:
        if self.refuses is not None:
            raise self.refuses

    validate_delete = validate_offset_delete

    def is_subscribed_to(self, topic: str) -> bool:
        return topic in self.topics

    def offset_expiry_base(self, commit_timestamp: int) -> int | None:
        if not self.expires:
            return None
        return commit_timestamp if self.empty_since is None else self.empty_since

    def tombstones(self) -> list[NewRecord]:
        return [NewRecord(group_key(self.group_id), None)]


class PlainShard:
    def __init__(self, partition: int, _: int) -> None:
        self.partition = partition
        self.made: dict[str, PlainGroup] = {}
        self.journal = Journal()
        self.offsets = Offsets(self.made, self.make, self.journal)

    @property
    def groups(self) -> dict[str, Group]:
        return dict(self.made)

    def committed_group(self, group_id: str) -> Group | None:
        return self.made.get(group_id)

    def make(self, group_id: str) -> PlainGroup:
        return self.made.setdefault(group_id, PlainGroup(group_id))

    def replay(
        self,
        key: bytes,
        value: bytes | None,
        *,
        offset: int,
        timestamp: int,
        producer_id: int,
        producer_epoch: int,
    ) -> None:
        if key[1] == 2:
            self.made.pop(read_group_key(key), None)
            return
        self.offsets.replay(
            key[1],
            key,
            value,
            offset=offset,
            timestamp=timestamp,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
        )

    def end_transaction(self, producer_id: int, producer_epoch: int, *, commit: bool) -> None:
        self.offsets.end_transaction(producer_id, producer_epoch, commit=commit)

    def loaded(self) -> None: ...

    def unload(self) -> None:
        self.offsets.unload()


class OffsetsStage:
    """The topics `orders` and `payments` of two partitions, and the offsets of groups that read them."""

    def __init__(self, folder: Path) -> None:
        self.world = World(folder)
        self.metadata = MetadataCache("cluster")
        self.values: dict[str, ConfigValue] = {
            "offset.metadata.max.bytes": 4096,
            "offsets.commit.timeout.ms": 5000,
            "offsets.retention.minutes": 10_080,
            "offsets.retention.check.interval.ms": 600_000,
        }
        self.runtime = self.new_runtime()
        self.heard: list[tuple[str, str]] = []
        self.service = GroupOffsets(
            self.runtime,
            self.metadata,
            GroupSettings(self.values.__getitem__),
            lambda _, group, member: self.heard.append((group.group_id, member)),
        )
        self.partition = self.lead()

    def new_runtime(self) -> CoordinatorRuntime[PlainShard]:
        return CoordinatorRuntime(
            TOPIC,
            self.world.replicas,
            self.metadata,
            self.world.scheduler,
            PlainShard,
            append_timeout_ms=lambda: 5000,
        )

    def lead(self) -> Partition:
        partition = self.world.partition(TOPIC)
        states = {index: PartitionState([SELF], SELF, 0, [SELF]) for index in range(2)}
        topics = [
            TopicState(TOPIC, b"c" * 16, {0: states[0]}),
            TopicState("orders", ORDERS_ID, states),
            TopicState("payments", PAYMENTS_ID, states),
        ]
        self.metadata.update(ClusterState("cluster").with_topics(topics))
        self.runtime.elected(partition)
        self.world.advance()
        return partition

    @property
    def now(self) -> int:
        return self.world.scheduler.clock.ms()

    @property
    def shard(self) -> PlainShard:
        return self.runtime.shard(0)

    @property
    def offsets(self) -> Offsets:
        return self.shard.offsets

    def loaded_anew(self) -> PlainShard:
        """What a coordinator that starts now has."""
        runtime = self.new_runtime()
        runtime.elected(self.partition)
        self.world.advance(1.0)
        return runtime.shard(0)

    def without(self, *topics: str) -> None:
        """Delete topics."""
        before = self.metadata.snapshot
        self.metadata.update(before.with_topics(removed=topics))
        self.service.topics_deleted([(topic, before.topics[topic].topic_id) for topic in topics])
        self.world.advance()

    # -- requests ------------------------------------------------------------------------------------

    def commit(
        self,
        group_id: str = "g",
        topic: str = "orders",
        partition: int = 0,
        offset: int = 1,
        *,
        metadata: str | None = "",
        member: str = "",
        generation: int = -1,
        version: int = 9,
        retention_ms: int = -1,
    ) -> int:
        """The error code of committing one offset."""
        wanted = OffsetCommitRequest.OffsetCommitRequestTopic(
            name=topic,
            partitions=[
                OffsetCommitRequest.OffsetCommitRequestPartition(
                    partition_index=partition, committed_offset=offset, committed_metadata=metadata
                )
            ],
        )
        request = OffsetCommitRequest(
            group_id=group_id,
            member_id=member,
            generation_id_or_member_epoch=generation,
            retention_time_ms=retention_ms,
            topics=[wanted],
        )
        return self.answer(request, version).topics[0].partitions[0].error_code

    def answer(self, request: OffsetCommitRequest, version: int = 9) -> OffsetCommitResponse:
        answers: list[OffsetCommitResponse] = []
        self.service.commit(request, version, answers.append)
        (answer,) = answers
        return answer

    def commit_in_transaction(
        self,
        producer_id: int = 7,
        group_id: str = "g",
        topic: str = "orders",
        partition: int = 0,
        offset: int = 1,
        *,
        generation: int = -1,
        member: str = "",
        version: int = 3,
    ) -> int:
        wanted = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(
            name=topic,
            partitions=[
                TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition(
                    partition_index=partition, committed_offset=offset, committed_metadata=""
                )
            ],
        )
        answers: list[TxnOffsetCommitResponse] = []
        request = TxnOffsetCommitRequest(
            transactional_id="tx",
            group_id=group_id,
            producer_id=producer_id,
            producer_epoch=0,
            generation_id=generation,
            member_id=member,
            topics=[wanted],
        )
        self.service.commit_in_transaction(request, version, answers.append)
        return answers[0].topics[0].partitions[0].error_code

    def end(self, producer_id: int = 7, *, commit: bool) -> None:
        answers: list[KafkaError | None] = []
        self.runtime.append_marker(
            0, answers.append, producer_id=producer_id, producer_epoch=0, coordinator_epoch=0, commit=commit
        )
        assert answers == [None]

    def fetch(
        self,
        group_id: str = "g",
        topics: dict[str, list[int]] | None = None,
        *,
        stable: bool = False,
    ) -> dict[PartitionKey, tuple[int, int]]:
        """Offset and error code of each partition; all that the group has unless topics are named."""
        request = OffsetFetchRequest(
            groups=[
                OffsetFetchRequest.OffsetFetchRequestGroup(
                    group_id=group_id,
                    topics=None
                    if topics is None
                    else [
                        OffsetFetchRequest.OffsetFetchRequestTopics(name=name, partition_indexes=indexes)
                        for name, indexes in topics.items()
                    ],
                )
            ],
            require_stable=stable,
        )
        (group,) = self.fetched(request, 9).groups
        assert group.error_code == 0
        return {
            (topic.name, partition.partition_index): (partition.committed_offset, partition.error_code)
            for topic in group.topics
            for partition in topic.partitions
        }

    def fetched(self, request: OffsetFetchRequest, version: int) -> OffsetFetchResponse:
        answers: list[OffsetFetchResponse] = []
        for _ in self.service.fetch(request, version, answers.append):
            pass
        (answer,) = answers
        return answer

    def delete(self, group_id: str = "g", **topics: list[int]) -> OffsetDeleteResponse:
        answers: list[OffsetDeleteResponse] = []
        request = OffsetDeleteRequest(
            group_id=group_id,
            topics=[
                OffsetDeleteRequest.OffsetDeleteRequestTopic(
                    name=name,
                    partitions=[
                        OffsetDeleteRequest.OffsetDeleteRequestPartition(partition_index=index)
                        for index in indexes
                    ],
                )
                for name, indexes in topics.items()
            ],
        )
        self.service.delete(request, answers.append)
        (answer,) = answers
        return answer


def committed(offsets: Offsets) -> Committed:
    return {
        (group_id, name): value
        for group_id in offsets.group_ids
        for name, value in offsets.of_group(group_id).items()
    }


def pending(offsets: Offsets) -> dict[tuple[int, str, PartitionKey], PendingOffset]:
    return {(producer, group, name): offset for producer, group, name, offset in offsets.pending()}


def same(one: Offsets, other: Offsets, names: Iterable[tuple[str, PartitionKey]] = ()) -> bool:
    """Whether two brokers would answer alike."""
    return (
        committed(one) == committed(other)
        and pending(one) == pending(other)
        and one.count == other.count == len(committed(one))
        and all(one.is_pending(*name) == other.is_pending(*name) for name in names)
    )
