"""Batches that a producer fills, and columns in Arrow's layout, in plain Python; `_speed` has them compiled.

Threads of the application fill a batch, and the sender seals it. Appends and the seal never overlap.
"""

from __future__ import annotations

import struct
import threading
import time
from array import array
from collections.abc import Callable, Generator
from typing import NamedTuple, Protocol

from tidelog.records._pure import HEADER, HEADER_SIZE, Buffer, _put, _put_bytes, crc, murmur2

EncodedHeaders = tuple[tuple[bytes, bytes | None], ...]

INT32_MAX = 0x7FFFFFFF


class RecordMetadata(NamedTuple):
    """The position of a written record. Sizes and offset are -1 if they are unknown, as with acks=0."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    serialized_key_size: int
    serialized_value_size: int


class FutureSource(Protocol):
    """The batch of a RecordFuture, which knows the result."""

    def future_done(self, future: RecordFuture) -> bool: ...
    def future_result(self, future: RecordFuture, timeout: float | None) -> RecordMetadata: ...
    def future_exception(self, future: RecordFuture, timeout: float | None) -> BaseException | None: ...
    def future_callback(self, future: RecordFuture, function: Callable[[RecordFuture], object]) -> None: ...
    def future_await(self, future: RecordFuture) -> Generator[object, None, RecordMetadata]: ...


class RecordFuture:
    """The future of one record. It only has the index of the record in its batch until a caller waits.

    Wait for it in a thread (`result`) or a coroutine (`await`), or use `add_done_callback`.
    """

    __slots__ = ("batch", "index", "key_size", "timestamp", "value_size")

    def __init__(
        self, batch: FutureSource, index: int, timestamp: int, key_size: int, value_size: int
    ) -> None:
        self.batch = batch
        self.index = index
        self.timestamp = timestamp
        self.key_size = key_size
        self.value_size = value_size

    def done(self) -> bool:
        return self.batch.future_done(self)

    def cancelled(self) -> bool:
        return False

    def cancel(self) -> bool:
        """Returns False: a record that was accepted is sent."""
        return False

    def running(self) -> bool:
        return not self.done()

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """The position of the record, once it is written. Raises the error of the send, or TimeoutError."""
        return self.batch.future_result(self, timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        return self.batch.future_exception(self, timeout)

    def add_done_callback(self, function: Callable[[RecordFuture], object]) -> None:
        """Call a function with this future when it is done, or now if it is done."""
        self.batch.future_callback(self, function)

    def __await__(self) -> Generator[object, None, RecordMetadata]:
        return self.batch.future_await(self)


class BufferPool:
    """Buffers of one size that batches reuse. This plain form keeps none: Python manages the memory."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.held = 0


