"""Envelope (key 58): a broker forwards a client's request to the controller."""

from __future__ import annotations

from tidelog.protocol.message import Message
from tidelog.protocol.schema import binary, int16


class EnvelopeRequest(Message, key=58, versions="0", flexible="0+"):
    request_data: bytes = binary("0+", sensitive=True)
    request_principal: bytes | None = binary("0+", nullable="0+")
    client_host_address: bytes = binary("0+")


class EnvelopeResponse(Message, key=58, versions="0", flexible="0+"):
    response_data: bytes | None = binary("0+", nullable="0+", default=None, sensitive=True)
    error_code: int = int16("0+")
