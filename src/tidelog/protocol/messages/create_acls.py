"""CreateAcls (key 30): add access rules."""

from __future__ import annotations

from tidelog.protocol.message import Message
from tidelog.protocol.schema import Struct, array, int8, int16, int32, string


class CreateAclsRequest(Message, key=30, versions="1-3", flexible="2+"):
    class AclCreation(Struct):
        resource_type: int = int8("0+")
        resource_name: str = string("0+")
        resource_pattern_type: int = int8("1+", default=3)
        principal: str = string("0+")
        host: str = string("0+")
        operation: int = int8("0+")
        permission_type: int = int8("0+")

    creations: list[CreateAclsRequest.AclCreation] = array("0+")


class CreateAclsResponse(Message, key=30, versions="1-3", flexible="2+"):
    class AclCreationResult(Struct):
        error_code: int = int16("0+")
        error_message: str | None = string("0+", nullable="0+")

    throttle_time_ms: int = int32("0+")
    results: list[CreateAclsResponse.AclCreationResult] = array("0+")
