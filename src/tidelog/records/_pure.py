"""The hot loops over record batches, in plain Python.

`_speed.pyx` has the same functions compiled; `loops` picks one of the two. Both return the same results for
the same bytes, also for garbage: they read nothing outside of `start:end`, and allocate nothing for a count
that the bytes cannot hold.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Iterable
from typing import TypeAlias, TypeVar

from tidelog.records.status import BYTES_LEFT, CUT_SHORT, MALFORMED, OFFSET_DELTA, OK, RECORD_ERRORS

Buffer = bytes | bytearray | memoryview
Headers = tuple[tuple[str, bytes | None], ...]
RecordFields = tuple[int, int, bytes | None, bytes | None, Headers]
HeaderFields = tuple[int, int, int, int, int, int, int, int, int, int, int, int, int]
Column: TypeAlias = "array[int]"
Columns: TypeAlias = tuple[Column, Column, Column, Column, Column, Column, Column, Column]
R = TypeVar("R")

HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_SIZE = 61
LENGTH_OVERHEAD = 12  # the length does not count the base offset and itself
CRC_START = 21  # the checksum covers everything from the attributes on
SMALLEST_RECORD = 7  # size, attributes, two deltas, key and value length, header count: a byte each

INT64_MIN = -(1 << 63)
INT64_MAX = (1 << 63) - 1


class MalformedRecords(ValueError):
    """Bytes that are not the declared records. `index` is the first bad record."""

    def __init__(self, status: int, index: int) -> None:
        super().__init__(status, index)
        self.status = status
        self.index = index

    def __str__(self) -> str:
        reason = {CUT_SHORT: "ends before the last record", BYTES_LEFT: "continues after the last record"}
        return f"record {self.index}: the payload {reason.get(self.status, 'has a malformed record')}"


class _Malformed(Exception):
    """A varint or length that does not fit its record."""


class _Cut(Exception):
    """The bytes ended inside a varint."""


def _wrap64(value: int) -> int:
    return ((value + (1 << 63)) & ((1 << 64) - 1)) - (1 << 63)


def _varint(buf: Buffer, pos: int, end: int, bits: int) -> tuple[int, int]:
    raw = 0
    shift = 0
    while True:
        if pos >= end:
            raise _Cut
        byte = buf[pos]
        pos += 1
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            raw &= (1 << bits) - 1
            return (raw >> 1) ^ -(raw & 1), pos
        shift += 7
        if shift >= bits:
            raise _Malformed


def read_varint(buf: Buffer, pos: int, end: int) -> tuple[int, int]:
    """The zigzag varint of up to 64 bits at `pos` and the position after it."""
    if not 0 <= pos <= end <= len(buf):
        raise ValueError(f"range {pos}:{end} is outside of a buffer of {len(buf)} bytes")
    try:
        return _varint(buf, pos, end, 64)
    except (_Cut, _Malformed):
        raise ValueError(f"no varint at position {pos}") from None


def encode_varint(value: int) -> bytes:
    if not INT64_MIN <= value <= INT64_MAX:
        raise OverflowError(f"{value} does not fit in 64 bits")
    out = bytearray()
    _put(out, value)
    return bytes(out)


def _put(out: bytearray, value: int) -> None:
    raw = ((value << 1) ^ (value >> 63)) & ((1 << 64) - 1)
    while raw > 0x7F:
        out.append((raw & 0x7F) | 0x80)
        raw >>= 7
    out.append(raw)


def crc(buf: Buffer, start: int, end: int) -> int:
    """CRC-32C of `buf[start:end]`."""
    if not 0 <= start <= end <= len(buf):
        raise ValueError(f"range {start}:{end} is outside of a buffer of {len(buf)} bytes")
    from crc32c import crc32c  # takes 10 ms to import, which the compiled module saves

    return crc32c(memoryview(buf)[start:end])


def patch_header(buf: bytearray | memoryview, pos: int, base_offset: int, leader_epoch: int) -> None:
    """Write the two header fields that the checksum does not cover."""
    if pos < 0 or pos + HEADER_SIZE > len(buf):
        raise ValueError(f"no batch header at position {pos} of {len(buf)} bytes")
    struct.pack_into(">q", buf, pos, base_offset)
    struct.pack_into(">i", buf, pos + 12, leader_epoch)


# The layout of one record: (timestamp delta, offset delta, key start, key length, value start, value length,
# headers start, header count, position after the record)
_Layout = tuple[int, int, int, int, int, int, int, int, int]


def _record(buf: Buffer, pos: int, end: int) -> _Layout:
    size, pos = _varint(buf, pos, end, 32)
    if size > end - pos or size < 0:
        raise _Malformed
    stop = pos + size
    try:
        if size == 0:
            raise _Malformed
        timestamp_delta, pos = _varint(buf, pos + 1, stop, 64)
        offset_delta, pos = _varint(buf, pos, stop, 32)
        key_length, key_start = _varint(buf, pos, stop, 32)
        if key_length > stop - key_start:
            raise _Malformed
        value_length, value_start = _varint(buf, key_start + max(key_length, 0), stop, 32)
        if value_length > stop - value_start:
            raise _Malformed
        header_count, headers_start = _varint(buf, value_start + max(value_length, 0), stop, 32)
        if not 0 <= header_count <= stop - headers_start:
            raise _Malformed
        pos = headers_start
        for _ in range(header_count):
            length, pos = _varint(buf, pos, stop, 32)
            if not 0 <= length <= stop - pos:
                raise _Malformed
            length, pos = _varint(buf, pos + length, stop, 32)
            if length > stop - pos:
                raise _Malformed
            pos += max(length, 0)
    except _Cut:
        raise _Malformed from None
    if pos != stop:
        raise _Malformed
    return (
        timestamp_delta, offset_delta, key_start, key_length,
        value_start, value_length, headers_start, header_count, stop,
    )  # fmt: skip


def _each(
    buf: Buffer, start: int, end: int, count: int, use: Callable[[int, _Layout], None]
) -> tuple[int, int]:
    """Call `use` with every layout; returns (status, index of the first bad record or count)."""
    pos = start
    for index in range(count):
        try:
            layout = _record(buf, pos, end)
        except _Cut:
            return CUT_SHORT, index
        except _Malformed:
            return MALFORMED, index
        use(index, layout)
        pos = layout[8]
    return (OK if pos == end else BYTES_LEFT), max(count, 0)


def _require(buf: Buffer, start: int, end: int) -> None:
    if not 0 <= start <= end <= len(buf):
        raise ValueError(f"range {start}:{end} is outside of a buffer of {len(buf)} bytes")


def walk(
    buf: Buffer, start: int, end: int, count: int, base_timestamp: int, need_key: bool, low: int, high: int
) -> tuple[int, int, int, int]:
    """Check the records of an uncompressed payload.

    Returns (status, index of the record of the status, greatest timestamp or -1, offset delta of the first
    record with it). A record without a timestamp (-1) is never outside of `low..high`.
    """
    _require(buf, start, end)
    greatest = -1
    delta_of_greatest = 0
    wrong_delta = first_error = -1

    def use(index: int, layout: _Layout) -> None:
        nonlocal greatest, delta_of_greatest, wrong_delta, first_error
        timestamp = _wrap64(base_timestamp + layout[0])
        if layout[1] != index and wrong_delta < 0:
            wrong_delta = index
        if (need_key and layout[3] < 0) or (timestamp != -1 and not low <= timestamp <= high):
            first_error = index if first_error < 0 else first_error
        if timestamp > greatest:
            greatest = timestamp
            delta_of_greatest = layout[1]

    status, index = _each(buf, start, end, count, use)
    if status == OK and wrong_delta >= 0:
        return OFFSET_DELTA, wrong_delta, greatest, delta_of_greatest
    if status == OK and first_error >= 0:
        return RECORD_ERRORS, first_error, greatest, delta_of_greatest
    return status, index, greatest, delta_of_greatest


def walk_columns(buf: Buffer, start: int, end: int, count: int) -> Columns:
    """The positions of every record's parts, as columns: timestamp deltas (64 bits), then offset deltas, key
    starts, key lengths, value starts, value lengths, headers starts and header counts (32 bits).

    A negative length is a null. Raises MalformedRecords."""
    _require(buf, start, end)
    _require_room(start, end, count)
    columns = (array("q"), array("i"), array("i"), array("i"), array("i"), array("i"), array("i"), array("i"))

    def use(index: int, layout: _Layout) -> None:
        for column, value in zip(columns, layout, strict=False):
            column.append(value)

    status, index = _each(buf, start, end, count, use)
    if status != OK:
        raise MalformedRecords(status, index)
    return columns


def _require_room(start: int, end: int, count: int) -> None:
    if count < 0 or count > (end - start) // SMALLEST_RECORD:
        raise MalformedRecords(CUT_SHORT, max(0, (end - start) // SMALLEST_RECORD))


def make_records(
    make: Callable[[int, int, bytes | None, bytes | None, Headers], R],
    buf: Buffer,
    start: int,
    end: int,
    count: int,
    base_offset: int,
    base_timestamp: int,
    append_time: int | None,
) -> list[R]:
    """An object for every record. `append_time`, if given, is the timestamp of all of them."""
    _require(buf, start, end)
    _require_room(start, end, count)
    records: list[R] = []

    def use(index: int, layout: _Layout) -> None:
        delta, offset_delta, key_at, key_length, value_at, value_length, headers_at, headers, stop = layout
        timestamp = append_time if append_time is not None else _wrap64(base_timestamp + delta)
        key = bytes(buf[key_at : key_at + key_length]) if key_length >= 0 else None
        value = bytes(buf[value_at : value_at + value_length]) if value_length >= 0 else None
        pairs = _headers(buf, headers_at, stop, headers) if headers else ()
        records.append(make(_wrap64(base_offset + offset_delta), timestamp, key, value, pairs))

    status, index = _each(buf, start, end, count, use)
    if status != OK:
        raise MalformedRecords(status, index)
    return records


def _headers(buf: Buffer, pos: int, stop: int, count: int) -> Headers:
    pairs: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        length, pos = _varint(buf, pos, stop, 32)
        # Header keys are UTF-8 only by convention: other bytes survive a round trip.
        name = str(bytes(buf[pos : pos + length]), "utf-8", "surrogateescape")
        pos += length
        length, pos = _varint(buf, pos, stop, 32)
        pairs.append((name, bytes(buf[pos : pos + length]) if length >= 0 else None))
        pos += max(length, 0)
    return tuple(pairs)


def encode_records(
    records: Iterable[RecordFields], base_offset: int, base_timestamp: int
) -> tuple[bytes, int, int, int]:
    """The payload of a batch: (bytes, record count, last offset delta, greatest timestamp or -1)."""
    out = bytearray()
    count = 0
    last_delta = greatest = -1
    for offset, timestamp, key, value, headers in records:
        delta = offset - base_offset
        if not INT64_MIN <= timestamp <= INT64_MAX:
            raise OverflowError(f"timestamp {timestamp} does not fit in 64 bits")
        if not last_delta < delta <= 0x7FFFFFFF:
            raise ValueError(f"offset {offset} does not follow in a batch that starts at {base_offset}")
        body = bytearray(b"\x00")
        _put(body, _wrap64(timestamp - base_timestamp))
        _put(body, delta)
        _put_bytes(body, key)
        _put_bytes(body, value)
        _put(body, len(headers))
        for name, content in headers:
            _put_bytes(body, name.encode("utf-8", "surrogateescape"))
            _put_bytes(body, content)
        _put(out, len(body))
        out += body
        count += 1
        last_delta = delta
        greatest = max(greatest, timestamp)
    return bytes(out), count, last_delta, greatest


def one_record_batch(key: bytes, value: bytes | None, timestamp: int) -> bytearray:
    """A signed batch with one record, without a producer: the offset is 0, there is no leader epoch."""
    payload = encode_records([(0, timestamp, key, value, ())], 0, timestamp)[0]
    out = bytearray(HEADER_SIZE) + payload
    size = len(out) - LENGTH_OVERHEAD
    HEADER.pack_into(out, 0, 0, size, -1, 2, 0, 0, 0, timestamp, timestamp, -1, -1, -1, 1)
    struct.pack_into(">I", out, CRC_START - 4, crc(out, CRC_START, len(out)))
    return out


def _put_bytes(out: bytearray, data: bytes | None) -> None:
    if data is None:
        out.append(1)
    else:
        _put(out, len(data))
        out += data


def murmur2(data: Buffer) -> int:
    """The hash by which Kafka's producers choose the partition of a key (32 bits, signed)."""
    mask = 0xFFFFFFFF
    length = len(data)
    h = 0x9747B28C ^ length
    for pos in range(0, length - length % 4, 4):
        k = int.from_bytes(data[pos : pos + 4], "little") * 0x5BD1E995 & mask
        k = (k ^ (k >> 24)) * 0x5BD1E995 & mask
        h = (h * 0x5BD1E995 & mask) ^ k
    if length % 4:
        h ^= int.from_bytes(data[length - length % 4 :], "little")
        h = h * 0x5BD1E995 & mask
    h = (h ^ (h >> 13)) * 0x5BD1E995 & mask
    h ^= h >> 15
    return h - (1 << 32) if h >> 31 else h


def java_string_hash(text: str) -> int:
    """Java's String.hashCode (32 bits, signed), which chooses the coordinator of groups and transactions."""
    h = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for pos in range(0, len(units), 2):
        h = (h * 31 + (units[pos] << 8) + units[pos + 1]) & 0xFFFFFFFF
    return h - (1 << 32) if h >> 31 else h
