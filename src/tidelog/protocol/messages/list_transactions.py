"""ListTransactions (key 66): the transactions that a broker coordinates."""

from __future__ import annotations

from tidelog.protocol.message import Message
from tidelog.protocol.schema import Struct, array, int16, int32, int64, string


class ListTransactionsRequest(Message, key=66, versions="0-2", flexible="0+"):
    state_filters: list[str] = array("0+", "string")
    producer_id_filters: list[int] = array("0+", "int64")
    duration_filter: int = int64("1+", default=-1)
    transactional_id_pattern: str | None = string("2+", nullable="2+", default=None)


class ListTransactionsResponse(Message, key=66, versions="0-2", flexible="0+"):
    class TransactionState(Struct):
        transactional_id: str = string("0+")
        producer_id: int = int64("0+")
        transaction_state: str = string("0+")

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    unknown_state_filters: list[str] = array("0+", "string")
    transaction_states: list[ListTransactionsResponse.TransactionState] = array("0+")
