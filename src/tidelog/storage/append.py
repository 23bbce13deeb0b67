"""The values of an append on its way: prepared on the loop, written anywhere, finished on the loop."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from tidelog.storage.producer_state import AppendOrigin, BatchMetadata

if TYPE_CHECKING:
    from tidelog.records.batch import EndTransactionMarker
    from tidelog.records.check import CheckedBatch
    from tidelog.storage.disk import Bytes
    from tidelog.storage.segment import Segment
    from tidelog.storage.slices import FileSlice

__all__ = ["AppendOrigin", "AppendResult", "DuplicateBatch", "PendingAppend", "ReadResult", "write_together"]


class AppendResult(NamedTuple):
    base_offset: int
    last_offset: int
    log_append_time: int  # -1 where records keep the time that their producer gave them
    log_start_offset: int
    needs_flush: bool = False


class DuplicateBatch:
    """A batch that the log holds already; the answer is that of its first arrival, and waits for as much."""

    __slots__ = ("result",)

    def __init__(self, known: BatchMetadata, log_start_offset: int, needs_flush: bool) -> None:
        self.result = AppendResult(
            known.first_offset, known.last_offset, known.timestamp, log_start_offset, needs_flush
        )


class PendingAppend:
    """A batch with its offsets assigned and its place in the file reserved, not yet part of the log."""

    __slots__ = (
        "base_offset",
        "batch",
        "cancelled",
        "data",
        "file",
        "last_offset",
        "leader_epoch",
        "marker",
        "position",
        "segment",
        "undo",
    )

    def __init__(
        self,
        batch: CheckedBatch,
        base_offset: int,
        last_offset: int,
        leader_epoch: int,
        segment: Segment,
        marker: EndTransactionMarker | None,
    ) -> None:
        self.batch = batch
        self.data: Bytes = batch.data
        self.base_offset = base_offset
        self.last_offset = last_offset
        self.leader_epoch = leader_epoch
        self.segment = segment
        self.file = segment.file
        self.position = segment.write_position
        self.marker = marker  # of a control batch that ends a transaction
        self.undo: bytes | None = None  # the state of its producer before it
        self.cancelled = False

    def write(self) -> None:
        """Put the bytes into the file; may run in any thread. OSError when the disk refuses."""
        if self.cancelled:
            raise OSError(errno.ECANCELED, "an earlier append to the same log has failed", self.file.path)
        self.file.pwrite(self.data, self.position)


def write_together(appends: Sequence[PendingAppend]) -> None:
    """Write consecutive appends of one log with as few system calls as their files allow."""
    start = 0
    while start < len(appends):
        first = appends[start]
        end = start + 1
        while end < len(appends) and end - start < 512 and appends[end].file is first.file:
            end += 1
        if end == start + 1:
            first.write()
        else:
            first.file.pwritev([append.data for append in appends[start:end]], first.position)
        start = end


class ReadResult:
    """Batches from the one that holds the wanted offset on; `slice` is None where there are none."""

    __slots__ = ("offset", "segment", "slice")

    def __init__(self, offset: int, slice_: FileSlice | None = None, segment: Segment | None = None) -> None:
        self.offset = offset
        self.slice = slice_
        self.segment = segment

    @property
    def size(self) -> int:
        return self.slice.size if self.slice is not None else 0
