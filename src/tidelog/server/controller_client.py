"""ControllerClient: the requests of this broker itself to the active controller."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tidelog.controller.interface import NewTopic, TopicResult
from tidelog.errors import KafkaError, error_class
from tidelog.protocol.messages.allocate_producer_ids import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
)
from tidelog.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from tidelog.server.controller_channel import ControllerChannel


class ControllerClient:
    """Sends requests to the controller, also if it is this broker."""

    def __init__(
        self,
        channel: ControllerChannel,
        broker_id: int,
        broker_epoch: Callable[[], int],
        *,
        timeout_ms: int,
    ) -> None:
        self._channel = channel
        self._broker_id = broker_id
        self._broker_epoch = broker_epoch
        self._timeout_ms = timeout_ms

    async def create_topics(self, topics: Sequence[NewTopic]) -> list[TopicResult]:
        """Create topics for clients or coordinators. For -1, the controller uses its defaults."""
        request = CreateTopicsRequest(topics=[_creatable(topic) for topic in topics])
        request.timeout_ms = self._timeout_ms
        try:
            answer = await self._channel.call(request, CreateTopicsResponse)
        except KafkaError as error:
            return [TopicResult(topic.name, error=error) for topic in topics]
        return [_result(topic) for topic in answer.topics]

    async def allocate_producer_ids(self) -> range:
        """A block of producer ids. Raises KafkaError if the controller gives none."""
        request = AllocateProducerIdsRequest(broker_id=self._broker_id, broker_epoch=self._broker_epoch())
        answer = await self._channel.call(request, AllocateProducerIdsResponse)
        if answer.error_code:
            raise error_class(answer.error_code)("the controller gave no producer ids")
        return range(answer.producer_id_start, answer.producer_id_start + answer.producer_id_len)


def _creatable(topic: NewTopic) -> CreateTopicsRequest.CreatableTopic:
    return CreateTopicsRequest.CreatableTopic(
        name=topic.name,
        num_partitions=topic.num_partitions,
        replication_factor=topic.replication_factor,
        assignments=[
            CreateTopicsRequest.CreatableReplicaAssignment(
                partition_index=partition, broker_ids=list(broker_ids)
            )
            for partition, broker_ids in topic.assignments
        ],
        configs=[
            CreateTopicsRequest.CreatableTopicConfig(name=name, value=value) for name, value in topic.configs
        ],
    )


def _result(topic: CreateTopicsResponse.CreatableTopicResult) -> TopicResult:
    if topic.error_code:
        return TopicResult(topic.name, error=error_class(topic.error_code)(topic.error_message or ""))
    return TopicResult(
        topic.name,
        topic.topic_id,
        num_partitions=topic.num_partitions,
        replication_factor=topic.replication_factor,
    )
