"""FileCache: limits the segments with open files, and closes the least recently used ones.

A segment keeps a reference to each file that it opened, so that an access is one attribute; the cache only
decides which segment has to close its files. A slice keeps its file open for as long as it is needed.
"""

from __future__ import annotations

import resource
from collections import OrderedDict
from typing import Protocol

MAX_FILES = 100_000


class HoldsFiles(Protocol):
    """An object that can close its files, and notes that it was used."""

    recently_used: bool

    def release_files(self) -> None: ...


class FileCache:
    """Evicts by second chance: an access only sets a flag, and the eviction checks it."""

    __slots__ = ("_capacity", "_holders", "evicting")

    def __init__(self, capacity: int | None = None) -> None:
        if capacity is None:  # the rest of the descriptors is for connections
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
        """Note that `holder` has opened a file, and let others close their files if there are too many."""
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
        """Let a tenth of the holders close their files, used recently or not: all descriptors are in use."""
        for _ in range(len(self._holders) // 10 + 1):
            if self._holders:
                self._holders.popitem(last=False)[1].release_files()

    def forget(self, holder: HoldsFiles) -> None:
        self._holders.pop(id(holder), None)
