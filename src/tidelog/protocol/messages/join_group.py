"""JoinGroup (key 11): become a member of a classic group and wait for the others."""

from __future__ import annotations

from tidelog.protocol.message import Message
from tidelog.protocol.schema import Struct, array, binary, boolean, int16, int32, string


class JoinGroupRequest(Message, key=11, versions="0-9", flexible="6+"):
    class JoinGroupRequestProtocol(Struct):
        name: str = string("0+")
        metadata: bytes = binary("0+")

    group_id: str = string("0+")
    session_timeout_ms: int = int32("0+")
    rebalance_timeout_ms: int = int32("1+", default=-1, ignorable=True)
    member_id: str = string("0+")
    group_instance_id: str | None = string("5+", nullable="5+", default=None)
    protocol_type: str = string("0+")
    protocols: list[JoinGroupRequest.JoinGroupRequestProtocol] = array("0+")
    reason: str | None = string("8+", nullable="8+", default=None, ignorable=True)


class JoinGroupResponse(Message, key=11, versions="0-9", flexible="6+"):
    class JoinGroupResponseMember(Struct):
        member_id: str = string("0+")
        group_instance_id: str | None = string("5+", nullable="5+", default=None, ignorable=True)
        metadata: bytes = binary("0+")

    throttle_time_ms: int = int32("2+", ignorable=True)
    error_code: int = int16("0+")
    generation_id: int = int32("0+", default=-1)
    protocol_type: str | None = string("7+", nullable="7+", default=None, ignorable=True)
    protocol_name: str | None = string("0+", nullable="7+")
    leader: str = string("0+")
    skip_assignment: bool = boolean("9+")
    member_id: str = string("0+")
    members: list[JoinGroupResponse.JoinGroupResponseMember] = array("0+")
