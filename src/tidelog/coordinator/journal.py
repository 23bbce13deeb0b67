"""Journal: the changes of a shard by written records that are not committed yet.

Kafka's counterpart is SnapshotRegistry. A shard replays a record when it is written, and decides on the
written state. Readers get the committed state: for each key that an uncommitted record has changed, the
journal has the value before the record, until the high watermark passes it. In a partition with one replica,
the write commits a record, and the journal stays empty.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar

from tidelog.errors import CoordinatorLoadInProgress

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Journal:
    """`high_watermark` is set when the shard is hosted. `end` is the end offset of the batch that is being
    replayed, or 0 if that batch is committed. `loaded_end` is the log end offset at the end of the load."""

    __slots__ = ("_changes", "end", "high_watermark", "loaded_end")

    def __init__(self) -> None:
        self.end = 0
        self.loaded_end = 0
        self.high_watermark: Callable[[], int] | None = None
        self._changes: deque[tuple[int, Callable[[], None]]] = deque()

    def add(self, committed: Callable[[], None]) -> None:
        """Call `committed` when the batch that is being replayed is committed."""
        self._changes.append((self.end, committed))

    def settle(self) -> None:
        """Forget the changes below the high watermark."""
        changes = self._changes
        if changes and self.high_watermark is not None:
            high_watermark = self.high_watermark()
            while changes and changes[0][0] <= high_watermark:
                changes.popleft()[1]()

    def check_readable(self) -> None:
        """Raise CoordinatorLoadInProgress until the whole loaded log is committed.

        The high watermark of a new leader may be below records that the last leader has acknowledged. Until
        it passes the end of the loaded log, the committed state may lack acknowledged changes.
        """
        if self.loaded_end and self.high_watermark is not None:
            high_watermark = self.high_watermark()
            if high_watermark < self.loaded_end:
                raise CoordinatorLoadInProgress(
                    f"records up to offset {self.loaded_end} are loaded, and those up to {high_watermark} "
                    "are known to be committed"
                )
            self.loaded_end = 0

    @property
    def is_empty(self) -> bool:
        """Whether the written state is the committed one, as of the last `settle`."""
        return not self._changes


class CommittedValues(Generic[K, V]):
    """The committed values of the keys that uncommitted records have changed."""

    __slots__ = ("_before", "_journal")

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        # The value before each uncommitted batch that changes the key, with the end of the batch.
        self._before: dict[K, deque[tuple[int, V]]] = {}

    def has_noted(self, key: K) -> bool:
        """Whether the value before the present batch is noted."""
        before = self._before.get(key)
        return before is not None and before[-1][0] == self._journal.end

    def note(self, key: K, value: V) -> None:
        """Note the value of a key before the present batch changes it.

        Call it in `replay` while `Journal.end` is
        not 0. The first call for a key counts."""
        if self.has_noted(key):
            return
        self._before.setdefault(key, deque()).append((self._journal.end, value))
        self._journal.add(lambda: self._drop(key))

    def _drop(self, key: K) -> None:
        before = self._before[key]
        before.popleft()
        if not before:
            del self._before[key]

    def get(self, key: K, written: V) -> V:
        """The committed value of a key; `written` is its written value."""
        before = self._before.get(key)
        return written if before is None else before[0][1]

    def items(self) -> Iterator[tuple[K, V]]:
        """The keys whose written values are not committed, with the committed ones."""
        for key, before in self._before.items():
            yield key, before[0][1]
