"""DescribeCluster (key 60): the cluster's id, controller and brokers."""

from __future__ import annotations

from tidelog.protocol.message import Message
from tidelog.protocol.schema import Struct, array, boolean, int8, int16, int32, string


class DescribeClusterRequest(Message, key=60, versions="0-2", flexible="0+"):
    include_cluster_authorized_operations: bool = boolean("0+")
    endpoint_type: int = int8("1+", default=1)
    include_fenced_brokers: bool = boolean("2+")


class DescribeClusterResponse(Message, key=60, versions="0-2", flexible="0+"):
    class DescribeClusterBroker(Struct):
        broker_id: int = int32("0+")
        host: str = string("0+")
        port: int = int32("0+")
        rack: str | None = string("0+", nullable="0+", default=None)
        is_fenced: bool = boolean("2+")

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", default=None)
    endpoint_type: int = int8("1+", default=1)
    cluster_id: str = string("0+")
    controller_id: int = int32("0+", default=-1)
    brokers: list[DescribeClusterResponse.DescribeClusterBroker] = array("0+")
    cluster_authorized_operations: int = int32("0+", default=-2147483648)
