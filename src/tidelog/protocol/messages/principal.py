"""A principal as a broker passes it on in an Envelope."""

from __future__ import annotations

from tidelog.protocol.message import Message
from tidelog.protocol.schema import boolean, string


class DefaultPrincipalData(Message, versions="0", flexible="0+"):
    type: str = string("0+")
    name: str = string("0+")
    token_authenticated: bool = boolean("0+")
