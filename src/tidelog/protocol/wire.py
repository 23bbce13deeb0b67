"""The primitives of the wire format: variable-length numbers, uuids, buffers, ProtocolError."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Protocol, TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview

ZERO_UUID = bytes(16)

# Kafka's length of a string is a signed 16-bit number. The limit holds in the compact encoding, too.
MAX_STRING_BYTES = 0x7FFF


class ProtocolError(ValueError):
    """Bytes that are not a valid message, or values that a message cannot hold."""


class FilePart(Protocol):
    """Bytes that stay in their file until they are sent: a message needs only their size."""

    @property
    def size(self) -> int: ...


RecordData: TypeAlias = bytes | bytearray | memoryview | FilePart


def read_uvarint(buf: Buffer, pos: int) -> tuple[int, int]:
    """An unsigned variable-length number and the position after it."""
    value = shift = 0
    while True:
        byte = buf[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift > 28:
            raise ProtocolError("a variable-length number takes more than 5 bytes")
    if value > 0x7FFFFFFF:
        raise ProtocolError(f"a variable-length number is {value}, above the limit of 2147483647")
    return value, pos


def write_uvarint(value: int) -> bytes:
    """The bytes of an unsigned variable-length number."""
    if value < 0x80:
        return bytes((value,))
    if value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def read_string_length(buf: Buffer, pos: int) -> tuple[int, int]:
    """The length of a compact string that takes more than one byte: length + 1, and the position after it."""
    value, pos = read_uvarint(buf, pos)
    if value > MAX_STRING_BYTES + 1:
        raise ProtocolError(f"a string is {value - 1} bytes long, above the limit of {MAX_STRING_BYTES}")
    return value, pos


def write_string_length(value: int) -> bytes:
    """The bytes of length + 1 of a compact string."""
    if value > MAX_STRING_BYTES + 1:
        raise ProtocolError(f"a string is {value - 1} bytes long, above the limit of {MAX_STRING_BYTES}")
    return write_uvarint(value)


def write_tags(tags: dict[int, bytes]) -> bytes:
    """The tagged part of a struct: count, then tag, size and bytes of each in ascending order."""
    out = [write_uvarint(len(tags))]
    for tag in sorted(tags):
        value = tags[tag]
        out += (write_uvarint(tag), write_uvarint(len(value)), value)
    return b"".join(out)


def uuid_to_text(uuid: bytes) -> str:
    """A uuid as Kafka shows it to people: 22 characters of base64url."""
    if len(uuid) != 16:
        raise ProtocolError(f"a uuid has 16 bytes, not {len(uuid)}")
    return urlsafe_b64encode(uuid)[:22].decode("ascii")


def uuid_from_text(text: str) -> bytes:
    """The 16 bytes of a uuid written in base64url, with or without padding."""
    try:
        uuid = urlsafe_b64decode(text.rstrip("=") + "==")
    except ValueError:
        uuid = b""
    if len(uuid) != 16:
        raise ProtocolError(f"{text!r} is no uuid: 22 characters of base64url are expected")
    return uuid
