"""The headers in front of every request and response."""

from __future__ import annotations

from tidelog.protocol.message import Message
from tidelog.protocol.schema import int16, int32, string


class RequestHeader(Message, versions="1-2", flexible="2+"):
    request_api_key: int = int16("0+")
    request_api_version: int = int16("0+")
    correlation_id: int = int32("0+")
    client_id: str | None = string("1+", nullable="1+", compact=False)


class ResponseHeader(Message, versions="0-1", flexible="1+"):
    correlation_id: int = int32("0+")
