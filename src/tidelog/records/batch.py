"""Record batches of format 2: their headers, their records, and how to build them.

Code here works on whole batches: offset, leader epoch and append time are header fields that are patched in
place. Magic 0 and 1 are not read.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tidelog.errors import CorruptMessage, InvalidRecord
from tidelog.records import loops
from tidelog.records._pure import HEADER as HEADER
from tidelog.records._pure import MalformedRecords
from tidelog.records.codecs import DEFAULT_MAX_UNPACKED, Codec, compress, decompress

Buffer = bytes | bytearray | memoryview
WritableBuffer = bytearray | memoryview

MAGIC = 2
HEADER_SIZE = 61
LENGTH_OVERHEAD = 12  # the length does not count the base offset and itself
MAGIC_POSITION = 16
CRC_POSITION = 17
CRC_START = 21  # the checksum covers everything from the attributes on
ATTRIBUTES_POSITION = 21
MAX_TIMESTAMP_POSITION = 35

CODEC_MASK = 0x07
LOG_APPEND_TIME_FLAG = 0x08
TRANSACTIONAL_FLAG = 0x10
CONTROL_FLAG = 0x20
DELETE_HORIZON_FLAG = 0x40
KNOWN_FLAGS = 0x7F

NO_TIMESTAMP = -1
NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1
NO_LEADER_EPOCH = -1

CONTROL_ABORT = 0
CONTROL_COMMIT = 1

CRC = struct.Struct(">I")
# The record of a marker as brokers write it: the bytes before its key, the key, the value with its size.
MARKER = struct.Struct(">5shhBhiB")
MARKER_START, MARKER_VALUE_SIZE = b"\x20\0\0\0\x08", 12  # sizes are varints: zigzag doubles them
_PLAIN_MARKER = (MARKER_START, 0, MARKER_VALUE_SIZE, 0, 0)

patch_header = loops.patch_header


class BatchHeader(NamedTuple):
    """The 61 bytes before the records."""

    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def total_size(self) -> int:
        return self.batch_length + LENGTH_OVERHEAD

    @property
    def codec(self) -> Codec:
        number = self.attributes & CODEC_MASK
        if number > Codec.ZSTD:
            raise CorruptMessage(f"codec {number} is unknown; expected 0 to {Codec.ZSTD}")
        return Codec(number)

    @property
    def is_log_append_time(self) -> bool:
        return self.attributes & LOG_APPEND_TIME_FLAG != 0

    @property
    def is_transactional(self) -> bool:
        return self.attributes & TRANSACTIONAL_FLAG != 0

    @property
    def is_control(self) -> bool:
        return self.attributes & CONTROL_FLAG != 0

    @property
    def has_delete_horizon(self) -> bool:
        return self.attributes & DELETE_HORIZON_FLAG != 0

    @property
    def has_producer_id(self) -> bool:
        return self.producer_id > NO_PRODUCER_ID

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def last_sequence(self) -> int:
        """The last sequence of the batch; after 2^31 - 1 comes 0. -1 if the batch has no sequences."""
        if self.base_sequence < 0:
            return NO_SEQUENCE
        return (self.base_sequence + self.last_offset_delta) & 0x7FFFFFFF


class Record(NamedTuple):
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


class EndTransactionMarker(NamedTuple):
    """The content of a control batch: the result of the transaction, and the epoch of its coordinator."""

    commit: bool
    coordinator_epoch: int


def read_header(buf: Buffer, pos: int = 0) -> BatchHeader:
    """The header at `pos`, unchecked. Raises CorruptMessage if the buffer ends before it does."""
    try:
        return BatchHeader._make(HEADER.unpack_from(buf, pos))
    except struct.error:
        raise CorruptMessage(
            f"a batch header takes {HEADER_SIZE} bytes, {max(0, len(buf) - pos)} are left"
        ) from None


def iter_batches(buf: Buffer, start: int = 0, end: int | None = None) -> Iterator[tuple[int, BatchHeader]]:
    """The position and header of every complete batch. Stops before a batch that is cut off at the end.

    Raises CorruptMessage if a length is too small for a batch, or the magic is not 2.
    """
    pos = start
    if end is None:
        end = len(buf)
    while end - pos >= HEADER_SIZE:
        header = BatchHeader._make(HEADER.unpack_from(buf, pos))
        if header.batch_length < HEADER_SIZE - LENGTH_OVERHEAD:
            raise CorruptMessage(
                f"the batch at position {pos} declares a length of {header.batch_length}; "
                f"the smallest is {HEADER_SIZE - LENGTH_OVERHEAD}"
            )
        if header.magic != MAGIC:
            raise CorruptMessage(f"the batch at position {pos} has magic {header.magic}; {MAGIC} is read")
        after = pos + header.batch_length + LENGTH_OVERHEAD
        if after > end:
            return
        yield pos, header
        pos = after


def crc_is_valid(buf: Buffer, pos: int, header: BatchHeader) -> bool:
    end = pos + header.batch_length + LENGTH_OVERHEAD
    if header.batch_length < HEADER_SIZE - LENGTH_OVERHEAD or end > len(buf):
        return False
    return loops.crc(buf, pos + CRC_START, end) == header.crc


def set_max_timestamp(buf: WritableBuffer, pos: int, ms: int, *, log_append_time: bool) -> None:
    """Write the greatest timestamp and the timestamp type into the batch at `pos`, and update its CRC."""
    length: int = struct.unpack_from(">i", buf, pos + 8)[0]
    attributes: int = struct.unpack_from(">h", buf, pos + ATTRIBUTES_POSITION)[0]
    attributes = attributes & KNOWN_FLAGS & ~LOG_APPEND_TIME_FLAG
    if log_append_time:
        attributes |= LOG_APPEND_TIME_FLAG
    struct.pack_into(">h", buf, pos + ATTRIBUTES_POSITION, attributes)
    struct.pack_into(">q", buf, pos + MAX_TIMESTAMP_POSITION, ms)
    crc = loops.crc(buf, pos + CRC_START, pos + length + LENGTH_OVERHEAD)
    struct.pack_into(">I", buf, pos + CRC_POSITION, crc)


def set_log_append_time(buf: WritableBuffer, pos: int, ms: int) -> None:
    """Give the batch at `pos` a log append time, which is then the timestamp of all its records."""
    set_max_timestamp(buf, pos, ms, log_append_time=True)


def payload(
    buf: Buffer, pos: int, header: BatchHeader, *, max_unpacked: int = DEFAULT_MAX_UNPACKED
) -> tuple[Buffer, int, int]:
    """The uncompressed records of a batch: a buffer with their start and end."""
    end = pos + header.total_size
    if header.batch_length < HEADER_SIZE - LENGTH_OVERHEAD or end > len(buf):
        raise CorruptMessage(f"the batch of {header.total_size} bytes at position {pos} is truncated")
    codec = header.codec
    if codec is Codec.NONE:
        return buf, pos + HEADER_SIZE, end
    if header.record_count == 0 and end == pos + HEADER_SIZE:
        return b"", 0, 0  # compaction removed all records of the batch
    unpacked = decompress(codec, memoryview(buf)[pos + HEADER_SIZE : end], max_unpacked)
    return unpacked, 0, len(unpacked)


def read_records(
    buf: Buffer,
    pos: int = 0,
    *,
    header: BatchHeader | None = None,
    max_unpacked: int = DEFAULT_MAX_UNPACKED,
) -> list[Record]:
    """Every record of the batch at `pos`. Raises InvalidRecord if they do not match the header."""
    if header is None:
        header = read_header(buf, pos)
    data, start, end = payload(buf, pos, header, max_unpacked=max_unpacked)
    append_time = header.max_timestamp if header.is_log_append_time else None
    count, offset, timestamp = header.record_count, header.base_offset, header.base_timestamp
    try:
        return loops.make_records(Record, data, start, end, count, offset, timestamp, append_time)
    except MalformedRecords as error:
        raise InvalidRecord(f"the batch at offset {header.base_offset} is malformed: {error}") from None


def record_times(buf: Buffer, pos: int, header: BatchHeader) -> Iterator[tuple[int, int]]:
    """The offset and timestamp of every record of a batch, in order. Raises InvalidRecord as `read_records`.

    A batch can have a million records, so no record becomes an object.
    """
    data, start, end = payload(buf, pos, header)
    try:
        times, offsets, *_ = loops.walk_columns(data, start, end, header.record_count)
    except MalformedRecords as error:
        raise InvalidRecord(f"the batch at offset {header.base_offset} is malformed: {error}") from None
    base, stamp = header.base_offset, header.max_timestamp
    if header.is_log_append_time:
        return ((base + offset, stamp) for offset in offsets)
    # A sum beyond 64 bits overflows, as in Java.
    first = header.base_timestamp + (1 << 63)
    return (
        (base + offset, (first + time & (1 << 64) - 1) - (1 << 63))
        for offset, time in zip(offsets, times, strict=True)
    )


def build_batch(
    records: Sequence[Record],
    *,
    codec: Codec = Codec.NONE,
    level: int | None = None,
    base_offset: int = 0,
    leader_epoch: int = NO_LEADER_EPOCH,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    transactional: bool = False,
    control: bool = False,
    log_append_time: int | None = None,
    delete_horizon: int | None = None,
    last_offset_delta: int | None = None,
) -> bytes:
    """One batch with its CRC. Records keep their offsets, which have to rise from `base_offset` on.

    `last_offset_delta` is for batches whose last records, or all, were removed by the cleaner.
    `delete_horizon` takes the place of the base timestamp, as in compacted logs.
    """
    base_timestamp = records[0].timestamp if records else NO_TIMESTAMP
    attributes = int(codec)
    if transactional:
        attributes |= TRANSACTIONAL_FLAG
    if control:
        attributes |= CONTROL_FLAG
    if delete_horizon is not None:
        attributes |= DELETE_HORIZON_FLAG
        base_timestamp = delete_horizon
    data, count, last_delta, max_timestamp = loops.encode_records(records, base_offset, base_timestamp)
    if log_append_time is not None:
        attributes |= LOG_APPEND_TIME_FLAG
        max_timestamp = log_append_time
    if last_offset_delta is not None:
        if last_offset_delta < last_delta:
            raise ValueError(
                f"last offset delta {last_offset_delta} is below {last_delta}, the delta of a record"
            )
        last_delta = last_offset_delta
    if codec is not Codec.NONE and count:
        data = compress(codec, data, level)
    return bytes(
        _signed(
            data, base_offset, leader_epoch, MAGIC, attributes, last_delta, base_timestamp,
            max_timestamp, producer_id, producer_epoch, base_sequence, count,
        )
    )  # fmt: skip


def assemble(header: BatchHeader, data: Buffer) -> bytearray:
    """One batch of a header and a payload. The length and CRC of the header are computed."""
    base_offset, _, leader_epoch, magic, _, *others = header
    return _signed(data, base_offset, leader_epoch, magic, *others)


def _signed(data: Buffer, base_offset: int, leader_epoch: int, magic: int, *others: int) -> bytearray:
    """The batch of a payload and the header fields without length and CRC, which are computed."""
    out = bytearray(HEADER_SIZE)
    out += data
    HEADER.pack_into(out, 0, base_offset, len(out) - LENGTH_OVERHEAD, leader_epoch, magic, 0, *others)
    CRC.pack_into(out, CRC_POSITION, loops.crc(out, CRC_START, len(out)))
    return out


def build_end_transaction_marker(
    *,
    commit: bool,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
    timestamp: int,
    base_offset: int = 0,
    leader_epoch: int = NO_LEADER_EPOCH,
) -> bytes:
    """The control batch that ends a transaction in a partition."""
    kind = CONTROL_COMMIT if commit else CONTROL_ABORT
    record = MARKER.pack(MARKER_START, 0, kind, MARKER_VALUE_SIZE, 0, coordinator_epoch, 0)
    return bytes(
        _signed(
            record, base_offset, leader_epoch, MAGIC, TRANSACTIONAL_FLAG | CONTROL_FLAG, 0, timestamp,
            timestamp, producer_id, producer_epoch, NO_SEQUENCE, 1,
        )
    )  # fmt: skip


def read_marker(buf: Buffer, pos: int, header: BatchHeader) -> EndTransactionMarker | None:
    """The marker in the control batch at `pos`; None if it does not end a transaction."""
    if (
        header.total_size == HEADER_SIZE + MARKER.size <= len(buf) - pos
        and header.record_count == 1
        and not header.attributes & CODEC_MASK
    ):
        start, version, kind, value_size, value_version, epoch, headers = MARKER.unpack_from(
            buf, pos + HEADER_SIZE
        )
        if (start, version, value_size, value_version, headers) == _PLAIN_MARKER and kind in (0, 1):
            return EndTransactionMarker(kind == CONTROL_COMMIT, epoch)
    records = read_records(buf, pos, header=header)
    return read_control_record(records[0]) if records else None


def control_record_type(record: Record) -> int:
    """The type of a control record: 0 abort, 1 commit; other types are not about transactions."""
    if record.key is None or len(record.key) < 4:
        raise InvalidRecord("the key of a control record has 4 bytes: version and type")
    version, kind = struct.unpack_from(">hh", record.key)
    if version < 0:
        raise InvalidRecord(f"control record key version {version} is below 0")
    return int(kind)


def read_control_record(record: Record) -> EndTransactionMarker | None:
    """The marker in the record of a control batch; None if it does not end a transaction."""
    kind = control_record_type(record)
    if kind not in (CONTROL_ABORT, CONTROL_COMMIT):
        return None
    if record.value is None or len(record.value) < 6:
        raise InvalidRecord("the value of an end-of-transaction marker has 6 bytes: version and epoch")
    version, coordinator_epoch = struct.unpack_from(">hi", record.value)
    if version < 0:
        raise InvalidRecord(f"end-of-transaction marker version {version} is below 0")
    return EndTransactionMarker(kind == CONTROL_COMMIT, coordinator_epoch)
