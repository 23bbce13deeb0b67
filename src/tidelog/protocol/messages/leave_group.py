"""LeaveGroup (key 13): leave a classic group, or remove members from it."""

from __future__ import annotations

from tidelog.protocol.message import Message
from tidelog.protocol.schema import Struct, array, int16, int32, string


class LeaveGroupRequest(Message, key=13, versions="0-5", flexible="4+"):
    class MemberIdentity(Struct):
        member_id: str = string("3+")
        group_instance_id: str | None = string("3+", nullable="3+", default=None)
        reason: str | None = string("5+", nullable="5+", default=None, ignorable=True)

    group_id: str = string("0+")
    member_id: str = string("0-2")
    members: list[LeaveGroupRequest.MemberIdentity] = array("3+")


class LeaveGroupResponse(Message, key=13, versions="0-5", flexible="4+"):
    class MemberResponse(Struct):
        member_id: str = string("3+")
        group_instance_id: str | None = string("3+", nullable="3+")
        error_code: int = int16("3+")

    throttle_time_ms: int = int32("1+", ignorable=True)
    error_code: int = int16("0+")
    members: list[LeaveGroupResponse.MemberResponse] = array("3+")
