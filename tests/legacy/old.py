"""Messages of formats 0 and 1, written as the brokers of their time wrote them."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence

from tidelog.records.batch import Record
from tidelog.records.codecs import Codec, compress

LOG_APPEND_TIME = 0x08


def message(magic: int, record: Record, attributes: int = 0) -> bytes:
    """One message, offset and size included."""
    body = struct.pack(">bb", magic, attributes)
    if magic == 1:
        body += struct.pack(">q", record.timestamp)
    for part in (record.key, record.value):
        body += struct.pack(">i", -1) if part is None else struct.pack(">i", len(part)) + part
    signed = struct.pack(">I", zlib.crc32(body)) + body
    return struct.pack(">qi", record.offset, len(signed)) + signed


def wrapper(
    magic: int,
    codec: Codec,
    records: Sequence[Record],
    *,
    append_time: int | None = None,
    offset: int | None = None,
) -> bytes:
    """A compressed set: absolute offsets inside format 0, offsets from its first message inside format 1."""
    first, last = records[0].offset, records[-1].offset
    base = 0 if magic == 0 else first
    inner = b"".join(message(magic, record._replace(offset=record.offset - base)) for record in records)
    packed = compress(codec, inner)
    if codec is Codec.LZ4 and magic == 0:
        packed = with_broken_checksum(packed)
    timestamp = max(record.timestamp for record in records) if append_time is None else append_time
    outer = Record(last if offset is None else offset, timestamp, None, packed)
    return message(magic, outer, codec | (0 if append_time is None else LOG_APPEND_TIME))


def with_broken_checksum(frame: bytes) -> bytes:
    """As Kafka wrote lz4 frames before 0.10: the byte behind the header's flags is not what lz4 says."""
    return frame[:6] + bytes([frame[6] ^ 0x5A]) + frame[7:]


def records_from(
    offset: int, count: int, *, timestamp: int = 1_500_000_000_000, step: int = 1
) -> list[Record]:
    """Some with and without keys and values, in an order of timestamps that is not that of offsets."""
    return [
        Record(
            offset + n * step,
            timestamp + (n * 7919) % 1000,
            None if n % 3 == 0 else b"key-%d" % (n % 5),
            None if n % 11 == 10 else b"value %d " % n * (n % 4),
        )
        for n in range(count)
    ]


def without_time(records: Sequence[Record]) -> list[Record]:
    """What is left of records in format 0."""
    return [record._replace(timestamp=-1) for record in records]
