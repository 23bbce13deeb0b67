"""Avro: records with a schema from a file, and records that are Avro container files themselves."""

from __future__ import annotations

import zlib
from pathlib import Path

from tidelog.console.records.avro_schema import Source, compile_schema
from tidelog.console.records.decoder import MAX_TEXT, DecodeError, Decoder, Read
from tidelog.protocol.json import Json

CONTAINER = b"Obj\x01"
WIRE_FORMAT = 0
WIRE_HEADER = 5
MAX_DATUMS = 1000


def schema_id(data: bytes) -> int | None:
    """The schema id of Confluent's wire format: a zero byte and four bytes. None if it is not that."""
    if len(data) < WIRE_HEADER or data[0] != WIRE_FORMAT:
        return None
    return int.from_bytes(data[1:WIRE_HEADER])


class AvroDecoder(Decoder):
    """Avro with the schema of a file. Confluent's wire format is recognised, its schema id is shown."""

    name = "avro"
    about = "Avro with a schema file"

    def __init__(self, schema: str) -> None:
        self._reader = compile_schema(schema)

    @classmethod
    def from_file(cls, path: str | Path) -> AvroDecoder:
        """The decoder of a schema file. Raises OSError or DecodeError."""
        return cls(Path(path).read_text())

    def read(self, data: bytes) -> Read:
        found = schema_id(data)
        try:
            return Read(self._whole(data, 0))
        except DecodeError:
            if found is None:
                raise
        value = self._whole(data, WIRE_HEADER)
        return Read(value, note=f"Confluent wire format, schema id {found}")

    def _whole(self, data: bytes, start: int) -> Json:
        source = Source(data, start)
        value = self._reader(source)
        if source.pos != len(data):
            raise DecodeError(f"{len(data) - source.pos} bytes follow the value of the schema")
        return value


class AvroContainerDecoder(Decoder):
    """Avro object container files, which begin with their schema."""

    name = "avro-container"
    about = "Avro with the schema in the record"

    def read(self, data: bytes) -> Read:
        if not data.startswith(CONTAINER):
            wire = schema_id(data)
            if wire is not None:
                raise DecodeError(
                    f"begins with the magic byte of Confluent's wire format and schema id {wire}: "
                    "name the schema file of this topic to read it"
                )
            raise DecodeError("does not begin with Obj and 1, as an Avro container does")
        source = Source(data, len(CONTAINER))
        meta = _metadata(source)
        sync = source.take(16)
        reader = compile_schema(meta.get("avro.schema", b""))
        codec = meta.get("avro.codec", b"null").decode(errors="replace")
        values: list[Json] = []
        while source.pos < len(data):
            count, size = source.long(), source.long()
            block = Source(_unpacked(codec, source.take(size)))
            for _ in range(count):
                if len(values) >= MAX_DATUMS:
                    raise DecodeError(f"has more than {MAX_DATUMS} values")
                values.append(reader(block))
            if source.take(16) != sync:
                raise DecodeError(f"the block that ends at {source.pos} has another sync marker")
        return Read(values[0] if len(values) == 1 else values)


def _metadata(source: Source) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    while count := source.long():
        if count < 0:
            source.long()
            count = -count
        for _ in range(count):
            name = source.take(source.long()).decode(errors="replace")
            found[name] = source.take(source.long())
    return found


def _unpacked(codec: str, data: bytes) -> bytes:
    if codec == "null":
        return data
    if codec != "deflate":
        raise DecodeError(f"codec {codec!r} of a container is not read; null and deflate are")
    inflate = zlib.decompressobj(-15)
    try:
        found = inflate.decompress(data, MAX_TEXT)
    except zlib.error as error:
        raise DecodeError(f"a block cannot be inflated: {error}") from None
    if inflate.unconsumed_tail:
        raise DecodeError(f"a block inflates to more than {MAX_TEXT} bytes")
    return found
