"""InitProducerId (22) v0-5 and DescribeProducers (61) v0.

InitProducerId gives an idempotent producer its id, epoch 0, out of blocks that are reserved in the tree.
- With a transactional id it is COORDINATOR_NOT_AVAILABLE: transactions are not served yet, and the empty
  id is INVALID_REQUEST.
- An id without an epoch, or an epoch without an id (v3), is INVALID_REQUEST.
DescribeProducers tells what the leader of a partition remembers of each producer.
"""

from __future__ import annotations

from tidelog.errors import KafkaError
from tidelog.network.request import Request
from tidelog.protocol.messages.describe_producers import DescribeProducersRequest, DescribeProducersResponse
from tidelog.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tidelog.server.apis.api import Api
from tidelog.server.services import Services


async def init_producer_id(
    services: Services, request: Request, body: InitProducerIdRequest
) -> InitProducerIdResponse:
    if body.transactional_id == "" or (body.producer_id < 0) != (body.producer_epoch < 0):
        return InitProducerIdResponse(error_code=42, producer_id=-1, producer_epoch=-1)
    if body.transactional_id is not None:
        return InitProducerIdResponse(error_code=15, producer_id=-1, producer_epoch=-1)
    try:
        producer_id = await services.producer_ids.next()
    except KafkaError as error:
        return InitProducerIdResponse(error_code=error.code, producer_id=-1, producer_epoch=-1)
    return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)


def describe_producers(
    services: Services, request: Request, body: DescribeProducersRequest
) -> DescribeProducersResponse:
    topics = []
    for topic in body.topics:
        partitions = []
        for index in topic.partition_indexes:
            answer = DescribeProducersResponse.PartitionResponse(partition_index=index)
            try:
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


APIS = (
    Api(22, 0, 5, init_producer_id),
    Api(61, 0, 0, describe_producers),
)
