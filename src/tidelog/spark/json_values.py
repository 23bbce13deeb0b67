"""Reads values that are JSON objects into the typed columns of a schema, and describes bad values.

Types are strict: a number in quotes is not a number, 1.0 is not an integer, and no value is rounded or
truncated. Fields that are not in the schema are ignored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidelog.records import json_columns as kinds
from tidelog.records.json_columns import Column, Field, JsonReader, RowError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import DataType, StructType

_FOUND = {ord('"'): "a string", ord("["): "an array", ord("{"): "an object"}
_FOUND |= {ord("t"): "true", ord("f"): "false"}


@dataclass(frozen=True, slots=True)
class _Place:
    """A node of the schema: its path for error messages, and its type."""

    path: str
    kind: int
    type: str


def _kind(data_type: DataType) -> int:
    from pyspark.sql import types as t

    found: dict[type[DataType], int] = {
        t.BooleanType: kinds.BOOL,
        t.ByteType: kinds.INT8,
        t.ShortType: kinds.INT16,
        t.IntegerType: kinds.INT32,
        t.LongType: kinds.INT64,
        t.FloatType: kinds.FLOAT,
        t.DoubleType: kinds.DOUBLE,
        t.StringType: kinds.STRING,
        t.BinaryType: kinds.BINARY,
        t.DateType: kinds.DATE,
        t.TimestampType: kinds.TIMESTAMP,
        t.TimestampNTZType: kinds.LOCAL_TIMESTAMP,
        t.DecimalType: kinds.DECIMAL,
        t.ArrayType: kinds.ARRAY,
        t.MapType: kinds.MAP,
        t.StructType: kinds.STRUCT,
    }
    kind = next((found[base] for base in type(data_type).__mro__ if base in found), None)
    if kind is None:
        raise ValueError(f"values of type {data_type.simpleString()} are not read from JSON")
    return kind


def _field(name: str, data_type: DataType, nullable: bool) -> Field:
    from pyspark.sql.types import ArrayType, DecimalType, MapType, StringType, StructType

    children: tuple[Field, ...] = ()
    precision = scale = 0
    if isinstance(data_type, DecimalType):
        precision, scale = data_type.precision, data_type.scale
    elif isinstance(data_type, ArrayType):
        children = (_field("[]", data_type.elementType, data_type.containsNull),)
    elif isinstance(data_type, MapType):
        if not isinstance(data_type.keyType, StringType):
            found = data_type.keyType.simpleString()
            raise ValueError(f"field {name}: the keys of a map in JSON are strings, not {found}")
        children = (
            _field("[]", data_type.keyType, False),
            _field("[]", data_type.valueType, data_type.valueContainsNull),
        )
    elif isinstance(data_type, StructType):
        children = tuple(_field(inner.name, inner.dataType, inner.nullable) for inner in data_type.fields)
        if not children:
            raise ValueError(f"field {name}: a struct without fields")
    return (_kind(data_type), not nullable, name.encode(), precision, scale, children)


def _places(schema: StructType) -> list[_Place]:
    """The nodes of a schema, level by level, in the order of the reader."""
    from pyspark.sql.types import ArrayType, MapType, StructType

    order: list[tuple[str, DataType]] = [("", schema)]
    found: list[_Place] = []
    for path, data_type in order:
        found.append(_Place(path, _kind(data_type), data_type.simpleString()))
        if isinstance(data_type, ArrayType):
            order.append((f"{path}[]", data_type.elementType))
        elif isinstance(data_type, MapType):
            order += [(f"{path}[]", data_type.keyType), (f"{path}[]", data_type.valueType)]
        elif isinstance(data_type, StructType):
            order += [(f"{path}.{i.name}" if path else i.name, i.dataType) for i in data_type.fields]
    return found


def check(schema: StructType) -> None:
    """Raise ValueError if a schema has types that cannot be read from JSON."""
    for field in schema.fields:
        _field(field.name, field.dataType, field.nullable)


class JsonColumns:
    """`read` turns a column of values into the columns of a schema, and returns the errors of bad values."""

    def __init__(self, schema: StructType, types: list[pa.DataType]) -> None:
        self._places = _places(schema)
        self._types = types
        self._reader = JsonReader(
            tuple(_field(field.name, field.dataType, field.nullable) for field in schema.fields)
        )

    def read(self, values: pa.Array) -> tuple[list[pa.Array], list[RowError]]:
        bits, ends, data = values.buffers()
        errors = self._reader.read(ends, data if data is not None else b"", bits, values.offset, len(values))
        return _Assembly(self._reader.take()).columns(self._types), errors

    def reason(self, error: RowError, value: bytes | None) -> str:
        """The error in words."""
        _, code, node, position = error
        place = self._places[node]
        if code == kinds.NO_VALUE:
            return "the value is null where a JSON object is expected"
        if code == kinds.SYNTAX:
            if not (value or b"").strip():
                return "the value is empty where a JSON object is expected"
            return "the value is not valid JSON" + (f", from byte {position} on" if position >= 0 else "")
        if code == kinds.NO_OBJECT:
            return "the value is JSON, but not an object"
        if code == kinds.TOO_DEEP:
            return f"the value is nested deeper than {kinds.MAX_DEPTH} levels"
        return _field_reason(code, place, _found(value, position) if code == kinds.WRONG_TYPE else "")


def _found(value: bytes | None, position: int) -> str:
    if value is None or not 0 <= position < len(value):
        return ""
    return f", found {_FOUND.get(value[position], 'a number')}"


def _field_reason(code: int, place: _Place, found: str) -> str:
    name = f"field {place.path}"
    if code == kinds.WRONG_TYPE:
        if found == ", found a number" and place.kind in (kinds.INT8, kinds.INT16, kinds.INT32, kinds.INT64):
            found = ", found a number with a fraction or an exponent"
        return f"{name}: expected {place.type}{found}"
    if code == kinds.OUT_OF_RANGE:
        return f"{name}: the number does not fit {place.type}"
    if code == kinds.IS_NULL:
        return f"{name} is null, and it is required"
    if code == kinds.MISSING:
        return f"{name} is missing, and it is required"
    if code == kinds.TWICE:
        return f"{name} has a key twice" if place.kind == kinds.MAP else f"{name} occurs twice"
    wanted = {
        kinds.DATE: "a date such as 2026-01-31",
        kinds.TIMESTAMP: "a time such as 2026-01-31T12:00:00Z",
        kinds.LOCAL_TIMESTAMP: "a time without a zone, such as 2026-01-31T12:00:00",
        kinds.BINARY: "bytes in Base64",
        kinds.DECIMAL: "a number",
    }[place.kind]
    return f"{name}: expected {wanted}"


class _Assembly:
    """Builds Arrow arrays from the buffers of the nodes, which are ordered level by level."""

    def __init__(self, parts: list[Column]) -> None:
        self._parts = parts

    def columns(self, types: list[pa.DataType]) -> list[pa.Array]:
        following = len(types)
        made: dict[int, pa.Array] = {}
        firsts: dict[int, list[int]] = {}
        kinds_of: dict[int, pa.DataType] = dict(enumerate(types))
        for at in range(len(self._parts)):
            inner = _inner_types(kinds_of[at])
            firsts[at] = list(range(following, following + len(inner)))
            kinds_of |= dict(zip(firsts[at], inner, strict=True))
            following += len(inner)
        for index in reversed(range(len(self._parts))):
            made[index] = self._array(index, kinds_of[index], [made[child] for child in firsts[index]])
        return [made[index] for index in range(len(types))]

    def _array(self, index: int, type: pa.DataType, children: list[pa.Array]) -> pa.Array:
        import pyarrow as pa

        rows, nulls, bits, ends, data = self._parts[index]
        buffers = [pa.py_buffer(bits) if nulls else None]
        buffers += [pa.py_buffer(part) for part in (ends, data) if part is not None]
        if pa.types.is_map(type):
            entries = pa.struct([type.key_field, type.item_field])
            children = [pa.StructArray.from_arrays(children, fields=list(entries))]
        return pa.Array.from_buffers(type, rows, buffers, nulls, children=children or None)


def _inner_types(type: pa.DataType) -> list[pa.DataType]:
    import pyarrow as pa

    if pa.types.is_struct(type):
        return [field.type for field in type]
    if pa.types.is_map(type):
        return [type.key_type, type.item_type]
    if pa.types.is_list(type):
        return [type.value_type]
    return []
