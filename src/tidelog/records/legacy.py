"""Reads message sets of formats 0 and 1, which old log folders have. They are never written.

A set is a sequence of messages, each with its own offset and CRC-32. A compressed message is a wrapper around
another set. Batches of format 2 may stand between them. For any bytes, reading returns the records or raises
CorruptMessage, and uncompresses no more than its limit.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import NamedTuple

from tidelog.errors import CorruptMessage, MessageTooLarge
from tidelog.records.batch import HEADER_SIZE, LENGTH_OVERHEAD, MAGIC, NO_TIMESTAMP, Record
from tidelog.records.codecs import DEFAULT_MAX_UNPACKED, Codec, decompress

Buffer = bytes | bytearray | memoryview

OLD_MAGICS = (0, 1)
CODEC_MASK = 0x07
LOG_APPEND_TIME_FLAG = 0x08

# A message without key and value: CRC, magic, attributes, in format 1 the timestamp, and two lengths.
_SMALLEST = {0: 14, 1: 22, MAGIC: HEADER_SIZE - LENGTH_OVERHEAD}
_START = struct.Struct(">qiIb")  # offset, size, CRC (a leader epoch in format 2), magic
_MESSAGE = struct.Struct(">qiIbb")
_CRC_START = 16  # the checksum covers everything from the magic on
_BODY = {0: 18, 1: 26}  # the position of the key's length
_LENGTH = struct.Struct(">i")
_TIMESTAMP = struct.Struct(">q")
_LAST_OFFSET = (1 << 63) - 1


class Entry(NamedTuple):
    """A message, wrapper or batch and its position. The offset is a wrapper's last, a batch's first."""

    position: int
    offset: int
    size: int
    magic: int

    @property
    def end(self) -> int:
        return self.position + self.size


class MessageSet(NamedTuple):
    """One message, or the messages of one wrapper, with absolute offsets that rise."""

    records: list[Record]
    magic: int
    codec: Codec
    log_append_time: int | None  # the timestamp of all its records, if the broker set it
    last_offset: int


def iter_entries(buf: Buffer, start: int = 0) -> Iterator[Entry]:
    """Every complete entry of formats 0, 1 and 2. Stops before the first incomplete or invalid one."""
    pos, end = start, len(buf)
    while end - pos >= _START.size:
        offset, length, _, magic = _START.unpack_from(buf, pos)
        smallest = _SMALLEST.get(magic)
        if smallest is None or length < smallest or length > end - pos - LENGTH_OVERHEAD:
            return
        yield Entry(pos, offset, length + LENGTH_OVERHEAD, magic)
        pos += length + LENGTH_OVERHEAD


def message_crc_is_valid(buf: Buffer, entry: Entry) -> bool:
    """Whether the CRC of a message of format 0 or 1 is correct."""
    crc: int = _START.unpack_from(buf, entry.position)[2]
    view = buf if isinstance(buf, memoryview) else memoryview(buf)
    return zlib.crc32(view[entry.position + _CRC_START : entry.end]) == crc


def is_log_append_time(buf: Buffer, entry: Entry) -> bool:
    return entry.magic == 1 and bool(buf[entry.position + 17] & LOG_APPEND_TIME_FLAG)


def read_message_set(
    buf: Buffer, entry: Entry, *, max_unpacked: int = DEFAULT_MAX_UNPACKED, check_crc: bool = True
) -> MessageSet:
    """The records of an entry of format 0 or 1. Its CRC may have been checked before."""
    if entry.magic not in OLD_MAGICS:
        raise CorruptMessage(f"the entry at position {entry.position} has magic {entry.magic}, not 0 or 1")
    attributes, record = _read_message(buf, entry, check_crc)
    codec = _codec(attributes, entry)
    append_time = record.timestamp if entry.magic == 1 and attributes & LOG_APPEND_TIME_FLAG else None
    if codec is Codec.NONE:
        return MessageSet([record], entry.magic, codec, append_time, entry.offset)
    if record.value is None:
        raise CorruptMessage(f"the wrapper at offset {entry.offset} has no value to unpack")
    inner = _unwrap(record.value, entry, codec, max_unpacked)
    if append_time is not None:
        inner = [message._replace(timestamp=append_time) for message in inner]
    records = _absolute(inner, entry)
    return MessageSet(records, entry.magic, codec, append_time, max(entry.offset, records[-1].offset))


def _read_message(buf: Buffer, entry: Entry, check_crc: bool = True) -> tuple[int, Record]:
    """The attributes and the record of one message. The value of a wrapper is its compressed set."""
    pos, _, size, magic = entry
    end = pos + size
    if size < _SMALLEST[magic] + LENGTH_OVERHEAD or end > len(buf):
        raise CorruptMessage(f"the message at offset {entry.offset} is truncated")
    offset, _, crc, _, attributes = _MESSAGE.unpack_from(buf, pos)
    view = buf if isinstance(buf, memoryview) else memoryview(buf)
    if check_crc and zlib.crc32(view[pos + _CRC_START : end]) != crc:
        raise CorruptMessage(f"the message at offset {offset} does not match its CRC")
    timestamp: int = NO_TIMESTAMP if magic == 0 else _TIMESTAMP.unpack_from(buf, pos + 18)[0]
    key, pos = _read_bytes(view, pos + _BODY[magic], end, offset)
    value, _ = _read_bytes(view, pos, end, offset)
    return attributes, Record(offset, timestamp, key, value)


def _read_bytes(view: memoryview, pos: int, end: int, offset: int) -> tuple[bytes | None, int]:
    if end - pos < 4:
        raise CorruptMessage(f"the message at offset {offset} ends before a length")
    length: int = _LENGTH.unpack_from(view, pos)[0]
    pos += 4
    if length == -1:
        return None, pos
    if not 0 <= length <= end - pos:
        raise CorruptMessage(f"the message at offset {offset} declares {length} bytes, {end - pos} are left")
    return bytes(view[pos : pos + length]), pos + length


def _codec(attributes: int, entry: Entry) -> Codec:
    number = attributes & CODEC_MASK
    if number > Codec.LZ4:
        raise CorruptMessage(
            f"the message at offset {entry.offset} has codec {number}; format {entry.magic} knows 0 to 3"
        )
    return Codec(number)


def _unwrap(data: bytes, wrapper: Entry, codec: Codec, max_unpacked: int) -> list[Record]:
    """The messages in a wrapper, with their offsets as written."""
    if codec is Codec.LZ4 and wrapper.magic == 0:
        data = _with_right_header_checksum(data)
    try:
        unpacked = decompress(codec, data, max_unpacked)
    except MessageTooLarge as error:
        raise CorruptMessage(f"the wrapper at offset {wrapper.offset}: {error}") from None
    records: list[Record] = []
    end = 0
    for entry in iter_entries(unpacked):
        if entry.magic != wrapper.magic:
            raise CorruptMessage(
                f"the wrapper at offset {wrapper.offset} has magic {wrapper.magic}, a message in it has "
                f"{entry.magic}"
            )
        attributes, record = _read_message(unpacked, entry)
        if attributes & CODEC_MASK:
            raise CorruptMessage(f"the wrapper at offset {wrapper.offset} holds another wrapper")
        records.append(record)
        end = entry.end
    if end != len(unpacked) or not records:
        raise CorruptMessage(
            f"the wrapper at offset {wrapper.offset} holds {len(records)} messages in {end} of "
            f"{len(unpacked)} bytes"
        )
    return records


def _absolute(records: list[Record], wrapper: Entry) -> list[Record]:
    """The messages with absolute offsets. In format 1 they count from the first message of the wrapper."""
    last = records[-1].offset
    # Some versions of librdkafka wrote offset 0 on the wrapper: then messages count from the log's start.
    from_start = wrapper.magic == 1 and wrapper.offset == 0
    if last > wrapper.offset and not from_start:
        raise CorruptMessage(f"the wrapper at offset {wrapper.offset} holds a message of offset {last}")
    if wrapper.magic == 1 and not from_start:
        base = wrapper.offset - last
        records = [record._replace(offset=base + record.offset) for record in records]
    previous = -1
    for record in records:
        if not previous < record.offset <= _LAST_OFFSET:
            raise CorruptMessage(
                f"in the wrapper at offset {wrapper.offset}, offset {record.offset} follows {previous}"
            )
        previous = record.offset
    return records


# lz4 in format 0: Kafka computed the checksum of a frame's header over four bytes too many

_LZ4_MAGIC = b"\x04\x22\x4d\x18"
_LZ4_CONTENT_SIZE = 0x08
_LZ4_DICTIONARY = 0x01
_PRIMES = (2654435761, 2246822519, 3266489917, 668265263, 374761393)


def _with_right_header_checksum(frame: bytes) -> bytes:
    if len(frame) < 7 or frame[:4] != _LZ4_MAGIC:
        return frame  # invalid data is refused by the decompressor
    flags = frame[4]
    end = 6 + (8 if flags & _LZ4_CONTENT_SIZE else 0) + (4 if flags & _LZ4_DICTIONARY else 0)
    return frame[:end] + bytes([_xxh32_short(frame[4:end]) >> 8 & 0xFF]) + frame[end + 1 :]


def _xxh32_short(data: bytes) -> int:
    """xxHash with 32 bits and seed 0, of fewer than 16 bytes."""
    one, two, three, four, five = _PRIMES
    mask = 0xFFFFFFFF
    value = (five + len(data)) & mask
    words = len(data) & ~3
    for at in range(0, words, 4):
        value = (value + int.from_bytes(data[at : at + 4], "little") * three) & mask
        value = ((value << 17 | value >> 15) & mask) * four & mask
    for byte in data[words:]:
        value = (value + byte * five) & mask
        value = ((value << 11 | value >> 21) & mask) * one & mask
    value = (value ^ value >> 15) * two & mask
    value = (value ^ value >> 13) * three & mask
    return value ^ value >> 16
