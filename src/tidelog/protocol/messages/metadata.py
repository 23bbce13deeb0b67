"""Metadata (key 3): brokers, topics, partitions and who leads them."""

from __future__ import annotations

from tidelog.protocol.message import Message
from tidelog.protocol.schema import Struct, array, boolean, int16, int32, string, uuid


class MetadataRequest(Message, key=3, versions="0-13", flexible="9+"):
    class MetadataRequestTopic(Struct):
        topic_id: bytes = uuid("10+", ignorable=True)
        name: str | None = string("0+", nullable="10+")

    topics: list[MetadataRequest.MetadataRequestTopic] | None = array("0+", nullable="1+")
    allow_auto_topic_creation: bool = boolean("4+", default=True)
    include_cluster_authorized_operations: bool = boolean("8-10")
    include_topic_authorized_operations: bool = boolean("8+")


class MetadataResponse(Message, key=3, versions="0-13", flexible="9+"):
    class MetadataResponseBroker(Struct):
        node_id: int = int32("0+")
        host: str = string("0+")
        port: int = int32("0+")
        rack: str | None = string("1+", nullable="1+", default=None, ignorable=True)

    class MetadataResponsePartition(Struct):
        error_code: int = int16("0+")
        partition_index: int = int32("0+")
        leader_id: int = int32("0+")
        leader_epoch: int = int32("7+", default=-1, ignorable=True)
        replica_nodes: list[int] = array("0+", "int32")
        isr_nodes: list[int] = array("0+", "int32")
        offline_replicas: list[int] = array("5+", "int32", ignorable=True)

    class MetadataResponseTopic(Struct):
        error_code: int = int16("0+")
        name: str | None = string("0+", nullable="12+")
        topic_id: bytes = uuid("10+", ignorable=True)
        is_internal: bool = boolean("1+", ignorable=True)
        partitions: list[MetadataResponse.MetadataResponsePartition] = array("0+")
        topic_authorized_operations: int = int32("8+", default=-2147483648)

    throttle_time_ms: int = int32("3+", ignorable=True)
    brokers: list[MetadataResponse.MetadataResponseBroker] = array("0+")
    cluster_id: str | None = string("2+", nullable="2+", default=None, ignorable=True)
    controller_id: int = int32("1+", default=-1, ignorable=True)
    topics: list[MetadataResponse.MetadataResponseTopic] = array("0+")
    cluster_authorized_operations: int = int32("8-10", default=-2147483648)
    error_code: int = int16("13+", ignorable=True)
