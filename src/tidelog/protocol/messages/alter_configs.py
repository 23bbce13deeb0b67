"""AlterConfigs (key 33): replace all settings of topics and brokers."""

from __future__ import annotations

from tidelog.protocol.message import Message
from tidelog.protocol.schema import Struct, array, boolean, int8, int16, int32, string


class AlterConfigsRequest(Message, key=33, versions="0-2", flexible="2+"):
    class AlterableConfig(Struct):
        name: str = string("0+")
        value: str | None = string("0+", nullable="0+")

    class AlterConfigsResource(Struct):
        resource_type: int = int8("0+")
        resource_name: str = string("0+")
        configs: list[AlterConfigsRequest.AlterableConfig] = array("0+")

    resources: list[AlterConfigsRequest.AlterConfigsResource] = array("0+")
    validate_only: bool = boolean("0+")


class AlterConfigsResponse(Message, key=33, versions="0-2", flexible="2+"):
    class AlterConfigsResourceResponse(Struct):
        error_code: int = int16("0+")
        error_message: str | None = string("0+", nullable="0+")
        resource_type: int = int8("0+")
        resource_name: str = string("0+")

    throttle_time_ms: int = int32("0+")
    responses: list[AlterConfigsResponse.AlterConfigsResourceResponse] = array("0+")
