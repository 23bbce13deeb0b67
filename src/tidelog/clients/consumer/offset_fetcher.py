"""OffsetFetcher: asks the leaders of partitions for offsets by timestamp and for ends of leader epochs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple, TypeVar

from tidelog.clients.errors import REFUSED, TimeoutException
from tidelog.clients.network import NetworkClient
from tidelog.clients.offsets import NO_EPOCH, OffsetAndTimestamp, known_epoch
from tidelog.clients.settings import ConsumerSettings
from tidelog.errors import (
    KafkaError,
    TopicAuthorizationFailed,
    UnsupportedForMessageFormat,
    UnsupportedVersion,
    error_class,
)
from tidelog.partitions import TopicPartition
from tidelog.protocol.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from tidelog.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)

log = logging.getLogger("tidelog.clients")

CONSUMER = -1  # the replica id of a consumer
# Errors that no retry resolves.
FINAL = (TopicAuthorizationFailed, UnsupportedForMessageFormat, UnsupportedVersion)

Q = TypeVar("Q")
A = TypeVar("A")


class EpochEnd(NamedTuple):
    """The last epoch up to the requested one, and the offset behind its last record; -1 for unknown."""

    epoch: int
    end_offset: int


class OffsetFetcher:
    """Requests offsets until every leader has answered or the time is over."""

    def __init__(self, client: NetworkClient, settings: ConsumerSettings) -> None:
        self._client = client
        self._isolation = 1 if settings.isolation_level == "read_committed" else 0

    async def offsets(
        self, times: Mapping[TopicPartition, int], timeout: float
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first offset at or after each timestamp, or LATEST or EARLIEST; None where there is none."""
        return await self._ask_leaders(times, self._offsets_of, timeout, "offsets by time")

    async def epoch_ends(
        self, epochs: Mapping[TopicPartition, int], timeout: float
    ) -> dict[TopicPartition, EpochEnd]:
        """The end offsets of leader epochs in the logs of the current leaders."""
        return await self._ask_leaders(epochs, self._ends_of, timeout, "ends of leader epochs")

    async def _ask_leaders(
        self,
        questions: Mapping[TopicPartition, Q],
        ask: Callable[
            [int, Mapping[TopicPartition, Q]], Awaitable[tuple[dict[TopicPartition, A], KafkaError | None]]
        ],
        timeout: float,
        what: str,
    ) -> dict[TopicPartition, A]:
        """The answers for all partitions. A retriable error is retried at the leader known then."""
        client = self._client
        client.want({name.topic for name in questions})
        unanswered = dict(questions)
        found: dict[TopicPartition, A] = {}
        last: KafkaError | None = None
        attempt = 0
        try:
            async with asyncio.timeout(timeout):
                while unanswered:
                    answers, error = await self._ask_each(self._by_leader(unanswered), ask)
                    found |= answers
                    last = error or last
                    unanswered = {
                        name: question for name, question in unanswered.items() if name not in found
                    }
                    if unanswered:
                        if isinstance(client.last_error, REFUSED):
                            raise client.last_error
                        client.request_refresh({name.topic for name in unanswered})
                        await asyncio.sleep(client.retry_backoff.delay(attempt))
                        attempt += 1
        except TimeoutError:
            names = ", ".join(str(name) for name in sorted(unanswered)[:5])
            reason = last or client.last_error
            text = f"{what} of {names}: no answer within {round(timeout * 1000)} ms"
            raise TimeoutException(f"{text}: {reason}" if reason else text) from None
        return found

    async def _ask_each(
        self,
        groups: Mapping[int, Mapping[TopicPartition, Q]],
        ask: Callable[
            [int, Mapping[TopicPartition, Q]], Awaitable[tuple[dict[TopicPartition, A], KafkaError | None]]
        ],
    ) -> tuple[dict[TopicPartition, A], KafkaError | None]:
        """Ask each leader once; returns the answers and the last retriable error. Raises a final error."""
        found: dict[TopicPartition, A] = {}
        last: KafkaError | None = None
        answers = await asyncio.gather(
            *(ask(node, group) for node, group in groups.items()), return_exceptions=True
        )
        for answer in answers:
            if isinstance(answer, BaseException):
                if not isinstance(answer, KafkaError) or isinstance(answer, FINAL):
                    raise answer
                last = answer
            else:
                found |= answer[0]
                last = answer[1] or last
        return found, last

    def _by_leader(self, questions: Mapping[TopicPartition, Q]) -> dict[int, dict[TopicPartition, Q]]:
        view = self._client.view
        groups: dict[int, dict[TopicPartition, Q]] = {}
        for name, question in questions.items():
            code = view.errors.get(name.topic)
            if code is not None and error_class(code) in FINAL:
                raise error_class(code)(f"topic {name.topic!r}: {error_class(code)()}")
            leader = view.leader(*name)
            if leader is not None:
                groups.setdefault(leader, {})[name] = question
        return groups

    async def _offsets_of(
        self, node: int, times: Mapping[TopicPartition, int]
    ) -> tuple[dict[TopicPartition, OffsetAndTimestamp | None], KafkaError | None]:
        view = self._client.view
        request = ListOffsetsRequest(replica_id=CONSUMER, isolation_level=self._isolation)
        topics: dict[str, ListOffsetsRequest.ListOffsetsTopic] = {}
        for (topic, partition), timestamp in times.items():
            entry = topics.setdefault(topic, ListOffsetsRequest.ListOffsetsTopic(name=topic))
            entry.partitions.append(
                ListOffsetsRequest.ListOffsetsPartition(
                    partition_index=partition,
                    current_leader_epoch=view.leader_epoch(topic, partition),
                    timestamp=timestamp,
                )
            )
        request.topics = list(topics.values())
        answer = await self._client.call(node, request, ListOffsetsResponse)
        found: dict[TopicPartition, OffsetAndTimestamp | None] = {}
        last: KafkaError | None = None
        for topic_answer in answer.topics:
            for entry_answer in topic_answer.partitions:
                name = TopicPartition(topic_answer.name, entry_answer.partition_index)
                if entry_answer.error_code:
                    last = _error(name, entry_answer.error_code)
                elif entry_answer.offset < 0:
                    found[name] = None
                else:
                    found[name] = OffsetAndTimestamp(
                        entry_answer.offset, entry_answer.timestamp, known_epoch(entry_answer.leader_epoch)
                    )
        return found, last

    async def _ends_of(
        self, node: int, epochs: Mapping[TopicPartition, int]
    ) -> tuple[dict[TopicPartition, EpochEnd], KafkaError | None]:
        connection = await self._client.connection(node)
        if not connection.serves(OffsetForLeaderEpochRequest):
            return {name: EpochEnd(NO_EPOCH, -1) for name in epochs}, None
        view = self._client.view
        topics: dict[str, OffsetForLeaderEpochRequest.OffsetForLeaderTopic] = {}
        for (topic, partition), epoch in epochs.items():
            entry = topics.setdefault(topic, OffsetForLeaderEpochRequest.OffsetForLeaderTopic(topic=topic))
            entry.partitions.append(
                OffsetForLeaderEpochRequest.OffsetForLeaderPartition(
                    partition=partition,
                    current_leader_epoch=view.leader_epoch(topic, partition),
                    leader_epoch=epoch,
                )
            )
        request = OffsetForLeaderEpochRequest(replica_id=CONSUMER, topics=list(topics.values()))
        answer = await connection.call(request, OffsetForLeaderEpochResponse)
        found: dict[TopicPartition, EpochEnd] = {}
        last: KafkaError | None = None
        for topic_answer in answer.topics:
            for entry_answer in topic_answer.partitions:
                name = TopicPartition(topic_answer.topic, entry_answer.partition)
                if entry_answer.error_code:
                    last = _error(name, entry_answer.error_code)
                else:
                    found[name] = EpochEnd(entry_answer.leader_epoch, entry_answer.end_offset)
        return found, last


def _error(name: TopicPartition, code: int) -> KafkaError:
    """The error of a partition. Raises it if no retry resolves it."""
    error = error_class(code)(f"{name}: {error_class(code)()}")
    if isinstance(error, FINAL):
        raise error
    return error
