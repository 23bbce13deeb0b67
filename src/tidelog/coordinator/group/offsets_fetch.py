"""The answers of OffsetFetch: the requested offsets of a group, or all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from tidelog.coordinator.group.group import Group
from tidelog.coordinator.group.offsets import Offsets, ReadableOffsets
from tidelog.coordinator.group.records import NO_LEADER_EPOCH, CommittedOffset, read_offset_value
from tidelog.errors import ErrorCode, GroupIdNotFound, KafkaError
from tidelog.metadata.state import ClusterState
from tidelog.partitions import PartitionKey
from tidelog.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchResponse
from tidelog.protocol.wire import ZERO_UUID

# From these versions on: the answer has an error of the whole group; a request has several groups; topics
# have ids.
GROUP_ERRORS = 2
SEVERAL_GROUPS = 8
FETCHES_BY_TOPIC_ID = 10

PARTITION_ERRORS: dict[int, int] = {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE: ErrorCode.NOT_COORDINATOR,  # aiokafka would not ask again
}
"""Errors of the group, and what its partitions have then. aiokafka does not read the error of the group:
without partitions it takes all offsets for missing, and begins where `auto_offset_reset` says."""

NO_OFFSET = -1

WantedGroup = OffsetFetchRequest.OffsetFetchRequestGroup
WantedTopic = OffsetFetchRequest.OffsetFetchRequestTopics
FoundGroup = OffsetFetchResponse.OffsetFetchResponseGroup
FoundTopic = OffsetFetchResponse.OffsetFetchResponseTopics
FoundPartition = OffsetFetchResponse.OffsetFetchResponsePartitions


class OffsetAccess(Protocol):
    """The access of a client to groups and topics."""

    def may_describe_group(self, group_id: str) -> bool: ...

    def may_describe_topic(self, name: str, *, is_named: bool) -> bool:
        """`is_named`: the client has named the topic itself."""


class GroupFetch:
    """One group of a request, and its answer from the offsets of a shard."""

    __slots__ = ("_access", "_by_id", "_require_stable", "_snapshot", "_wanted")

    def __init__(
        self,
        wanted: WantedGroup,
        snapshot: ClusterState,
        *,
        by_id: bool,
        require_stable: bool,
        access: OffsetAccess | None = None,
    ) -> None:
        self._access = access
        self._wanted = wanted
        self._snapshot = snapshot
        self._by_id = by_id
        self._require_stable = require_stable

    def answer(self, offsets: ReadableOffsets, group: Group | None) -> FoundGroup:
        """Fill in the offsets, or the error alone if the member may not fetch now."""
        found = FoundGroup(group_id=self._wanted.group_id)
        try:
            if group is None:
                raise GroupIdNotFound(f"there is no group {self._wanted.group_id}")
            group.validate_offset_fetch(self._wanted.member_id, self._wanted.member_epoch)
        except GroupIdNotFound:
            offsets = Offsets((), lambda _: None)  # answered as if nothing was committed
        except KafkaError as error:
            return self.refusal(error)
        topics = self._wanted.topics
        found.topics = self._all(offsets) if topics is None else self._named(offsets, topics)
        return found

    def refusal(self, error: KafkaError) -> FoundGroup:
        return FoundGroup(group_id=self._wanted.group_id, error_code=error.code)

    def _named(self, offsets: ReadableOffsets, topics: list[WantedTopic]) -> list[FoundTopic]:
        found: list[FoundTopic] = []
        unknown: list[FoundTopic] = []
        for topic in topics:
            name, topic_id = topic.name, topic.topic_id
            if self._by_id:
                state = self._snapshot.topic_by_id(topic_id)
                if state is None:
                    unknown.append(_without_offsets(topic, ErrorCode.UNKNOWN_TOPIC_ID))
                    continue
                name = state.name
            else:
                state = self._snapshot.topics.get(name)
                topic_id = ZERO_UUID if state is None else state.topic_id
            if not self._may_describe(name, is_named=True):
                unknown.append(_without_offsets(topic, ErrorCode.TOPIC_AUTHORIZATION_FAILED))
                continue
            partitions = [
                self._partition(offsets, (name, index), topic_id) for index in topic.partition_indexes
            ]
            found.append(FoundTopic(name=topic.name, topic_id=topic.topic_id, partitions=partitions))
        return found + unknown

    def _all(self, offsets: ReadableOffsets) -> list[FoundTopic]:
        topics: dict[str, FoundTopic] = {}
        for name in offsets.of_group(self._wanted.group_id):
            topic = topics.get(name[0])
            if topic is None:
                state = self._snapshot.topics.get(name[0])
                topic_id = ZERO_UUID if state is None else state.topic_id
                topic = topics[name[0]] = FoundTopic(name=name[0], topic_id=topic_id)
            topic.partitions.append(self._partition(offsets, name, topic.topic_id))
        # A deleted topic has no id for the answer.
        return [
            topic
            for topic in topics.values()
            if (not self._by_id or topic.topic_id != ZERO_UUID)
            and self._may_describe(topic.name, is_named=False)
        ]

    def _may_describe(self, topic: str, *, is_named: bool) -> bool:
        return self._access is None or self._access.may_describe_topic(topic, is_named=is_named)

    def _partition(self, offsets: ReadableOffsets, name: PartitionKey, topic_id: bytes) -> FoundPartition:
        group_id = self._wanted.group_id
        if self._require_stable and offsets.is_pending(group_id, name):
            return _no_offset(name[1], ErrorCode.UNSTABLE_OFFSET_COMMIT)
        value = offsets.of_group(group_id).get(name)
        if value is None:
            return _no_offset(name[1])
        committed = read_offset_value(value)
        if _is_of_another_topic(committed, topic_id):
            return _no_offset(name[1])
        return FoundPartition(
            partition_index=name[1],
            committed_offset=committed.offset,
            committed_leader_epoch=committed.leader_epoch,
            metadata=committed.metadata,
        )


def _is_of_another_topic(committed: CommittedOffset, topic_id: bytes) -> bool:
    """Whether the topic was deleted and created again since the commit."""
    return committed.topic_id != topic_id and ZERO_UUID not in (committed.topic_id, topic_id)


def _no_offset(partition: int, code: int = 0) -> FoundPartition:
    return FoundPartition(
        partition_index=partition,
        committed_offset=NO_OFFSET,
        committed_leader_epoch=NO_LEADER_EPOCH,
        metadata="",
        error_code=code,
    )


def _without_offsets(topic: WantedTopic, code: int) -> FoundTopic:
    return FoundTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=[_no_offset(index, code) for index in topic.partition_indexes],
    )


# -- versions -------------------------------------------------------------------------------------------


def wanted_groups(request: OffsetFetchRequest, version: int) -> list[WantedGroup]:
    """The groups of a request. Before version 8 there is one.

    A group that is requested several times is answered once, because the answer is far larger than the
    request.
    """
    if version >= SEVERAL_GROUPS:
        whole: set[str] = set()
        groups = []
        for group in request.groups:
            if group.topics is not None or group.group_id not in whole:
                groups.append(group)
            if group.topics is None:
                whole.add(group.group_id)
        return groups
    topics = request.topics
    return [
        WantedGroup(
            group_id=request.group_id,
            topics=None
            if topics is None
            else [
                WantedTopic(name=topic.name, partition_indexes=topic.partition_indexes) for topic in topics
            ],
        )
    ]


class FetchAnswer:
    """Collects the answers of the groups in the order of the request, then calls `done`."""

    __slots__ = ("_done", "_found", "_missing", "_version", "_wanted")

    def __init__(
        self, wanted: list[WantedGroup], version: int, done: Callable[[OffsetFetchResponse], None]
    ) -> None:
        self._wanted = wanted
        self._version = version
        self._done = done
        self._found: list[FoundGroup | None] = [None] * len(wanted)
        self._missing = len(wanted)
        if not wanted:
            done(OffsetFetchResponse())

    def found(self, slot: int, group: FoundGroup) -> None:
        self._found[slot] = group
        self._missing -= 1
        if self._missing:
            return
        groups = [found for found in self._found if found is not None]
        if self._version >= SEVERAL_GROUPS:
            self._done(OffsetFetchResponse(groups=groups))
        else:
            self._done(self._of_one(groups[0]))

    def _of_one(self, group: FoundGroup) -> OffsetFetchResponse:
        topics = group.topics
        code = group.error_code if self._version < GROUP_ERRORS else PARTITION_ERRORS.get(group.error_code)
        if code:
            topics = [_without_offsets(each, code) for each in self._wanted[0].topics or ()]
        return OffsetFetchResponse(
            error_code=group.error_code,
            topics=[
                OffsetFetchResponse.OffsetFetchResponseTopic(
                    name=topic.name,
                    partitions=[
                        OffsetFetchResponse.OffsetFetchResponsePartition(
                            partition_index=partition.partition_index,
                            committed_offset=partition.committed_offset,
                            committed_leader_epoch=partition.committed_leader_epoch,
                            metadata=partition.metadata,
                            error_code=partition.error_code,
                        )
                        for partition in topic.partitions
                    ],
                )
                for topic in topics
            ],
        )
