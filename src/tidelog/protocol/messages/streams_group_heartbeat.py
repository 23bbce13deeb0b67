"""StreamsGroupHeartbeat (key 88): be a member of a streams group."""

from __future__ import annotations

from tidelog.protocol.message import Message
from tidelog.protocol.schema import Struct, array, boolean, int8, int16, int32, int64, string, struct, uint16


class StreamsGroupHeartbeatRequest(Message, key=88, versions="0", flexible="0+"):
    class CopartitionGroup(Struct):
        source_topics: list[int] = array("0+", "int16")
        source_topic_regex: list[int] = array("0+", "int16")
        repartition_source_topics: list[int] = array("0+", "int16")

    class Subtopology(Struct):
        subtopology_id: str = string("0+")
        source_topics: list[str] = array("0+", "string")
        source_topic_regex: list[str] = array("0+", "string")
        state_changelog_topics: list[StreamsGroupHeartbeatRequest.TopicInfo] = array("0+")
        repartition_sink_topics: list[str] = array("0+", "string")
        repartition_source_topics: list[StreamsGroupHeartbeatRequest.TopicInfo] = array("0+")
        copartition_groups: list[StreamsGroupHeartbeatRequest.CopartitionGroup] = array("0+")

    class Topology(Struct):
        epoch: int = int32("0+")
        subtopologies: list[StreamsGroupHeartbeatRequest.Subtopology] = array("0+")

    class KeyValue(Struct):
        key: str = string("0+")
        value: str = string("0+")

    class TopicInfo(Struct):
        name: str = string("0+")
        partitions: int = int32("0+")
        replication_factor: int = int16("0+")
        topic_configs: list[StreamsGroupHeartbeatRequest.KeyValue] = array("0+")

    class Endpoint(Struct):
        host: str = string("0+")
        port: int = uint16("0+")

    class TaskOffset(Struct):
        subtopology_id: str = string("0+")
        partition: int = int32("0+")
        offset: int = int64("0+")

    class TaskIds(Struct):
        subtopology_id: str = string("0+")
        partitions: list[int] = array("0+", "int32")

    group_id: str = string("0+")
    member_id: str = string("0+")
    member_epoch: int = int32("0+")
    endpoint_information_epoch: int = int32("0+")
    instance_id: str | None = string("0+", nullable="0+", default=None)
    rack_id: str | None = string("0+", nullable="0+", default=None)
    rebalance_timeout_ms: int = int32("0+", default=-1)
    topology: StreamsGroupHeartbeatRequest.Topology | None = struct("0+", nullable="0+")
    active_tasks: list[StreamsGroupHeartbeatRequest.TaskIds] | None = array("0+", nullable="0+", default=None)
    standby_tasks: list[StreamsGroupHeartbeatRequest.TaskIds] | None = array(
        "0+", nullable="0+", default=None
    )
    warmup_tasks: list[StreamsGroupHeartbeatRequest.TaskIds] | None = array("0+", nullable="0+", default=None)
    process_id: str | None = string("0+", nullable="0+", default=None)
    user_endpoint: StreamsGroupHeartbeatRequest.Endpoint | None = struct("0+", nullable="0+")
    client_tags: list[StreamsGroupHeartbeatRequest.KeyValue] | None = array("0+", nullable="0+", default=None)
    task_offsets: list[StreamsGroupHeartbeatRequest.TaskOffset] | None = array(
        "0+", nullable="0+", default=None
    )
    task_end_offsets: list[StreamsGroupHeartbeatRequest.TaskOffset] | None = array(
        "0+", nullable="0+", default=None
    )
    shutdown_application: bool = boolean("0+")


class StreamsGroupHeartbeatResponse(Message, key=88, versions="0", flexible="0+"):
    class EndpointToPartitions(Struct):
        user_endpoint: StreamsGroupHeartbeatResponse.Endpoint = struct("0+")
        active_partitions: list[StreamsGroupHeartbeatResponse.TopicPartition] = array("0+")
        standby_partitions: list[StreamsGroupHeartbeatResponse.TopicPartition] = array("0+")

    class Status(Struct):
        status_code: int = int8("0+")
        status_detail: str = string("0+")

    class TopicPartition(Struct):
        topic: str = string("0+")
        partitions: list[int] = array("0+", "int32")

    class TaskIds(Struct):
        subtopology_id: str = string("0+")
        partitions: list[int] = array("0+", "int32")

    class Endpoint(Struct):
        host: str = string("0+")
        port: int = uint16("0+")

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", default=None)
    member_id: str = string("0+")
    member_epoch: int = int32("0+")
    heartbeat_interval_ms: int = int32("0+")
    acceptable_recovery_lag: int = int32("0+")
    task_offset_interval_ms: int = int32("0+")
    status: list[StreamsGroupHeartbeatResponse.Status] | None = array("0+", nullable="0+")
    active_tasks: list[StreamsGroupHeartbeatResponse.TaskIds] | None = array(
        "0+", nullable="0+", default=None
    )
    standby_tasks: list[StreamsGroupHeartbeatResponse.TaskIds] | None = array(
        "0+", nullable="0+", default=None
    )
    warmup_tasks: list[StreamsGroupHeartbeatResponse.TaskIds] | None = array(
        "0+", nullable="0+", default=None
    )
    endpoint_information_epoch: int = int32("0+")
    partitions_by_user_endpoint: list[StreamsGroupHeartbeatResponse.EndpointToPartitions] | None = array(
        "0+", nullable="0+", default=None
    )
