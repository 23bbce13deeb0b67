"""Keys and values as bytes and back: functions, objects in Kafka's shape, or the names of Kafka's classes.

A serializer is a function of the value, or an object with `serialize(topic, headers, value)`; a deserializer
a function of the bytes, or an object with `deserialize(topic, headers, data)`. None stays None.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable, Sequence
from typing import TypeAlias

from tidelog.config import ConfigError

Headers: TypeAlias = Sequence[tuple[str, bytes | None]]
Serialize: TypeAlias = Callable[[str, Headers, object], object]
Deserialize: TypeAlias = Callable[[str, Headers, bytes | None], object]

_NUMBERS = {"Short": ">h", "Integer": ">i", "Long": ">q", "Float": ">f", "Double": ">d", "Boolean": ">?"}


def as_bytes(value: object) -> bytes | None:
    """Bytes as they are, texts as UTF-8; anything else needs a serializer."""
    if value is None or type(value) is bytes:
        return value
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise TypeError(f"{type(value).__name__} is neither bytes nor str; give a serializer for it")


def serializer(name: str, given: object) -> Serialize | None:
    """The serializer that a setting names; None where bytes and texts go through as they are."""
    found = _resolve(name, given, "serialize", _named_serializer)
    if found is None or not callable(found):
        return None
    return found


def deserializer(name: str, given: object) -> Deserialize | None:
    """The deserializer that a setting names; None where bytes stay bytes."""
    found = _resolve(name, given, "deserialize", _named_deserializer)
    if found is None or not callable(found):
        return None
    return found


def _resolve(
    name: str, given: object, method: str, named: Callable[[str], Callable[[object], object] | None]
) -> object:
    if given is None:
        return None
    if isinstance(given, str):
        kind = given.rpartition(".")[2]
        for suffix in ("Serializer", "Deserializer"):
            kind = kind.removesuffix(suffix)
        if kind in ("ByteArray", "Bytes", "ByteBuffer"):
            return None
        function = named(kind)
        if function is None:
            raise ConfigError(name, given, "expected a function, or one of Kafka's own classes by name")
        return _ignoring_topic(function)
    if isinstance(given, type) and hasattr(given, method):
        given = given()  # any other class is a function that makes its objects, as int is
    bound: object = getattr(given, method, None)
    if bound is not None:
        return bound
    if callable(given):
        return _ignoring_topic(given)
    raise ConfigError(name, repr(given), f"expected a function, or an object with {method}()")


def _ignoring_topic(function: Callable[[object], object]) -> Callable[[str, Headers, object], object]:
    return lambda topic, headers, value: None if value is None else function(value)


def _named_serializer(kind: str) -> Callable[[object], object] | None:
    if kind == "String":
        return lambda value: str(value).encode()
    if kind == "UUID":
        return lambda value: str(value).encode()
    if kind == "Void":
        return lambda value: None
    if kind in _NUMBERS:
        return struct.Struct(_NUMBERS[kind]).pack
    return None


def _named_deserializer(kind: str) -> Callable[[object], object] | None:
    if kind == "String":
        # As Java's: no record stops a reader.
        return lambda data: bytes(_buffer(data)).decode(errors="replace")
    if kind == "Boolean":
        return _boolean
    if kind == "UUID":
        return lambda data: uuid.UUID(bytes(_buffer(data)).decode())
    if kind == "Void":
        return lambda data: None
    if kind in _NUMBERS:
        number = struct.Struct(_NUMBERS[kind])
        return lambda data: number.unpack(_buffer(data))[0]
    return None


def _boolean(data: object) -> bool:
    if _buffer(data) not in (b"\0", b"\1"):
        raise ValueError(f"expected one byte, 0 or 1, not {bytes(_buffer(data))!r}")
    return _buffer(data) == b"\1"


def _buffer(data: object) -> bytes | memoryview:
    if isinstance(data, bytes | memoryview):
        return data
    raise TypeError(f"bytes are expected, not {type(data).__name__}")
