"""DescribeAcls (key 29): the access rules that match a filter."""

from __future__ import annotations

from tidelog.protocol.message import Message
from tidelog.protocol.schema import Struct, array, int8, int16, int32, string


class DescribeAclsRequest(Message, key=29, versions="1-3", flexible="2+"):
    resource_type_filter: int = int8("0+")
    resource_name_filter: str | None = string("0+", nullable="0+")
    pattern_type_filter: int = int8("1+", default=3)
    principal_filter: str | None = string("0+", nullable="0+")
    host_filter: str | None = string("0+", nullable="0+")
    operation: int = int8("0+")
    permission_type: int = int8("0+")


class DescribeAclsResponse(Message, key=29, versions="1-3", flexible="2+"):
    class AclDescription(Struct):
        principal: str = string("0+")
        host: str = string("0+")
        operation: int = int8("0+")
        permission_type: int = int8("0+")

    class DescribeAclsResource(Struct):
        resource_type: int = int8("0+")
        resource_name: str = string("0+")
        pattern_type: int = int8("1+", default=3)
        acls: list[DescribeAclsResponse.AclDescription] = array("0+")

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+")
    resources: list[DescribeAclsResponse.DescribeAclsResource] = array("0+")
