"""RenewDelegationToken (key 39): make a delegation token last longer."""

from __future__ import annotations

from tidelog.protocol.message import Message
from tidelog.protocol.schema import binary, int16, int32, int64


class RenewDelegationTokenRequest(Message, key=39, versions="1-2", flexible="2+"):
    hmac: bytes = binary("0+", sensitive=True)
    renew_period_ms: int = int64("0+")


class RenewDelegationTokenResponse(Message, key=39, versions="1-2", flexible="2+"):
    error_code: int = int16("0+")
    expiry_timestamp_ms: int = int64("0+")
    throttle_time_ms: int = int32("0+")
