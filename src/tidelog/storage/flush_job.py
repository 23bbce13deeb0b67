"""FlushJob: one flush of a log. The loop chooses the files, any thread syncs them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Protocol

from tidelog.storage.disk import Disk, DiskFile, SyncFailed
from tidelog.storage.file_remover import Removal
from tidelog.storage.leader_epoch_file_cache import LeaderEpochFileCache
from tidelog.storage.log_segment import LOG, SNAPSHOT, LogSegment


class CompletedSegment:
    """A segment that does not grow any more, with the contents of the files that a flush has to write.

    The snapshot has the producers at the segment's end. An entry for the log file has no contents: it means
    that the file has to be truncated to its size.
    """

    __slots__ = ("files", "next_base", "segment", "size")

    def __init__(self, segment: LogSegment, next_base: int) -> None:
        self.segment = segment
        self.next_base = next_base
        self.size = segment.size
        self.files = segment.index_files()
        if segment.snapshot_to_write is not None:
            self.files.append((SNAPSHOT, segment.snapshot_to_write))
        if segment.has_loose_tail:
            self.files.append((LOG, b""))


class Syncs:
    """Allows one flush of a log at a time, and none after a failed sync.

    The kernel reports a failed sync only once: a second flush would succeed although data is lost.
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
    """The log that is flushed; its methods may be called in any thread."""

    def write_file(self, completed: CompletedSegment, truncations: int, suffix: str, data: bytes) -> bool: ...

    def make_index_files(self, segment: LogSegment, truncations: int) -> None: ...

    def files_synced(self, completed: CompletedSegment, truncations: int) -> None: ...


class FlushJob:
    """Makes everything below `up_to` durable; after `run` the recovery point may move there.

    The log writes the files of complete segments (`FlushedLog.write_file`). If the log was truncated, closed
    or moved meanwhile, it refuses, and the job ends without a result.
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
        "growing",
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
        epochs: LeaderEpochFileCache,
        truncations: int,
        syncs: Syncs,
        log: FlushedLog,
    ) -> None:
        self._disk = disk
        self._syncs = syncs
        self._log = log
        self.up_to = up_to
        self.truncations = truncations
        self.seconds = 0.0  # how long `run` took
        self._epochs = epochs
        self._save_epochs = epochs.encoded_if_changed()
        self._files: list[DiskFile] = []
        self._paths: list[str] = []
        self._directory: str | None = None
        self._removal: Removal | None = None
        self.linked: list[LogSegment] = []  # segments whose directory entries this job makes durable
        self.completed: list[CompletedSegment] = []  # segments whose indexes it makes durable
        self.growing: LogSegment | None = None  # a segment that goes on to grow, whose index files it makes
        self.names_topic = False  # whether it makes the log's topic id durable
        self.loose_names = 0  # how many removals of files it makes durable

    def add_file(self, file: DiskFile) -> None:
        self._files.append(file)

    def add_path(self, path: str) -> None:
        """A small file; it may be deleted before it is synced."""
        self._paths.append(path)

    def add_directory(self, directory: str) -> None:
        self._directory = directory

    def rename_first(self, removal: Removal) -> None:
        self._removal = removal

    def run(self) -> None:
        """Write and sync the files. After an OSError nothing of the flush counts as durable."""
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
        if self.growing is not None:
            self._log.make_index_files(self.growing, self.truncations)
        while self._files:
            # The last reference to the file of a segment deleted meanwhile: it is closed off the loop.
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
