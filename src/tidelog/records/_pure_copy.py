"""The batches that a follower copies from its leader, in plain Python; `_speed` has the same compiled.

A walk over the headers gives columns: nine numbers for each batch. Checksums are a walk of their own, for
another thread. What the batches change in the log is noted once they are written.
"""

from __future__ import annotations

from array import array

from tidelog.records._pure import HEADER, HEADER_SIZE, crc
from tidelog.records._pure_producer import LAST_SEQUENCE, NO_SEQUENCE, ProducerEntry
from tidelog.records.status import BAD_LENGTH, BAD_OFFSET_RANGE, OK, OLD_MAGIC, UNKNOWN_MAGIC

COPIED_FIELDS = 9
"""Base offset, last offset, size, leader epoch, max timestamp, attributes, producer id, producer epoch, base
sequence."""

LENGTH_OVERHEAD = 12
CRC_START = 21
MAGIC = 2
LAST_OFFSET = (1 << 63) - 1
TRANSACTIONAL = 0x10
CONTROL = 0x20

Buffer = bytes | bytearray | memoryview
Limits = tuple[int, int, int, int]
"""The position in the segment, and the largest position, timestamp and offset of the segment."""
CopiedEnd = tuple[int, int, int, int, int]
"""The position in the segment, the bytes since the last index entry, the bytes after which the next entry is
due, the greatest timestamp, and the last offset of the batch with that timestamp."""
IndexEntry = tuple[int, int, int, int]
"""The last offset and the position of a batch, and the greatest timestamp up to it with its offset."""
Noted = tuple[int, int, int, int, int, list[IndexEntry], list[tuple[int, int]]]


def copied_batches(buf: Buffer) -> tuple[int, array[int], int]:
    """The columns of the whole batches in `buf`, and the bytes of these batches.

    The status is not OK if the bytes after them are no batch, or if offsets do not rise. Checksums are not
    looked at.
    """
    columns = array("q")
    at, size, expected = 0, len(buf), -(1 << 63)
    while size - at >= HEADER_SIZE:
        base, length, epoch, magic, _, attributes, delta, _, max_ts, pid, pepoch, sequence, _ = (
            HEADER.unpack_from(buf, at)
        )
        total = length + LENGTH_OVERHEAD
        if total < HEADER_SIZE:
            return BAD_LENGTH, columns, at
        if total > size - at:
            break
        if magic != MAGIC:
            return OLD_MAGIC if 0 <= magic < MAGIC else UNKNOWN_MAGIC, columns, at
        if base < expected or delta < 0 or base + delta > LAST_OFFSET:
            return BAD_OFFSET_RANGE, columns, at
        columns.extend((base, base + delta, total, epoch, max_ts, attributes, pid, pepoch, sequence))
        expected = base + delta + 1
        at += total
    return OK, columns, at


def first_bad_crc(buf: Buffer) -> int:
    """The position of the first batch with a wrong checksum; -1 if all are right."""
    at, end = 0, len(buf)
    while end - at >= HEADER_SIZE:
        total = int.from_bytes(buf[at + 8 : at + 12], "big", signed=True) + LENGTH_OVERHEAD
        if not HEADER_SIZE <= total <= end - at:
            return at
        if crc(buf, at + CRC_START, at + total) != int.from_bytes(buf[at + 17 : at + 21], "big"):
            return at
        at += total
    return -1


def _row(columns: array[int], at: int) -> array[int]:
    return columns[at * COPIED_FIELDS : (at + 1) * COPIED_FIELDS]


def _check_range(columns: array[int], first: int, stop: int) -> None:
    if not 0 <= first <= stop <= len(columns) // COPIED_FIELDS:
        raise ValueError(f"batches {first} to {stop} of {len(columns) // COPIED_FIELDS}")


def copied_run(columns: array[int], first: int, limits: Limits) -> tuple[int, int]:
    """The end of the batches from `first` on that fit into a segment, and their bytes.

    The first batch of a segment may be larger than the segment should be.
    """
    position, max_position, latest, max_offset = limits
    start, stop = position, len(columns) // COPIED_FIELDS
    _check_range(columns, first, stop)
    while first < stop:
        _, last_offset, size, _, timestamp, *_ = _row(columns, first)
        if position > 0 and (position + size > max_position or timestamp > latest):
            break
        if last_offset > max_offset:
            break
        position += size
        first += 1
    return first, position - start


def note_copied(
    columns: array[int],
    first: int,
    stop: int,
    end: CopiedEnd,
    latest_epoch: int,
    entries: dict[int, ProducerEntry],
) -> Noted:
    """Update the producers with batches that were written; ends before one that begins or ends a transaction.

    Returns the index of the next batch, its position, the bytes since the last index entry, the greatest
    timestamp and its offset, the index entries, and the epochs above `latest_epoch` with their start offsets.
    """
    position, since_index, index_interval, greatest, offset_of_greatest = end
    index: list[IndexEntry] = []
    epochs: list[tuple[int, int]] = []
    _check_range(columns, first, stop)
    while first < stop:
        base, last, size, epoch, timestamp, attributes, pid, pepoch, sequence = _row(columns, first)
        if pid >= 0:
            if attributes & CONTROL:
                break
            entry = entries.get(pid)
            if attributes & TRANSACTIONAL and (entry is None or entry.transaction_start is None):
                break
            if entry is None:
                entry = entries[pid] = ProducerEntry(pid, pepoch)
            entry.take_epoch(pepoch)
            last_sequence = (sequence + last - base) & LAST_SEQUENCE if sequence >= 0 else NO_SEQUENCE
            entry.note(last_sequence, last, last - base, timestamp)
        if epoch > latest_epoch:
            latest_epoch = epoch
            epochs.append((epoch, base))
        if timestamp > greatest:
            greatest, offset_of_greatest = timestamp, last
        if since_index > index_interval:
            index.append((last, position, greatest, offset_of_greatest))
            since_index = 0
        since_index += size
        position += size
        first += 1
    return first, position, since_index, greatest, offset_of_greatest, index, epochs
