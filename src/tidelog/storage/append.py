"""The steps of an append as values: the loop prepares it, any thread writes it, the loop finishes it."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from tidelog.storage.producer_state_manager import AppendOrigin, BatchMetadata

if TYPE_CHECKING:
    from tidelog.records.batch import EndTransactionMarker
    from tidelog.records.check import CheckedBatch
    from tidelog.storage.disk import Bytes
    from tidelog.storage.log_segment import LogSegment

__all__ = ["AppendOrigin", "AppendResult", "DuplicateBatch", "PendingAppend", "UnreadBatch", "write_together"]


class AppendResult(NamedTuple):
    base_offset: int
    last_offset: int
    log_append_time: int  # -1 if the topic keeps the producers' timestamps
    log_start_offset: int
    needs_flush: bool = False


class DuplicateBatch:
    """A batch that the log has already. It gets the same answer as the original batch."""

    __slots__ = ("result",)

    def __init__(self, known: BatchMetadata, log_start_offset: int, needs_flush: bool) -> None:
        self.result = AppendResult(
            known.first_offset, known.last_offset, known.timestamp, log_start_offset, needs_flush
        )


class UnreadBatch:
    """A batch that is not appended yet: the check for duplicates has to read the disk first."""

    __slots__ = ("batch",)

    def __init__(self, batch: CheckedBatch) -> None:
        self.batch = batch


class PendingAppend:
    """A batch with offsets and a position in the segment file, not yet part of the log."""

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
        segment: LogSegment,
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
        self.marker = marker  # of a control batch
        self.undo: bytes | None = None  # the producer's state before this batch
        self.cancelled = False

    def write(self) -> None:
        """Write the bytes to the file, in any thread. Raises the OSError of the disk."""
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
