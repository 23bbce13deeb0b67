"""DescribeQuorum (key 55): state of the metadata quorum."""

from __future__ import annotations

from tidelog.protocol.message import Message
from tidelog.protocol.schema import Struct, array, int16, int32, int64, string, uint16, uuid


class DescribeQuorumRequest(Message, key=55, versions="0-2", flexible="0+"):
    class PartitionData(Struct):
        partition_index: int = int32("0+")

    class TopicData(Struct):
        topic_name: str = string("0+")
        partitions: list[DescribeQuorumRequest.PartitionData] = array("0+")

    topics: list[DescribeQuorumRequest.TopicData] = array("0+")


class DescribeQuorumResponse(Message, key=55, versions="0-2", flexible="0+"):
    class PartitionData(Struct):
        partition_index: int = int32("0+")
        error_code: int = int16("0+")
        error_message: str | None = string("2+", nullable="2+", ignorable=True)
        leader_id: int = int32("0+")
        leader_epoch: int = int32("0+")
        high_watermark: int = int64("0+")
        current_voters: list[DescribeQuorumResponse.ReplicaState] = array("0+")
        observers: list[DescribeQuorumResponse.ReplicaState] = array("0+")

    class TopicData(Struct):
        topic_name: str = string("0+")
        partitions: list[DescribeQuorumResponse.PartitionData] = array("0+")

    class Listener(Struct):
        name: str = string("2+")
        host: str = string("2+")
        port: int = uint16("2+")

    class Node(Struct):
        node_id: int = int32("2+")
        listeners: list[DescribeQuorumResponse.Listener] = array("2+")

    class ReplicaState(Struct):
        replica_id: int = int32("0+")
        replica_directory_id: bytes = uuid("2+")
        log_end_offset: int = int64("0+")
        last_fetch_timestamp: int = int64("1+", default=-1, ignorable=True)
        last_caught_up_timestamp: int = int64("1+", default=-1, ignorable=True)

    error_code: int = int16("0+")
    error_message: str | None = string("2+", nullable="2+", ignorable=True)
    topics: list[DescribeQuorumResponse.TopicData] = array("0+")
    nodes: list[DescribeQuorumResponse.Node] = array("2+")
