"""Reads the metrics of an OTLP `MetricsData` message: gauges and sums, from their protobuf encoding.

Only the fields that Kafka's clients use are read; others are skipped. Any message costs at most MAX_FIELDS
steps and returns at most MAX_POINTS numbers.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from tidelog.errors import InvalidRecord

MAX_FIELDS = 50_000
"""A client of Kafka 4.3 with a hundred partitions sends about 10,000 fields."""

MAX_POINTS = 2_000
MAX_ATTRIBUTES = 8
MAX_TEXT = 256
"""The longest name, attribute or value in bytes; a point with a longer one is left out."""

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
DELTA = 1
"""AggregationTemporality: the value is the change since the last push."""

_DOUBLE = struct.Struct("<d")
_INT64 = struct.Struct("<q")
Attributes = tuple[tuple[str, str], ...]


@dataclass(slots=True, frozen=True)
class Point:
    """A number of a client. `delta` numbers add up."""

    name: str
    attributes: Attributes
    value: float
    delta: bool = False


class OtlpReader:
    """Reads one message. Raises InvalidRecord if it is not protobuf or has too many fields."""

    __slots__ = ("_data", "_fields")

    def __init__(self, data: bytes | bytearray | memoryview) -> None:
        self._data = memoryview(data)
        self._fields = 0

    def points(self) -> list[Point]:
        found: list[Point] = []
        for resource in self._messages(0, len(self._data), 1):
            for scope in self._messages(*resource, 2):
                for metric in self._messages(*scope, 2):
                    self._metric(*metric, found)
                    if len(found) > MAX_POINTS:
                        raise InvalidRecord(f"more than {MAX_POINTS} metrics in one push")
        return found

    def _metric(self, start: int, end: int, found: list[Point]) -> None:
        name: str | None = None
        gauges: list[tuple[int, int]] = []
        sums: list[tuple[int, int]] = []
        for number, kind, low, high in self._walk(start, end):
            if kind == BYTES and number == 1:
                name = self._text(low, high)
            elif kind == BYTES and number == 5:
                gauges.append((low, high))
            elif kind == BYTES and number == 7:
                sums.append((low, high))
        if not name:
            return
        for low, high in gauges:
            for point in self._messages(low, high, 1):
                self._point(name, point, False, found)
        for low, high in sums:
            points: list[tuple[int, int]] = []
            delta = False
            for number, kind, first, last in self._walk(low, high):
                if number == 1 and kind == BYTES:
                    points.append((first, last))
                elif number == 2 and kind == VARINT:
                    delta = first == DELTA
            for point in points:
                self._point(name, point, delta, found)

    def _point(self, name: str, point: tuple[int, int], delta: bool, found: list[Point]) -> None:
        value: float | None = None
        attributes: list[tuple[str, str]] = []
        for number, kind, low, high in self._walk(*point):
            if number == 4 and kind == FIXED64:
                value = _DOUBLE.unpack_from(self._data, low)[0]
            elif number == 6 and kind == FIXED64:
                value = _INT64.unpack_from(self._data, low)[0]
            elif number == 7 and kind == BYTES:
                attribute = self._attribute(low, high)
                if attribute is None or len(attributes) == MAX_ATTRIBUTES:
                    return
                attributes.append(attribute)
        if value is None or not math.isfinite(value):
            return
        found.append(Point(name, tuple(sorted(attributes)), value, delta))

    def _attribute(self, start: int, end: int) -> tuple[str, str] | None:
        """The key and the value of a KeyValue; None if it is too long or of a kind that cannot be a label."""
        key: str | None = None
        value: str | None = None
        for number, kind, low, high in self._walk(start, end):
            if kind == BYTES and number == 1:
                key = self._text(low, high)
            elif kind == BYTES and number == 2:
                value = self._value(low, high)
        return None if not key or value is None else (key, value)

    def _value(self, start: int, end: int) -> str | None:
        for number, kind, low, high in self._walk(start, end):
            if number == 1 and kind == BYTES:
                return self._text(low, high)
            if number == 2 and kind == VARINT:
                return "true" if low else "false"
            if number == 3 and kind == VARINT:
                return str(low - (1 << 64) if low >> 63 else low)
        return None

    def _text(self, low: int, high: int) -> str | None:
        if high - low > MAX_TEXT:
            return None
        try:
            return str(self._data[low:high], "utf-8")
        except UnicodeDecodeError:
            raise InvalidRecord("a text is not UTF-8") from None

    def _messages(self, start: int, end: int, wanted: int) -> Iterator[tuple[int, int]]:
        for number, kind, low, high in self._walk(start, end):
            if number == wanted and kind == BYTES:
                yield low, high

    def _walk(self, start: int, end: int) -> Iterator[tuple[int, int, int, int]]:
        """Each field: its number, its kind, and begin and end of its contents, or the value of a varint."""
        at = start
        while at < end:
            self._fields += 1
            if self._fields > MAX_FIELDS:
                raise InvalidRecord(f"more than {MAX_FIELDS} fields in one push")
            tag, at = self._varint(at, end)
            number, kind = tag >> 3, tag & 7
            if number == 0:
                raise InvalidRecord("a field with the number 0")
            if kind == VARINT:
                value, at = self._varint(at, end)
                yield number, kind, value, at
                continue
            if kind == BYTES:
                length, at = self._varint(at, end)
            elif kind == FIXED64:
                length = 8
            elif kind == FIXED32:
                length = 4
            else:
                raise InvalidRecord(f"a field of the unknown wire type {kind}")
            if length > end - at:
                raise InvalidRecord("a field that is longer than its message")
            yield number, kind, at, at + length
            at += length

    def _varint(self, at: int, end: int) -> tuple[int, int]:
        value = shift = 0
        while at < end and shift < 64:
            byte = self._data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value & 0xFFFFFFFFFFFFFFFF, at
            shift += 7
        raise InvalidRecord("a number that does not end")
