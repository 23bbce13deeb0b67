"""Records and batches that no well-meaning producer would send."""

from __future__ import annotations

from tidelog.records._pure import encode_varint as varint
from tidelog.records.batch import BatchHeader, Record, assemble, read_header

NOW = 1_790_000_000_000


def record(
    offset: int = 0, timestamp: int = NOW, key: bytes | None = b"k", value: bytes | None = b"v"
) -> Record:
    return Record(offset, timestamp, key, value)


def with_header(batch: bytes, **fields: int) -> bytes:
    """The batch with some header fields changed and a checksum that is right again."""
    return bytes(assemble(read_header(batch)._replace(**fields), batch[61:]))


def raw_batch(payload: bytes, count: int, **fields: int) -> bytes:
    header = BatchHeader(0, 0, -1, 2, 0, 0, count - 1, NOW, NOW, -1, -1, -1, count)
    return bytes(assemble(header._replace(**fields), payload))


def raw_record(
    offset: int = 0,
    timestamp: int = 0,
    key: bytes | None = b"k",
    value: bytes | None = b"v",
    size: int | None = None,
) -> bytes:
    body = b"\0" + varint(timestamp) + varint(offset)
    for part in (key, value):
        body += varint(-1) if part is None else varint(len(part)) + part
    body += varint(0)
    return varint(len(body) if size is None else size) + body
