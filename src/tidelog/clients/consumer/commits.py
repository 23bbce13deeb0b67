"""GroupOffsets and Coordinator: commit and fetch the offsets of a group at its coordinator."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from tidelog.clients.async_connection import AsyncConnection
from tidelog.clients.consumer.interceptors import Interceptors
from tidelog.clients.consumer.metrics import ConsumerMetrics
from tidelog.clients.errors import CommitFailedException, TimeoutException
from tidelog.clients.network import GROUP, NetworkClient
from tidelog.clients.offsets import OffsetAndMetadata, epoch_number, known_epoch
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

# The newest versions with topic names. Later ones have topic ids, which not every topic has.
LAST_VERSION_WITH_NAMES = 9
FIRST_VERSION_WITH_GROUPS = 8
FIRST_VERSION_WITH_MEMBERS = 9
FIRST_VERSION_WITH_INSTANCE = 7

MOVED = (NotCoordinator, CoordinatorNotAvailable, NetworkException, RequestTimedOut, TimeoutException)
TRY_AGAIN = (CoordinatorLoadInProgress, UnknownTopicOrPartition, UnstableOffsetCommit)
TOO_LATE = (UnknownMemberId, IllegalGeneration, FencedMemberEpoch)


@dataclass(slots=True, frozen=True)
class Membership:
    """The identity of a consumer in its group. `epoch` is the generation in a classic group."""

    member_id: str = ""
    epoch: int = -1
    instance_id: str | None = None
    has_member_epoch: bool = False
    """Whether `epoch` is a member epoch (KIP-848)."""
    losses: int = 0
    """How often the consumer had lost its membership, and its partitions, before."""


NO_MEMBER = Membership()


class Coordinator:
    """The broker that coordinates the group, on connections apart from fetches."""

    def __init__(self, client: NetworkClient, group_id: str) -> None:
        self.client = client
        self.group_id = group_id
        self.trouble: KafkaError | None = None
        """The error of the last attempt to reach it."""

    async def connection(self) -> AsyncConnection:
        """A connection to the coordinator. Makes one attempt, and raises its error."""
        try:
            node = await self.client.coordinator(GROUP, self.group_id, timeout=0.0)
            connection = await self.client.connection(node)
        except KafkaError as error:
            self.trouble = error
            raise
        self.trouble = None
        return connection

    def moved(self) -> None:
        """Look up the coordinator again before the next request."""
        self.client.forget_coordinator(GROUP, self.group_id)

    def note(self, error: KafkaError) -> None:
        """Look up the coordinator again before the next request, if the error says that it has moved."""
        if isinstance(error, MOVED):
            self.moved()


class GroupOffsets:
    """`identity` returns the member that commits. Calls `refused` with the error of a rejected commit."""

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
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], timeout: float, *, once: bool = False
    ) -> None:
        """Commit offsets. Raises CommitFailedException when other members have the partitions.

        With `once` the first error ends it.
        """
        if not offsets:
            return
        began = asyncio.get_running_loop().time()
        losses = self._identity().losses
        try:
            await self._until_answered(
                lambda: self._commit_once(offsets, losses), timeout, "commit", once=once
            )
        except KafkaError:
            self._metrics.commit_failed_total += 1
            raise
        self._metrics.commit_total += 1
        self._metrics.commit_latency.add(asyncio.get_running_loop().time() - began)
        if self._interceptors:
            self._interceptors.on_commit({name: entry.offset for name, entry in offsets.items()})

    async def fetch(
        self, partitions: Iterable[TopicPartition], timeout: float
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """The committed offset of each partition, None where the group has none."""
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
            raise TimeoutException(f"{text}: {reason}" if reason else text) from None

    async def _commit_once(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], losses: int) -> None:
        connection = await self._coordinator.connection()
        version = connection.version_for(OffsetCommitRequest, at_most=LAST_VERSION_WITH_NAMES)
        member = self._identity()
        if member.losses != losses:
            # As a member again it could commit, and would set the offsets of others back.
            raise self._too_late(next(iter(offsets)))
        topics: dict[str, OffsetCommitRequest.OffsetCommitRequestTopic] = {}
        for (topic, partition), entry in offsets.items():
            found = topics.setdefault(topic, OffsetCommitRequest.OffsetCommitRequestTopic(name=topic))
            found.partitions.append(
                OffsetCommitRequest.OffsetCommitRequestPartition(
                    partition_index=partition,
                    committed_offset=entry.offset,
                    committed_leader_epoch=epoch_number(entry.leader_epoch),
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
            return self._too_late(name)
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

    def _too_late(self, name: TopicPartition) -> CommitFailedException:
        return CommitFailedException(
            f"group {self._coordinator.group_id!r}: the commit of {name} came too late, the group has given "
            "its partitions to others; call poll more often than every max.poll.interval.ms, or lower "
            "max.poll.records"
        )

    async def _fetch_once(
        self, partitions: list[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
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
            if version >= FIRST_VERSION_WITH_MEMBERS and member.has_member_epoch:
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


def _committed(answer: OffsetFetchResponse, version: int) -> dict[TopicPartition, OffsetAndMetadata | None]:
    code = answer.error_code
    topics: Iterable[
        OffsetFetchResponse.OffsetFetchResponseTopic | OffsetFetchResponse.OffsetFetchResponseTopics
    ] = answer.topics
    if version >= FIRST_VERSION_WITH_GROUPS:
        code, topics = answer.groups[0].error_code, answer.groups[0].topics
    if code:
        raise error_class(code)(f"committed offsets: {error_class(code)()}")
    found: dict[TopicPartition, OffsetAndMetadata | None] = {}
    for topic in topics:
        for entry in topic.partitions:
            name = TopicPartition(topic.name, entry.partition_index)
            if entry.error_code:
                raise error_class(entry.error_code)(f"{name}: {error_class(entry.error_code)()}")
            if entry.committed_offset < 0:
                found[name] = None
            else:
                found[name] = OffsetAndMetadata(
                    entry.committed_offset, entry.metadata or "", known_epoch(entry.committed_leader_epoch)
                )
    return found
