"""Requests with one field at a time set to null, to nothing, or to the end of its range.

They start from requests that the broker answers without an error, so a hostile value reaches the work behind
the checks.
"""

from __future__ import annotations

import copy
import struct
from collections.abc import Iterator
from typing import NamedTuple

from tidelog.clients.connection import request_frame
from tidelog.protocol.message import Message
from tidelog.protocol.schema import Field, Struct
from tidelog.protocol.wire import ProtocolError

LIMITS = {"int8": 7, "int16": 15, "int32": 31, "int64": 63}
UNSIGNED = {"uint16": 16, "uint32": 32}
TEXTS = ("", "\0", "..", "a/../b", "x" * 300, "x" * 32_767, "é\n", "%s{0}")


class Hostile(NamedTuple):
    """A frame without its length, and what is wrong with it."""

    payload: bytes
    fault: str


def hostile_frames(message: Message, version: int, correlation_id: int = 9) -> Iterator[Hostile]:
    """Every field of the message and of its first elements, with every hostile value that can be encoded."""
    whole = copy.deepcopy(message)
    for holder, field, path in list(_fields(whole, version)):
        value = getattr(holder, field.name)
        for label, hostile in _values(field, value, version):
            setattr(holder, field.name, hostile)
            try:
                frame = request_frame(whole, version, correlation_id, "hostile")[4:]
            except (ProtocolError, struct.error, OverflowError, TypeError, ValueError, AttributeError):
                continue
            finally:
                setattr(holder, field.name, value)
            yield Hostile(bytes(frame), f"{type(message).__name__} v{version} {path}={label}")


def _fields(holder: Struct, version: int, before: str = "") -> Iterator[tuple[Struct, Field, str]]:
    for field in type(holder).FIELDS:
        if not field.present(version):
            continue
        path = f"{before}{field.name}"
        yield holder, field, path
        value = getattr(holder, field.name)
        inner = value[0] if isinstance(value, list) and value else value
        if isinstance(inner, Struct):
            yield from _fields(inner, version, f"{path}.")


def _values(field: Field, value: object, version: int) -> Iterator[tuple[str, object]]:
    if field.nullable(version) or field.is_optional_struct:
        yield "null", None
    if field.array:
        items = value if isinstance(value, list) else []
        yield "empty", []
        if items:
            yield "twice", [items[0], items[0]]
            yield "200 times", items[:1] * 200
        else:
            for label, item in _items(field):
                yield label, [item]
        return
    if field.kind == "struct":
        return
    yield from _items(field)
    if isinstance(value, bytes) and value:
        yield "cut", value[:-1]
        yield "twice", value * 2


def _items(field: Field) -> Iterator[tuple[str, object]]:
    kind = field.kind
    if kind in LIMITS:
        top = 1 << LIMITS[kind]
        for number in (0, 1, -1, -2, -3, top - 1, top - 2, -top, -top + 1, top // 2):
            yield str(number), number
    elif kind in UNSIGNED:
        for number in (0, 1, (1 << UNSIGNED[kind]) - 1):
            yield str(number), number
    elif kind == "string":
        for text in TEXTS:
            yield repr(text[:20]), text
    elif kind in ("bytes", "records"):
        for data in (b"", b"\0", b"\xff" * 61, bytes(61), bytes(1000)):
            yield f"{data[:4]!r}*{len(data)}", data
    elif kind == "uuid":
        for data in (bytes(16), b"\xff" * 16, bytes(15) + b"\1"):
            yield data[-1:].hex(), data
    elif kind == "bool":
        yield "true", True
        yield "false", False
    elif kind == "float64":
        for real in (0.0, -1.0, float("nan"), float("inf"), float("-inf"), 1e308):
            yield str(real), real
