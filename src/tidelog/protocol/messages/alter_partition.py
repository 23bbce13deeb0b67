"""AlterPartition (key 56): a leader asks the controller to change the ISR of partitions.

Kafka 4 has dropped versions 0 and 1, which name topics; Kafka 3.9 serves them.
"""

from __future__ import annotations

from tidelog.protocol.message import Message
from tidelog.protocol.schema import Struct, array, int8, int16, int32, int64, string, uuid


class AlterPartitionRequest(Message, key=56, versions="0-3", flexible="0+"):
    class BrokerState(Struct):
        broker_id: int = int32("3+")
        broker_epoch: int = int64("3+", default=-1)

    class PartitionData(Struct):
        partition_index: int = int32("0+")
        leader_epoch: int = int32("0+")
        new_isr: list[int] = array("0-2", "int32")
        new_isr_with_epochs: list[AlterPartitionRequest.BrokerState] = array("3+")
        leader_recovery_state: int = int8("1+")
        partition_epoch: int = int32("0+")

    class TopicData(Struct):
        topic_name: str = string("0-1", ignorable=True)
        topic_id: bytes = uuid("2+", ignorable=True)
        partitions: list[AlterPartitionRequest.PartitionData] = array("0+")

    broker_id: int = int32("0+")
    broker_epoch: int = int64("0+", default=-1)
    topics: list[AlterPartitionRequest.TopicData] = array("0+")


class AlterPartitionResponse(Message, key=56, versions="0-3", flexible="0+"):
    class PartitionData(Struct):
        partition_index: int = int32("0+")
        error_code: int = int16("0+")
        leader_id: int = int32("0+")
        leader_epoch: int = int32("0+")
        isr: list[int] = array("0+", "int32")
        leader_recovery_state: int = int8("1+", ignorable=True)
        partition_epoch: int = int32("0+")

    class TopicData(Struct):
        topic_name: str = string("0-1", ignorable=True)
        topic_id: bytes = uuid("2+", ignorable=True)
        partitions: list[AlterPartitionResponse.PartitionData] = array("0+")

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    topics: list[AlterPartitionResponse.TopicData] = array("0+")
