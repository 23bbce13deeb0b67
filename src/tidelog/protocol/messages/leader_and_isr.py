"""LeaderAndIsr (key 4): a controller in ZooKeeper mode tells a broker what it leads and follows."""

from __future__ import annotations

from tidelog.protocol.message import Message
from tidelog.protocol.schema import Struct, array, boolean, int8, int16, int32, int64, string, uuid


class LeaderAndIsrRequest(Message, key=4, versions="0-7", flexible="4+"):
    class LeaderAndIsrTopicState(Struct):
        topic_name: str = string("2+")
        topic_id: bytes = uuid("5+", ignorable=True)
        partition_states: list[LeaderAndIsrRequest.LeaderAndIsrPartitionState] = array("2+")

    class LeaderAndIsrLiveLeader(Struct):
        broker_id: int = int32("0+")
        host_name: str = string("0+")
        port: int = int32("0+")

    class LeaderAndIsrPartitionState(Struct):
        topic_name: str = string("0-1", ignorable=True)
        partition_index: int = int32("0+")
        controller_epoch: int = int32("0+")
        leader: int = int32("0+")
        leader_epoch: int = int32("0+")
        isr: list[int] = array("0+", "int32")
        partition_epoch: int = int32("0+")
        replicas: list[int] = array("0+", "int32")
        adding_replicas: list[int] = array("3+", "int32", ignorable=True)
        removing_replicas: list[int] = array("3+", "int32", ignorable=True)
        is_new: bool = boolean("1+", ignorable=True)
        leader_recovery_state: int = int8("6+")

    controller_id: int = int32("0+")
    is_kraft_controller: bool = boolean("7+", json="isKRaftController")
    controller_epoch: int = int32("0+")
    broker_epoch: int = int64("2+", default=-1, ignorable=True)
    type: int = int8("5+")
    ungrouped_partition_states: list[LeaderAndIsrRequest.LeaderAndIsrPartitionState] = array("0-1")
    topic_states: list[LeaderAndIsrRequest.LeaderAndIsrTopicState] = array("2+")
    live_leaders: list[LeaderAndIsrRequest.LeaderAndIsrLiveLeader] = array("0+")


class LeaderAndIsrResponse(Message, key=4, versions="0-7", flexible="4+"):
    class LeaderAndIsrTopicError(Struct):
        topic_id: bytes = uuid("5+")
        partition_errors: list[LeaderAndIsrResponse.LeaderAndIsrPartitionError] = array("5+")

    class LeaderAndIsrPartitionError(Struct):
        topic_name: str = string("0-4", ignorable=True)
        partition_index: int = int32("0+")
        error_code: int = int16("0+")

    error_code: int = int16("0+")
    partition_errors: list[LeaderAndIsrResponse.LeaderAndIsrPartitionError] = array("0-4")
    topics: list[LeaderAndIsrResponse.LeaderAndIsrTopicError] = array("5+")
