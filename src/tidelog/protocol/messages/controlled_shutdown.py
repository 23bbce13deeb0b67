"""ControlledShutdown (key 7): a broker in ZooKeeper mode asks to hand over its leaderships when it stops."""

from __future__ import annotations

from tidelog.protocol.message import Message
from tidelog.protocol.schema import Struct, array, int16, int32, int64, string


class ControlledShutdownRequest(Message, key=7, versions="0-3", flexible="3+"):
    broker_id: int = int32("0+")
    broker_epoch: int = int64("2+", default=-1, ignorable=True)


class ControlledShutdownResponse(Message, key=7, versions="0-3", flexible="3+"):
    class RemainingPartition(Struct):
        topic_name: str = string("0+")
        partition_index: int = int32("0+")

    error_code: int = int16("0+")
    remaining_partitions: list[ControlledShutdownResponse.RemainingPartition] = array("0+")
