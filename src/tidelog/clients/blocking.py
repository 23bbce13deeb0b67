"""The thread behind a blocking client: one event loop, started with the client and ended by its close.

A client belongs to the process that created it. After a fork the child has no such thread, and calls raise.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import TypeVar

from tidelog.clients.errors import ClientClosedException, IllegalStateException, TimeoutException

T = TypeVar("T")


class Errand(Future[T]):
    """A coroutine for the loop of a thread, and the future of its result.

    `cancel` ends the coroutine at any moment, because Ctrl-C can come at any moment: before the loop has the
    coroutine, and after that, before the caller knows it.
    """

    def __init__(self, work: Coroutine[object, object, T]) -> None:
        super().__init__()
        self._not_begun = [work]
        """Holds the coroutine until one thread pops it: the loop to start it, or a caller to close it."""
        self._task: asyncio.Task[T] | None = None

    def begin(self) -> None:
        """Start the coroutine. Called on the loop."""
        try:
            work = self._not_begun.pop()
        except IndexError:
            return  # cancelled before
        task = self._task = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(self._ended)
        if self.cancelled():
            task.cancel()  # the other thread did not see the task yet

    def cancel(self) -> bool:
        if not super().cancel():
            return False
        task = self._task
        if task is not None:
            with contextlib.suppress(RuntimeError):  # the loop ended meanwhile
                task.get_loop().call_soon_threadsafe(task.cancel)
        else:
            with contextlib.suppress(IndexError):  # the loop begins it now
                self._not_begun.pop().close()
        return True

    def _ended(self, task: asyncio.Task[T]) -> None:
        if task.cancelled():
            super().cancel()
            return
        error = task.exception()
        if not self.set_running_or_notify_cancel():
            return
        if error is not None:
            self.set_exception(error)
        else:
            self.set_result(task.result())


class LoopThread:
    """`thread.run(coroutine)` blocks until it is done; `close` ends the loop and the thread."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.loop = asyncio.new_event_loop()
        self._pid = os.getpid()
        # A forgotten close must not keep the program running.
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        self._closed = False
        self._gate = threading.RLock()
        """Accepted work runs or is cancelled by close, so no caller waits for ever."""
        self._thread.start()

    @property
    def closed(self) -> bool:
        return self._closed

    def run(self, work: Coroutine[object, object, T], timeout: float | None = None) -> T:
        """The result of `work`. Raises TimeoutException after `timeout` seconds and cancels the work.

        Ctrl-C cancels it as well, and is raised here.
        """
        errand = Errand(work)
        try:
            return self.start(errand).result(timeout)
        except TimeoutError:
            if errand.done():
                return errand.result()  # the error of the work itself, which may be a time-out, too
            errand.cancel()
            raise TimeoutException(f"{self.name}: not done within {timeout} s") from None
        except BaseException:
            errand.cancel()
            raise

    def submit(self, work: Coroutine[object, object, T]) -> Errand[T]:
        """Start `work` on the loop without waiting for it."""
        errand = Errand(work)
        try:
            return self.start(errand)
        except BaseException:
            errand.cancel()
            raise

    def start(self, errand: Errand[T]) -> Errand[T]:
        """Pass an errand to the loop. A caller that is interrupted meanwhile has to cancel the errand."""
        self.check_process()  # a forked child may have a gate that no thread of it can open
        with self._gate:
            self.check()
            self.loop.call_soon_threadsafe(errand.begin)
        return errand

    def apply(self, function: Callable[[], T]) -> T:
        """The result of a function that runs on the loop. Callbacks, which run there, call it directly."""
        if self.is_current:
            return function()
        return self.run(_applied(function))

    def call(self, function: Callable[[], object]) -> None:
        """Run a function on the loop soon."""
        self.check_process()
        with self._gate:
            self.check()
            self.loop.call_soon_threadsafe(function)

    def check(self) -> None:
        """Raise if the thread cannot work: it is closed, of another process, or called from itself."""
        self.check_process()
        if self._closed:
            raise ClientClosedException(f"{self.name} is closed")
        if self.is_current:
            raise IllegalStateException(
                f"{self.name}: a blocking call from its own callback would wait for ever"
            )

    @property
    def is_current(self) -> bool:
        """Whether the caller runs on this thread, as callbacks do."""
        return threading.current_thread() is self._thread

    @property
    def is_inherited(self) -> bool:
        """Whether this is a child process, which has the client but not its thread."""
        return os.getpid() != self._pid

    def check_process(self) -> None:
        """Raise in a child process."""
        if self.is_inherited:
            raise IllegalStateException(
                f"{self.name} was made before a fork; make a new one in the child process"
            )

    def close(self) -> None:
        """Cancel all work on the loop and end the thread, within a few seconds."""
        if self.is_inherited:
            return
        with self._gate:
            if self._closed:
                return
            self._closed = True
        self.loop.call_soon_threadsafe(self.loop.stop)
        if not self.is_current:
            self._thread.join(5.0)

    def _main(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
            tasks = asyncio.all_tasks(self.loop)
            for task in tasks:
                task.cancel()
            if tasks:
                self.loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        finally:
            self.loop.close()


async def _applied(function: Callable[[], T]) -> T:
    return function()
