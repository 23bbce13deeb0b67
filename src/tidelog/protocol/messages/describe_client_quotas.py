"""DescribeClientQuotas (key 48): the quotas that match a filter."""

from __future__ import annotations

from tidelog.protocol.message import Message
from tidelog.protocol.schema import Struct, array, boolean, float64, int8, int16, int32, string


class DescribeClientQuotasRequest(Message, key=48, versions="0-1", flexible="1+"):
    class ComponentData(Struct):
        entity_type: str = string("0+")
        match_type: int = int8("0+")
        match: str | None = string("0+", nullable="0+")

    components: list[DescribeClientQuotasRequest.ComponentData] = array("0+")
    strict: bool = boolean("0+")


class DescribeClientQuotasResponse(Message, key=48, versions="0-1", flexible="1+"):
    class EntityData(Struct):
        entity_type: str = string("0+")
        entity_name: str | None = string("0+", nullable="0+")

    class ValueData(Struct):
        key: str = string("0+")
        value: float = float64("0+")

    class EntryData(Struct):
        entity: list[DescribeClientQuotasResponse.EntityData] = array("0+")
        values: list[DescribeClientQuotasResponse.ValueData] = array("0+")

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+")
    entries: list[DescribeClientQuotasResponse.EntryData] | None = array("0+", nullable="0+")
