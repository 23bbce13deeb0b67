"""Removes files off the loop: renames them at once, so that the next start ignores them, and unlinks them
later.

The files of a log are renamed in the order of offsets, also after an error. A crash in between leaves the
newest of them, without a gap to the rest of the log, and retention deletes them later.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from threading import Lock

from tidelog.clock import Scheduler
from tidelog.storage.blocking_tasks import Done, run_here
from tidelog.storage.disk import Disk, DiskFile
from tidelog.storage.log_segment import DELETED

logger = logging.getLogger("tidelog.storage")


class Removal:
    """The files to remove of one log. `rename` may run in any thread, the other methods on the loop."""

    __slots__ = ("_before", "_disk", "_lock", "_open_files", "_renamed", "_waiting", "delay_ms", "failed")

    def __init__(self, disk: Disk, delay_ms: int, failed: Callable[[OSError], None]) -> None:
        self._disk = disk
        self._before: deque[Callable[[], None]] = deque()
        self._waiting: deque[str] = deque()
        self._renamed: list[str] = []
        self._open_files: list[DiskFile] = []
        self._lock = Lock()
        self.delay_ms = delay_ms
        self.failed = failed

    def add(self, paths: Iterable[str], open_files: Iterable[DiskFile]) -> None:
        """Add files and their open descriptors: the oldest segment first, its log file before its indexes."""
        self._waiting.extend(paths)
        self._open_files.extend(open_files)

    def do_before(self, work: Callable[[], None]) -> None:
        """Call `work`, which makes something durable, before the files added so far are renamed."""
        self._before.append(work)

    @property
    def is_done(self) -> bool:
        return not self._waiting

    @property
    def syncs(self) -> bool:
        """Whether `rename` waits for the disk."""
        return bool(self._before)

    def rename(self) -> None:
        with self._lock:
            while self._before:
                self._before[0]()
                self._before.popleft()
            while self._waiting:
                path = self._waiting[0]
                try:
                    self._disk.rename(path, path + DELETED)
                except FileNotFoundError:
                    pass
                else:
                    self._renamed.append(path + DELETED)
                self._waiting.popleft()

    def give_up(self) -> None:
        """Stop renaming. When this returns, other files may get these names."""
        with self._lock:
            self._before.clear()
            self._waiting.clear()

    def take(self) -> tuple[list[str], list[DiskFile]]:
        """The files to unlink and the descriptors to close."""
        with self._lock:
            renamed, self._renamed = self._renamed, []
        open_files, self._open_files = self._open_files, []
        return renamed, open_files


class FileRemover:
    """Renames and unlinks files with the lowest priority, one task at a time; without a scheduler at once.

    The next start of the broker completes the work that a stop interrupts.
    """

    __slots__ = ("_closed", "_disk", "_scheduler", "_waiting")

    def __init__(self, disk: Disk, scheduler: Scheduler | None) -> None:
        self._disk = disk
        self._scheduler = scheduler
        self._waiting: list[Removal] = []
        self._closed = False

    def close(self) -> None:
        self._closed = True

    def rename_later(self, removal: Removal) -> None:
        """Removals of one turn of the loop share one background task."""
        if self._scheduler is not None and not self._waiting:
            self._scheduler.call_soon_in_turn(self._begin)
        self._waiting.append(removal)
        if self._scheduler is None:
            self._begin()

    def _begin(self) -> None:
        removals, self._waiting = self._waiting, []
        errors: list[tuple[Removal, OSError]] = []

        def rename() -> None:
            for removal in removals:
                try:
                    removal.rename()
                except OSError as error:
                    errors.append((removal, error))

        def done(_: None, error: BaseException | None) -> None:
            if error is not None:
                logger.error("deleted segments could not be renamed", exc_info=error)
            for removal, failure in errors:
                removal.failed(failure)
            self._unlink_renamed(removals)

        self._run(rename, done)

    def _unlink_renamed(self, removals: list[Removal]) -> None:
        by_delay: dict[int, tuple[list[str], list[DiskFile]]] = {}
        for removal in removals:
            paths, open_files = by_delay.setdefault(removal.delay_ms, ([], []))
            renamed, descriptors = removal.take()
            paths += renamed
            open_files += descriptors
        for delay_ms, (paths, open_files) in by_delay.items():
            if paths or open_files:
                self.unlink_later(paths, open_files, delay_ms)

    def unlink_later(self, paths: list[str], open_files: list[DiskFile], delay_ms: int) -> None:
        def unlink() -> None:
            for path in paths:
                self._disk.unlink(path)
            # Off the loop: the kernel takes long to close the last descriptor of a large deleted file.
            open_files.clear()

        self._later(delay_ms, unlink)

    def remove_tree_later(self, path: str, delay_ms: int) -> None:
        self._later(delay_ms, lambda: self._disk.remove_tree(path))

    def _later(self, delay_ms: int, work: Callable[[], None]) -> None:
        def done(_: None, error: BaseException | None) -> None:
            if error is not None and not isinstance(error, FileNotFoundError):
                logger.warning("deleted files could not be removed: %s", error)

        if self._scheduler is None:
            self._run(work, done)
        else:
            self._scheduler.schedule(delay_ms / 1000, lambda: self._run(work, done))

    def _run(self, work: Callable[[], None], done: Done) -> None:
        if self._closed:
            return
        if self._scheduler is not None:
            self._scheduler.run_in_background(work, done)
        else:
            run_here(work, done)
