"""Kafka's internal records: committed offsets, groups, transactions, state of share groups."""

from __future__ import annotations

from tidelog.console.records.decoder import (
    NOTHING,
    Decoded,
    DecodeError,
    Decoder,
    Read,
    fallback,
    to_text,
)
from tidelog.protocol.coordinator_records import (
    TOPICS,
    decode_key,
    decode_value,
    record_type,
    types_of_topic,
)
from tidelog.protocol.json import Json
from tidelog.protocol.wire import ProtocolError


def is_internal(topic: str) -> bool:
    """Whether the records of a topic are read by `InternalDecoder`."""
    return topic in TOPICS


class InternalDecoder(Decoder):
    """Decodes the keys of one internal topic, and each value by the type that its key begins with."""

    name = "kafka"
    about = "Kafka's internal records"

    def __init__(self, topic: str) -> None:
        self._types = types_of_topic(topic)

    def read(self, data: bytes) -> Read:
        try:
            return Read({"type": record_type(data), "data": decode_key(self._types, data)})
        except ProtocolError as error:
            raise DecodeError(f"not a key of this topic: {error}") from None

    def decode_value(self, key: bytes | None, value: bytes | None) -> Decoded:
        """The value of the record with this key. As `decode`, it never raises."""
        if value is None:
            return NOTHING
        kind = record_type(key or b"")
        if key is None or kind not in self._types:
            return fallback(value, f"the key has record type {kind}, which is unknown")
        try:
            version, fields = decode_value(self._types[kind][1], value)
        except (ProtocolError, ValueError) as error:
            return fallback(value, f"not a value of record type {kind}: {error}")
        found: Json = {"version": version, "data": fields}
        return Decoded(to_text(found), self.name, value=found)
