"""AppendQueue: the appends of one partition, which reach its log one after the other.

A small append takes one turn of the loop; while the worker writes a large one, later appends wait here. The
appends of a leader and of a follower use the same queue: a change of the leader epoch finds the log at rest
(`between`), and each append checks its epoch when its turn comes (`QueuedAppend.begin`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Protocol

from tidelog.cluster.worker import Worker
from tidelog.records.check import CheckedBatch


class QueuedAppend(Protocol):
    """An append in the queue. It reports its outcome itself; neither method raises."""

    @property
    def worker(self) -> Worker | None:
        """The worker to write with; None is the worker of appends."""

    def begin(self) -> Callable[[], object] | None:
        """Append on the loop (None), or return the write for the worker."""

    def written(self, error: BaseException | None) -> Callable[[], object] | None:
        """The worker has written, or failed with `error`.

        Returns another job for the worker that belongs to the same write: a change of the role waits for it.
        """


class AppendQueue:
    __slots__ = ("_changes", "_hold", "_is_held", "_worker", "joined", "turn", "waiting", "writing")

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self.waiting: deque[QueuedAppend] = deque()
        self.writing = False  # or held: later appends wait in both cases
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
        """The batches of this turn, and their bytes. The caller calls `drain` when they are written."""
        batches, data = self.turn, self.joined
        self.turn, self.joined = [], bytearray()
        return batches, data

    def between(self, change: Callable[[], None]) -> None:
        """Call `change` now, or when the append at the worker and the batches of this turn are written.

        Appends that wait then are made after the change.
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
        """Whether nothing is written, waits or is held: an append needs no turn."""
        return not (self.writing or self.waiting or self.turn or self._hold or self._changes)

    def hold(self, held: Callable[[], None]) -> None:
        """Let all appends wait between the call of `held` and `release`."""
        self._hold = held
        self.drain()

    def release(self) -> None:
        self._hold = None
        if self._is_held:
            self._is_held = self.writing = False
            self.drain()

    def drain(self) -> None:
        """Make the changes and the appends that can be made now."""
        if self.turn:
            return  # the end of the turn continues
        while self._changes and not self._is_appending:
            self._changes.pop(0)()
        if self._hold is not None and not self.writing:
            held, self._hold = self._hold, None
            self._is_held = self.writing = True
            held()
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
        more = append.written(error)
        if more is not None:
            self._write(append, more)
        else:
            self.drain()
