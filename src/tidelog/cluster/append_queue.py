"""AppendQueue: the appends of one partition, which reach its log one after the other.

A small append takes one turn of the loop. While the worker writes a large one, later appends wait in the
queue. Leader and follower appends share the queue. A new leader epoch is applied between two appends
(`between`), and each append checks the epoch when it begins (`QueuedAppend.begin`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Protocol

from tidelog.cluster.worker import Worker
from tidelog.records.check import CheckedBatch


class QueuedAppend(Protocol):
    """An append in the queue. It reports its own outcome. `begin` and `written` do not raise."""

    @property
    def worker(self) -> Worker | None:
        """The worker that writes this append; None means the worker of the queue."""

    def begin(self) -> Callable[[], object] | None:
        """Append on the loop and return None, or return the write for the worker."""

    def written(self, error: BaseException | None) -> Callable[[], object] | None:
        """Handle the end of the write; `error` is its exception.

        May return another job of the same write for the worker. A change of the role waits for that job, too.
        """


class AppendQueue:
    __slots__ = ("_changes", "_hold", "_is_held", "_worker", "joined", "turn", "waiting", "writing")

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self.waiting: deque[QueuedAppend] = deque()
        self.writing = False  # also while the queue is held: later appends wait in both cases
        # Small batches to append at the end of this turn of the loop, and their bytes.
        self.turn: list[CheckedBatch] = []
        self.joined = bytearray()
        self._hold: Callable[[], None] | None = None
        self._is_held = False
        self._changes: list[Callable[[], None]] = []  # changes of the role that wait for an append

    def put(self, append: QueuedAppend) -> None:
        self.waiting.append(append)
        self.drain()

    def take_turn(self) -> tuple[list[CheckedBatch], bytearray]:
        """Take the batches of this turn and their bytes. The caller writes them, then calls `drain`."""
        batches, data = self.turn, self.joined
        self.turn, self.joined = [], bytearray()
        return batches, data

    def between(self, change: Callable[[], None]) -> None:
        """Call `change` between two appends: now, or after the current write and the batches of this turn.

        The waiting appends begin after the change.
        """
        if self._is_appending:
            self._changes.append(change)
        else:
            change()

    @property
    def _is_appending(self) -> bool:
        return bool(self.turn) or (self.writing and not self._is_held)

    @property
    def is_at_rest(self) -> bool:
        """Whether the queue is empty and idle, so that an append need not wait."""
        return not (self.writing or self.waiting or self.turn or self._hold or self._changes)

    def hold(self, on_hold: Callable[[], None]) -> None:
        """Let all appends wait until `release`; calls `on_hold` when the current write has ended."""
        self._hold = on_hold
        self.drain()

    def release(self) -> None:
        self._hold = None
        if self._is_held:
            self._is_held = self.writing = False
            self.drain()

    def drain(self) -> None:
        """Make the changes and the appends that can be made now."""
        if self.turn:
            return  # the end of the turn writes the batches and calls `drain` again
        while self._changes and not self._is_appending:
            self._changes.pop(0)()
        if self._hold is not None and not self.writing:
            on_hold, self._hold = self._hold, None
            self._is_held = self.writing = True
            on_hold()
            return
        while self.waiting and not self.writing:
            append = self.waiting.popleft()
            write = append.begin()
            if write is not None:
                self._write(append, write)

    def _write(self, append: QueuedAppend, write: Callable[[], object]) -> None:
        self.writing = True
        (append.worker or self._worker).submit(write, partial(self._written, append))

    def _written(self, append: QueuedAppend, _: object, error: BaseException | None) -> None:
        self.writing = False
        next_job = append.written(error)
        if next_job is not None:
            self._write(append, next_job)
        else:
            self.drain()
