"""AlterClientQuotas (key 49): set and remove quotas."""

from __future__ import annotations

from tidelog.protocol.message import Message
from tidelog.protocol.schema import Struct, array, boolean, float64, int16, int32, string


class AlterClientQuotasRequest(Message, key=49, versions="0-1", flexible="1+"):
    class EntityData(Struct):
        entity_type: str = string("0+")
        entity_name: str | None = string("0+", nullable="0+")

    class OpData(Struct):
        key: str = string("0+")
        value: float = float64("0+")
        remove: bool = boolean("0+")

    class EntryData(Struct):
        entity: list[AlterClientQuotasRequest.EntityData] = array("0+")
        ops: list[AlterClientQuotasRequest.OpData] = array("0+")

    entries: list[AlterClientQuotasRequest.EntryData] = array("0+")
    validate_only: bool = boolean("0+")


class AlterClientQuotasResponse(Message, key=49, versions="0-1", flexible="1+"):
    class EntityData(Struct):
        entity_type: str = string("0+")
        entity_name: str | None = string("0+", nullable="0+")

    class EntryData(Struct):
        error_code: int = int16("0+")
        error_message: str | None = string("0+", nullable="0+")
        entity: list[AlterClientQuotasResponse.EntityData] = array("0+")

    throttle_time_ms: int = int32("0+")
    entries: list[AlterClientQuotasResponse.EntryData] = array("0+")
