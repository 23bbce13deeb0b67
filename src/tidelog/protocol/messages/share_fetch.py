"""ShareFetch (key 78): acquire records of share partitions, and acknowledge earlier ones."""

from __future__ import annotations

from tidelog.protocol.message import Message
from tidelog.protocol.schema import (
    Struct,
    array,
    boolean,
    int8,
    int16,
    int32,
    int64,
    sent_records,
    string,
    struct,
    uuid,
)
from tidelog.protocol.wire import RecordData


class ShareFetchRequest(Message, key=78, versions="1-2", flexible="0+"):
    class AcknowledgementBatch(Struct):
        first_offset: int = int64("0+")
        last_offset: int = int64("0+")
        acknowledge_types: list[int] = array("0+", "int8")

    class FetchPartition(Struct):
        partition_index: int = int32("0+")
        partition_max_bytes: int = int32("0")
        acknowledgement_batches: list[ShareFetchRequest.AcknowledgementBatch] = array("0+")

    class FetchTopic(Struct):
        topic_id: bytes = uuid("0+")
        partitions: list[ShareFetchRequest.FetchPartition] = array("0+")

    class ForgottenTopic(Struct):
        topic_id: bytes = uuid("0+")
        partitions: list[int] = array("0+", "int32")

    group_id: str | None = string("0+", nullable="0+", default=None)
    member_id: str | None = string("0+", nullable="0+")
    share_session_epoch: int = int32("0+")
    max_wait_ms: int = int32("0+")
    min_bytes: int = int32("0+")
    max_bytes: int = int32("0+", default=0x7FFFFFFF)
    max_records: int = int32("1+")
    batch_size: int = int32("1+")
    share_acquire_mode: int = int8("2+", ignorable=True)
    is_renew_ack: bool = boolean("2+")
    topics: list[ShareFetchRequest.FetchTopic] = array("0+")
    forgotten_topics_data: list[ShareFetchRequest.ForgottenTopic] = array("0+")


class ShareFetchResponse(Message, key=78, versions="1-2", flexible="0+"):
    class LeaderIdAndEpoch(Struct):
        leader_id: int = int32("0+")
        leader_epoch: int = int32("0+")

    class AcquiredRecords(Struct):
        first_offset: int = int64("0+")
        last_offset: int = int64("0+")
        delivery_count: int = int16("0+")

    class PartitionData(Struct):
        partition_index: int = int32("0+")
        error_code: int = int16("0+")
        error_message: str | None = string("0+", nullable="0+", default=None)
        acknowledge_error_code: int = int16("0+")
        acknowledge_error_message: str | None = string("0+", nullable="0+", default=None)
        current_leader: ShareFetchResponse.LeaderIdAndEpoch = struct("0+")
        records: RecordData | None = sent_records("0+", nullable="0")
        acquired_records: list[ShareFetchResponse.AcquiredRecords] = array("0+")

    class ShareFetchableTopicResponse(Struct):
        topic_id: bytes = uuid("0+")
        partitions: list[ShareFetchResponse.PartitionData] = array("0+")

    class NodeEndpoint(Struct):
        node_id: int = int32("0+")
        host: str = string("0+")
        port: int = int32("0+")
        rack: str | None = string("0+", nullable="0+", default=None)

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", default=None)
    acquisition_lock_timeout_ms: int = int32("1+")
    responses: list[ShareFetchResponse.ShareFetchableTopicResponse] = array("0+")
    node_endpoints: list[ShareFetchResponse.NodeEndpoint] = array("0+")
