"""OffsetMap: the last offset of each key in bounded memory, 24 bytes an entry with 16 of the key's hash.

The hash is keyed with random bytes, so that nobody can choose record keys that collide. The system allocates
the memory page by page as it is used; `close` frees it.
"""

from __future__ import annotations

import mmap
import os
import time

from tidelog.records import loops
from tidelog.records.batch import Buffer
from tidelog.records.loops import SLOT_SIZE
from tidelog.records.status import MAP_FULL, OK

LARGE = 1 << 20
PIECE = 4 << 20


class OffsetMap:
    __slots__ = ("_mapping", "hash_key", "latest_offset", "limit", "slots", "table", "used")

    def __init__(
        self,
        memory: int,
        load_factor: float = 0.9,
        *,
        expected: int | None = None,
        hash_key: bytes | None = None,
    ) -> None:
        """Allocate at most `memory` bytes, and not more than `expected` keys need."""
        slots = max(2, memory // SLOT_SIZE)
        if expected is not None:
            slots = min(slots, max(2, int(expected / load_factor) + 2))
        self.slots = slots
        self.limit = max(1, min(slots - 1, int(slots * load_factor)))
        self.used = 0
        self.latest_offset = -1
        """All records from the first dirty offset up to this one are in the map."""
        self.hash_key = os.urandom(16) if hash_key is None else hash_key
        size = slots * SLOT_SIZE
        self._mapping = mmap.mmap(-1, size) if size >= LARGE else None
        self.table = memoryview(bytearray(size) if self._mapping is None else self._mapping)

    @property
    def utilization(self) -> float:
        return self.used / self.slots

    def put_batches(self, buf: Buffer, start: int, end: int, from_offset: int) -> tuple[int, int, int]:
        """Add uncompressed batches; returns status, position of the first batch that was not added, records
        read.
        """
        status, at, self.used, latest, records = loops.map_batches(
            self.table, self.hash_key, self.used, self.limit, buf, start, end, from_offset
        )
        self.cover(latest)
        return status, at, records

    def put_records(
        self, payload: Buffer, start: int, end: int, count: int, base_offset: int, from_offset: int
    ) -> int:
        """Add the decompressed records of a batch; returns OK, MAP_FULL, or how a record is malformed."""
        status, _, self.used, latest = loops.map_records(
            self.table,
            self.hash_key,
            self.used,
            self.limit,
            payload,
            start,
            end,
            count,
            base_offset,
            from_offset,
        )
        if status in (OK, MAP_FULL):
            self.cover(latest)
        return status

    def cover(self, offset: int) -> None:
        """Note that the map is complete up to this offset."""
        if offset > self.latest_offset:
            self.latest_offset = offset

    def close(self) -> None:
        self.table.release()
        mapping, self._mapping = self._mapping, None
        if mapping is not None:
            # Unmapping all of it at once would hold the GIL for milliseconds.
            if hasattr(mmap, "MADV_DONTNEED"):
                for start in range(0, len(mapping), PIECE):
                    mapping.madvise(mmap.MADV_DONTNEED, start, min(PIECE, len(mapping) - start))
                    time.sleep(0.00005)
            mapping.close()
