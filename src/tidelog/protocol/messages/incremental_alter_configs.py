"""IncrementalAlterConfigs (key 44): set, delete, append to or subtract from single settings."""

from __future__ import annotations

from tidelog.protocol.message import Message
from tidelog.protocol.schema import Struct, array, boolean, int8, int16, int32, string


class IncrementalAlterConfigsRequest(Message, key=44, versions="0-1", flexible="1+"):
    class AlterableConfig(Struct):
        name: str = string("0+")
        config_operation: int = int8("0+")
        value: str | None = string("0+", nullable="0+")

    class AlterConfigsResource(Struct):
        resource_type: int = int8("0+")
        resource_name: str = string("0+")
        configs: list[IncrementalAlterConfigsRequest.AlterableConfig] = array("0+")

    resources: list[IncrementalAlterConfigsRequest.AlterConfigsResource] = array("0+")
    validate_only: bool = boolean("0+")


class IncrementalAlterConfigsResponse(Message, key=44, versions="0-1", flexible="1+"):
    class AlterConfigsResourceResponse(Struct):
        error_code: int = int16("0+")
        error_message: str | None = string("0+", nullable="0+")
        resource_type: int = int8("0+")
        resource_name: str = string("0+")

    throttle_time_ms: int = int32("0+")
    responses: list[IncrementalAlterConfigsResponse.AlterConfigsResourceResponse] = array("0+")
