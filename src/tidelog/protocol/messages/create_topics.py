"""CreateTopics (key 19): create topics."""

from __future__ import annotations

from tidelog.protocol.message import Message
from tidelog.protocol.schema import Struct, array, boolean, int8, int16, int32, string, uuid


class CreateTopicsRequest(Message, key=19, versions="2-7", flexible="5+"):
    class CreatableReplicaAssignment(Struct):
        partition_index: int = int32("0+")
        broker_ids: list[int] = array("0+", "int32")

    class CreatableTopicConfig(Struct):
        name: str = string("0+")
        value: str | None = string("0+", nullable="0+")

    class CreatableTopic(Struct):
        name: str = string("0+")
        num_partitions: int = int32("0+")
        replication_factor: int = int16("0+")
        assignments: list[CreateTopicsRequest.CreatableReplicaAssignment] = array("0+")
        configs: list[CreateTopicsRequest.CreatableTopicConfig] = array("0+")

    topics: list[CreateTopicsRequest.CreatableTopic] = array("0+")
    timeout_ms: int = int32("0+", default=60000)
    validate_only: bool = boolean("1+")


class CreateTopicsResponse(Message, key=19, versions="2-7", flexible="5+"):
    class CreatableTopicConfigs(Struct):
        name: str = string("5+")
        value: str | None = string("5+", nullable="5+")
        read_only: bool = boolean("5+")
        config_source: int = int8("5+", default=-1, ignorable=True)
        is_sensitive: bool = boolean("5+")

    class CreatableTopicResult(Struct):
        name: str = string("0+")
        topic_id: bytes = uuid("7+", ignorable=True)
        error_code: int = int16("0+")
        error_message: str | None = string("1+", nullable="0+", ignorable=True)
        topic_config_error_code: int = int16("5+", tag=0, ignorable=True)
        num_partitions: int = int32("5+", default=-1, ignorable=True)
        replication_factor: int = int16("5+", default=-1, ignorable=True)
        configs: list[CreateTopicsResponse.CreatableTopicConfigs] | None = array(
            "5+", nullable="5+", ignorable=True
        )

    throttle_time_ms: int = int32("2+", ignorable=True)
    topics: list[CreateTopicsResponse.CreatableTopicResult] = array("0+")
