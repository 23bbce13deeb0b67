"""Serializers and deserializers: functions, objects like Kafka's, or the names of Kafka's classes.

A serializer is a function of the value, or an object with `serialize(topic, headers, value)`. A deserializer
is a function of the bytes, or an object with `deserialize(topic, headers, data)`. Functions are not called
for None, which stays None; objects are.

>>> IntegerSerializer().serialize("orders", (), 258)
b'\\x00\\x00\\x01\\x02'
>>> JsonDeserializer().deserialize("orders", (), b'{"amount": 3}')
{'amount': 3}
"""

from __future__ import annotations

import json
import struct
import uuid
from collections.abc import Callable, Sequence
from typing import ClassVar, Generic, Protocol, TypeAlias, TypeVar

from tidelog.config import ConfigError

T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)
T_co = TypeVar("T_co", covariant=True)

Headers: TypeAlias = Sequence[tuple[str, bytes | None]]
Serialize: TypeAlias = Callable[[str, Headers, object], object]
Deserialize: TypeAlias = Callable[[str, Headers, bytes | None], object]


class Serializer(Protocol[T_contra]):
    """Turns keys or values into bytes. A text is written as UTF-8. None is passed on, too."""

    def serialize(self, topic: str, headers: Headers, value: T_contra) -> bytes | str | None: ...


class Deserializer(Protocol[T_co]):
    """Turns bytes into keys or values."""

    def deserialize(self, topic: str, headers: Headers, data: bytes | None) -> T_co | None: ...


SerializerSetting: TypeAlias = (
    Serializer[T_contra] | type[Serializer[T_contra]] | Callable[[T_contra], bytes | str | None]
)
"""The types of key_serializer= and value_serializer=."""
DeserializerSetting: TypeAlias = (
    Deserializer[T_co] | type[Deserializer[T_co]] | Callable[[bytes], T_co | None]
)
"""The types of key_deserializer= and value_deserializer=."""


# `send` takes None for every type of value. These serializers turn it into null. Their types leave None out,
# so that `Producer(key_serializer=StringSerializer())` is a `Producer[str, ...]`.


class StringSerializer:
    """Text as UTF-8."""

    def serialize(self, topic: str, headers: Headers, value: str) -> bytes | None:
        return None if value is None else str(value).encode()


class StringDeserializer:
    """Text from UTF-8. Other bytes become U+FFFD, as in Java: no record stops a reader."""

    def deserialize(self, topic: str, headers: Headers, data: bytes | None) -> str | None:
        return None if data is None else bytes(_buffer(data)).decode(errors="replace")


class JsonSerializer:
    """Any value that `json.dumps` takes, as compact UTF-8."""

    def serialize(self, topic: str, headers: Headers, value: object) -> bytes | None:
        if value is None:
            return None
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


class JsonDeserializer:
    """The value that `json.loads` returns for the bytes."""

    def deserialize(self, topic: str, headers: Headers, data: bytes | None) -> object:
        return None if data is None else json.loads(bytes(_buffer(data)))


class UUIDSerializer:
    """A UUID as its text."""

    def serialize(self, topic: str, headers: Headers, value: uuid.UUID) -> bytes | None:
        return None if value is None else str(value).encode()


class UUIDDeserializer:
    """A UUID from its text."""

    def deserialize(self, topic: str, headers: Headers, data: bytes | None) -> uuid.UUID | None:
        return None if data is None else uuid.UUID(bytes(_buffer(data)).decode())


class VoidSerializer:
    """Null, whatever is given."""

    def serialize(self, topic: str, headers: Headers, value: object) -> None:
        return None


class VoidDeserializer:
    """None, whatever was written."""

    def deserialize(self, topic: str, headers: Headers, data: bytes | None) -> None:
        return None


class _NumberSerializer(Generic[T]):
    layout: ClassVar[struct.Struct]

    def serialize(self, topic: str, headers: Headers, value: T) -> bytes | None:
        return None if value is None else self.layout.pack(value)


class _NumberDeserializer(Generic[T]):
    layout: ClassVar[struct.Struct]

    def deserialize(self, topic: str, headers: Headers, data: bytes | None) -> T | None:
        if data is None:
            return None
        number: T = self.layout.unpack(_buffer(data))[0]
        return number


class ShortSerializer(_NumberSerializer[int]):
    """A number of 16 bits."""

    layout = struct.Struct(">h")


class ShortDeserializer(_NumberDeserializer[int]):
    """A number of 16 bits."""

    layout = struct.Struct(">h")


