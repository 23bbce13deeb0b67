"""Reads JSON values into columns in Arrow's layout, in plain Python; `_json` does it compiled, in one pass.

Fields are `(kind, required, name, precision, scale, children)`: the child of an array is its element, the
children of a map are its key and its value. A bad row has nulls, and its error is a reason and a node: node 0
is the value itself, the others are the fields, numbered level by level.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import struct
from array import array
from datetime import date
from typing import NamedTuple

from tidelog.records._pure import Buffer

BOOL, INT8, INT16, INT32, INT64, FLOAT, DOUBLE, STRING, BINARY = range(9)
DATE, TIMESTAMP, LOCAL_TIMESTAMP, DECIMAL, ARRAY, MAP, STRUCT = range(9, 16)

NO_VALUE = 1  # null instead of a value
SYNTAX = 2  # not valid JSON
NO_OBJECT = 3  # valid JSON, but not an object
WRONG_TYPE = 4
OUT_OF_RANGE = 5
IS_NULL = 6  # null in a required field
MISSING = 7  # a required field is missing
TWICE = 8
TOO_DEEP = 9
BAD_CONTENT = 10  # a string that is not a date, time, number or Base64 as its field needs

MAX_DEPTH = 128
MAX_DIGITS = 100
MAX_EXPONENT = 10_000

Field = tuple[int, bool, bytes, int, int, tuple["Field", ...]]
RowError = tuple[int, int, int, int]
"""The row, the reason, the node, and the position in the value (-1 if unknown)."""
Column = tuple[int, int, Buffer, Buffer | None, Buffer | None]
"""Rows, nulls, validity bits, ends and data of a node."""

_WIDTHS = {INT8: 1, INT16: 2, INT32: 4, INT64: 8, FLOAT: 4, DOUBLE: 8, DATE: 4}
_WIDTHS |= {TIMESTAMP: 8, LOCAL_TIMESTAMP: 8, DECIMAL: 16}
_NUMBER = re.compile(r"(-?)(0|[1-9][0-9]*)(?:\.([0-9]+))?(?:[eE]([+-]?[0-9]+))?")
_TIME = re.compile(
    r"(\d{4}-\d\d-\d\d)(?:[T ](\d\d):(\d\d)(?::(\d\d)(?:\.(\d{1,9}))?)?(Z|[+-]\d\d(?::?\d\d)?)?)?", re.ASCII
)
_BASE64 = re.compile(r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{3}=|[A-Za-z0-9+/]{2}==)?")
_EPOCH = date(1970, 1, 1).toordinal()


class _Whole(str):
    """The digits of a number without a fraction or an exponent."""


class _Real(str):
    """The digits of another number."""


class _Pairs(list[tuple[str, object]]):
    """The pairs of an object, with duplicate keys."""


class _Bad(Exception):
    def __init__(self, code: int, node: int = 0) -> None:
        super().__init__(code, node)
        self.code = code
        self.node = node


class _Node(NamedTuple):
    kind: int
    required: bool
    name: str
    precision: int
    scale: int
    first: int
    last: int
    """The children are the nodes from `first` up to, not including, `last`."""


class _Cells:
    """The column of a node."""

    def __init__(self, node: _Node) -> None:
        self.node = node
        self.rows = self.nulls = 0
        self.bits = bytearray()
        self.ends = array("i", [0])
        self.data = bytearray()

    def count(self, valid: bool) -> None:
        _set_bit(self.bits, self.rows, valid)
        self.rows += 1
        self.nulls += not valid

    def taken(self) -> Column:
        kind = self.node.kind
        ends = memoryview(self.ends).cast("B") if kind in (STRING, BINARY, ARRAY, MAP) else None
        data = self.data if kind not in (ARRAY, MAP, STRUCT) else None
        return self.rows, self.nulls, self.bits, ends, data


class JsonReader:
    """`read` takes rows of a binary column; `take` returns the columns of the fields and starts again."""

    def __init__(self, fields: tuple[Field, ...]) -> None:
        order: list[Field] = [(STRUCT, True, b"", 0, 0, fields)]
        self._nodes: list[_Node] = []
        for kind, required, name, precision, scale, children in order:
            first = len(order)
            order.extend(children)
            self._nodes.append(_Node(kind, required, name.decode(), precision, scale, first, len(order)))
        self._cells = [_Cells(node) for node in self._nodes]
        self._decoder = json.JSONDecoder(
            object_pairs_hook=_Pairs, parse_int=_Whole, parse_float=_Real, parse_constant=_no_constant
        )

    def read(self, ends: Buffer, data: Buffer, bits: Buffer | None, first: int, rows: int) -> list[RowError]:
        """The errors of rows, in order."""
        if first < 0 or rows < 0 or len(memoryview(ends)) < 4 * (first + rows + 1):
            raise ValueError(f"rows {first} to {first + rows} are outside of the column")
        places = struct.unpack_from(f"={rows + 1}i", ends, 4 * first)
        content = memoryview(data)
        errors: list[RowError] = []
        for row in range(rows):
            at = first + row
            try:
                if bits is not None and not memoryview(bits)[at >> 3] >> (at & 7) & 1:
                    raise _Bad(NO_VALUE)
                self._put_struct(0, self._fields(bytes(content[places[row] : places[row + 1]])))
            except _Bad as bad:
                errors.append((row, bad.code, bad.node, -1))
                for index in range(1, self._nodes[0].last):
                    self._put(index, None)
        return errors

    def take(self) -> list[Column]:
        found = [cells.taken() for cells in self._cells[1:]]
        self._cells = [_Cells(node) for node in self._nodes]
        return found

    # Values, checked before a column changes

    def _fields(self, value: bytes) -> dict[int, object]:
        try:
            text = value.decode()
            found = self._decoder.decode(text)
            if "\\u" in text:
                _check_surrogates(found)
        except RecursionError:
            raise _Bad(TOO_DEEP) from None
        except ValueError:
            raise _Bad(SYNTAX) from None
        if _depth(found) > MAX_DEPTH:
            raise _Bad(TOO_DEEP)
        if not isinstance(found, _Pairs):
            raise _Bad(NO_OBJECT)
        return self._struct(0, found)

    def _struct(self, index: int, pairs: _Pairs) -> dict[int, object]:
        node = self._nodes[index]
        names = {self._nodes[i].name: i for i in range(node.first, node.last)}
        found: dict[int, object] = {}
        for name, value in pairs:
            field = names.get(name)
            if field is None:
                continue
            if field in found:
                raise _Bad(TWICE, field)
            found[field] = self._value(field, value)
        for field in names.values():
            if field not in found:
                if self._nodes[field].required:
                    raise _Bad(MISSING, field)
                found[field] = None
        return found

    def _value(self, index: int, value: object) -> object:
        node = self._nodes[index]
        if value is None:
            if node.required:
                raise _Bad(IS_NULL, index)
            return None
        if node.kind == STRUCT and isinstance(value, _Pairs):
            return self._struct(index, value)
        if node.kind == MAP and isinstance(value, _Pairs):
            entries = [(name, self._value(node.first + 1, item)) for name, item in value]
            if len({name for name, _ in entries}) < len(entries):
                raise _Bad(TWICE, index)
            return entries
        if node.kind == ARRAY and isinstance(value, list) and not isinstance(value, _Pairs):
            return [self._value(node.first, item) for item in value]
        try:
            return _scalar(node, value)
        except _Bad as bad:
            raise _Bad(bad.code, index) from None

    # Columns

    def _put_struct(self, index: int, fields: dict[int, object]) -> None:
        for field in range(self._nodes[index].first, self._nodes[index].last):
            self._put(field, fields[field])

    def _put(self, index: int, value: object) -> None:
        cells, node = self._cells[index], self._nodes[index]
        if node.kind == STRUCT:
            empty: dict[int, object] = dict.fromkeys(range(node.first, node.last))
            self._put_struct(index, value if isinstance(value, dict) else empty)
        elif node.kind == BOOL:
            _set_bit(cells.data, cells.rows, value is True)
        elif node.kind in (ARRAY, MAP):
            for item in value if isinstance(value, list) else ():
                if node.kind == MAP:
                    self._put(node.first, item[0].encode())
                    self._put(node.first + 1, item[1])
                else:
                    self._put(node.first, item)
            cells.ends.append(self._cells[node.first].rows)
        elif isinstance(value, bytes):
            cells.data += value
        elif node.kind not in (STRING, BINARY):
            cells.data += bytes(_WIDTHS[node.kind])
        if node.kind in (STRING, BINARY):
            cells.ends.append(len(cells.data))
        cells.count(value is not None)


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is not a number of JSON")


def _set_bit(bits: bytearray, row: int, value: bool) -> None:
    if row & 7 == 0:
        bits.append(0)
    if value:
        bits[row >> 3] |= 1 << (row & 7)


def _check_surrogates(value: object) -> None:
    """Raise UnicodeEncodeError, a ValueError, for half of a surrogate pair, which is not valid text."""
    if isinstance(value, str):
        value.encode()
    elif isinstance(value, list):
        for item in value:
            for part in item if isinstance(item, tuple) else (item,):
                _check_surrogates(part)


def _depth(value: object) -> int:
    deepest, level = 0, [value]
    while level:
        inner = [item for item in level if isinstance(item, list)]
        if inner:
            deepest += 1
        level = [
            part[1] if isinstance(item, _Pairs) and isinstance(part, tuple) else part
            for item in inner
            for part in item
        ]
    return deepest


def _scalar(node: _Node, value: object) -> object:
    """The bytes of a cell, or a boolean."""
    kind = node.kind
    if kind == BOOL and isinstance(value, bool):
        return value
    if kind in (INT8, INT16, INT32, INT64) and isinstance(value, _Whole):
        return _whole(value, _WIDTHS[kind])
    if kind in (FLOAT, DOUBLE) and isinstance(value, _Whole | _Real):
        return _real(value, kind)
    if kind == DECIMAL and isinstance(value, str):
        return _decimal(node, value)
    if isinstance(value, str) and not isinstance(value, _Whole | _Real):
        if kind == STRING:
            return value.encode()
        if kind == BINARY:
            return _binary(value)
        if kind == DATE:
            return struct.pack("<i", _day(value))
        if kind in (TIMESTAMP, LOCAL_TIMESTAMP):
            return struct.pack("<q", _time(value, kind == TIMESTAMP))
    raise _Bad(WRONG_TYPE)


def _whole(digits: str, width: int) -> bytes:
    if len(digits) > 20 or not -(1 << 8 * width - 1) <= int(digits) < 1 << 8 * width - 1:
        raise _Bad(OUT_OF_RANGE)
    return int(digits).to_bytes(width, "little", signed=True)


def _real(digits: str, kind: int) -> bytes:
    value = float(digits)
    try:
        if value - value != 0:
            raise OverflowError
        return struct.pack("<f" if kind == FLOAT else "<d", value)
    except OverflowError:
        raise _Bad(OUT_OF_RANGE) from None


def _decimal(node: _Node, text: str) -> bytes:
    found = _NUMBER.fullmatch(text)
    if found is None:
        raise _Bad(BAD_CONTENT)
    sign, whole, fraction, power = found[1], found[2], found[3] or "", found[4] or "0"
    digits = (whole + fraction).lstrip("0")
    if len(digits) > MAX_DIGITS:
        raise _Bad(OUT_OF_RANGE)
    if not digits:
        return bytes(16)
    if len(power.lstrip("+-0")) > 5:
        raise _Bad(OUT_OF_RANGE)
    exponent = int(power) - len(fraction) + node.scale
    kept = digits
    while kept and exponent < 0 and kept[-1] == "0":
        kept, exponent = kept[:-1], exponent + 1
    if exponent < 0 or len(kept) + exponent > node.precision:
        raise _Bad(OUT_OF_RANGE)
    value = int(kept + "0" * exponent)
    return (-value if sign else value).to_bytes(16, "little", signed=True)


def _binary(text: str) -> bytes:
    if _BASE64.fullmatch(text) is None:
        raise _Bad(BAD_CONTENT)
    try:
        found = base64.b64decode(text, validate=True)
    except binascii.Error:
        raise _Bad(BAD_CONTENT) from None
    if base64.b64encode(found).decode() != text:  # bits after the last byte
        raise _Bad(BAD_CONTENT)
    return found


def _day(text: str) -> int:
    try:
        if re.fullmatch(r"\d{4}-\d\d-\d\d", text, re.ASCII) is None:
            raise ValueError(text)
        return date.fromisoformat(text).toordinal() - _EPOCH
    except ValueError:
        raise _Bad(BAD_CONTENT) from None


def _time(text: str, zoned: bool) -> int:
    found = _TIME.fullmatch(text)
    if found is None:
        raise _Bad(BAD_CONTENT)
    day, hour, minute, second, fraction, zone = found.groups()
    if zone is not None and not zoned:
        raise _Bad(BAD_CONTENT)
    clock = (int(hour or 0), int(minute or 0), int(second or 0))
    if clock[0] > 23 or clock[1] > 59 or clock[2] > 59:
        raise _Bad(BAD_CONTENT)
    value = _day(day) * 86_400 + clock[0] * 3600 + clock[1] * 60 + clock[2]
    if zone and zone != "Z":
        hours, minutes = int(zone[1:3]), int(zone[3:].lstrip(":") or 0)
        if hours > 18 or minutes > 59:
            raise _Bad(BAD_CONTENT)
        value += (hours * 60 + minutes) * (60 if zone[0] == "-" else -60)
    return value * 1_000_000 + int((fraction or "0")[:6].ljust(6, "0"))
