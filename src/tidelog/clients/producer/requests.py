"""Encodes Produce requests as lists of parts, so that batches are sent from their buffers without a copy."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from tidelog.protocol.wire import Buffer, write_string_length, write_uvarint

_ACKS = struct.Struct(">hi")
_INT32 = struct.Struct(">i")

PRODUCE = 0
LAST_BEFORE_TRANSACTIONS_V2 = 11
FIRST_WITH_TOPIC_IDS = 13

TopicBatches = tuple[str, bytes, Sequence[tuple[int, Buffer]]]


def produce_parts(
    version: int, transactional_id: str | None, acks: int, timeout_ms: int, topics: Sequence[TopicBatches]
) -> list[Buffer]:
    """The body of a Produce request; `topics` are (name, id, [(partition, batch)])."""
    flexible = version >= 9
    parts: list[Buffer] = []
    text = bytearray(_string(transactional_id, flexible))
    text += _ACKS.pack(acks, timeout_ms)
    text += _count(len(topics), flexible)
    for name, topic_id, partitions in topics:
        text += topic_id if version >= FIRST_WITH_TOPIC_IDS else _string(name, flexible)
        text += _count(len(partitions), flexible)
        for partition, batch in partitions:
            text += _INT32.pack(partition)
            text += write_uvarint(len(batch) + 1) if flexible else _INT32.pack(len(batch))
            parts += (bytes(text), batch)
            text.clear()
            if flexible:
                text += b"\0"
        if flexible:
            text += b"\0"
    if flexible:
        text += b"\0"
    if text:
        parts.append(bytes(text))
    return parts


def _count(count: int, flexible: bool) -> bytes:
    return write_uvarint(count + 1) if flexible else _INT32.pack(count)


def _string(text: str | None, flexible: bool) -> bytes:
    if text is None:
        return b"\0" if flexible else b"\xff\xff"
    data = text.encode()
    if flexible:
        return write_string_length(len(data) + 1) + data
    return struct.pack(">h", len(data)) + data
