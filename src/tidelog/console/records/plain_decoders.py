"""Decoders that need no schema: text, JSON, numbers, UUID, base64, hex."""

from __future__ import annotations

import json
import struct
from base64 import b64encode
from collections.abc import Callable, Iterable
from typing import Final
from uuid import UUID

from tidelog.console.records.decoder import (
    HEX,
    TEXT,
    DecodeError,
    Decoder,
    FunctionDecoder,
    Read,
)
from tidelog.protocol.json import Json

MAX_JSON_DEPTH: Final = 500
"""What Python's parser itself allows differs between its versions, up to a hundred thousand levels."""
TOO_DEEP: Final = f"the JSON is too deeply nested: more than {MAX_JSON_DEPTH} levels"


def read_text(data: bytes) -> Read:
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise DecodeError(f"byte {data[error.start]:#04x} at position {error.start} is not UTF-8") from None
    return Read(text, text)


def read_json(data: bytes) -> Read:
    """JSON text as it stands in the record: numbers keep their digits in the text."""
    text = str(read_text(data).value)
    try:
        value: Json = json.loads(text, parse_constant=_no_constant)
    except RecursionError:
        raise DecodeError(TOO_DEEP) from None
    except ValueError as error:
        raise DecodeError(f"not JSON: {error}") from None
    if text.count("[") + text.count("{") > MAX_JSON_DEPTH and is_deeper(value, MAX_JSON_DEPTH):
        raise DecodeError(TOO_DEEP)
    return Read(value, text)


def is_deeper(value: Json, limit: int) -> bool:
    """Whether lists and objects of a value are nested deeper than `limit`."""
    level: list[Json] = [value]
    for _ in range(limit):
        level = [inner for outer in level for inner in _members(outer)]
    return any(isinstance(one, dict | list) for one in level)


def _members(value: Json) -> Iterable[Json]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _no_constant(name: str) -> Json:
    raise ValueError(f"{name} is not JSON")


def number(layout: str, name: str) -> Callable[[bytes], Read]:
    form = struct.Struct(layout)

    def read(data: bytes) -> Read:
        if len(data) != form.size:
            raise DecodeError(f"{len(data)} bytes; {name} has {form.size}")
        (value,) = form.unpack(data)
        return Read(value if value == value and abs(value) != float("inf") else str(value), str(value))

    return read


def read_uuid(data: bytes) -> Read:
    if len(data) != 16:
        raise DecodeError(f"{len(data)} bytes; a UUID has 16")
    text = str(UUID(bytes=data))
    return Read(text, text)


def read_base64(data: bytes) -> Read:
    text = b64encode(data).decode()
    return Read(text, text)


def read_hex(data: bytes) -> Read:
    text = data.hex(" ")
    return Read(text, text)


def plain_decoders() -> tuple[Decoder, ...]:
    return (
        FunctionDecoder(TEXT, "UTF-8 text", read_text, keeps_text=True),
        FunctionDecoder("json", "JSON", read_json, keeps_text=True),
        FunctionDecoder("int32", "signed integer of 4 bytes, big-endian", number(">i", "int32")),
        FunctionDecoder("int64", "signed integer of 8 bytes, big-endian", number(">q", "int64")),
        FunctionDecoder("uint32", "unsigned integer of 4 bytes, big-endian", number(">I", "uint32")),
        FunctionDecoder("uint64", "unsigned integer of 8 bytes, big-endian", number(">Q", "uint64")),
        FunctionDecoder("float", "number of 4 bytes, IEEE 754", number(">f", "float")),
        FunctionDecoder("double", "number of 8 bytes, IEEE 754", number(">d", "double")),
        FunctionDecoder("uuid", "UUID of 16 bytes", read_uuid),
        FunctionDecoder("base64", "the bytes as base64", read_base64),
        FunctionDecoder(HEX, "the bytes as hexadecimal digits", read_hex),
    )
