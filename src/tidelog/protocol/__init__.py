"""Kafka's wire protocol: messages declared once, read and written in every version. Bytes and values only."""

from tidelog.protocol.message import (
    Message,
    decode,
    decoder_for,
    encode_parts,
    encoder_for,
    parts_encoder_for,
)
from tidelog.protocol.schema import Struct
from tidelog.protocol.wire import (
    ZERO_UUID,
    Buffer,
    FilePart,
    ProtocolError,
    RecordData,
    uuid_from_text,
    uuid_to_text,
)

__all__ = [
    "ZERO_UUID",
    "Buffer",
    "FilePart",
    "Message",
    "ProtocolError",
    "RecordData",
    "Struct",
    "decode",
    "decoder_for",
    "encode_parts",
    "encoder_for",
    "parts_encoder_for",
    "uuid_from_text",
    "uuid_to_text",
]
