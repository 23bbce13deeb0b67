"""SaslHandshake (key 17): agree on a SASL mechanism."""

from __future__ import annotations

from tidelog.protocol.message import Message
from tidelog.protocol.schema import array, int16, string


class SaslHandshakeRequest(Message, key=17, versions="0-1", flexible="none"):
    mechanism: str = string("0+")


class SaslHandshakeResponse(Message, key=17, versions="0-1", flexible="none"):
    error_code: int = int16("0+")
    mechanisms: list[str] = array("0+", "string")
