"""A run of batches for one log, in plain Python; `_speed` has the same compiled.

A run is a sequence of ordinary batches: they roll no segment, and their producers are known and in sequence.
One call writes the whole run.
"""

from __future__ import annotations

from collections.abc import Mapping

from tidelog.records._pure import HEADER_SIZE, patch_header
from tidelog.records._pure_check import CheckedBatch
from tidelog.records._pure_producer import ProducerEntry

CONTROL = 0x20
BEFORE_ALL = -(1 << 63)

End = tuple[int, int, int, int, int, int]
"""The end of a log and the limits that roll its segment: the position, the largest position, timestamp and
offset, the bytes since the last index entry, and the bytes after which the next entry is due."""

Undo = list[tuple[int, bytes]]
Run = tuple[list[int], Undo, int, int, int, int, int, bool]


def lay_out(
    data: bytearray,
    at: int,
    batches: list[CheckedBatch],
    first: int,
    stop: int,
    base_offset: int,
    leader_epoch: int,
    end: End,
    entries: Mapping[int, ProducerEntry],
    verifications: Mapping[int, object],
) -> Run:
    """Give offsets to a run of the batches `first` to `stop`, which follow each other in `data[at:]`.

    It writes headers, and producers record their batches. A run ends before a batch that is not ordinary, and
    after the first batch for which an index entry is due. Returns the base offsets of its batches, the states
    of its producers before them, its size, the offset after it, the position of its last batch, its greatest
    timestamp, the last offset of the batch with that timestamp, and whether an index entry is due.
    """
    position, max_position, latest, max_offset, since_index, index_interval = end
    last_position, greatest, offset_of_greatest, index_due = position, BEFORE_ALL, -1, False
    offsets: list[int] = []
    undo: Undo = []
    start = at
    if first < 0 or stop > len(batches) or at < 0:
        raise ValueError(f"batches {first} to {stop} of {len(batches)} from byte {at} on")
    while first < stop and not index_due:
        batch = batches[first]
        _, size, attributes, delta, timestamp, producer_id, _, _ = batch
        last_offset = base_offset + delta
        if position + size > max_position or timestamp > latest or last_offset > max_offset:
            break
        if not HEADER_SIZE <= size <= len(data) - at:
            raise ValueError(f"a batch of {size} bytes at byte {at} of {len(data)}")
        if producer_id >= 0:
            entry = entries.get(producer_id)
            if entry is None or producer_id in verifications or attributes & CONTROL:
                break
            if not entry.awaits(batch):
                break
            undo.append((producer_id, entry.append(batch, last_offset)))
        patch_header(data, at, base_offset, leader_epoch)
        offsets.append(base_offset)
        if timestamp > greatest:
            greatest, offset_of_greatest = timestamp, last_offset
        index_due = since_index > index_interval
        since_index += size
        last_position = position
        position += size
        at += size
        base_offset = last_offset + 1
        first += 1
    return offsets, undo, at - start, base_offset, last_position, greatest, offset_of_greatest, index_due
