"""InitProducerId (key 22): get a producer id and epoch, and fence older producers of a transactional id."""

from __future__ import annotations

from tidelog.protocol.message import Message
from tidelog.protocol.schema import boolean, int16, int32, int64, string


class InitProducerIdRequest(Message, key=22, versions="0-6", flexible="2+"):
    transactional_id: str | None = string("0+", nullable="0+")
    transaction_timeout_ms: int = int32("0+")
    producer_id: int = int64("3+", default=-1)
    producer_epoch: int = int16("3+", default=-1)
    enable_2pc: bool = boolean("6+", json="enable2Pc")
    keep_prepared_txn: bool = boolean("6+")


class InitProducerIdResponse(Message, key=22, versions="0-6", flexible="2+"):
    throttle_time_ms: int = int32("0+", ignorable=True)
    error_code: int = int16("0+")
    producer_id: int = int64("0+", default=-1)
    producer_epoch: int = int16("0+")
    ongoing_txn_producer_id: int = int64("6+", default=-1)
    ongoing_txn_producer_epoch: int = int16("6+", default=-1)
