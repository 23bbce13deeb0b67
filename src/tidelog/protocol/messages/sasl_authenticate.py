"""SaslAuthenticate (key 36): one step of a SASL exchange."""

from __future__ import annotations

from tidelog.protocol.message import Message
from tidelog.protocol.schema import binary, int16, int64, string


class SaslAuthenticateRequest(Message, key=36, versions="0-2", flexible="2+"):
    auth_bytes: bytes = binary("0+", sensitive=True)


class SaslAuthenticateResponse(Message, key=36, versions="0-2", flexible="2+"):
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+")
    auth_bytes: bytes = binary("0+", sensitive=True)
    session_lifetime_ms: int = int64("1+", ignorable=True)