class BatchBuffer:
    """Room for a header and for records up to `limit` bytes. The first record always fits."""

    def __init__(self, limit: int, *args: object) -> None:
        self.limit = limit
        self.count = 0
        self.base_timestamp = -1
        self.max_timestamp = -1
        self.sealed = False
        self._data = bytearray(HEADER_SIZE)
        self._guard = threading.Lock()

    @property
    def size(self) -> int:
        return len(self._data)

    @property
    def full(self) -> bool:
        return self.sealed or (self.count > 0 and self.size >= self.limit)

    def append_value(self, value: bytes | None) -> RecordFuture | None:
        """Append a record with the current time, without key and headers; None if the value is None or there
        is no room."""
        if value is None:
            return None
        return self.append(time.time_ns() // 1_000_000, None, value, ())

    def append(
        self, timestamp: int, key: bytes | None, value: bytes | None, headers: EncodedHeaders
    ) -> RecordFuture | None:
        """The future of an appended record; None if there is no room."""
        rest = bytearray()
        _put_bytes(rest, key)
        _put_bytes(rest, value)
        rest += encode_headers(headers)
        with self._guard:
            if self.sealed or not self._add(timestamp, rest):
                return None
            sizes = (-1 if key is None else len(key), -1 if value is None else len(value))
            return RecordFuture(_source(self), self.count - 1, timestamp, *sizes)

    def append_rows(
        self, columns: ArrowColumns, rows: array[int] | None, start: int, stop: int, timestamp: int
    ) -> int:
        """Append rows (those in `rows`, or all) until the batch is full; returns the next row to append."""
        if not 0 <= start <= stop <= (columns.rows if rows is None else len(rows)):
            raise ValueError(f"rows {start}:{stop} of {columns.rows}")
        with self._guard:
            for at in range(start, stop):
                row = at if rows is None else rows[at]
                if not 0 <= row < columns.rows:
                    raise ValueError(f"row {row} of {columns.rows}")
                if self.sealed or not self._add(columns.time(row, timestamp), columns.encoded(row)):
                    return at
        return stop

    def last_future(self) -> RecordFuture:
        return RecordFuture(_source(self), self.count - 1, self.max_timestamp, -1, -1)

    def seal(self) -> None:
        """Accept no more records."""
        with self._guard:
            self.sealed = True

    def reuse(self, pool: BufferPool) -> None:
        """Take the memory from a pool of buffers of the size of the limit, and return it at the end."""

    def release(self) -> None:
        """Return the memory, unless a view of it is in use."""
        with self._guard:
            self.sealed = True
            self._data = bytearray()

    def bytes_view(self) -> memoryview:
        """The batch between seal and release, before `sign_batch` writes its header."""
        if not self.sealed or not self._data:
            raise BufferError("a batch shows its bytes between seal and release")
        return memoryview(self._data)

    def _add(self, timestamp: int, rest: Buffer) -> bool:
        base = self.base_timestamp if self.count else timestamp
        body = bytearray(b"\x00")
        _put(body, timestamp - base)
        _put(body, self.count)
        body += rest
        framed = bytearray()
        _put(framed, len(body))
        if self.count and self.size + len(framed) + len(body) > self.limit:
            return False
        self._data += framed
        self._data += body
        self.base_timestamp = base
        self.max_timestamp = max(self.max_timestamp, timestamp)
        self.count += 1
        return True


class OpenBatches:
    """The open batch of each partition of a topic; the key of a record chooses the partition."""

    def __init__(self, partitions: int) -> None:
        if partitions <= 0:
            raise ValueError(f"{partitions} partitions")
        self.batches: list[BatchBuffer | None] = [None] * partitions

    def append(self, key: bytes, value: bytes) -> RecordFuture | None:
        """Append a record with the current time and no headers; None if its partition's batch has no room."""
        batch = self.batches[(murmur2(key) & INT32_MAX) % len(self.batches)]
        return None if batch is None else batch.append(time.time_ns() // 1_000_000, key, value, ())


def _source(batch: BatchBuffer) -> FutureSource:
    return batch  # type: ignore[return-value]  # futures are asked only of the producer's own kind of batch


def sign_batch(
    buf: bytearray | memoryview,
    attributes: int,
    count: int,
    base_timestamp: int,
    max_timestamp: int,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
) -> None:
    """Write the header of a batch whose records are complete, with the checksum."""
    size = len(buf)
    if not HEADER_SIZE <= size <= INT32_MAX:
        raise ValueError(f"no batch of {size} bytes")
    HEADER.pack_into(
        buf, 0, 0, size - 12, -1, 2, 0, attributes, count - 1, base_timestamp, max_timestamp,
        producer_id, producer_epoch, base_sequence, count,
    )  # fmt: skip
    struct.pack_into(">I", buf, 17, crc(buf, 21, size))


class ArrowColumn:
    """The bytes of many rows: offsets of 4 or 8 bytes into data, and a validity bit for each row.

    Without offsets every row is null.
    """

    def __init__(
        self,
        offsets: Buffer | None,
        data: Buffer | None,
        validity: Buffer | None,
        first: int,
        rows: int,
        wide: bool,
    ) -> None:
        self.rows = rows
        self._offsets: memoryview | None = None
        self._first = first
        self._validity = validity
        self._data: Buffer = b"" if data is None else data
        if offsets is None:
            return
        if first < 0 or rows < 0:
            raise ValueError(f"rows {first} and on, {rows} of them")
        width = 8 if wide else 4
        whole = memoryview(offsets).cast("B")
        self._offsets = whole[: len(whole) // width * width].cast("q" if wide else "i")
        if validity is not None and len(validity) * 8 < first + rows:
            raise ValueError(f"{first + rows} rows and {len(validity) * 8} bits of validity")
        if rows and len(self._offsets) <= first + rows:
            raise ValueError(f"{first + rows} rows and {len(self._offsets)} offsets")
        for row in range(first, first + rows):
            if not 0 <= self._offsets[row] <= self._offsets[row + 1] <= len(self._data):
                raise ValueError(f"the offsets of row {row - first} are outside of {len(self._data)} bytes")

    @property
    def given(self) -> bool:
        return self._offsets is not None

    def cell(self, row: int) -> bytes | None:
        at = self._first + row
        if self._offsets is None:
            return None
        if self._validity is not None and not self._validity[at >> 3] >> (at & 7) & 1:
            return None
        return bytes(self._data[self._offsets[at] : self._offsets[at + 1]])


def encode_headers(headers: EncodedHeaders) -> bytes:
    """Headers in the format of a record, with their number first."""
    out = bytearray()
    _put(out, len(headers))
    for name, content in headers:
        _put_bytes(out, name)
        _put_bytes(out, content)
    return bytes(out)


class ArrowColumns:
    """Keys, values and timestamps of many records, and headers that all of them have.

    A cell of `row_headers` has the result of `encode_headers` for the headers of that row.
    """

    def __init__(
        self,
        key: ArrowColumn,
        value: ArrowColumn,
        times: Buffer | None,
        first_time: int,
        headers: EncodedHeaders,
        row_headers: ArrowColumn | None = None,
    ) -> None:
        if key.rows != value.rows:
            raise ValueError(f"{key.rows} keys and {value.rows} values")
        if row_headers is not None and row_headers.rows != value.rows:
            raise ValueError(f"{row_headers.rows} rows of headers and {value.rows} values")
        self.rows = value.rows
        self._key, self._value = key, value
        self._times = None if times is None else memoryview(times).cast("B").cast("q")
        self._first_time = first_time
        if self._times is not None and (first_time < 0 or len(self._times) < first_time + self.rows):
            raise ValueError(f"{first_time + self.rows} rows and {len(self._times)} timestamps")
        self._headers = encode_headers(headers)
        self._row_headers = row_headers

    def _headers_of(self, row: int) -> bytes:
        own = None if self._row_headers is None else self._row_headers.cell(row)
        return own or self._headers

    @property
    def has_keys(self) -> bool:
        return self._key.given

    def largest(self) -> int:
        """The largest size of a row's key, value and headers together."""
        sizes = (
            len(self._key.cell(row) or b"") + len(self._value.cell(row) or b"") + len(self._headers_of(row))
            for row in range(self.rows)
        )
        return max(sizes, default=0)

    def row(self, number: int) -> tuple[bytes | None, bytes | None]:
        """Key and value of a row."""
        if not 0 <= number < self.rows:
            raise IndexError(f"row {number} of {self.rows}")
        key, value = self._key.cell(number), self._value.cell(number)
        return None if key is None else bytes(key), None if value is None else bytes(value)

    def time(self, row: int, otherwise: int) -> int:
        return otherwise if self._times is None else self._times[self._first_time + row]

    def encoded(self, row: int) -> bytearray:
        out = bytearray()
        _put_bytes(out, self._key.cell(row))
        _put_bytes(out, self._value.cell(row))
        out += self._headers_of(row)
        return out

    def rows_by_partition(self, partitions: int) -> list[array[int]]:
        """The rows of each partition, by their keys. The last array has the rows without a key."""
        if partitions <= 0:
            raise ValueError(f"{partitions} partitions")
        found = [array("i") for _ in range(partitions + 1)]
        for row in range(self.rows):
            key = self._key.cell(row)
            found[partitions if key is None else (murmur2(key) & INT32_MAX) % partitions].append(row)
        return found
