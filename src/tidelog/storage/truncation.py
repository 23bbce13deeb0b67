"""Truncation: truncates a log at its end, in steps, so that no sync blocks the loop.

`find` and `cut` may run in any thread, `begin` and `end` belong to the thread that owns the log. Between
`begin` and `end` nothing is appended, flushed, cleaned or deleted by retention (`Log.is_truncating`).
Checkpoints with a recovery point above the new end are written again before a file is cut, because new
records will have these offsets.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tidelog.storage.disk import DiskFile
from tidelog.storage.producer_state_manager import ProducerStateManager
from tidelog.storage.recovery import reload_producers

if TYPE_CHECKING:
    from tidelog.storage.local_log import LocalLog
    from tidelog.storage.log import Log


class Truncation:
    """Made by `Log.truncation` and `Log.truncation_fully`. The methods are the steps, in their order."""

    __slots__ = ("_checkpoints", "_fully", "_local", "_log", "_now_ms", "_producers", "_removed", "offset")

    def __init__(self, log: Log, local: LocalLog, offset: int, now_ms: int, *, fully: bool) -> None:
        self._log = log
        self._local = local
        self._now_ms = now_ms
        self._fully = fully or offset < log.segments[0].base_offset
        self._checkpoints: list[Callable[[], None]] = []
        self._producers: ProducerStateManager | None = None
        self._removed: tuple[list[str], list[DiskFile]] = ([], [])
        self.offset = offset
        """The new log end offset; `find` lowers it to the start of the batch that has it."""

    def find(self) -> None:
        """Find the batch with the offset: batches are never split."""
        if self._fully:
            return
        segments = self._log.segments
        segment = segments[segments.find(self.offset)]
        segment.load_for_append()
        held_by = segment.position_of(self.offset)
        if held_by is not None:
            self.offset = min(self.offset, held_by[2])

    def begin(self) -> None:
        """Lower the recovery point. Raises KafkaStorageError during an append or another truncation."""
        lowest = min(self.offset, self._log.segments[0].base_offset) if self._fully else self.offset
        self._checkpoints = self._log.begin_truncation(lowest)

    def cut(self) -> None:
        """Remove the segments behind the new end, cut the file, and read the producers. Raises OSError."""
        local, log = self._local, self._log
        for write in self._checkpoints:
            write()
        renamed, open_files = local.rename_removed_here()
        if self._fully:
            more = local.start_anew_at(self.offset, self._now_ms)
        else:
            more = local.truncate_to(self.offset)
            self._producers = ProducerStateManager(log.config.producer_id_expiration_ms)
            reload_producers(log.segments, log.snapshots, self._producers, self.offset, self._now_ms)
        self._removed = (renamed + more[0], open_files + more[1])

    def end(self) -> None:
        """Let the log end at `offset`."""
        self._local.unlink_later(*self._removed)
        if self._fully:
            self._log.started_anew(self.offset)
        else:
            assert self._producers is not None
            self._log.truncated(self.offset, self._producers)

    def failed(self) -> None:
        """Give the truncation up after an exception of a step. The log continues as it is."""
        self._log.is_truncating = False

    def run(self) -> None:
        """Run all steps."""
        self.find()
        self.begin()
        try:
            self.cut()
        except BaseException:
            self.failed()
            raise
        self.end()
