"""WriteTxnMarkers (key 27): a transaction coordinator has the end of a transaction written to partitions."""

from __future__ import annotations

from tidelog.protocol.message import Message
from tidelog.protocol.schema import Struct, array, boolean, int8, int16, int32, int64, string


class WriteTxnMarkersRequest(Message, key=27, versions="1-2", flexible="1+"):
    class WritableTxnMarkerTopic(Struct):
        name: str = string("0+")
        partition_indexes: list[int] = array("0+", "int32")

    class WritableTxnMarker(Struct):
        producer_id: int = int64("0+")
        producer_epoch: int = int16("0+")
        transaction_result: bool = boolean("0+")
        topics: list[WriteTxnMarkersRequest.WritableTxnMarkerTopic] = array("0+")
        coordinator_epoch: int = int32("0+")
        transaction_version: int = int8("2+", ignorable=True)

    markers: list[WriteTxnMarkersRequest.WritableTxnMarker] = array("0+")


class WriteTxnMarkersResponse(Message, key=27, versions="1-2", flexible="1+"):
    class WritableTxnMarkerPartitionResult(Struct):
        partition_index: int = int32("0+")
        error_code: int = int16("0+")

    class WritableTxnMarkerTopicResult(Struct):
        name: str = string("0+")
        partitions: list[WriteTxnMarkersResponse.WritableTxnMarkerPartitionResult] = array("0+")

    class WritableTxnMarkerResult(Struct):
        producer_id: int = int64("0+")
        topics: list[WriteTxnMarkersResponse.WritableTxnMarkerTopicResult] = array("0+")

    markers: list[WriteTxnMarkersResponse.WritableTxnMarkerResult] = array("0+")
