"""ListConfigResources (key 74): the names of things that have settings."""

from __future__ import annotations

from tidelog.protocol.message import Message
from tidelog.protocol.schema import Struct, array, int8, int16, int32, string


class ListConfigResourcesRequest(Message, key=74, versions="0-1", flexible="0+"):
    resource_types: list[int] = array("1+", "int8")


class ListConfigResourcesResponse(Message, key=74, versions="0-1", flexible="0+"):
    class ConfigResource(Struct):
        resource_name: str = string("0+")
        resource_type: int = int8("1+", default=16, ignorable=True)

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    config_resources: list[ListConfigResourcesResponse.ConfigResource] = array("0+")
