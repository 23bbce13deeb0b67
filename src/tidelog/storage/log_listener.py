"""The events of a log, for its manager and its partition."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidelog.storage.flush import FlushJob
    from tidelog.storage.segmented import SegmentedLog


class LogListener:
    """Each method is called on the thread that owns the log. The defaults do nothing."""

    __slots__ = ()

    def segment_rolled(self, log: SegmentedLog) -> None:
        """A segment is complete and can be flushed."""

    def log_flushed(self, job: FlushJob) -> None:
        """A flush has ended well."""

    def log_start_moved(self, log: SegmentedLog) -> None:
        """Records at the start of the log are gone."""

    def log_truncated(self, log: SegmentedLog) -> None:
        """The recovery point fell. A listener that checkpoints it does so before it returns."""

    def storage_failed(self, log: SegmentedLog, error: OSError) -> None:
        """The disk refused a read or a write of the log."""