class IntegerSerializer(_NumberSerializer[int]):
    """A number of 32 bits."""

    layout = struct.Struct(">i")


class IntegerDeserializer(_NumberDeserializer[int]):
    """A number of 32 bits."""

    layout = struct.Struct(">i")


class LongSerializer(_NumberSerializer[int]):
    """A number of 64 bits."""

    layout = struct.Struct(">q")


class LongDeserializer(_NumberDeserializer[int]):
    """A number of 64 bits."""

    layout = struct.Struct(">q")


class FloatSerializer(_NumberSerializer[float]):
    """A floating-point number of 32 bits."""

    layout = struct.Struct(">f")


class FloatDeserializer(_NumberDeserializer[float]):
    """A floating-point number of 32 bits."""

    layout = struct.Struct(">f")


class DoubleSerializer(_NumberSerializer[float]):
    """A floating-point number of 64 bits."""

    layout = struct.Struct(">d")


class DoubleDeserializer(_NumberDeserializer[float]):
    """A floating-point number of 64 bits."""

    layout = struct.Struct(">d")


class BooleanSerializer(_NumberSerializer[bool]):
    """One byte, 0 or 1."""

    layout = struct.Struct(">?")


class BooleanDeserializer:
    """One byte, 0 or 1; other bytes raise ValueError."""

    def deserialize(self, topic: str, headers: Headers, data: bytes | None) -> bool | None:
        if data is None:
            return None
        if _buffer(data) not in (b"\0", b"\1"):
            raise ValueError(f"expected one byte, 0 or 1, not {bytes(_buffer(data))!r}")
        return _buffer(data) == b"\1"


_SERIALIZERS: dict[str, Callable[[], object]] = {
    "Boolean": BooleanSerializer,
    "Double": DoubleSerializer,
    "Float": FloatSerializer,
    "Integer": IntegerSerializer,
    "Long": LongSerializer,
    "Short": ShortSerializer,
    "String": StringSerializer,
    "UUID": UUIDSerializer,
    "Void": VoidSerializer,
}
_DESERIALIZERS: dict[str, Callable[[], object]] = {
    "Boolean": BooleanDeserializer,
    "Double": DoubleDeserializer,
    "Float": FloatDeserializer,
    "Integer": IntegerDeserializer,
    "Long": LongDeserializer,
    "Short": ShortDeserializer,
    "String": StringDeserializer,
    "UUID": UUIDDeserializer,
    "Void": VoidDeserializer,
}


def as_bytes(value: object) -> bytes | None:
    """Bytes as they are, str as UTF-8. Other types raise TypeError."""
    if value is None or type(value) is bytes:
        return value
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise TypeError(f"{type(value).__name__} is neither bytes nor str; give a serializer for it")


def serializer(name: str, given: object) -> Serialize | None:
    """The serializer in the setting `name`; None if bytes and str are sent as they are."""
    found = _resolve(name, given, "serialize", _SERIALIZERS)
    if found is None or not callable(found):
        return None
    return found


def deserializer(name: str, given: object) -> Deserialize | None:
    """The deserializer in the setting `name`; None if bytes stay bytes."""
    found = _resolve(name, given, "deserialize", _DESERIALIZERS)
    if found is None or not callable(found):
        return None
    return found


def given(**settings: object) -> dict[str, object]:
    """The settings that are not None."""
    return {name: value for name, value in settings.items() if value is not None}


def _resolve(name: str, given: object, method: str, classes: dict[str, Callable[[], object]]) -> object:
    if given is None:
        return None
    if isinstance(given, str):
        kind = given.rpartition(".")[2]
        for suffix in ("Serializer", "Deserializer"):
            kind = kind.removesuffix(suffix)
        if kind in ("ByteArray", "Bytes", "ByteBuffer"):
            return None
        if kind not in classes:
            raise ConfigError(name, given, "expected a function, or one of Kafka's own classes by name")
        given = classes[kind]()
    if isinstance(given, type) and hasattr(given, method):
        given = given()  # any other class, such as int, is a function that returns an object
    bound: object = getattr(given, method, None)
    if bound is not None:
        return bound
    if callable(given):
        return _ignoring_topic(given)
    raise ConfigError(name, repr(given), f"expected a function, or an object with {method}()")


def _ignoring_topic(function: Callable[[object], object]) -> Callable[[str, Headers, object], object]:
    return lambda topic, headers, value: None if value is None else function(value)


def _buffer(data: object) -> bytes | memoryview:
    if isinstance(data, bytes | memoryview):
        return data
    raise TypeError(f"bytes are expected, not {type(data).__name__}")
