"""DescribeTransactions (key 65): state of transactional ids."""

from __future__ import annotations

from tidelog.protocol.message import Message
from tidelog.protocol.schema import Struct, array, int16, int32, int64, string


class DescribeTransactionsRequest(Message, key=65, versions="0", flexible="0+"):
    transactional_ids: list[str] = array("0+", "string")


class DescribeTransactionsResponse(Message, key=65, versions="0", flexible="0+"):
    class TopicData(Struct):
        topic: str = string("0+")
        partitions: list[int] = array("0+", "int32")

    class TransactionState(Struct):
        error_code: int = int16("0+")
        transactional_id: str = string("0+")
        transaction_state: str = string("0+")
        transaction_timeout_ms: int = int32("0+")
        transaction_start_time_ms: int = int64("0+")
        producer_id: int = int64("0+")
        producer_epoch: int = int16("0+")
        topics: list[DescribeTransactionsResponse.TopicData] = array("0+")

    throttle_time_ms: int = int32("0+")
    transaction_states: list[DescribeTransactionsResponse.TransactionState] = array("0+")
