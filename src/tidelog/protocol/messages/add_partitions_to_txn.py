"""AddPartitionsToTxn (key 24): make partitions part of a transaction, or verify that they are."""

from __future__ import annotations

from tidelog.protocol.message import Message
from tidelog.protocol.schema import Struct, array, boolean, int16, int32, int64, string


class AddPartitionsToTxnRequest(Message, key=24, versions="0-5", flexible="3+"):
    class AddPartitionsToTxnTransaction(Struct):
        transactional_id: str = string("4+")
        producer_id: int = int64("4+")
        producer_epoch: int = int16("4+")
        verify_only: bool = boolean("4+")
        topics: list[AddPartitionsToTxnRequest.AddPartitionsToTxnTopic] = array("4+")

    class AddPartitionsToTxnTopic(Struct):
        name: str = string("0+")
        partitions: list[int] = array("0+", "int32")

    transactions: list[AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction] = array("4+")
    v3_and_below_transactional_id: str = string("0-3")
    v3_and_below_producer_id: int = int64("0-3")
    v3_and_below_producer_epoch: int = int16("0-3")
    v3_and_below_topics: list[AddPartitionsToTxnRequest.AddPartitionsToTxnTopic] = array("0-3")


class AddPartitionsToTxnResponse(Message, key=24, versions="0-5", flexible="3+"):
    class AddPartitionsToTxnResult(Struct):
        transactional_id: str = string("4+")
        topic_results: list[AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult] = array("4+")

    class AddPartitionsToTxnTopicResult(Struct):
        name: str = string("0+")
        results_by_partition: list[AddPartitionsToTxnResponse.AddPartitionsToTxnPartitionResult] = array("0+")

    class AddPartitionsToTxnPartitionResult(Struct):
        partition_index: int = int32("0+")
        partition_error_code: int = int16("0+")

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("4+", ignorable=True)
    results_by_transaction: list[AddPartitionsToTxnResponse.AddPartitionsToTxnResult] = array("4+")
    results_by_topic_v3_and_below: list[AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult] = array(
        "0-3"
    )
