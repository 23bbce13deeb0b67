"""Which files are open: at most a number of them, the ones unused for longest let go first.

A segment keeps its own reference to what it opened, so an access is one attribute; the cache
only decides who has to let go. Whoever holds a slice keeps that one file open for as long as it needs it.
"""

from __future__ import annotations

import resource
from collections import OrderedDict
from typing import Protocol

MAX_FILES = 100_000


class HoldsFiles(Protocol):
    """Something that can close what it holds open, and notes when it was used."""

    recently_used: bool

    def release_files(self) -> None: ...


class FileCache:
    """Second-chance order: being used sets a flag, and only an eviction pays for looking at it."""

    __slots__ = ("_capacity", "_holders", "evicting")

    def __init__(self, capacity: int | None = None) -> None:
        if capacity is None:  # the rest is for connections
            capacity = min(MAX_FILES, resource.getrlimit(resource.RLIMIT_NOFILE)[0] * 3 // 5)
        self._capacity = max(1, capacity)
        self.evicting = True  # off while several threads load or close logs
        self._holders: OrderedDict[int, HoldsFiles] = OrderedDict()

    def __len__(self) -> int:
        return len(self._holders)

    @property
    def is_full(self) -> bool:
        return len(self._holders) >= self._capacity

    def opened(self, holder: HoldsFiles) -> None:
        """`holder` has opened a file; somebody else may have to close one for it."""
        holders = self._holders
        key = id(holder)
        if key in holders:
            return
        while len(holders) >= self._capacity and self.evicting:
            oldest_key, oldest = holders.popitem(last=False)
            if oldest.recently_used:
                oldest.recently_used = False
                holders[oldest_key] = oldest
            else:
                oldest.release_files()
        holders[key] = holder

    def release_some(self) -> None:
        """Descriptors have run out: a tenth of the holders let go, recently used or not."""
        for _ in range(len(self._holders) // 10 + 1):
            if self._holders:
                self._holders.popitem(last=False)[1].release_files()

    def forget(self, holder: HoldsFiles) -> None:
        self._holders.pop(id(holder), None)
