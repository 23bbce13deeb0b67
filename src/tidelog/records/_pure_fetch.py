"""The records of a fetched partition, one by one or as columns, in plain Python; `_speed` has it compiled.

A reader walks over the fetched batches and returns records from a position on. It leaves out control records
and, for read_committed, records of aborted transactions. A bad batch raises when it is next, each time until
the caller seeks past it.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from copy import copy
from types import GenericAlias
from typing import Any

from tidelog.errors import CorruptMessage, InvalidRecord, KafkaError
from tidelog.records._pure import (
    CRC_START,
    HEADER,
    HEADER_SIZE,
    LENGTH_OVERHEAD,
    Buffer,
    _Cut,
    _headers,
    _Malformed,
    _record,
    _wrap64,
    crc,
)

Headers = tuple[tuple[str, bytes | None], ...]
Aborted = Sequence[tuple[int, int]]
"""First offset and producer id of aborted transactions, sorted by first offset."""

CREATE_TIME = 0
LOG_APPEND_TIME = 1
COLUMN_BYTES = 0x7FFFFFFF  # the reach of 32-bit offsets


class ConsumerRecord:
    """A record that was read.

    >>> record = ConsumerRecord("orders", 0, 42, timestamp=1700000000000, key=b"alice", value=b"one apple")
    >>> record.topic, record.partition, record.offset, record.key, record.value
    ('orders', 0, 42, b'alice', b'one apple')
    """

    __slots__ = (
        "headers",
        "key",
        "leader_epoch",
        "offset",
        "partition",
        "serialized_key_size",
        "serialized_value_size",
        "timestamp",
        "timestamp_type",
        "topic",
        "value",
    )  # fmt: skip

    def __init__(
        self,
        topic: str,
        partition: int,
        offset: int,
        timestamp: int = -1,
        key: object = None,
        value: object = None,
        headers: Headers = (),
        timestamp_type: int = CREATE_TIME,
        leader_epoch: int = -1,
        serialized_key_size: int = -1,
        serialized_value_size: int = -1,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.timestamp = timestamp
        # Any, because deserializers decide the types.
        self.key: Any = key
        self.value: Any = value
        self.headers = headers
        self.timestamp_type = timestamp_type
        self.leader_epoch = leader_epoch
        self.serialized_key_size = len(key) if isinstance(key, bytes) else serialized_key_size
        self.serialized_value_size = len(value) if isinstance(value, bytes) else serialized_value_size

    # `ConsumerRecord[str, bytes]` is for annotations; `_speed.pyi` has its meaning for type checkers.
    @classmethod
    def __class_getitem__(cls, types: object) -> GenericAlias:
        return GenericAlias(cls, types)

    def replace(self, key: object, value: object) -> None:
        """Set the deserialized key and value."""
        self.key = key
        self.value = value

    def __reduce__(self) -> tuple[type[ConsumerRecord], tuple[object, ...]]:
        return type(self), fields_of(self)

    def __repr__(self) -> str:
        return described(self)


def fields_of(record: ConsumerRecord) -> tuple[object, ...]:
    """The fields of a record, in the order of its parameters."""
    return (
        record.topic, record.partition, record.offset, record.timestamp, record.key, record.value,
        record.headers, record.timestamp_type, record.leader_epoch, record.serialized_key_size,
        record.serialized_value_size,
    )  # fmt: skip


def described(record: ConsumerRecord) -> str:
    where = f"topic={record.topic!r}, partition={record.partition}, offset={record.offset}"
    what = f"timestamp={record.timestamp}, key={record.key!r}, value={record.value!r}"
    return f"ConsumerRecord({where}, {what}, headers={record.headers!r})"


def bad_crc(topic: str, partition: int, offset: int) -> CorruptMessage:
    return CorruptMessage(
        f"{topic}-{partition}: the batch at offset {offset} does not match its CRC; seek past it to go on"
    )


def bad_batch(topic: str, partition: int, offset: int, reason: str) -> CorruptMessage:
    return CorruptMessage(
        f"{topic}-{partition}: the batch at offset {offset} {reason}; seek past it to go on"
    )


def bad_record(topic: str, partition: int, offset: int) -> InvalidRecord:
    return InvalidRecord(
        f"{topic}-{partition}: the record at or after offset {offset} is malformed; seek past it to go on"
    )


def unpack(attributes: int, data: Buffer) -> Buffer:
    """The uncompressed payload of a compressed batch."""
    from tidelog.records.codecs import Codec, decompress

    number = attributes & 7
    if number > Codec.ZSTD:
        raise CorruptMessage(f"codec {number} is unknown; expected 0 to {Codec.ZSTD}")
    return decompress(Codec(number), data)


class RecordReader:
    """Returns the records of `buf[start:end]` from `position` on, and moves the position past them.

    `aborted` has the aborted transactions whose records are left out, None returns everything. `next_fetch`
    is the offset after the last complete batch, -1 if there is none.
    """

    def __init__(
        self,
        buf: Buffer,
        topic: str,
        partition: int,
        position: int,
        check_crcs: bool,
        aborted: Aborted | None,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.position = position
        self.leader_epoch = -1
        self.size = len(buf)
        self._buf = memoryview(buf)
        self._check_crcs = check_crcs
        self._aborted = None if aborted is None else list(aborted)
        self._dropped: set[int] = set()
        self._at = 0
        self._payload: Buffer = b""
        self._pos = self._end = 0
        self._left = 0
        self._fields: tuple[int, ...] = ()
        self.next_fetch = self._scan()

    def copy(self) -> RecordReader:
        """Another reader of the same bytes, from the current position of this one."""
        made = copy(self)
        made._aborted = None if self._aborted is None else list(self._aborted)
        made._dropped = set(self._dropped)
        return made

    def _scan(self) -> int:
        at, next_fetch = 0, -1
        while len(self._buf) - at >= HEADER_SIZE:
            length, last_delta = struct.unpack_from(">i11xi", self._buf, at + 8)
            if length < HEADER_SIZE - LENGTH_OVERHEAD or length + LENGTH_OVERHEAD > len(self._buf) - at:
                break
            next_fetch = _wrap64(struct.unpack_from(">q", self._buf, at)[0] + last_delta + 1)
            at += length + LENGTH_OVERHEAD
        return next_fetch

    @property
    def done(self) -> bool:
        """Whether no record is left to return."""
        return self._left == 0 and not self._whole_batch()

    def _whole_batch(self) -> bool:
        rest = len(self._buf) - self._at
        if rest < HEADER_SIZE:
            return False
        (length,) = struct.unpack_from(">i", self._buf, self._at + 8)
        return not length >= HEADER_SIZE - LENGTH_OVERHEAD or length + LENGTH_OVERHEAD <= rest

    def take(self, limit: int) -> list[ConsumerRecord]:
        """The next records, at most `limit`; an empty list at the end."""
        out: list[ConsumerRecord] = []
        while len(out) < limit:
            try:
                record = self._next()
            except KafkaError:
                if out:
                    break
                raise
            if record is None:
                break
            out.append(record)
        return out

    def take_columns(self, sink: ColumnSink, limit: int) -> int:
        """Put the next records, at most `limit`, into columns; returns their number."""
        taken = 0
        while taken < limit and sink.has_room(self._end - self._pos):
            try:
                record = self._next()
            except KafkaError:
                if taken:
                    break
                raise
            if record is None:
                break
            sink.add(record)
            taken += 1
        return taken

    def _next(self) -> ConsumerRecord | None:
        while True:
            if self._left == 0 and not self._advance():
                return None
            base, _, epoch, _, _, attributes, _, base_timestamp, max_timestamp, *_ = self._fields
            try:
                layout = _record(self._payload, self._pos, self._end)
            except (_Cut, _Malformed):
                raise bad_record(self.topic, self.partition, self.position) from None
            self._pos = layout[8]
            self._left -= 1
            offset = _wrap64(base + layout[1])
            behind = offset < self.position
            if not behind:
                self.position = offset + 1
            self.leader_epoch = epoch
            if self._left == 0:
                self.position = max(self.position, _wrap64(base + self._fields[6] + 1))
            if not behind:
                return self._made(offset, layout, attributes, base_timestamp, max_timestamp, epoch)

    def _made(
        self, offset: int, layout: tuple[int, ...], attributes: int, base: int, greatest: int, epoch: int
    ) -> ConsumerRecord:
        data = self._payload
        delta, _, key_at, key_length, value_at, value_length, headers_at, count, stop = layout
        appended = attributes & 8 != 0
        return ConsumerRecord(
            self.topic,
            self.partition,
            offset,
            greatest if appended else _wrap64(base + delta),
            bytes(data[key_at : key_at + key_length]) if key_length >= 0 else None,
            bytes(data[value_at : value_at + value_length]) if value_length >= 0 else None,
            _headers(data, headers_at, stop, count) if count else (),
            LOG_APPEND_TIME if appended else CREATE_TIME,
            epoch,
        )

    def _advance(self) -> bool:
        """Go to the next batch with records to return; False at the end."""
        while self._whole_batch():
            fields = HEADER.unpack_from(self._buf, self._at)
            base, length, epoch, magic, checksum, attributes, last_delta = fields[:7]
            producer_id, count = fields[9], fields[12]
            if magic != 2:
                raise bad_batch(self.topic, self.partition, base, f"has magic {magic} where 2 is read")
            if length < HEADER_SIZE - LENGTH_OVERHEAD:
                raise bad_batch(self.topic, self.partition, base, f"declares a length of {length}")
            end = self._at + length + LENGTH_OVERHEAD
            next_offset = _wrap64(base + last_delta + 1)
            if next_offset > self.position:
                if self._check_crcs and crc(self._buf, self._at + CRC_START, end) != checksum:
                    raise bad_crc(self.topic, self.partition, base)
                start = self._at + HEADER_SIZE
                if not self._left_out(self._at, attributes, producer_id, base + last_delta) and count > 0:
                    self._open(start, end, fields)
                    self._at = end
                    return True
                self.position = next_offset
                self.leader_epoch = epoch
            self._at = end
        return False

    def _open(self, start: int, end: int, fields: tuple[int, ...]) -> None:
        if fields[5] & 7:
            self._payload = unpack(fields[5], self._buf[start:end])
            self._pos, self._end = 0, len(self._payload)
        else:
            self._payload, self._pos, self._end = self._buf, start, end
        self._left = fields[12]
        self._fields = fields

    def _left_out(self, at: int, attributes: int, producer_id: int, last_offset: int) -> bool:
        if self._aborted is not None:
            while self._aborted and self._aborted[0][0] <= last_offset:
                self._dropped.add(self._aborted.pop(0)[1])
        if attributes & 0x20:
            if self._aborted is not None and _is_abort(self._buf, at, attributes):
                self._dropped.discard(producer_id)
            return True
        return attributes & 0x10 != 0 and producer_id in self._dropped


def _is_abort(buf: memoryview, at: int, attributes: int) -> bool:
    """Whether a control batch is an abort marker."""
    (length,) = struct.unpack_from(">i", buf, at + 8)
    data: Buffer = buf[at + HEADER_SIZE : at + length + LENGTH_OVERHEAD]
    if attributes & 7:
        data = unpack(attributes, data)
    try:
        layout = _record(data, 0, len(data))
    except (_Cut, _Malformed):
        return False
    key = bytes(data[layout[2] : layout[2] + max(layout[3], 0)])
    return len(key) >= 4 and struct.unpack_from(">hh", key)[1] == 0


class ColumnSink:
    """Columns in Arrow's layout that readers fill. `buffers` returns them by name."""

    def __init__(self) -> None:
        self.rows = 0
        self.topics: list[str] = []
        self.null_keys = self.null_values = self.null_timestamps = self.null_header_values = 0
        self.header_rows = 0
        self._longs = {name: array("q") for name in ("offset", "timestamp")}
        self._ints = {name: array("i") for name in ("partition", "topic")}
        self._ends = {
            name: array("i", [0]) for name in ("key", "value", "headers", "header key", "header value")
        }
        self._data = {name: bytearray() for name in ("key", "value", "header key", "header value")}
        self._bits = {name: bytearray() for name in ("key", "value", "timestamp", "header value")}

    def has_room(self, size: int) -> bool:
        """Whether `size` more bytes stay within 32-bit offsets."""
        return len(self._data["value"]) + size < COLUMN_BYTES and len(self._data["key"]) + size < COLUMN_BYTES

    def expect(self, size: int) -> None:
        """Announce about `size` bytes of values, so that memory can be reserved at once."""

    def buffers(self) -> dict[str, Buffer]:
        """`name` for columns of fixed width; `name ends`, `name data` and `name bits` for the others."""
        found: dict[str, Buffer] = {}
        for fixed in (self._longs, self._ints):
            found |= {name: memoryview(column).cast("B") for name, column in fixed.items()}
        found |= {f"{name} ends": memoryview(column).cast("B") for name, column in self._ends.items()}
        found |= {f"{name} data": data for name, data in self._data.items()}
        found |= {f"{name} bits": bits for name, bits in self._bits.items()}
        return found

    def add(self, record: ConsumerRecord) -> None:
        row = self.rows
        self.rows += 1
        if record.topic not in self.topics:
            self.topics.append(record.topic)
        self._longs["offset"].append(record.offset)
        self._longs["timestamp"].append(record.timestamp)
        self._ints["partition"].append(record.partition)
        self._ints["topic"].append(self.topics.index(record.topic))
        self.null_timestamps += self._bit("timestamp", row, record.timestamp != -1)
        self.null_keys += self._cell("key", row, record.key)
        self.null_values += self._cell("value", row, record.value)
        for name, content in record.headers:
            # The column has text: bytes that are not UTF-8 become replacement characters.
            raw = name.encode("utf-8", "surrogateescape")
            self._data["header key"] += raw.decode("utf-8", "replace").encode()
            self._ends["header key"].append(len(self._data["header key"]))
            self.null_header_values += self._cell("header value", self.header_rows, content)
            self.header_rows += 1
        self._ends["headers"].append(self.header_rows)

    def _cell(self, name: str, row: int, content: object) -> int:
        if isinstance(content, bytes):
            self._data[name] += content
        self._ends[name].append(len(self._data[name]))
        return self._bit(name, row, content is not None)

    def _bit(self, name: str, row: int, valid: bool) -> int:
        bits = self._bits[name]
        if row & 7 == 0:
            bits.append(0)
        if valid:
            bits[row >> 3] |= 1 << (row & 7)
        return 0 if valid else 1


class Block(bytearray):
    """Memory of a fixed size to write into; the compiled form reuses released memory."""
