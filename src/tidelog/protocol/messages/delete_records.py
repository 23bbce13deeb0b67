"""DeleteRecords (key 21): move the log start offset of partitions forward."""

from __future__ import annotations

from tidelog.protocol.message import Message
from tidelog.protocol.schema import Struct, array, int16, int32, int64, string


class DeleteRecordsRequest(Message, key=21, versions="0-2", flexible="2+"):
    class DeleteRecordsPartition(Struct):
        partition_index: int = int32("0+")
        offset: int = int64("0+")

    class DeleteRecordsTopic(Struct):
        name: str = string("0+")
        partitions: list[DeleteRecordsRequest.DeleteRecordsPartition] = array("0+")

    topics: list[DeleteRecordsRequest.DeleteRecordsTopic] = array("0+")
    timeout_ms: int = int32("0+")


class DeleteRecordsResponse(Message, key=21, versions="0-2", flexible="2+"):
    class DeleteRecordsPartitionResult(Struct):
        partition_index: int = int32("0+")
        low_watermark: int = int64("0+")
        error_code: int = int16("0+")

    class DeleteRecordsTopicResult(Struct):
        name: str = string("0+")
        partitions: list[DeleteRecordsResponse.DeleteRecordsPartitionResult] = array("0+")

    throttle_time_ms: int = int32("0+")
    topics: list[DeleteRecordsResponse.DeleteRecordsTopicResult] = array("0+")
