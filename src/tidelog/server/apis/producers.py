"""DescribeProducers (61) v0: the producer state in the leader's log of a partition."""

from __future__ import annotations

from functools import partial

from tidelog.controller.validation import check_topic_name
from tidelog.errors import KafkaError
from tidelog.network.request import Request
from tidelog.protocol.messages.describe_producers import DescribeProducersRequest, DescribeProducersResponse
from tidelog.server.apis.api import Api
from tidelog.server.services import Services
from tidelog.slices import Slices, mapped


def describe_producers(
    services: Services, request: Request, body: DescribeProducersRequest
) -> Slices[DescribeProducersResponse]:
    # A partition that occurs twice is described once: the description is far larger than the name.
    once: dict[str, dict[int, None]] = {}
    for topic in body.topics:
        once.setdefault(topic.name, {}).update(dict.fromkeys(topic.partition_indexes))
    topics = []
    for name, indexes in once.items():
        partitions = yield from mapped(partial(_described, services, name), indexes)
        topics.append(DescribeProducersResponse.TopicResponse(name=name, partitions=partitions))
        yield
    return DescribeProducersResponse(topics=topics)


def _described(services: Services, topic: str, index: int) -> DescribeProducersResponse.PartitionResponse:
    answer = DescribeProducersResponse.PartitionResponse(partition_index=index)
    try:
        check_topic_name(topic)
        log = services.replicas.partition(topic, index).leader_log()
        answer.active_producers = [
            DescribeProducersResponse.ProducerState(
                producer_id=entry.producer_id,
                producer_epoch=entry.epoch,
                last_sequence=entry.last_sequence,
                last_timestamp=entry.last_timestamp,
                coordinator_epoch=entry.coordinator_epoch,
                current_txn_start_offset=-1 if entry.transaction_start is None else entry.transaction_start,
            )
            for entry in log.producers.entries.values()
        ]
    except KafkaError as error:
        answer.error_code = error.code
        answer.error_message = error.message
    return answer


APIS = (Api(61, 0, 0, describe_producers),)
