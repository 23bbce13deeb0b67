"""Keys and values by a schema file: Avro (`.avsc`) or Protobuf (`.desc`, or `.proto` with protoc installed).

People see and write them as JSON. With `confluent` framing the bytes begin with a zero and the id of the
schema, and for Protobuf with the place of the message in its file.
"""

from __future__ import annotations

import json
from functools import cached_property
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from tidelog.cli.formats.avro_json import from_json
from tidelog.console.records.avro_schema import Source, compile_schema
from tidelog.console.records.decoder import DecodeError
from tidelog.console.records.proto_file import descriptor_set, message_names

if TYPE_CHECKING:
    from types import ModuleType

    from google.protobuf.descriptor import Descriptor
    from google.protobuf.message import Message

FRAMINGS = ("none", "confluent")
MAGIC = b"\0"
ID_BYTES = 4


class SchemaFile(Protocol):
    """Turns bytes into JSON text and back. Both raise ValueError with the reason."""

    def decode(self, data: bytes) -> bytes: ...

    def encode(self, text: bytes) -> bytes: ...


def load_schema(name: str, *, framing: str = "none", schema_id: int | None = None) -> SchemaFile:
    """The schema of `FILE` or `FILE#MESSAGE`. Raises ValueError if it cannot be used."""
    path, _, message = name.partition("#")
    suffix = Path(path).suffix.lower()
    if framing == "confluent" and schema_id is None:
        schema_id = 0
    if suffix in (".avsc", ".json"):
        return AvroSchema(path, framing, schema_id or 0)
    if suffix in (".desc", ".pb", ".protoset", ".proto"):
        return ProtobufSchema(path, message, framing, schema_id or 0)
    raise ValueError(f"{path} is no schema file: expected .avsc for Avro, .desc or .proto for Protobuf")


def unframed(data: bytes, framing: str) -> bytes:
    if framing == "none":
        return data
    if data[:1] != MAGIC or len(data) < 1 + ID_BYTES:
        raise ValueError("the data does not begin with a zero and a schema id; is it framed?")
    return data[1 + ID_BYTES :]


def framed(data: bytes, framing: str, schema_id: int) -> bytes:
    return data if framing == "none" else MAGIC + schema_id.to_bytes(ID_BYTES, "big") + data


class AvroSchema:
    """The schema of an `.avsc` file. Encoding needs fastavro; decoding needs no package."""

    def __init__(self, path: str, framing: str, schema_id: int) -> None:
        self._path = path
        self._framing, self._id = framing, schema_id
        try:
            self._text = Path(path).read_text()
            self._read = compile_schema(self._text, octets=lambda data: data.decode("latin-1"))
        except OSError as error:
            raise ValueError(f"{path}: {error.strerror}") from None
        except ValueError as error:
            raise ValueError(f"{path} is no Avro schema: {error}") from None

    def decode(self, data: bytes) -> bytes:
        source = Source(unframed(data, self._framing))
        try:
            value = self._read(source)
        except (DecodeError, RecursionError) as error:
            raise ValueError(f"it does not fit the Avro schema: {error}") from None
        rest = len(source.data) - source.pos
        if rest:
            raise ValueError(f"it does not fit the Avro schema: {rest} bytes are left over")
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()

    def encode(self, text: bytes) -> bytes:
        fastavro, schema = self._writer
        out = BytesIO()
        try:
            fastavro.schemaless_writer(out, schema, from_json(json.loads(text), schema), strict=True)
        except Exception as error:  # the library lets errors of all kinds through
            raise ValueError(f"it does not fit the Avro schema: {type(error).__name__}: {error}") from None
        return framed(out.getvalue(), self._framing, self._id)

    @cached_property
    def _writer(self) -> tuple[ModuleType, Any]:
        """fastavro, and the schema as it wants it."""
        try:
            import fastavro
        except ImportError:
            raise ValueError("writing Avro needs fastavro: pip install 'tidelog[schemas]'") from None
        try:
            return fastavro, fastavro.parse_schema(json.loads(self._text))
        except (ValueError, KeyError, fastavro.schema.SchemaParseException) as error:
            raise ValueError(f"{self._path} is no Avro schema: {error}") from None


class ProtobufSchema:
    """A message of a descriptor set, the output of `protoc --include_imports --descriptor_set_out`."""

    def __init__(self, path: str, message: str, framing: str, schema_id: int) -> None:
        try:
            from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
        except ImportError:
            raise ValueError("Protobuf needs protobuf: pip install 'tidelog[schemas]'") from None
        self._json = json_format
        self._framing, self._id = framing, schema_id
        pool = descriptor_pool.DescriptorPool()
        try:
            files = descriptor_pb2.FileDescriptorSet.FromString(descriptor_set(path)).file
            for file in files:
                pool.Add(file)
        except OSError as error:
            raise ValueError(f"{path}: {error.strerror}") from None
        except DecodeError as error:
            raise ValueError(f"{path} cannot be used: {error}") from None
        except Exception as error:
            raise ValueError(f"{path} is no descriptor set of protoc: {error}") from None
        names = [name for file in files[-1:] for name in message_names(file)]
        if not message and len(names) != 1:
            raise ValueError(f"{path} has several messages; choose one with {path}#NAME: {', '.join(names)}")
        try:
            self._descriptor: Descriptor = pool.FindMessageTypeByName(message or names[0])
        except KeyError:
            raise ValueError(f"{path} has no message {message}: it has {', '.join(names)}") from None
        self._pool = pool
        self._class: type[Message] = message_factory.GetMessageClass(self._descriptor)

    def decode(self, data: bytes) -> bytes:
        data = unframed(data, self._framing)
        if self._framing == "confluent":
            data = after_message_path(data)
        try:
            found = self._class.FromString(data)
        except Exception as error:
            raise ValueError(f"it is no {self._descriptor.full_name}: {error}") from None
        value = self._json.MessageToDict(found, preserving_proto_field_name=True, descriptor_pool=self._pool)
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()

    def encode(self, text: bytes) -> bytes:
        try:
            made = self._json.Parse(text.decode(), self._class(), descriptor_pool=self._pool)
        except (self._json.ParseError, UnicodeDecodeError) as error:
            raise ValueError(f"it is no {self._descriptor.full_name}: {error}") from None
        data = made.SerializeToString(deterministic=True)
        if self._framing == "confluent":
            data = message_path(self._descriptor) + data
        return framed(data, self._framing, self._id)


def message_path(message: Descriptor) -> bytes:
    """The place of a message in its file: zigzag varints, their number first; one zero for the first."""
    path: list[int] = []
    at: Descriptor | None = message
    while at is not None:
        outer = at.containing_type
        beside = outer.nested_types if outer is not None else list(at.file.message_types_by_name.values())
        path.insert(0, [each.full_name for each in beside].index(at.full_name))
        at = outer
    if path == [0]:
        return b"\0"
    return b"".join(_varint(number << 1) for number in (len(path), *path))


def after_message_path(data: bytes) -> bytes:
    count, at = _read_varint(data, 0)
    for _ in range(count >> 1):
        _, at = _read_varint(data, at)
    return data[at:]


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while at < len(data) and shift < 35:
        number |= (data[at] & 127) << shift
        at += 1
        if data[at - 1] < 128:
            return number, at
        shift += 7
    raise ValueError("the place of the message in its file is cut off")
