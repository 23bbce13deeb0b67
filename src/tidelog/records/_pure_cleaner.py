"""The hot loops of compaction, in plain Python: hash keys into a map of offsets, filter batches by the map.

The map is a buffer of slots of 24 bytes: the 16 bytes of a key's hash, and its last offset + 1 (0: the slot
is free). The caller has to keep some slots free. `_speed.pyx` has the same functions compiled.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left
from typing import TypeAlias

from tidelog.records._pure import (
    CRC_START,
    HEADER,
    HEADER_SIZE,
    LENGTH_OVERHEAD,
    SMALLEST_RECORD,
    Buffer,
    _Cut,
    _Malformed,
    _put,
    _record,
    _require,
    _varint,
    _wrap64,
    crc,
)
from tidelog.records.status import (
    BAD_CRC,
    BAD_LENGTH,
    BYTES_LEFT,
    COMPRESSED,
    CUT_SHORT,
    DROPPED,
    EMPTIED,
    MALFORMED,
    MAP_FULL,
    NO_BATCH,
    NO_ROOM,
    OK,
    OLD_MAGIC,
    REWRITTEN,
    UNCHANGED,
    UNKNOWN_MAGIC,
)

Offsets: TypeAlias = "array[int]"
IndexEntry = tuple[int, int, int, int]  # a batch's last offset and position, greatest timestamp, its offset

SLOT_SIZE = 24
NOT_PLAIN = 0x37
_SLOT = struct.Struct("=QQQ")
_MASK = (1 << 64) - 1


def _rotate(x: int, b: int) -> int:
    return ((x << b) | (x >> (64 - b))) & _MASK


def _rounds(v: list[int], count: int) -> None:
    v0, v1, v2, v3 = v
    for _ in range(count):
        v0 = (v0 + v1) & _MASK
        v1 = _rotate(v1, 13) ^ v0
        v0 = _rotate(v0, 32)
        v2 = (v2 + v3) & _MASK
        v3 = _rotate(v3, 16) ^ v2
        v0 = (v0 + v3) & _MASK
        v3 = _rotate(v3, 21) ^ v0
        v2 = (v2 + v1) & _MASK
        v1 = _rotate(v1, 17) ^ v2
        v2 = _rotate(v2, 32)
    v[:] = v0, v1, v2, v3


def siphash128(key: Buffer, data: Buffer) -> bytes:
    """SipHash-2-4 with 16 bytes of result: without the hash key nobody can make two keys collide."""
    return struct.pack("<QQ", *_siphash(bytes(key), bytes(data)))


def _siphash(key: bytes, data: bytes) -> tuple[int, int]:
    if len(key) != 16:
        raise ValueError(f"a hash key has 16 bytes, not {len(key)}")
    k0, k1 = struct.unpack("<QQ", key)
    v = [
        k0 ^ 0x736F6D6570736575,
        k1 ^ 0x646F72616E646F6D ^ 0xEE,
        k0 ^ 0x6C7967656E657261,
        k1 ^ 0x7465646279746573,
    ]
    whole = len(data) & ~7
    tail = int.from_bytes(data[whole:], "little") | (len(data) & 0xFF) << 56
    for word in (*struct.unpack(f"<{whole // 8}Q", data[:whole]), tail):
        v[3] ^= word
        _rounds(v, 2)
        v[0] ^= word
    v[2] ^= 0xEE
    _rounds(v, 4)
    low = v[0] ^ v[1] ^ v[2] ^ v[3]
    v[1] ^= 0xDD
    _rounds(v, 4)
    return low, v[0] ^ v[1] ^ v[2] ^ v[3]


class _Table:
    __slots__ = ("count", "key", "limit", "slots", "used")

    def __init__(self, slots: Buffer, key: Buffer, used: int = 0, limit: int = 0) -> None:
        self.slots = slots
        self.key = bytes(key)
        if len(self.key) != 16:
            raise ValueError(f"a hash key has 16 bytes, not {len(self.key)}")
        self.count = len(slots) // SLOT_SIZE
        if self.count == 0:
            raise ValueError(f"an offset map needs at least {SLOT_SIZE} bytes, not {len(slots)}")
        self.used = used
        self.limit = limit

    def find(self, key: bytes) -> tuple[int, int, int, int]:
        """The slot of a key, or the free slot that it would take (-1: none), its hash and its offset."""
        low, high = _siphash(self.key, key)
        at = low % self.count
        for _ in range(self.count):
            a, b, stored = _SLOT.unpack_from(self.slots, at * SLOT_SIZE)
            if stored == 0 or (a == low and b == high):
                return at, low, high, stored - 1
            at = at + 1 if at + 1 < self.count else 0
        return -1, low, high, -1

    def put(self, key: bytes, offset: int) -> bool:
        """Store the offset of a key; False if the map is full and does not have the key."""
        at, low, high, known = self.find(key)
        if at < 0 or (known < 0 and self.used >= self.limit):
            return False
        if known < 0:
            self.used += 1
        _SLOT.pack_into(self.slots, at * SLOT_SIZE, low, high, offset + 1)
        return True


def _put_records(
    table: _Table, buf: Buffer, start: int, end: int, count: int, base_offset: int, from_offset: int
) -> tuple[int, int, int]:
    """Returns (status, records that are done, last offset of them or -1)."""
    pos, latest = start, -1
    for index in range(count):
        try:
            layout = _record(buf, pos, end)
        except _Cut:
            return CUT_SHORT, index, latest
        except _Malformed:
            return MALFORMED, index, latest
        offset = _wrap64(base_offset + layout[1])
        key_start, key_length = layout[2], layout[3]
        if offset >= from_offset:
            if key_length >= 0 and not table.put(bytes(buf[key_start : key_start + key_length]), offset):
                return MAP_FULL, index, latest
            latest = offset
        pos = layout[8]
    return (OK if pos == end else BYTES_LEFT), max(count, 0), latest


def map_records(
    table: bytearray | memoryview,
    key: Buffer,
    used: int,
    limit: int,
    buf: Buffer,
    start: int,
    end: int,
    count: int,
    base_offset: int,
    from_offset: int,
) -> tuple[int, int, int, int]:
    """Put the keys of an uncompressed payload into the map, from an offset on.

    Returns (status, records that are done, slots in use, last offset of them or -1). The status is MAP_FULL
    at a new key if `limit` slots are in use.
    """
    slots = _Table(table, key, used, limit)
    _require(buf, start, end)
    status, index, latest = _put_records(slots, buf, start, end, count, base_offset, from_offset)
    return status, index, slots.used, latest


def _whole_batch(buf: Buffer, at: int, end: int) -> tuple[int, int]:
    """OK and the size of the batch, NO_BATCH if the bytes end before the batch does, or its error."""
    if end - at < HEADER_SIZE:
        return NO_BATCH, 0
    length: int = struct.unpack_from(">i", buf, at + 8)[0]
    if length < HEADER_SIZE - LENGTH_OVERHEAD:
        return BAD_LENGTH, 0
    if buf[at + 16] != 2:
        return (OLD_MAGIC if buf[at + 16] < 2 else UNKNOWN_MAGIC), 0
    total = length + LENGTH_OVERHEAD
    if total > end - at:
        return NO_BATCH, 0
    good = crc(buf, at + CRC_START, at + total) == struct.unpack_from(">I", buf, at + 17)[0]
    return (OK if good else BAD_CRC), total


def map_batches(
    table: bytearray | memoryview,
    key: Buffer,
    used: int,
    limit: int,
    buf: Buffer,
    start: int,
    end: int,
    from_offset: int,
) -> tuple[int, int, int, int, int]:
    """Put the keys of plain batches into the map, up to the first batch that is not plain or not complete.

    Returns (status, position of the first batch that is not done, slots in use, last offset that is done or
    -1, records read). After COMPRESSED the caller has to process that batch itself.
    """
    slots = _Table(table, key, used, limit)
    _require(buf, start, end)
    at, latest, records = start, -1, 0
    while True:
        status, total = _whole_batch(buf, at, end)
        if status != OK:
            return (OK if status == NO_BATCH else status), at, slots.used, latest, records
        header = HEADER.unpack_from(buf, at)
        if header[5] & NOT_PLAIN:
            return COMPRESSED, at, slots.used, latest, records
        status, index, last = _put_records(
            slots, buf, at + HEADER_SIZE, at + total, header[12], header[0], from_offset
        )
        latest = last if last >= 0 else latest
        records += index
        if status != OK:
            return status, at, slots.used, latest, records
        last_offset = _wrap64(header[0] + header[6])
        if last_offset >= from_offset:
            latest = last_offset
        at += total


class _Filter:
    __slots__ = ("horizon", "kept", "latest", "now", "read", "table")

    def __init__(self, table: _Table, latest: int, now: int, horizon: int) -> None:
        self.table = table
        self.latest = latest
        self.now = now
        self.horizon = horizon
        self.read = 0
        self.kept = 0

    def _stays(self, offset: int, key: bytes | None, is_tombstone: bool, drop_tombstones: bool) -> bool:
        if offset > self.latest:
            return True
        if key is None or (is_tombstone and drop_tombstones):
            return False
        return offset >= self.table.find(key)[3]

    def batch(self, buf: Buffer, at: int, total: int, room: int, retain: bool) -> tuple[int, Buffer]:
        """The result for a batch, and the bytes to write for it."""
        header = HEADER.unpack_from(buf, at)
        base_offset, attributes, base_timestamp, max_timestamp = header[0], header[5], header[7], header[8]
        count, end = header[12], at + total
        append_time, has_horizon = attributes & 0x08 != 0, attributes & 0x40 != 0
        if count < 0 or count > (total - HEADER_SIZE) // SMALLEST_RECORD:
            return CUT_SHORT, b""
        if room < total:
            return NO_ROOM, b""
        if base_offset > self.latest:
            self.read += count
            self.kept += count
            return UNCHANGED, buf[at:end]
        drop_tombstones = has_horizon and base_timestamp <= self.now
        chosen: list[tuple[int, int, int]] = []  # timestamp, start, end
        tombstones = False
        pos = at + HEADER_SIZE
        for _ in range(count):
            try:
                layout = _record(buf, pos, end)
            except _Cut:
                return CUT_SHORT, b""
            except _Malformed:
                return MALFORMED, b""
            key = None if layout[3] < 0 else bytes(buf[layout[2] : layout[2] + layout[3]])
            if self._stays(_wrap64(base_offset + layout[1]), key, layout[5] < 0, drop_tombstones):
                stamp = max_timestamp if append_time else _wrap64(base_timestamp + layout[0])
                chosen.append((stamp, pos, layout[8]))
                tombstones = tombstones or layout[5] < 0
            pos = layout[8]
        if pos != end:
            return BYTES_LEFT, b""
        if not chosen:
            self.read += count
            if not retain:
                return DROPPED, b""
            emptied = (*header[:5], attributes & 0x38, header[6], -1, *header[8:12], 0)
            return EMPTIED, _signed(emptied, b"")
        needs_horizon = tombstones and not has_horizon
        if len(chosen) == count and not needs_horizon:
            self.read += count
            self.kept += count
            return UNCHANGED, buf[at:end]
        if room < total + 15 * len(chosen):
            return NO_ROOM, b""
        new_base = self.horizon if needs_horizon else base_timestamp if has_horizon else chosen[0][0]
        records = bytearray()
        for stamp, start, stop in chosen:
            if new_base == base_timestamp and not append_time:
                records += buf[start:stop]
            else:
                _put_record(records, buf, start, stop, _wrap64(stamp - new_base))
        greatest = max_timestamp if append_time else max(-1, *(stamp for stamp, _, _ in chosen))
        flags = attributes | 0x40 if needs_horizon else attributes
        self.read += count
        self.kept += len(chosen)
        fields = (*header[:5], flags, header[6], new_base, greatest, *header[9:12], len(chosen))
        return REWRITTEN, _signed(fields, records)


def _put_record(out: bytearray, buf: Buffer, start: int, stop: int, timestamp_delta: int) -> None:
    _, body = _varint(buf, start, stop, 32)
    _, rest = _varint(buf, body + 1, stop, 64)
    stamp = bytearray()
    _put(stamp, timestamp_delta)
    _put(out, 1 + len(stamp) + stop - rest)
    out.append(buf[body])
    out += stamp
    out += buf[rest:stop]


def _signed(fields: tuple[int, ...], records: Buffer) -> bytearray:
    out = bytearray(HEADER_SIZE + len(records))
    out[HEADER_SIZE:] = records
    HEADER.pack_into(out, 0, fields[0], len(out) - LENGTH_OVERHEAD, *fields[2:4], 0, *fields[5:])
    struct.pack_into(">I", out, 17, crc(out, CRC_START, len(out)))
    return out


def filter_batches(
    table: Buffer,
    key: Buffer,
    buf: Buffer,
    start: int,
    end: int,
    out: bytearray | memoryview,
    out_at: int,
    latest: int,
    now: int,
    horizon: int,
    retained: Offsets,
    single: bool,
    retain: bool,
) -> tuple[int, int, int, int, int]:
    """Write batches to `out`, from `out_at` on, without the records that the map has a later one of.

    `latest` is the last offset in the map: records after it stay. Batches whose tombstones are seen for the
    first time get the delete `horizon`. A batch that ends at one of the `retained` offsets (sorted) stays,
    even without records. Returns (status, position of the first batch that is not done, end of the written
    bytes, records read, records kept). The status is NO_ROOM if `out` may be too small for the next batch,
    and COMPRESSED if the caller has to process the batch itself.

    With `single` the range is one uncompressed batch, whose CRC is not checked. It stays if `retain` is set,
    and the status is UNCHANGED, REWRITTEN, EMPTIED or DROPPED.
    """
    if retained.typecode != "q":
        raise ValueError(f"offsets are an array of type 'q', not {retained.typecode!r}")
    work = _Filter(_Table(table, key), latest, now, horizon)
    _require(buf, start, end)
    if single and end - start < HEADER_SIZE:
        raise ValueError(f"a batch takes at least {HEADER_SIZE} bytes, not {end - start}")
    _require(out, out_at, len(out))
    at = start
    while True:
        if single:
            status, data = work.batch(buf, start, end - start, len(out) - out_at, retain)
        else:
            status, total = _whole_batch(buf, at, end)
            if status != OK:
                return (OK if status == NO_BATCH else status), at, out_at, work.read, work.kept
            header = HEADER.unpack_from(buf, at)
            if header[5] & NOT_PLAIN:
                return COMPRESSED, at, out_at, work.read, work.kept
            last_offset = _wrap64(header[0] + header[6])
            found = bisect_left(retained, last_offset)
            retain = found < len(retained) and retained[found] == last_offset
            status, data = work.batch(buf, at, total, len(out) - out_at, retain)
        if status >= UNCHANGED:
            out[out_at : out_at + len(data)] = data
            out_at += len(data)
        if single or status < UNCHANGED:
            return status, at, out_at, work.read, work.kept
        at += total


def index_batches(
    buf: Buffer,
    start: int,
    end: int,
    position: int,
    interval: int,
    since: int,
    max_timestamp: int,
    offset_of_max: int,
) -> tuple[list[IndexEntry], int, int, int]:
    """The index entries of a segment for complete batches that are written to it at `position`.

    There is one for the first batch after each `interval` bytes; `since` has the bytes since the last entry.
    Returns the entries, the new count, the greatest timestamp and the last offset of the batch with it.
    """
    _require(buf, start, end)
    entries: list[IndexEntry] = []
    at = start
    while end - at >= HEADER_SIZE:
        header = HEADER.unpack_from(buf, at)
        total = header[1] + LENGTH_OVERHEAD
        if not HEADER_SIZE <= total <= end - at:
            break
        last_offset = _wrap64(header[0] + header[6])
        if header[8] > max_timestamp:
            max_timestamp, offset_of_max = header[8], last_offset
        if since > interval:
            entries.append((last_offset, position + at - start, max_timestamp, offset_of_max))
            since = 0
        since += total
        at += total
    if at != end:
        raise ValueError(f"no whole batch at position {at} of {end}")
    return entries, since, max_timestamp, offset_of_max
