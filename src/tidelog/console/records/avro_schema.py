"""Avro schemas, compiled to functions that read values. Data cannot exhaust the stack, memory or time.

The compiled readers of other packages recurse as deep as the data says, and a record of 5 KB then ends the
process. These count depth, items and bytes.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta
from typing import TypeAlias

from tidelog.console.records.decoder import MAX_DEPTH, MAX_ITEMS, DecodeError
from tidelog.protocol.json import Json

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
FLOAT, DOUBLE = struct.Struct("<f"), struct.Struct("<d")
MAX_SCHEMA = 1 << 20


class Source:
    """The bytes of a value, and the rest of the limits."""

    __slots__ = ("data", "depth", "items", "pos")

    def __init__(self, data: bytes, pos: int = 0) -> None:
        self.data = data
        self.pos = pos
        self.depth = 0
        self.items = 0

    def take(self, count: int) -> bytes:
        end = self.pos + count
        if count < 0 or end > len(self.data):
            raise DecodeError(f"{count} bytes wanted at position {self.pos} of {len(self.data)}")
        found = self.data[self.pos : end]
        self.pos = end
        return found

    def long(self) -> int:
        value = shift = 0
        while True:
            if self.pos >= len(self.data):
                raise DecodeError(f"the data ends in a number at position {self.pos}")
            byte = self.data[self.pos]
            self.pos += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
            if shift > 63:
                raise DecodeError(f"a number at position {self.pos} is longer than 64 bits")
        return (value >> 1) ^ -(value & 1)

    def count_item(self) -> None:
        self.items += 1
        if self.items > MAX_ITEMS:
            raise DecodeError(f"more than {MAX_ITEMS} items")

    def enter(self) -> None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise DecodeError(f"nested deeper than {MAX_DEPTH}")

    def leave(self) -> None:
        self.depth -= 1


Reader: TypeAlias = Callable[[Source], Json]
Octets: TypeAlias = Callable[[bytes], str]


def hex_octets(data: bytes) -> str:
    return "0x" + data.hex()


def compile_schema(text: str | bytes, octets: Octets = hex_octets) -> Reader:
    """The reader of a schema; `octets` makes text of values of the types bytes and fixed.

    Raises DecodeError with the mistake in the schema.
    """
    if len(text) > MAX_SCHEMA:
        raise DecodeError(f"the schema has {len(text)} bytes; {MAX_SCHEMA} are read at most")
    try:
        return _Compiler(octets).reader(json.loads(text), "", 0)
    except RecursionError:
        raise DecodeError("the schema is too deeply nested") from None
    except ValueError as error:
        raise DecodeError(f"the schema is not valid: {error}") from None


class _Compiler:
    def __init__(self, octets: Octets) -> None:
        self.octets = octets
        self.named: dict[str, list[Reader]] = {}

    def reader(self, schema: object, namespace: str, depth: int) -> Reader:
        if depth > MAX_DEPTH:
            raise ValueError(f"nested deeper than {MAX_DEPTH}")
        if schema == "bytes":
            return self._bytes({}, _sized)
        if isinstance(schema, str):
            return PRIMITIVE_READERS.get(schema) or self._reference(schema, namespace)
        if isinstance(schema, list):
            return _union([self.reader(branch, namespace, depth + 1) for branch in schema])
        if not isinstance(schema, dict) or "type" not in schema:
            raise ValueError(f"{str(schema)[:80]!r} is not a type")
        kind = schema["type"]
        if not isinstance(kind, str):
            return self.reader(kind, namespace, depth + 1)
        if kind in ("record", "error", "enum", "fixed"):
            return self._named(kind, schema, namespace, depth)
        if kind == "bytes":
            return self._bytes(schema, _sized)
        if kind in ("array", "map"):
            part = self.reader(schema.get("items" if kind == "array" else "values"), namespace, depth + 1)
            return _array(part) if kind == "array" else _map(part)
        return _logical(schema, self.reader(kind, namespace, depth + 1))

    def _reference(self, name: str, namespace: str) -> Reader:
        found = self.named.get(name if "." in name or not namespace else f"{namespace}.{name}")
        found = self.named.get(name) if found is None else found
        if found is None:
            raise ValueError(f"type {name!r} is not defined")

        def read(source: Source) -> Json:
            source.enter()  # a type that contains itself without a choice never ends
            value = found[0](source)
            source.leave()
            return value

        return read

    def _named(self, kind: str, schema: Mapping[str, object], namespace: str, depth: int) -> Reader:
        name = str(schema.get("name", ""))
        space = name.rpartition(".")[0] or str(schema.get("namespace", namespace))
        slot: list[Reader] = []
        self.named[f"{space}.{name.rpartition('.')[2]}" if space else name] = slot
        if kind == "enum":
            read = _enum(_strings(schema.get("symbols")))
        elif kind == "fixed":
            size = schema.get("size")
            if not isinstance(size, int) or size < 0:
                raise ValueError(f"fixed {name!r} has no size")
            read = self._bytes(schema, lambda source: source.take(size))
        else:
            fields = schema.get("fields")
            if not isinstance(fields, list):
                raise ValueError(f"record {name!r} has no fields")
            read = _record(
                [(str(field["name"]), self.reader(field["type"], space, depth + 1)) for field in fields]
                if all(isinstance(field, dict) and "name" in field and "type" in field for field in fields)
                else _bad_fields(name)
            )
        slot.append(read)
        return read

    def _bytes(self, schema: Mapping[str, object], take: Callable[[Source], bytes]) -> Reader:
        octets = self.octets
        if schema.get("logicalType") != "decimal":
            return lambda source: octets(take(source))
        scale = schema.get("scale", 0)
        places = scale if isinstance(scale, int) and 0 <= scale <= 1000 else 0
        return lambda source: _decimal(take(source), places, octets)


def _bad_fields(name: str) -> list[tuple[str, Reader]]:
    raise ValueError(f"a field of record {name!r} has no name or no type")


def _strings(found: object) -> list[str]:
    if not isinstance(found, list):
        raise ValueError("an enum has no symbols")
    return [str(symbol) for symbol in found]


def _boolean(source: Source) -> Json:
    byte = source.take(1)[0]
    if byte > 1:
        raise DecodeError(f"{byte:#04x} at position {source.pos - 1} is no boolean")
    return byte == 1


def _float(source: Source) -> Json:
    return _finite(FLOAT.unpack(source.take(4))[0])


def _double(source: Source) -> Json:
    return _finite(DOUBLE.unpack(source.take(8))[0])


def _finite(value: float) -> Json:
    return value if math.isfinite(value) else str(value)


def _sized(source: Source) -> bytes:
    return source.take(source.long())


def _string(source: Source) -> Json:
    start = source.pos
    try:
        return source.take(source.long()).decode()
    except UnicodeDecodeError:
        raise DecodeError(f"the string at position {start} is not UTF-8") from None


PRIMITIVE_READERS: dict[str, Reader] = {
    "null": lambda source: None,
    "boolean": _boolean,
    "int": Source.long,
    "long": Source.long,
    "float": _float,
    "double": _double,
    "string": _string,
}


def _union(branches: list[Reader]) -> Reader:
    def read(source: Source) -> Json:
        index = source.long()
        if not 0 <= index < len(branches):
            raise DecodeError(f"branch {index} of a union with {len(branches)} at position {source.pos}")
        return branches[index](source)

    return read


def _enum(symbols: list[str]) -> Reader:
    def read(source: Source) -> Json:
        index = source.long()
        if not 0 <= index < len(symbols):
            raise DecodeError(f"symbol {index} of an enum with {len(symbols)} at position {source.pos}")
        return symbols[index]

    return read


def _record(fields: list[tuple[str, Reader]]) -> Reader:
    def read(source: Source) -> Json:
        source.count_item()
        source.enter()
        found = {name: field(source) for name, field in fields}
        source.leave()
        return found

    return read


def _blocks(source: Source) -> int:
    """The number of items in the next block, 0 at the end."""
    count = source.long()
    if count < 0:
        source.long()  # the bytes of the block, for readers that skip it
        count = -count
    return count


def _array(part: Reader) -> Reader:
    def read(source: Source) -> Json:
        found: list[Json] = []
        source.enter()
        while count := _blocks(source):
            for _ in range(count):
                source.count_item()
                found.append(part(source))
        source.leave()
        return found

    return read


def _map(part: Reader) -> Reader:
    def read(source: Source) -> Json:
        found: dict[str, Json] = {}
        source.enter()
        while count := _blocks(source):
            for _ in range(count):
                source.count_item()
                name = str(_string(source))
                found[name] = part(source)
        source.leave()
        return found

    return read


def _logical(schema: Mapping[str, object], read: Reader) -> Reader:
    """The reader with its logical type. An unknown one is ignored, as the specification says."""
    kind = schema.get("logicalType")
    show = LOGICAL.get(kind) if isinstance(kind, str) else None
    if show is None:
        return read
    return lambda source: _shown(show, read(source))


def _shown(show: Callable[[int], str], value: Json) -> Json:
    if not isinstance(value, int):
        return value
    try:
        return show(value)
    except (OverflowError, ValueError):
        return value  # a date beyond those that can be shown


def _decimal(data: bytes, places: int, octets: Octets) -> Json:
    if len(data) > 64:
        return octets(data)
    number = int.from_bytes(data, signed=True)
    digits = str(abs(number)).rjust(places + 1, "0")
    text = f"{digits[: len(digits) - places]}.{digits[len(digits) - places :]}" if places else digits
    return f"-{text}" if number < 0 else text


def _time(seconds: float) -> str:
    return (EPOCH + timedelta(seconds=seconds)).time().isoformat()


LOGICAL: dict[str, Callable[[int], str]] = {
    "date": lambda days: (date(1970, 1, 1) + timedelta(days=days)).isoformat(),
    "time-millis": lambda ms: _time(ms / 1000),
    "time-micros": lambda us: (EPOCH + timedelta(microseconds=us)).time().isoformat(),
    "timestamp-millis": lambda ms: (EPOCH + timedelta(milliseconds=ms)).isoformat(),
    "timestamp-micros": lambda us: (EPOCH + timedelta(microseconds=us)).isoformat(),
    "local-timestamp-millis": lambda ms: (
        (EPOCH + timedelta(milliseconds=ms)).replace(tzinfo=None).isoformat()
    ),
    "local-timestamp-micros": lambda us: (
        (EPOCH + timedelta(microseconds=us)).replace(tzinfo=None).isoformat()
    ),
}
