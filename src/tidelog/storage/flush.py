"""A flush on its way: what to sync is chosen on the loop, the syncing may run in any thread."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Protocol

from tidelog.storage.disk import Disk, DiskFile, SyncFailed
from tidelog.storage.epochs import LeaderEpochs
from tidelog.storage.removal import Removal
from tidelog.storage.segment import LOG, SNAPSHOT, Segment


class CompletedSegment:
    """A segment that no longer grows, and those of its files that are still to be written, by their suffixes.

    The snapshot is that of the producers at its end. A log file stands for itself: it is to be cut.
    """

    __slots__ = ("files", "next_base", "segment", "size")

    def __init__(self, segment: Segment, next_base: int) -> None:
        self.segment = segment
        self.next_base = next_base
        self.size = segment.size
        self.files = segment.index_files()
        if segment.snapshot_to_write is not None:
            self.files.append((SNAPSHOT, segment.snapshot_to_write))
        if segment.has_loose_tail:
            self.files.append((LOG, b""))


class Syncs:
    """The flushes of a log, one at a time; none after one that could not sync.

    The kernel tells of a failed sync once: a second flush would find nothing wrong with the file.
    """

    __slots__ = ("_failure", "_lock")

    def __init__(self) -> None:
        self._lock = Lock()
        self._failure: SyncFailed | None = None

    @contextmanager
    def next(self) -> Iterator[None]:
        with self._lock:
            if self._failure is not None:
                failure = self._failure
                raise SyncFailed(
                    failure.errno, f"an earlier sync failed: {failure.strerror}", failure.filename
                )
            try:
                yield
            except SyncFailed as error:
                self._failure = error
                raise


class FlushedLog(Protocol):
    """The log that a flush is made for; both may be called in any thread."""

    def write_file(self, completed: CompletedSegment, truncations: int, suffix: str, data: bytes) -> bool: ...

    def files_synced(self, completed: CompletedSegment, truncations: int) -> None: ...


class FlushJob:
    """Makes everything below `up_to` durable; once `run` has returned the recovery point may move there.

    Files of complete segments are written by the log, which refuses where it was cut back, closed or given
    another folder meanwhile: then what the job does no longer counts.
    """

    __slots__ = (
        "_directory",
        "_disk",
        "_epochs",
        "_files",
        "_log",
        "_paths",
        "_removal",
        "_save_epochs",
        "_syncs",
        "completed",
        "linked",
        "loose_names",
        "names_topic",
        "seconds",
        "truncations",
        "up_to",
    )

    def __init__(
        self,
        disk: Disk,
        up_to: int,
        epochs: LeaderEpochs,
        truncations: int,
        syncs: Syncs,
        log: FlushedLog,
    ) -> None:
        self._disk = disk
        self._syncs = syncs
        self._log = log
        self.up_to = up_to
        self.truncations = truncations
        self.seconds = 0.0  # how long it took
        self._epochs = epochs
        self._save_epochs = epochs.encoded_if_changed()
        self._files: list[DiskFile] = []
        self._paths: list[str] = []
        self._directory: str | None = None
        self._removal: Removal | None = None
        self.linked: list[Segment] = []  # those whose directory entries become durable with it
        self.completed: list[CompletedSegment] = []  # those whose indexes do
        self.names_topic = False  # whether the log's topic id does
        self.loose_names = 0  # how many removals of files do

    def add_file(self, file: DiskFile) -> None:
        self._files.append(file)

    def add_path(self, path: str) -> None:
        """A small file that may have been deleted again by the time it is synced."""
        self._paths.append(path)

    def add_directory(self, directory: str) -> None:
        self._directory = directory

    def rename_first(self, removal: Removal) -> None:
        self._removal = removal

    def run(self) -> None:
        """OSError when the disk refuses: then nothing may be taken as durable."""
        with self._syncs.next():
            self._run()

    def _run(self) -> None:
        began = time.perf_counter()
        if self._removal is not None:
            self._removal.rename()
        for completed in self.completed:
            for suffix, data in completed.files:
                if not self._log.write_file(completed, self.truncations, suffix, data):
                    return
        while self._files:
            # Let go of here: where the segment is dropped meanwhile, this is the last to hold its file open.
            self._files.pop(0).fsync()
        for path in self._paths:
            try:
                self._disk.fsync(path)
            except FileNotFoundError:
                pass
        if self._save_epochs is not None:
            self._epochs.write(*self._save_epochs)
        if self._directory is not None:
            self._disk.fsync_dir(self._directory)
        for completed in self.completed:
            self._log.files_synced(completed, self.truncations)
        self.seconds = time.perf_counter() - began
