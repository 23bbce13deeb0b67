"""Records of streams groups in `__consumer_offsets`."""

from __future__ import annotations

from tidelog.protocol.message import Message
from tidelog.protocol.schema import Struct, array, int8, int16, int32, int64, string, struct, uint16


class StreamsGroupMetadataKey(Message, key=17, versions="0", flexible="none"):
    group_id: str = string("0")


class StreamsGroupMetadataValue(Message, key=17, versions="0", flexible="0+"):
    class LastAssignmentConfig(Struct):
        key: str = string("0+")
        value: str = string("0+")

    epoch: int = int32("0+")
    metadata_hash: int = int64("0+")
    validated_topology_epoch: int = int32("0+", default=-1, tag=0)
    last_assignment_configs: list[StreamsGroupMetadataValue.LastAssignmentConfig] | None = array(
        "0+", nullable="0+", default=None, tag=1
    )


class StreamsGroupMemberMetadataKey(Message, key=19, versions="0", flexible="none"):
    group_id: str = string("0")
    member_id: str = string("0")


class StreamsGroupMemberMetadataValue(Message, key=19, versions="0", flexible="0+"):
    class Endpoint(Struct):
        host: str = string("0+")
        port: int = uint16("0+")

    class KeyValue(Struct):
        key: str = string("0+")
        value: str = string("0+")

    instance_id: str | None = string("0+", nullable="0+")
    rack_id: str | None = string("0+", nullable="0+")
    client_id: str = string("0+")
    client_host: str = string("0+")
    rebalance_timeout_ms: int = int32("0+", default=-1)
    topology_epoch: int = int32("0+")
    process_id: str = string("0+")
    user_endpoint: StreamsGroupMemberMetadataValue.Endpoint | None = struct("0+", nullable="0+")
    client_tags: list[StreamsGroupMemberMetadataValue.KeyValue] = array("0+")


class StreamsGroupTargetAssignmentMetadataKey(Message, key=20, versions="0", flexible="none"):
    group_id: str = string("0")


class StreamsGroupTargetAssignmentMetadataValue(Message, key=20, versions="0", flexible="0+"):
    assignment_epoch: int = int32("0+")
    assignment_timestamp: int = int64("0+", tag=0, ignorable=True)


class StreamsGroupTargetAssignmentMemberKey(Message, key=21, versions="0", flexible="none"):
    group_id: str = string("0")
    member_id: str = string("0")


class StreamsGroupTargetAssignmentMemberValue(Message, key=21, versions="0", flexible="0+"):
    class TaskIds(Struct):
        subtopology_id: str = string("0+")
        partitions: list[int] = array("0+", "int32")

    active_tasks: list[StreamsGroupTargetAssignmentMemberValue.TaskIds] = array("0+")
    standby_tasks: list[StreamsGroupTargetAssignmentMemberValue.TaskIds] = array("0+")
    warmup_tasks: list[StreamsGroupTargetAssignmentMemberValue.TaskIds] = array("0+")


class StreamsGroupCurrentMemberAssignmentKey(Message, key=22, versions="0", flexible="none"):
    group_id: str = string("0")
    member_id: str = string("0")


class StreamsGroupCurrentMemberAssignmentValue(Message, key=22, versions="0", flexible="0+"):
    class TaskIds(Struct):
        subtopology_id: str = string("0+")
        partitions: list[int] = array("0+", "int32")
        assignment_epochs: list[int] | None = array("0+", "int32", nullable="0+", default=None, tag=0)

    member_epoch: int = int32("0+")
    previous_member_epoch: int = int32("0+")
    state: int = int8("0+")
    active_tasks: list[StreamsGroupCurrentMemberAssignmentValue.TaskIds] = array("0+")
    standby_tasks: list[StreamsGroupCurrentMemberAssignmentValue.TaskIds] = array("0+")
    warmup_tasks: list[StreamsGroupCurrentMemberAssignmentValue.TaskIds] = array("0+")
    active_tasks_pending_revocation: list[StreamsGroupCurrentMemberAssignmentValue.TaskIds] = array("0+")
    standby_tasks_pending_revocation: list[StreamsGroupCurrentMemberAssignmentValue.TaskIds] = array("0+")
    warmup_tasks_pending_revocation: list[StreamsGroupCurrentMemberAssignmentValue.TaskIds] = array("0+")


class StreamsGroupTopologyKey(Message, key=23, versions="0", flexible="none"):
    group_id: str = string("0")


class StreamsGroupTopologyValue(Message, key=23, versions="0", flexible="0+"):
    class CopartitionGroup(Struct):
        source_topics: list[int] = array("0+", "int16")
        source_topic_regex: list[int] = array("0+", "int16")
        repartition_source_topics: list[int] = array("0+", "int16")

    class Subtopology(Struct):
        subtopology_id: str = string("0+")
        source_topics: list[str] = array("0+", "string")
        source_topic_regex: list[str] = array("0+", "string")
        state_changelog_topics: list[StreamsGroupTopologyValue.TopicInfo] = array("0+")
        repartition_sink_topics: list[str] = array("0+", "string")
        repartition_source_topics: list[StreamsGroupTopologyValue.TopicInfo] = array("0+")
        copartition_groups: list[StreamsGroupTopologyValue.CopartitionGroup] = array("0+")

    class TopicConfig(Struct):
        key: str = string("0+")
        value: str = string("0+")

    class TopicInfo(Struct):
        name: str = string("0+")
        partitions: int = int32("0+")
        replication_factor: int = int16("0+")
        topic_configs: list[StreamsGroupTopologyValue.TopicConfig] = array("0+")

    epoch: int = int32("0+")
    subtopologies: list[StreamsGroupTopologyValue.Subtopology] = array("0+")
