"""Writes the OTLP messages of Kafka's clients, by the field numbers of opentelemetry's metrics.proto."""

from __future__ import annotations

import struct

from tidelog.protocol.wire import write_uvarint


def field(number: int, content: bytes) -> bytes:
    return write_uvarint(number << 3 | 2) + write_uvarint(len(content)) + content


def fixed(number: int, content: bytes) -> bytes:
    return write_uvarint(number << 3 | 1) + content


def varint(number: int, value: int) -> bytes:
    return write_uvarint(number << 3) + write_uvarint(value)


def attribute(key: str, value: str | int | bool) -> bytes:
    if isinstance(value, bool):
        content = varint(2, int(value))
    elif isinstance(value, int):
        content = varint(3, value % (1 << 64))
    else:
        content = field(1, value.encode())
    return field(7, field(1, key.encode()) + field(2, content))


def point(value: float | int, *attributes: bytes) -> bytes:
    number = (
        fixed(6, struct.pack("<q", value)) if isinstance(value, int) else fixed(4, struct.pack("<d", value))
    )
    times = fixed(2, bytes(8)) + fixed(3, bytes(8))
    return field(1, times + number + b"".join(attributes))


def gauge(name: str, *points: bytes) -> bytes:
    return field(2, field(1, name.encode()) + field(5, b"".join(points)))


def total(name: str, *points: bytes, delta: bool = True) -> bytes:
    body = b"".join(points) + varint(2, 1 if delta else 2) + varint(3, 1)
    return field(2, field(1, name.encode()) + field(7, body))


def metrics_data(*metrics: bytes) -> bytes:
    """One resource with one scope; resource and scope have a field that a reader skips."""
    scope = field(2, field(1, b"scope") + b"".join(metrics))
    return field(1, field(1, b"") + scope)
