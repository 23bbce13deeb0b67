"""DescribeProducers (key 61): the active producers of partitions."""

from __future__ import annotations

from tidelog.protocol.message import Message
from tidelog.protocol.schema import Struct, array, int16, int32, int64, string


class DescribeProducersRequest(Message, key=61, versions="0", flexible="0+"):
    class TopicRequest(Struct):
        name: str = string("0+")
        partition_indexes: list[int] = array("0+", "int32")

    topics: list[DescribeProducersRequest.TopicRequest] = array("0+")


class DescribeProducersResponse(Message, key=61, versions="0", flexible="0+"):
    class ProducerState(Struct):
        producer_id: int = int64("0+")
        producer_epoch: int = int32("0+")
        last_sequence: int = int32("0+", default=-1)
        last_timestamp: int = int64("0+", default=-1)
        coordinator_epoch: int = int32("0+")
        current_txn_start_offset: int = int64("0+", default=-1)

    class PartitionResponse(Struct):
        partition_index: int = int32("0+")
        error_code: int = int16("0+")
        error_message: str | None = string("0+", nullable="0+", default=None)
        active_producers: list[DescribeProducersResponse.ProducerState] = array("0+")

    class TopicResponse(Struct):
        name: str = string("0+")
        partitions: list[DescribeProducersResponse.PartitionResponse] = array("0+")

    throttle_time_ms: int = int32("0+")
    topics: list[DescribeProducersResponse.TopicResponse] = array("0+")
