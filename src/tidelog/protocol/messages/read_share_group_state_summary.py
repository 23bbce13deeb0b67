"""ReadShareGroupStateSummary (key 87): the start offsets of share partitions."""

from __future__ import annotations

from tidelog.protocol.message import Message
from tidelog.protocol.schema import Struct, array, int16, int32, int64, string, uuid


class ReadShareGroupStateSummaryRequest(Message, key=87, versions="0-1", flexible="0+"):
    class PartitionData(Struct):
        partition: int = int32("0+")
        leader_epoch: int = int32("0+")

    class ReadStateSummaryData(Struct):
        topic_id: bytes = uuid("0+")
        partitions: list[ReadShareGroupStateSummaryRequest.PartitionData] = array("0+")

    group_id: str = string("0+")
    topics: list[ReadShareGroupStateSummaryRequest.ReadStateSummaryData] = array("0+")


class ReadShareGroupStateSummaryResponse(Message, key=87, versions="0-1", flexible="0+"):
    class PartitionResult(Struct):
        partition: int = int32("0+")
        error_code: int = int16("0+")
        error_message: str | None = string("0+", nullable="0+", default=None)
        state_epoch: int = int32("0+")
        leader_epoch: int = int32("0+")
        start_offset: int = int64("0+")
        delivery_complete_count: int = int32("1+", default=-1, ignorable=True)

    class ReadStateSummaryResult(Struct):
        topic_id: bytes = uuid("0+")
        partitions: list[ReadShareGroupStateSummaryResponse.PartitionResult] = array("0+")

    results: list[ReadShareGroupStateSummaryResponse.ReadStateSummaryResult] = array("0+")
