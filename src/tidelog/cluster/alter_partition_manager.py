"""AlterPartitionManager: asks the controller for new in-sync replicas, in requests for many partitions.

One request is in flight at a time, and each partition has one change at a time; changes that come meanwhile
go with the next request. A change stays here until the controller has answered it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from tidelog.errors import ErrorCode, KafkaError, UnsupportedVersion, error_name
from tidelog.partitions import PartitionKey
from tidelog.protocol.messages.alter_partition import AlterPartitionRequest, AlterPartitionResponse

log = logging.getLogger("tidelog.cluster")

EPOCHS_SINCE_VERSION: Final = 3
"""From this version on, the new ISR has the epochs of its brokers."""

RETRY_SECONDS: Final = 0.05
"""The wait before a request is sent again, as in Kafka."""


@dataclass(slots=True, frozen=True)
class AlteredPartition:
    """The state of a partition in the controller's answer."""

    leader: int
    leader_epoch: int
    isr: Sequence[int]
    partition_epoch: int


Answered = Callable[[AlteredPartition | None, int], None]
"""Called with the state that the controller has, or with None and the error code."""


@dataclass(slots=True)
class IsrChange:
    """The ISR that a leader asks for: brokers with their epochs."""

    key: PartitionKey
    topic_id: bytes
    leader_epoch: int
    partition_epoch: int
    isr: Sequence[tuple[int, int]]
    answered: Answered


class Send(Protocol):
    def __call__(self, request: AlterPartitionRequest, *, version: int) -> Awaitable[AlterPartitionResponse]:
        """The controller's answer. Raises UnsupportedVersion, or another KafkaError if there is none."""


class AlterPartitionManager:
    def __init__(self, broker_id: int, broker_epoch: Callable[[], int], send: Send) -> None:
        self._broker_id = broker_id
        self._broker_epoch = broker_epoch
        self._send = send
        self._version = EPOCHS_SINCE_VERSION
        self._unanswered: dict[PartitionKey, IsrChange] = {}
        self._task: asyncio.Task[None] | None = None

    def submit(self, change: IsrChange) -> None:
        """Send a change with the next request.

        A partition has one unanswered change at most: a second one fails with OPERATION_NOT_ATTEMPTED.
        """
        if change.key in self._unanswered:
            change.answered(None, ErrorCode.OPERATION_NOT_ATTEMPTED)
            return
        self._unanswered[change.key] = change
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """Stop sending requests and drop the unanswered changes."""
        self._unanswered.clear()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        try:
            while self._unanswered:
                # A slow broker lags in many partitions at once: after a turn, their changes share a request.
                await asyncio.sleep(0)
                if not await self._exchange(list(self._unanswered.values())):
                    await asyncio.sleep(RETRY_SECONDS)
        except Exception:
            log.exception("asking the controller for in-sync replicas failed")
        finally:
            self._task = None

    async def _exchange(self, changes: Sequence[IsrChange]) -> bool:
        """Send a request with these changes; returns whether the controller has answered all of them."""
        try:
            answer = await self._send(self._request(changes), version=self._version)
        except UnsupportedVersion:
            if self._version < EPOCHS_SINCE_VERSION:
                log.error("the controller does not serve AlterPartition")
                return False
            self._version = EPOCHS_SINCE_VERSION - 1
            return True  # the next request has the same changes in the older version
        except KafkaError as error:
            log.warning("the controller has not answered AlterPartition, retrying: %s", error)
            return False
        self._version = EPOCHS_SINCE_VERSION  # the next controller may be a newer one
        if answer.error_code:
            log.warning("AlterPartition is refused with %s, retrying", error_name(answer.error_code))
            return False
        return self._answer(changes, answer)

    def _request(self, changes: Sequence[IsrChange]) -> AlterPartitionRequest:
        request = AlterPartitionRequest(broker_id=self._broker_id, broker_epoch=self._broker_epoch())
        topics: dict[bytes, AlterPartitionRequest.TopicData] = {}
        for change in changes:
            topic = topics.get(change.topic_id)
            if topic is None:
                topic = topics[change.topic_id] = AlterPartitionRequest.TopicData(topic_id=change.topic_id)
                request.topics.append(topic)
            altered = AlterPartitionRequest.PartitionData(
                partition_index=change.key[1],
                leader_epoch=change.leader_epoch,
                partition_epoch=change.partition_epoch,
            )
            if self._version >= EPOCHS_SINCE_VERSION:
                altered.new_isr_with_epochs = [
                    AlterPartitionRequest.BrokerState(broker_id=broker, broker_epoch=epoch)
                    for broker, epoch in change.isr
                ]
            else:
                altered.new_isr = [broker for broker, _ in change.isr]
            topic.partitions.append(altered)
        return request

    def _answer(self, changes: Sequence[IsrChange], answer: AlterPartitionResponse) -> bool:
        answers = {
            (topic.topic_id, partition.partition_index): partition
            for topic in answer.topics
            for partition in topic.partitions
        }
        is_complete = True
        for change in changes:
            partition = answers.get((change.topic_id, change.key[1]))
            if partition is None:
                is_complete = False  # the next request has this change again
                continue
            if self._unanswered.get(change.key) is change:
                del self._unanswered[change.key]
            try:
                _answer(change, partition)
            except Exception:
                log.exception("the in-sync replicas of %s-%d could not be changed", *change.key)
        return is_complete


def _answer(change: IsrChange, partition: AlterPartitionResponse.PartitionData) -> None:
    if partition.error_code:
        change.answered(None, partition.error_code)
        return
    state = AlteredPartition(
        partition.leader_id, partition.leader_epoch, partition.isr, partition.partition_epoch
    )
    change.answered(state, ErrorCode.NONE)
