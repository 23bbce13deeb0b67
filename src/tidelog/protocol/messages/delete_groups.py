"""DeleteGroups (key 42): delete groups and their offsets."""

from __future__ import annotations

from tidelog.protocol.message import Message
from tidelog.protocol.schema import Struct, array, int16, int32, string


class DeleteGroupsRequest(Message, key=42, versions="0-2", flexible="2+"):
    groups_names: list[str] = array("0+", "string")


class DeleteGroupsResponse(Message, key=42, versions="0-2", flexible="2+"):
    class DeletableGroupResult(Struct):
        group_id: str = string("0+")
        error_code: int = int16("0+")

    throttle_time_ms: int = int32("0+")
    results: list[DeleteGroupsResponse.DeletableGroupResult] = array("0+")
