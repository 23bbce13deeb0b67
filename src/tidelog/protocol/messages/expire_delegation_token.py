"""ExpireDelegationToken (key 40): end a delegation token earlier."""

from __future__ import annotations

from tidelog.protocol.message import Message
from tidelog.protocol.schema import binary, int16, int32, int64


class ExpireDelegationTokenRequest(Message, key=40, versions="1-2", flexible="2+"):
    hmac: bytes = binary("0+", sensitive=True)
    expiry_time_period_ms: int = int64("0+")


class ExpireDelegationTokenResponse(Message, key=40, versions="1-2", flexible="2+"):
    error_code: int = int16("0+")
    expiry_timestamp_ms: int = int64("0+")
    throttle_time_ms: int = int32("0+")
