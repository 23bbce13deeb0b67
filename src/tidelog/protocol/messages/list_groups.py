"""ListGroups (key 16): the groups that a broker coordinates."""

from __future__ import annotations

from tidelog.protocol.message import Message
from tidelog.protocol.schema import Struct, array, int16, int32, string


class ListGroupsRequest(Message, key=16, versions="0-5", flexible="3+"):
    states_filter: list[str] = array("4+", "string")
    types_filter: list[str] = array("5+", "string")


class ListGroupsResponse(Message, key=16, versions="0-5", flexible="3+"):
    class ListedGroup(Struct):
        group_id: str = string("0+")
        protocol_type: str = string("0+")
        group_state: str = string("4+", ignorable=True)
        group_type: str = string("5+", ignorable=True)

    throttle_time_ms: int = int32("1+", ignorable=True)
    error_code: int = int16("0+")
    groups: list[ListGroupsResponse.ListedGroup] = array("0+")
