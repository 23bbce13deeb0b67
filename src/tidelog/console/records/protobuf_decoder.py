"""Protobuf: messages of a descriptor set or a .proto file, and a dump of the fields without a schema.

The package `protobuf` is imported when a schema is loaded. The dump without a schema needs no package.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import TYPE_CHECKING

from tidelog.console.records.avro_decoder import WIRE_HEADER, schema_id
from tidelog.console.records.decoder import DecodeError, Decoder, Read, printable
from tidelog.console.records.proto_file import descriptor_set, message_names
from tidelog.protocol.json import Json

if TYPE_CHECKING:
    from google.protobuf.message import Message

MAX_RAW_DEPTH = 16
MAX_FIELDS = 10_000
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5


class ProtobufDecoder(Decoder):
    """Messages of one type. Confluent's wire format is recognised, its schema id is shown."""

    name = "protobuf"
    about = "Protobuf with a descriptor set or a .proto file"

    def __init__(self, descriptor_set: bytes, message: str | None = None) -> None:
        try:
            from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
            from google.protobuf.message import DecodeError as NotReadable
        except ImportError:
            raise DecodeError('Protobuf needs a package: pip install "tidelog[decoders]"') from None
        try:
            files = descriptor_pb2.FileDescriptorSet.FromString(descriptor_set)
        except NotReadable:
            raise DecodeError("the schema is not a descriptor set: make one with protoc -o FILE") from None
        pool = descriptor_pool.DescriptorPool()
        for file in files.file:
            try:
                pool.Add(file)
            except TypeError as error:
                raise DecodeError(f"{file.name} of the descriptor set: {error}") from None
        # protoc writes the files that others import before them.
        names = [name for file in files.file[-1:] for name in message_names(file)]
        if message is None:
            if len(names) != 1:
                raise DecodeError(f"the schema has {len(names)} messages; name one: {', '.join(names[:20])}")
            message = names[0]
        try:
            self._class: type[Message] = message_factory.GetMessageClass(pool.FindMessageTypeByName(message))
        except (KeyError, TypeError) as error:
            raise DecodeError(f"message {message!r} cannot be used: {error}") from None
        self._pool = pool
        self._not_readable = NotReadable

    @classmethod
    def from_file(cls, path: str | Path, message: str | None = None) -> ProtobufDecoder:
        """The decoder of a descriptor set, or of a .proto file if protoc is installed."""
        return cls(descriptor_set(path), message)

    def read(self, data: bytes) -> Read:
        wire = schema_id(data)
        if wire is not None:  # field number 0 does not exist, so it is not a message
            body = data[_after_indexes(data, WIRE_HEADER) :]
            return Read(self._message(body), note=f"Confluent wire format, schema id {wire}")
        return Read(self._message(data))

    def _message(self, data: bytes) -> Json:
        from google.protobuf import json_format

        try:
            found = self._class.FromString(data)
            value: Json = json_format.MessageToDict(
                found, preserving_proto_field_name=True, descriptor_pool=self._pool
            )
        except (self._not_readable, ValueError, TypeError, json_format.Error) as error:
            name = self._class.DESCRIPTOR.full_name
            raise DecodeError(f"not a message {name}: {error}") from None
        return value


def _after_indexes(data: bytes, pos: int) -> int:
    """The position after the message indexes of the wire format: a count, and as many numbers."""
    count, pos = _varint(data, pos)
    for _ in range(min(count >> 1, 64)):
        _, pos = _varint(data, pos)
    return pos


class RawProtobufDecoder(Decoder):
    """The fields of a message without its schema: numbers, and text, messages or hex for bytes."""

    name = "protobuf-raw"
    about = "Protobuf fields without a schema"

    def read(self, data: bytes) -> Read:
        if not data:
            raise DecodeError("no bytes, so no fields")
        budget = [MAX_FIELDS]
        return Read(_fields(data, 0, budget))


def _fields(data: bytes, depth: int, budget: list[int]) -> Json:
    found: dict[str, Json] = {}
    pos = 0
    while pos < len(data):
        budget[0] -= 1
        if budget[0] < 0:
            raise DecodeError(f"more than {MAX_FIELDS} fields")
        tag, pos = _varint(data, pos)
        number, kind = tag >> 3, tag & 7
        if number == 0 or number >= 1 << 29:
            raise DecodeError(f"field number {number} at position {pos}")
        value, pos = _value(data, pos, kind, depth, budget)
        name = str(number)
        if name not in found:
            found[name] = value
            continue
        present = found[name]
        if isinstance(present, list):
            present.append(value)
        else:
            found[name] = [present, value]
    return found


def _value(data: bytes, pos: int, kind: int, depth: int, budget: list[int]) -> tuple[Json, int]:
    if kind == VARINT:
        return _varint(data, pos)
    if kind == FIXED64:
        return struct.unpack("<q", _take(data, pos, 8))[0], pos + 8
    if kind == FIXED32:
        return struct.unpack("<i", _take(data, pos, 4))[0], pos + 4
    if kind != BYTES:
        raise DecodeError(f"wire type {kind} at position {pos} is not read")
    size, pos = _varint(data, pos)
    part = _take(data, pos, size)
    return _bytes(part, depth, budget), pos + size


def _bytes(part: bytes, depth: int, budget: list[int]) -> Json:
    text = printable(part)
    if text is not None:
        return text
    if depth < MAX_RAW_DEPTH:
        try:
            return _fields(part, depth + 1, budget)
        except DecodeError:
            pass
    return "0x" + part.hex()


def _take(data: bytes, pos: int, size: int) -> bytes:
    if pos + size > len(data):
        raise DecodeError(f"{size} bytes wanted at position {pos} of {len(data)}")
    return data[pos : pos + size]


def _varint(data: bytes, pos: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 70:
        if pos >= len(data):
            raise DecodeError(f"the data ends in a number at position {pos}")
        byte = data[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, pos
        shift += 7
    raise DecodeError(f"a number at position {pos} is longer than 64 bits")
