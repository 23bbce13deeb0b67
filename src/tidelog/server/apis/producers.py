"""DescribeProducers (61) v0: what the leader of a partition remembers of each producer."""

from __future__ import annotations

from tidelog.controller.validation import check_topic_name
from tidelog.errors import KafkaError
from tidelog.network.request import Request
from tidelog.protocol.messages.describe_producers import DescribeProducersRequest, DescribeProducersResponse
from tidelog.server.apis.api import Api
from tidelog.server.services import Services


def describe_producers(
    services: Services, request: Request, body: DescribeProducersRequest
) -> DescribeProducersResponse:
    topics = []
    for topic in body.topics:
        partitions = []
        for index in topic.partition_indexes:
            answer = DescribeProducersResponse.PartitionResponse(partition_index=index)
            try:
                check_topic_name(topic.name)
                log = services.replicas.partition(topic.name, index).leader_log()
                answer.active_producers = [
                    DescribeProducersResponse.ProducerState(
                        producer_id=entry.producer_id,
                        producer_epoch=entry.epoch,
                        last_sequence=entry.last_sequence,
                        last_timestamp=entry.last_timestamp,
                        coordinator_epoch=entry.coordinator_epoch,
                        current_txn_start_offset=(
                            -1 if entry.transaction_start is None else entry.transaction_start
                        ),
                    )
                    for entry in log.producers.entries.values()
                ]
            except KafkaError as error:
                answer.error_code = error.code
                answer.error_message = error.message
            partitions.append(answer)
        topics.append(DescribeProducersResponse.TopicResponse(name=topic.name, partitions=partitions))
    return DescribeProducersResponse(topics=topics)


APIS = (Api(61, 0, 0, describe_producers),)
