"""Produce (key 0): append record batches to partitions, with or without waiting for the replicas."""

from __future__ import annotations

from tidelog.protocol.message import Message
from tidelog.protocol.schema import Struct, array, int16, int32, int64, received_records, string, struct, uuid
from tidelog.protocol.wire import Buffer


class ProduceRequest(Message, key=0, versions="3-13", flexible="9+"):
    class PartitionProduceData(Struct):
        index: int = int32("0+")
        records: Buffer | None = received_records("0+", nullable="0+")

    class TopicProduceData(Struct):
        name: str = string("0-12", ignorable=True)
        topic_id: bytes = uuid("13+", ignorable=True)
        partition_data: list[ProduceRequest.PartitionProduceData] = array("0+")

    transactional_id: str | None = string("3+", nullable="3+", default=None)
    acks: int = int16("0+")
    timeout_ms: int = int32("0+")
    topic_data: list[ProduceRequest.TopicProduceData] = array("0+")


class ProduceResponse(Message, key=0, versions="3-13", flexible="9+"):
    class BatchIndexAndErrorMessage(Struct):
        batch_index: int = int32("8+")
        batch_index_error_message: str | None = string("8+", nullable="8+", default=None)

    class LeaderIdAndEpoch(Struct):
        leader_id: int = int32("10+", default=-1)
        leader_epoch: int = int32("10+", default=-1)

    class PartitionProduceResponse(Struct):
        index: int = int32("0+")
        error_code: int = int16("0+")
        base_offset: int = int64("0+")
        log_append_time_ms: int = int64("2+", default=-1, ignorable=True)
        log_start_offset: int = int64("5+", default=-1, ignorable=True)
        record_errors: list[ProduceResponse.BatchIndexAndErrorMessage] = array("8+", ignorable=True)
        error_message: str | None = string("8+", nullable="8+", default=None, ignorable=True)
        current_leader: ProduceResponse.LeaderIdAndEpoch | None = struct("10+", tag=0)

    class TopicProduceResponse(Struct):
        name: str = string("0-12", ignorable=True)
        topic_id: bytes = uuid("13+", ignorable=True)
        partition_responses: list[ProduceResponse.PartitionProduceResponse] = array("0+")

    class NodeEndpoint(Struct):
        node_id: int = int32("10+")
        host: str = string("10+")
        port: int = int32("10+")
        rack: str | None = string("10+", nullable="10+", default=None)

    responses: list[ProduceResponse.TopicProduceResponse] = array("0+")
    throttle_time_ms: int = int32("1+", ignorable=True)
    node_endpoints: list[ProduceResponse.NodeEndpoint] = array("10+", tag=0)
