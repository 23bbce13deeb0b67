"""The offsets of a group: committed and fetched at its coordinator, looked up again when it moves."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from tidelog.clients.async_connection import AsyncConnection
from tidelog.clients.consumer.interceptors import Interceptors
from tidelog.clients.consumer.metrics import ConsumerMetrics
from tidelog.clients.errors import CommitFailed, Timeout
from tidelog.clients.network import GROUP, NetworkClient
from tidelog.clients.producer.transaction_values import OffsetToCommit
from tidelog.errors import (
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    FencedInstanceId,
    FencedMemberEpoch,
    IllegalGeneration,
    KafkaError,
    NetworkException,
    NotCoordinator,
    RebalanceInProgress,
    RequestTimedOut,
    StaleMemberEpoch,
    UnknownMemberId,
    UnknownTopicOrPartition,
    UnstableOffsetCommit,
    error_class,
)
from tidelog.partitions import TopicPartition
from tidelog.protocol.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from tidelog.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchResponse

log = logging.getLogger("tidelog.clients")

T = TypeVar("T")

# The newest versions that name topics; later ones have ids, of which not every topic has one.
LAST_VERSION_WITH_NAMES = 9
FIRST_VERSION_WITH_GROUPS = 8
FIRST_VERSION_WITH_MEMBERS = 9
FIRST_VERSION_WITH_INSTANCE = 7

MOVED = (NotCoordinator, CoordinatorNotAvailable, NetworkException, RequestTimedOut, Timeout)
TRY_AGAIN = (CoordinatorLoadInProgress, UnknownTopicOrPartition, UnstableOffsetCommit)
TOO_LATE = (UnknownMemberId, IllegalGeneration, FencedMemberEpoch)


@dataclass(slots=True, frozen=True)
class Membership:
    """Under which name a group knows this consumer; the epoch is its generation in a classic group."""

    member_id: str = ""
    epoch: int = -1
    instance_id: str | None = None
    next_generation: bool = False
    """Whether the broker assigns, so that members have epochs."""


NOBODY = Membership()


class Coordinator:
    """The broker that coordinates the group; calls are made on connections of their own."""

    def __init__(self, client: NetworkClient, group_id: str) -> None:
        self.client = client
        self.group_id = group_id
        self.trouble: KafkaError | None = None
        """Why it could not be reached the last time."""

    async def connection(self) -> AsyncConnection:
        """A connection to it; one attempt, so that whoever asks knows why it failed."""
        try:
            node = await self.client.coordinator(GROUP, self.group_id, timeout=0.0)
            connection = await self.client.connection(node)
        except KafkaError as error:
            self.trouble = error
            raise
        self.trouble = None
        return connection

    def moved(self) -> None:
        """It is not there any more, or not reachable."""
        self.client.forget_coordinator(GROUP, self.group_id)

    def note(self, error: KafkaError) -> None:
        """Forget it where an error says that it is another."""
        if isinstance(error, MOVED):
            self.moved()


class GroupOffsets:
    """`identity` says who commits at the moment of asking; `refused` is told what a refusal means for him."""

    def __init__(
        self,
        coordinator: Coordinator,
        identity: Callable[[], Membership],
        refused: Callable[[KafkaError, Membership], None],
        metrics: ConsumerMetrics,
        interceptors: Interceptors,
    ) -> None:
        self._coordinator = coordinator
        self._identity = identity
        self._refused = refused
        self._metrics = metrics
        self._interceptors = interceptors

    async def commit(
        self, offsets: Mapping[TopicPartition, OffsetToCommit], timeout: float, *, once: bool = False
    ) -> None:
        """Keep offsets; CommitFailed where the partitions belong to others by now.

        `once` gives up after the first attempt, whatever its error.
        """
        if not offsets:
            return
        began = asyncio.get_running_loop().time()
        try:
            await self._until_answered(lambda: self._commit_once(offsets), timeout, "commit", once=once)
        except KafkaError:
            self._metrics.commit_failed_total += 1
            raise
        self._metrics.commit_total += 1
        self._metrics.commit_latency.add(asyncio.get_running_loop().time() - began)
        if self._interceptors:
            self._interceptors.on_commit({name: entry.offset for name, entry in offsets.items()})

    async def fetch(
        self, partitions: Iterable[TopicPartition], timeout: float
    ) -> dict[TopicPartition, OffsetToCommit | None]:
        """What the group committed of partitions, None where it is nothing."""
        wanted = list(partitions)
        if not wanted:
            return {}
        return await self._until_answered(
            lambda: self._fetch_once(wanted), timeout, "looking up committed offsets"
        )

    async def _until_answered(
        self, ask: Callable[[], Awaitable[T]], timeout: float, what: str, *, once: bool = False
    ) -> T:
        coordinator = self._coordinator
        last: KafkaError | None = None
        attempt = 0
        try:
            async with asyncio.timeout(timeout):
                while True:
                    try:
                        return await ask()
                    except (*MOVED, *TRY_AGAIN, StaleMemberEpoch) as error:
                        last = error
                        coordinator.note(error)
                        if once:
                            raise
                    await asyncio.sleep(coordinator.client.retry_backoff.delay(attempt))
                    attempt += 1
        except TimeoutError:
            reason = last or coordinator.trouble
            text = f"group {coordinator.group_id!r}: {what} was not done within {round(timeout * 1000)} ms"
            raise Timeout(f"{text}: {reason}" if reason else text) from None

    async def _commit_once(self, offsets: Mapping[TopicPartition, OffsetToCommit]) -> None:
        connection = await self._coordinator.connection()
        version = connection.version_for(OffsetCommitRequest, at_most=LAST_VERSION_WITH_NAMES)
        member = self._identity()
        topics: dict[str, OffsetCommitRequest.OffsetCommitRequestTopic] = {}
        for (topic, partition), entry in offsets.items():
            found = topics.setdefault(topic, OffsetCommitRequest.OffsetCommitRequestTopic(name=topic))
            found.partitions.append(
                OffsetCommitRequest.OffsetCommitRequestPartition(
                    partition_index=partition,
                    committed_offset=entry.offset,
                    committed_leader_epoch=entry.leader_epoch,
                    committed_metadata=entry.metadata,
                )
            )
        request = OffsetCommitRequest(
            group_id=self._coordinator.group_id,
            generation_id_or_member_epoch=member.epoch,
            member_id=member.member_id,
            group_instance_id=member.instance_id if version >= FIRST_VERSION_WITH_INSTANCE else None,
            topics=list(topics.values()),
        )
        answer = await connection.call(request, OffsetCommitResponse, version=version)
        for topic_answer in answer.topics:
            for entry_answer in topic_answer.partitions:
                if entry_answer.error_code:
                    name = TopicPartition(topic_answer.name, entry_answer.partition_index)
                    raise self._commit_error(name, entry_answer.error_code, member)

    def _commit_error(self, name: TopicPartition, code: int, member: Membership) -> KafkaError:
        error = error_class(code)(f"{name}: {error_class(code)()}")
        group = self._coordinator.group_id
        if isinstance(error, TOO_LATE):
            self._refused(error, member)
            return CommitFailed(
                f"group {group!r}: the commit of {name} came too late, the group has given its partitions to "
                "others; call poll more often than every max.poll.interval.ms, or lower max.poll.records"
            )
        if isinstance(error, RebalanceInProgress):
            self._refused(error, member)
            return RebalanceInProgress(
                f"group {group!r}: the commit of {name} fell into a rebalance; poll, and commit again what "
                "is still assigned then"
            )
        if isinstance(error, FencedInstanceId):
            self._refused(error, member)
            return FencedInstanceId(
                f"group {group!r}: another consumer has group.instance.id={member.instance_id} now"
            )
        return error

    async def _fetch_once(
        self, partitions: list[TopicPartition]
    ) -> dict[TopicPartition, OffsetToCommit | None]:
        connection = await self._coordinator.connection()
        version = connection.version_for(OffsetFetchRequest, at_most=LAST_VERSION_WITH_NAMES)
        member = self._identity()
        indexes: dict[str, list[int]] = {}
        for topic, partition in partitions:
            indexes.setdefault(topic, []).append(partition)
        request = OffsetFetchRequest(require_stable=version >= 7)
        group_id = self._coordinator.group_id
        if version >= FIRST_VERSION_WITH_GROUPS:
            group = OffsetFetchRequest.OffsetFetchRequestGroup(
                group_id=group_id,
                topics=[
                    OffsetFetchRequest.OffsetFetchRequestTopics(name=topic, partition_indexes=found)
                    for topic, found in indexes.items()
                ],
            )
            if version >= FIRST_VERSION_WITH_MEMBERS and member.next_generation:
                group.member_id, group.member_epoch = member.member_id, member.epoch
            request.groups = [group]
        else:
            request.group_id = group_id
            request.topics = [
                OffsetFetchRequest.OffsetFetchRequestTopic(name=topic, partition_indexes=found)
                for topic, found in indexes.items()
            ]
        answer = await connection.call(request, OffsetFetchResponse, version=version)
        return _committed(answer, version)


def _committed(answer: OffsetFetchResponse, version: int) -> dict[TopicPartition, OffsetToCommit | None]:
    code = answer.error_code
    topics: Iterable[
        OffsetFetchResponse.OffsetFetchResponseTopic | OffsetFetchResponse.OffsetFetchResponseTopics
    ] = answer.topics
    if version >= FIRST_VERSION_WITH_GROUPS:
        code, topics = answer.groups[0].error_code, answer.groups[0].topics
    if code:
        raise error_class(code)(f"committed offsets: {error_class(code)()}")
    found: dict[TopicPartition, OffsetToCommit | None] = {}
    for topic in topics:
        for entry in topic.partitions:
            name = TopicPartition(topic.name, entry.partition_index)
            if entry.error_code:
                raise error_class(entry.error_code)(f"{name}: {error_class(entry.error_code)()}")
            if entry.committed_offset < 0:
                found[name] = None
            else:
                found[name] = OffsetToCommit(
                    entry.committed_offset, entry.metadata or "", entry.committed_leader_epoch
                )
    return found
