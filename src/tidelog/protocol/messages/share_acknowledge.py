"""ShareAcknowledge (key 79): acknowledge records of share partitions."""

from __future__ import annotations

from tidelog.protocol.message import Message
from tidelog.protocol.schema import Struct, array, boolean, int16, int32, int64, string, struct, uuid


class ShareAcknowledgeRequest(Message, key=79, versions="1-2", flexible="0+"):
    class AcknowledgementBatch(Struct):
        first_offset: int = int64("0+")
        last_offset: int = int64("0+")
        acknowledge_types: list[int] = array("0+", "int8")

    class AcknowledgePartition(Struct):
        partition_index: int = int32("0+")
        acknowledgement_batches: list[ShareAcknowledgeRequest.AcknowledgementBatch] = array("0+")

    class AcknowledgeTopic(Struct):
        topic_id: bytes = uuid("0+")
        partitions: list[ShareAcknowledgeRequest.AcknowledgePartition] = array("0+")

    group_id: str | None = string("0+", nullable="0+", default=None)
    member_id: str | None = string("0+", nullable="0+")
    share_session_epoch: int = int32("0+")
    is_renew_ack: bool = boolean("2+")
    topics: list[ShareAcknowledgeRequest.AcknowledgeTopic] = array("0+")


class ShareAcknowledgeResponse(Message, key=79, versions="1-2", flexible="0+"):
    class LeaderIdAndEpoch(Struct):
        leader_id: int = int32("0+")
        leader_epoch: int = int32("0+")

    class PartitionData(Struct):
        partition_index: int = int32("0+")
        error_code: int = int16("0+")
        error_message: str | None = string("0+", nullable="0+", default=None)
        current_leader: ShareAcknowledgeResponse.LeaderIdAndEpoch = struct("0+")

    class ShareAcknowledgeTopicResponse(Struct):
        topic_id: bytes = uuid("0+")
        partitions: list[ShareAcknowledgeResponse.PartitionData] = array("0+")

    class NodeEndpoint(Struct):
        node_id: int = int32("0+")
        host: str = string("0+")
        port: int = int32("0+")
        rack: str | None = string("0+", nullable="0+", default=None)

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", default=None)
    acquisition_lock_timeout_ms: int = int32("2+", ignorable=True)
    responses: list[ShareAcknowledgeResponse.ShareAcknowledgeTopicResponse] = array("0+")
    node_endpoints: list[ShareAcknowledgeResponse.NodeEndpoint] = array("0+")
