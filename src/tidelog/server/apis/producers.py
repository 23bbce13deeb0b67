"""DescribeProducers (61) v0: the producer state in the leader's log of a partition. A topic needs READ."""

from __future__ import annotations

from functools import partial

from tidelog.controller.validation import check_topic_name
from tidelog.errors import KafkaError, TopicAuthorizationFailed
from tidelog.network.request import Request
from tidelog.protocol.messages.describe_producers import DescribeProducersRequest, DescribeProducersResponse
from tidelog.server.apis.api import Api
from tidelog.server.apis.authorization import READ, TOPIC, allowed_in_slices
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
    allowed = None
    if services.authorizer is not None:
        allowed = yield from allowed_in_slices(services, request, READ, TOPIC, once)
    for name, indexes in once.items():
        is_denied = allowed is not None and name not in allowed
        partitions = yield from mapped(partial(_denied if is_denied else _described, services, name), indexes)
        topics.append(DescribeProducersResponse.TopicResponse(name=name, partitions=partitions))
        yield
    return DescribeProducersResponse(topics=topics)


def _denied(services: Services, topic: str, index: int) -> DescribeProducersResponse.PartitionResponse:
    return DescribeProducersResponse.PartitionResponse(
        partition_index=index, error_code=TopicAuthorizationFailed.code, error_message=None
    )


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


APIS = (Api(61, 0, 0, describe_producers, access=("TOPIC READ",)),)
