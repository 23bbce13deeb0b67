"""RecoveryThreads: the threads that open logs after a crash and close them at shutdown."""

from __future__ import annotations

from collections.abc import Callable, Sized
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from tidelog.storage.file_cache import FileCache

T = TypeVar("T")


class RecoveryThreads:
    """`per_log_dir` is `num.recovery.threads.per.data.dir`."""

    __slots__ = ("_files", "_log_dirs", "per_log_dir")

    def __init__(self, per_log_dir: int, log_dirs: Sized, files: FileCache) -> None:
        self.per_log_dir = per_log_dir
        self._log_dirs = log_dirs
        self._files = files

    def run(self, work: Callable[[T], None], items: list[T]) -> None:
        """Call `work` for each item and wait for all calls; a single thread is not worth a pool."""
        workers = min(len(items), self.per_log_dir * len(self._log_dirs))
        if workers <= 1:
            for item in items:
                work(item)
            return
        self._files.evicting = False
        try:
            with ThreadPoolExecutor(workers, thread_name_prefix="log") as pool:
                for _ in pool.map(work, items):
                    pass
        finally:
            self._files.evicting = True
