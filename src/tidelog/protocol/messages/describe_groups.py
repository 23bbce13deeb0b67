"""DescribeGroups (key 15): state and members of classic groups."""

from __future__ import annotations

from tidelog.protocol.message import Message
from tidelog.protocol.schema import Struct, array, binary, boolean, int16, int32, string


class DescribeGroupsRequest(Message, key=15, versions="0-6", flexible="5+"):
    groups: list[str] = array("0+", "string")
    include_authorized_operations: bool = boolean("3+")


class DescribeGroupsResponse(Message, key=15, versions="0-6", flexible="5+"):
    class DescribedGroupMember(Struct):
        member_id: str = string("0+")
        group_instance_id: str | None = string("4+", nullable="4+", default=None, ignorable=True)
        client_id: str = string("0+")
        client_host: str = string("0+")
        member_metadata: bytes = binary("0+")
        member_assignment: bytes = binary("0+")

    class DescribedGroup(Struct):
        error_code: int = int16("0+")
        error_message: str | None = string("6+", nullable="6+", default=None)
        group_id: str = string("0+")
        group_state: str = string("0+")
        protocol_type: str = string("0+")
        protocol_data: str = string("0+")
        members: list[DescribeGroupsResponse.DescribedGroupMember] = array("0+")
        authorized_operations: int = int32("3+", default=-2147483648)

    throttle_time_ms: int = int32("1+", ignorable=True)
    groups: list[DescribeGroupsResponse.DescribedGroup] = array("0+")
