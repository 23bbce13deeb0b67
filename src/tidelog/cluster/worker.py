"""One thread beside the loop for work that releases the GIL: checks and writes of large produce frames.

Work is done in the order in which it was given; what is to happen next is called on the loop,
with as few wake-ups of the loop as possible.
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
    """Runs the work through the scheduler: for simulated time and tests."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def submit(self, work: Callable[[], T], done: Done[T]) -> None:
        self._scheduler.run_blocking(work, done)

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
    """A daemon thread that is started with the first piece of work."""

    def __init__(self, name: str, post: Callable[[Callable[[], None]], object]) -> None:
        self._name = name
        self._post = post
        self._tasks: SimpleQueue[_Task[object] | None] = SimpleQueue()
        self._finished: deque[_Task[object]] = deque()
        self._signalled = False
        self._thread: threading.Thread | None = None
        self._closed = False

    def submit(self, work: Callable[[], T], done: Done[T]) -> None:
        """Do the work on the thread; after `close` it is not done, and `done` gets NotLeaderOrFollower."""
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
            task = None  # it has the frame that it worked on, which is not to stay until the next one comes

    def _finish(self, task: _Task[object]) -> None:
        self._finished.append(task)
        # A false "signalled" costs a spare wake-up; a false "not signalled" cannot happen,
        # because the loop clears the flag before it empties the queue.
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
            if finished:  # one failed: the others are still to be told, and no later work may come to do it
                self._post(self._drain)
