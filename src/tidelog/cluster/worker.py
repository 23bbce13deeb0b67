"""The append worker: a thread that checks and writes large produce requests, both of which release the GIL.

Tasks run in order, and their callbacks run on the loop, with as few wake-ups of the loop as possible.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Generic, Protocol, TypeVar

from tidelog.clock import Scheduler
from tidelog.errors import NotLeaderOrFollower

T = TypeVar("T")
Done = Callable[[T | None, BaseException | None], None]


class Worker(Protocol):
    def submit(self, work: Callable[[], T], done: Done[T]) -> None: ...

    def close(self) -> None: ...


class InlineWorker:
    """Runs tasks through the scheduler, for simulated time in tests."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def submit(self, work: Callable[[], T], done: Done[T]) -> None:
        self._scheduler.run_blocking(work, done)

    def close(self) -> None:
        pass


class ReadingWorker:
    """Runs reads on the loop's reading threads, so that no append of another partition waits for a read."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def submit(self, work: Callable[[], T], done: Done[T]) -> None:
        self._scheduler.run_reading(work, done)

    def close(self) -> None:
        pass


class _Task(Generic[T]):
    __slots__ = ("done", "error", "result", "work")

    def __init__(self, work: Callable[[], T], done: Done[T]) -> None:
        self.work = work
        self.done = done
        self.result: T | None = None
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.result = self.work()
        except BaseException as error:
            self.error = error

    def finish(self) -> None:
        self.done(self.result, self.error)


class ThreadWorker:
    """A daemon thread, started with the first task."""

    def __init__(self, name: str, post: Callable[[Callable[[], None]], object]) -> None:
        self._name = name
        self._post = post
        self._tasks: SimpleQueue[_Task[object] | None] = SimpleQueue()
        self._finished: deque[_Task[object]] = deque()
        self._signalled = False
        self._thread: threading.Thread | None = None
        self._closed = False

    def submit(self, work: Callable[[], T], done: Done[T]) -> None:
        """Run a task on the thread. After `close` it does not run, and `done` gets NotLeaderOrFollower."""
        if self._closed:
            refused = _Task(work, done)
            refused.error = NotLeaderOrFollower("this broker stops")
            self._finish(refused)  # type: ignore[arg-type]
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        self._tasks.put(_Task(work, done))  # type: ignore[arg-type]

    def close(self) -> None:
        self._closed = True
        if self._thread is not None:
            self._tasks.put(None)
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            task.run()
            self._finish(task)
            task = None  # the task refers to its request, which must not stay in memory until the next task

    def _finish(self, task: _Task[object]) -> None:
        self._finished.append(task)
        # The flag may be cleared too early, which costs one more wake-up. It is never set too long: the loop
        # clears it before it empties the queue.
        if not self._signalled:
            self._signalled = True
            self._post(self._drain)

    def _drain(self) -> None:
        self._signalled = False
        finished = self._finished
        try:
            while finished:
                finished.popleft().finish()
        finally:
            if finished:  # a callback raised: call the others later, even if no other task comes
                self._post(self._drain)
