"""PushTelemetry (key 72): a client sends its metrics."""

from __future__ import annotations

from tidelog.protocol.message import Message
from tidelog.protocol.schema import binary, boolean, int8, int16, int32, uuid


class PushTelemetryRequest(Message, key=72, versions="0", flexible="0+"):
    client_instance_id: bytes = uuid("0+")
    subscription_id: int = int32("0+")
    terminating: bool = boolean("0+")
    compression_type: int = int8("0+")
    metrics: bytes = binary("0+")


class PushTelemetryResponse(Message, key=72, versions="0", flexible="0+"):
    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
