"""StreamsGroupDescribe (key 89): state and members of streams groups."""

from __future__ import annotations

from tidelog.protocol.message import Message
from tidelog.protocol.schema import Struct, array, boolean, int16, int32, int64, string, struct, uint16


class StreamsGroupDescribeRequest(Message, key=89, versions="0", flexible="0+"):
    group_ids: list[str] = array("0+", "string")
    include_authorized_operations: bool = boolean("0+")


class StreamsGroupDescribeResponse(Message, key=89, versions="0", flexible="0+"):
    class Subtopology(Struct):
        subtopology_id: str = string("0+")
        source_topics: list[str] = array("0+", "string")
        repartition_sink_topics: list[str] = array("0+", "string")
        state_changelog_topics: list[StreamsGroupDescribeResponse.TopicInfo] = array("0+")
        repartition_source_topics: list[StreamsGroupDescribeResponse.TopicInfo] = array("0+")

    class Topology(Struct):
        epoch: int = int32("0+")
        subtopologies: list[StreamsGroupDescribeResponse.Subtopology] | None = array(
            "0+", nullable="0+", default=None
        )

    class Member(Struct):
        member_id: str = string("0+")
        member_epoch: int = int32("0+")
        instance_id: str | None = string("0+", nullable="0+", default=None)
        rack_id: str | None = string("0+", nullable="0+", default=None)
        client_id: str = string("0+")
        client_host: str = string("0+")
        topology_epoch: int = int32("0+")
        process_id: str = string("0+")
        user_endpoint: StreamsGroupDescribeResponse.Endpoint | None = struct("0+", nullable="0+")
        client_tags: list[StreamsGroupDescribeResponse.KeyValue] = array("0+")
        task_offsets: list[StreamsGroupDescribeResponse.TaskOffset] = array("0+")
        task_end_offsets: list[StreamsGroupDescribeResponse.TaskOffset] = array("0+")
        assignment: StreamsGroupDescribeResponse.Assignment = struct("0+")
        target_assignment: StreamsGroupDescribeResponse.Assignment = struct("0+")
        is_classic: bool = boolean("0+")

    class DescribedGroup(Struct):
        error_code: int = int16("0+")
        error_message: str | None = string("0+", nullable="0+", default=None)
        group_id: str = string("0+")
        group_state: str = string("0+")
        group_epoch: int = int32("0+")
        assignment_epoch: int = int32("0+")
        topology: StreamsGroupDescribeResponse.Topology | None = struct("0+", nullable="0+")
        members: list[StreamsGroupDescribeResponse.Member] = array("0+")
        authorized_operations: int = int32("0+", default=-2147483648)

    class Endpoint(Struct):
        host: str = string("0+")
        port: int = uint16("0+")

    class TaskOffset(Struct):
        subtopology_id: str = string("0+")
        partition: int = int32("0+")
        offset: int = int64("0+")

    class Assignment(Struct):
        active_tasks: list[StreamsGroupDescribeResponse.TaskIds] = array("0+")
        standby_tasks: list[StreamsGroupDescribeResponse.TaskIds] = array("0+")
        warmup_tasks: list[StreamsGroupDescribeResponse.TaskIds] = array("0+")

    class TaskIds(Struct):
        subtopology_id: str = string("0+")
        partitions: list[int] = array("0+", "int32")

    class KeyValue(Struct):
        key: str = string("0+")
        value: str = string("0+")

    class TopicInfo(Struct):
        name: str = string("0+")
        partitions: int = int32("0+")
        replication_factor: int = int16("0+")
        topic_configs: list[StreamsGroupDescribeResponse.KeyValue] = array("0+")

    throttle_time_ms: int = int32("0+")
    groups: list[StreamsGroupDescribeResponse.DescribedGroup] = array("0+")
