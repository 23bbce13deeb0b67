"""ElectLeaders (key 43): elect preferred or any leaders of partitions."""

from __future__ import annotations

from tidelog.protocol.message import Message
from tidelog.protocol.schema import Struct, array, int8, int16, int32, string


class ElectLeadersRequest(Message, key=43, versions="0-2", flexible="2+"):
    class TopicPartitions(Struct):
        topic: str = string("0+")
        partitions: list[int] = array("0+", "int32")

    election_type: int = int8("1+")
    topic_partitions: list[ElectLeadersRequest.TopicPartitions] | None = array("0+", nullable="0+")
    timeout_ms: int = int32("0+", default=60000)


class ElectLeadersResponse(Message, key=43, versions="0-2", flexible="2+"):
    class PartitionResult(Struct):
        partition_id: int = int32("0+")
        error_code: int = int16("0+")
        error_message: str | None = string("0+", nullable="0+")

    class ReplicaElectionResult(Struct):
        topic: str = string("0+")
        partition_result: list[ElectLeadersResponse.PartitionResult] = array("0+")

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("1+")
    replica_election_results: list[ElectLeadersResponse.ReplicaElectionResult] = array("0+")
