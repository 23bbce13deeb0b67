"""Produce requests and their usual answer, in plain Python; `_speed` has the same compiled.

The parser makes no object per field: the fast path only needs the positions of the records.
"""

from __future__ import annotations

import struct

from tidelog.records._pure import Buffer

Partitions = list[tuple[int, int, int]]
ProduceBody = tuple[str | None, int, int, list[tuple[str | bytes, Partitions]]]


MAX_ELEMENTS = 100_000
"""The limit of the general reader for large requests (protocol/reader.py)."""


def parse_produce(buf: Buffer, pos: int, version: int) -> ProduceBody:
    """Parse the body of a Produce request of version 3 to 13 at the end of a buffer.

    Returns (transactional id, acks, timeout in ms, [(topic name, or id from version 13 on, [(partition,
    start, end of its records in `buf`)])]). Null records are -1, -1. Raises ValueError for any other bytes.
    """
    if not 3 <= version <= 13:
        raise ValueError(f"Produce version {version} is not served; 3 to 13 are")
    return _produce_body(ElementReader(buf, pos, flexible=version >= 9), version)


def parse_one_batch(
    buf: Buffer, pos: int, version: int
) -> tuple[str | None, int, str | bytes, int, int, int] | None:
    """Parse a body with one partition: (transactional id, acks, topic, partition, start, end of its records
    in `buf`). Returns None for any other body, which `parse_produce` parses or refuses.
    """
    try:
        transactional_id, acks, _, topics = parse_produce(buf, pos, version)
    except ValueError:
        return None
    if len(topics) != 1 or len(topics[0][1]) != 1:
        return None
    topic, ((partition, start, end),) = topics[0]
    return None if start < 0 else (transactional_id, acks, topic, partition, start, end)


def _produce_body(read: ElementReader, version: int) -> ProduceBody:
    transactional_id = read.string()
    acks = read.number(2)
    timeout_ms = read.number(4)
    topics: list[tuple[str | bytes, Partitions]] = []
    smallest = (18 if version >= 13 else 3) if read.flexible else 6
    for _ in range(read.count(smallest)):
        topic: str | bytes | None = read.take(16) if version >= 13 else read.string()
        if topic is None:
            raise ValueError("a topic name is null")
        partitions: Partitions = []
        for _ in range(read.count(6 if read.flexible else 8)):
            partition = read.number(4)
            partitions.append((partition, *read.records()))
            read.tags()
        read.tags()
        topics.append((topic, partitions))
    read.tags()
    if read.pos != read.end:
        raise ValueError(f"{read.end - read.pos} bytes follow after the request")
    return transactional_id, acks, timeout_ms, topics


class ElementReader:
    """Reads the fields of a request one after the other. Each method checks that its bytes exist."""

    __slots__ = ("buf", "elements", "end", "flexible", "pos")

    def __init__(self, buf: Buffer, pos: int, *, flexible: bool) -> None:
        self.buf = buf
        self.end = len(buf)
        self.pos = pos
        self.flexible = flexible
        self.elements = MAX_ELEMENTS  # how many elements of arrays and tagged fields may still come
        if not 0 <= pos <= self.end:
            raise ValueError(f"position {pos} is outside of a frame of {self.end} bytes")

    def take(self, size: int) -> bytes:
        pos = self.pos
        if size > self.end - pos:
            raise ValueError(f"{size} bytes are declared at position {pos}, {self.end - pos} are left")
        self.pos = pos + size
        return bytes(self.buf[pos : pos + size])

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big", signed=True)

    def unsigned(self) -> int:
        raw = shift = 0
        while True:
            byte = self.take(1)[0]
            raw |= (byte & 0x7F) << shift
            if byte < 0x80:
                return raw & 0xFFFFFFFF
            shift += 7
            if shift >= 35:
                raise ValueError(f"no varint before position {self.pos}")

    def length(self, size: int) -> int:
        """The length of a string (2 bytes), or of an array or bytes (4 bytes). Below 0 it is a null."""
        return self.unsigned() - 1 if self.flexible else self.number(size)

    def string(self) -> str | None:
        length = self.length(2)
        return None if length < 0 else str(self.take(length), "utf-8")

    def count(self, smallest: int) -> int:
        count = self.length(4)
        if not 0 <= count <= (self.end - self.pos) // smallest:
            raise ValueError(f"{count} elements are declared where {self.end - self.pos} bytes are left")
        self.spend(count)
        return count

    def spend(self, count: int) -> None:
        self.elements -= count
        if self.elements < 0:
            raise ValueError(
                f"with {count} more it has more than {MAX_ELEMENTS} topics, partitions and tagged fields"
            )

    def records(self) -> tuple[int, int]:
        length = self.length(4)
        if length < 0:
            return -1, -1
        start = self.pos
        if length > self.end - start:
            raise ValueError(f"{length} bytes are declared at position {start}, {self.end - start} are left")
        self.pos = start + length
        return start, self.pos

    def tags(self) -> None:
        if not self.flexible:
            return
        count = self.unsigned()
        self.spend(count)
        for _ in range(count):
            self.unsigned()
            size = self.unsigned()
            if size > self.end - self.pos:
                raise ValueError(f"a tag of {size} bytes where {self.end - self.pos} are left")
            self.pos += size


def produce_response(
    version: int,
    correlation_id: int,
    topic: str | bytes,
    partition: int,
    error_code: int,
    base_offset: int,
    log_append_time: int,
    log_start_offset: int,
) -> bytes:
    """The answer to a Produce request with one partition and no error text, with its length first.

    `topic` is the name, or the id from version 13 on."""
    if not 3 <= version <= 13:
        raise ValueError(f"Produce version {version} is not served; 3 to 13 are")
    flexible = version >= 9
    out = bytearray(struct.pack(">i", correlation_id))
    out += b"\x00\x02" if flexible else b"\x00\x00\x00\x01"
    if version >= 13:
        if not isinstance(topic, bytes) or len(topic) != 16:
            raise ValueError(f"a topic id of 16 bytes is right, not {topic!r}")
        out += topic
    else:
        if not isinstance(topic, str):
            raise ValueError(f"a topic name is right, not {topic!r}")
        name = topic.encode("utf-8")
        if len(name) > 0x7FFF:
            raise ValueError(f"a topic name of {len(name)} bytes is too long")
        out += unsigned(len(name) + 1) if flexible else struct.pack(">h", len(name))
        out += name
    out += b"\x02" if flexible else b"\x00\x00\x00\x01"
    out += struct.pack(">ihqq", partition, error_code, base_offset, log_append_time)
    if version >= 5:
        out += struct.pack(">q", log_start_offset)
    if flexible:  # no record errors, no text; tags of partition and topic; throttle time; tags
        out += b"\x01\x00\x00\x00\x00\x00\x00\x00\x00"
    else:
        out += b"\x00\x00\x00\x00\xff\xff" if version == 8 else b""
        out += b"\x00\x00\x00\x00"
    return struct.pack(">i", len(out)) + out


def unsigned(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
