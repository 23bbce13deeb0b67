"""Reads DER, and the parts of BER that key stores have: indefinite lengths, and octet strings in pieces."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

INTEGER, OCTET_STRING, OID, SEQUENCE, SET = 0x02, 0x04, 0x06, 0x30, 0x31
BMP_STRING = 0x1E
CONSTRUCTED, CONTEXT = 0x20, 0x80
MAX_DEPTH = 32


class DerError(ValueError):
    """The bytes are not DER, or not of the expected structure."""


@dataclass(slots=True, frozen=True)
class Der:
    """One value: its tag, its content, and all its bytes."""

    tag: int
    content: bytes = field(repr=False)
    encoded: bytes = field(repr=False)

    @classmethod
    def parse(cls, data: bytes) -> Der:
        """The value at the start of the bytes."""
        return _read(data, 0, 0)[0]

    def expect(self, tag: int) -> Der:
        """This value. Raises DerError if it has another tag."""
        if self.tag != tag:
            raise DerError(f"tag {self.tag:#04x} stands where {tag:#04x} belongs")
        return self

    def items(self, tag: int = SEQUENCE) -> list[Der]:
        """The values inside a constructed value with this tag."""
        return list(_items(self.expect(tag).content))

    def inner(self, number: int = 0) -> Der:
        """The value inside an explicit tag of the context."""
        values = self.items(CONTEXT | CONSTRUCTED | number)
        if len(values) != 1:
            raise DerError(f"{len(values)} values stand where one belongs")
        return values[0]

    @property
    def octets(self) -> bytes:
        """The bytes of an octet string, also of one with an implicit tag, whole or in pieces."""
        if self.tag & CONSTRUCTED:
            return b"".join(piece.octets for piece in _items(self.content))
        return self.content

    @property
    def number(self) -> int:
        return int.from_bytes(self.expect(INTEGER).content, "big", signed=True)

    @property
    def oid(self) -> str:
        """The dotted text of an object identifier."""
        content, arcs, value = self.expect(OID).content, list[int](), 0
        for byte in content:
            value = value << 7 | byte & 0x7F
            if not byte & 0x80:
                arcs.append(value)
                value = 0
        if not arcs:
            raise DerError("an object identifier is empty")
        first = min(arcs[0] // 40, 2)
        return ".".join(map(str, [first, arcs[0] - 40 * first, *arcs[1:]]))


def _items(content: bytes) -> Iterator[Der]:
    position = 0
    while position < len(content):
        value, position = _read(content, position, 0)
        yield value


def _read(data: bytes, start: int, depth: int) -> tuple[Der, int]:
    if start + 2 > len(data) or depth > MAX_DEPTH:
        raise DerError("the data ends inside a value")
    tag, length, position = data[start], data[start + 1], start + 2
    if tag & 0x1F == 0x1F:
        raise DerError("tags of several bytes do not occur in key stores")
    if length == 0x80:
        return _read_indefinite(data, start, position, depth)
    if length & 0x80:
        count = length & 0x7F
        length = int.from_bytes(data[position : position + count], "big")
        position += count
    end = position + length
    if end > len(data):
        raise DerError("the data ends inside a value")
    return Der(tag, data[position:end], data[start:end]), end


def _read_indefinite(data: bytes, start: int, position: int, depth: int) -> tuple[Der, int]:
    """A value that ends with two bytes of zero. Its content gets definite lengths."""
    content = b""
    while data[position : position + 2] != b"\0\0":
        item, position = _read(data, position, depth + 1)
        content += encode(item.tag, item.content)
    position += 2
    return Der(data[start], content, encode(data[start], content)), position


def encode(tag: int, content: bytes) -> bytes:
    """The DER of a value."""
    size = len(content)
    if size < 0x80:
        return bytes((tag, size)) + content
    length = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes((tag, 0x80 | len(length))) + length + content
