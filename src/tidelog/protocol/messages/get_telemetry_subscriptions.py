"""GetTelemetrySubscriptions (key 71): which of its metrics a client shall send."""

from __future__ import annotations

from tidelog.protocol.message import Message
from tidelog.protocol.schema import array, boolean, int16, int32, uuid


class GetTelemetrySubscriptionsRequest(Message, key=71, versions="0", flexible="0+"):
    client_instance_id: bytes = uuid("0+")


class GetTelemetrySubscriptionsResponse(Message, key=71, versions="0", flexible="0+"):
    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    client_instance_id: bytes = uuid("0+")
    subscription_id: int = int32("0+")
    accepted_compression_types: list[int] = array("0+", "int8")
    push_interval_ms: int = int32("0+")
    telemetry_max_bytes: int = int32("0+")
    delta_temporality: bool = boolean("0+")
    requested_metrics: list[str] = array("0+", "string")
