"""The loop that owns a broker: asyncio's, with a short way for the broker's own sockets.

A descriptor given to `register` is called straight from the poll, without handle, context or queue;
everything else (tasks, futures, signals, streams) is asyncio's own. It is also the broker's Scheduler.
"""

from __future__ import annotations

import asyncio
import os
import select
import selectors
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final, TypeVar, cast

from tidelog.clock import Clock, SystemClock, TimerHandle

if TYPE_CHECKING:
    from _typeshed import FileDescriptorLike

T = TypeVar("T")
OnEvent = Callable[[int], None]
Job = Callable[[], Callable[[], None]]

READ: Final = select.EPOLLIN
WRITE: Final = select.EPOLLOUT
GONE: Final = select.EPOLLHUP | select.EPOLLERR

EVENTS_PER_POLL: Final = 128
"""More than this many ready descriptors are taken in several polls, so that timers are looked at between."""


ROUNDS_PER_TURN: Final = 4
"""Work that keeps asking for more work is interrupted after this many rounds by a poll that does not wait."""


BACKGROUND_NICENESS: Final = 10
"""Deleting a large file keeps a core busy for a tenth of a second, in which requests go first."""

WATCH_NS: Final = 100_000
QUICK_NS: Final = 400_000
"""A wait as short as this, the wake-up included, may have ended sooner by watching.

A virtual machine takes up to 100 us to wake a core: what comes within 50 us takes 200 by sleeping.
"""

CALM_NS: Final = 5_000_000
"""Large frames and answers come in many short waits, in which there is nothing to win by watching."""

QUICK_ENOUGH: Final = 2
RARELY: Final = 4096
NEVER: Final = 1 << 62
"""On a single core the peer could not go on while it is watched."""


class DirectSelector(selectors.BaseSelector):
    """An epoll selector that answers asyncio's questions and calls the broker's descriptors itself."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._poll = self._epoll.poll
        self._keys: dict[int, selectors.SelectorKey] = {}
        self._direct: dict[int, OnEvent] = {}
        self.turn: deque[Callable[[], None]] = deque()
        # What other threads ask for. They wake the loop only while it sleeps: it looks here before it does.
        self.posted: deque[Callable[[], None]] = deque()
        self.asleep = False
        self.on_error: Callable[[str, BaseException], None] = _ignore
        self.turn_ns = time.perf_counter_ns()
        self.now_ns = self.turn_ns
        self.idle_ns = 0
        self.crowded = False  # whether more than one descriptor is handled in this turn
        # How many waits in a row were short, and how many make it worth to watch instead of to sleep.
        self._quick = 0
        self.bulk_ns = 0  # when a large frame or answer was last under way
        self._quick_enough = QUICK_ENOUGH if len(os.sched_getaffinity(0)) > 1 else NEVER

    # The broker's descriptors

    def add(self, fd: int, on_event: OnEvent, mask: int) -> None:
        self._epoll.register(fd, mask)
        self._direct[fd] = on_event

    def change(self, fd: int, mask: int) -> None:
        self._epoll.modify(fd, mask)

    def remove(self, fd: int) -> None:
        if self._direct.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Poll once; the broker's descriptors are called before this returns, the others are given back."""
        turn, posted = self.turn, self.posted
        if turn or posted:
            # asyncio worked out the timeout before it could know of these, or of what they will ask for.
            self._run_posted()
            self._run_turn()
            timeout = 0.0
        self.asleep = True
        if posted:
            timeout = 0.0
        before = time.perf_counter_ns()
        if self._quick >= self._quick_enough and timeout != 0.0 and before - self.bulk_ns > CALM_NS:
            events = self._watch(before) or self._poll(timeout, EVENTS_PER_POLL)
        else:
            events = self._poll(timeout, EVENTS_PER_POLL)
        self.asleep = False
        self.turn_ns = self.now_ns = after = time.perf_counter_ns()
        waited = after - before
        self.idle_ns += waited
        self._quick = self._quick + 1 if waited < QUICK_NS else 0
        self.crowded = len(events) > 1
        direct = self._direct
        others: list[tuple[selectors.SelectorKey, int]] = []
        for fd, mask in events:
            on_event = direct.get(fd)
            if on_event is None:
                self._add_other(others, fd, mask)
                continue
            try:
                on_event(mask)
            except Exception as error:
                self.on_error("an event of a socket was not handled", error)
        if posted:
            self._run_posted()
        if turn:
            self._run_turn()
        return others

    def _watch(self, start: int) -> list[tuple[int, int]]:
        """Look again and again for a moment: a peer that answers at once is not worth a sleep.

        Falling asleep and being woken takes longer than handling a small request. Each time in vain makes it
        four times rarer, each success half as rare: it stays worth its CPU only where two of three succeed.
        """
        poll, end = self._poll, start + WATCH_NS
        while True:
            events = poll(0.0, EVENTS_PER_POLL)
            if events:
                self._quick_enough = max(self._quick_enough >> 1, QUICK_ENOUGH)
                return events
            if time.perf_counter_ns() >= end:
                self._quick = 0
                self._quick_enough = min(self._quick_enough << 2, RARELY)
                return events

    def _run_posted(self) -> None:
        posted = self.posted
        for _ in range(len(posted)):
            callback = posted.popleft()
            try:
                callback()
            except Exception as error:
                self.on_error("work that a thread asked for failed", error)

    def _run_turn(self) -> None:
        turn = self.turn
        for _ in range(ROUNDS_PER_TURN):
            for _ in range(len(turn)):
                callback = turn.popleft()
                try:
                    callback()
                except Exception as error:
                    self.on_error("work at the end of a turn failed", error)
            if not turn:
                return

    def _add_other(self, others: list[tuple[selectors.SelectorKey, int]], fd: int, mask: int) -> None:
        key = self._keys.get(fd)
        if key is None:
            return
        events = 0
        if mask & ~select.EPOLLIN:
            events |= selectors.EVENT_WRITE
        if mask & ~select.EPOLLOUT:
            events |= selectors.EVENT_READ
        if events & key.events:
            others.append((key, events & key.events))

    # What asyncio asks of a selector

    def register(
        self, fileobj: FileDescriptorLike, events: int, data: object = None
    ) -> selectors.SelectorKey:
        key = selectors.SelectorKey(fileobj, _descriptor(fileobj), events, data)
        if key.fd in self._keys:
            raise KeyError(f"{fileobj!r} (descriptor {key.fd}) is already registered")
        self._epoll.register(key.fd, _epoll_mask(events))
        self._keys[key.fd] = key
        return key

    def unregister(self, fileobj: FileDescriptorLike) -> selectors.SelectorKey:
        key = self._keys.pop(_descriptor(fileobj))
        try:
            self._epoll.unregister(key.fd)
        except OSError:
            pass  # closed before it was unregistered: the kernel has forgotten it already
        return key

    def modify(self, fileobj: FileDescriptorLike, events: int, data: object = None) -> selectors.SelectorKey:
        old = self._keys[_descriptor(fileobj)]
        key = selectors.SelectorKey(fileobj, old.fd, events, data)
        if events != old.events:
            self._epoll.modify(old.fd, _epoll_mask(events))
        self._keys[old.fd] = key
        return key

    def get_map(self) -> Mapping[FileDescriptorLike, selectors.SelectorKey]:
        return cast("Mapping[FileDescriptorLike, selectors.SelectorKey]", self._keys)

    def get_key(self, fileobj: FileDescriptorLike) -> selectors.SelectorKey:
        return self._keys[_descriptor(fileobj)]

    def close(self) -> None:
        self._keys.clear()
        self._direct.clear()
        self.turn.clear()
        self._epoll.close()


class BrokerLoop(asyncio.SelectorEventLoop):
    """One loop, one broker. Blocking work goes to `io_threads` threads, and reads from the disk to as many
    others. Threads are started when first needed.
    """

    def __init__(self, io_threads: int = 8, clock: Clock | None = None) -> None:
        self.direct = DirectSelector()
        super().__init__(self.direct)
        self.direct.on_error = self._report
        self._clock = clock or SystemClock()
        self._pool = _WorkerPool(io_threads, self.post)
        self._readers = _WorkerPool(io_threads, self.post)
        self._background = _WorkerPool(1, self.post, BACKGROUND_NICENESS)
        self._pools = (self._pool, self._readers, self._background)
        self._wakeup = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.direct.add(self._wakeup, self._on_wakeup, READ)

    @property
    def clock(self) -> Clock:
        return self._clock

    def register(self, fd: int, on_event: OnEvent, mask: int = READ) -> None:
        """Call `on_event(mask)` whenever `fd` is ready; level-triggered."""
        self.direct.add(fd, on_event, mask)

    def modify(self, fd: int, mask: int) -> None:
        self.direct.change(fd, mask)

    def unregister(self, fd: int) -> None:
        """Forget `fd`; to be called before it is closed."""
        self.direct.remove(fd)

    def call_soon_in_turn(self, callback: Callable[[], None]) -> None:
        """Run `callback` when the events of this turn are handled, before the next poll."""
        self.direct.turn.append(callback)

    def post(self, callback: Callable[[], None]) -> None:
        """Run `callback` on the loop, from any thread; those of one thread run in their order."""
        if self.is_closed():
            raise RuntimeError("the loop is closed")
        direct = self.direct
        direct.posted.append(callback)
        if direct.asleep:
            direct.asleep = False  # one wake-up is enough
            os.eventfd_write(self._wakeup, 1)

    def schedule(self, delay_seconds: float, callback: Callable[[], None]) -> TimerHandle:
        return self.call_later(delay_seconds, callback)

    def run_blocking(
        self,
        work: Callable[[], T],
        done: Callable[[T | None, BaseException | None], None],
    ) -> None:
        self._pool.submit(_job(work, done))

    def run_reading(
        self,
        work: Callable[[], T],
        done: Callable[[T | None, BaseException | None], None],
    ) -> None:
        self._readers.submit(_job(work, done))

    def run_in_background(
        self,
        work: Callable[[], T],
        done: Callable[[T | None, BaseException | None], None],
    ) -> None:
        self._background.submit(_job(work, done))

    def set_io_threads(self, count: int) -> None:
        """Let `count` pieces of blocking work, and as many reads, run at a time.

        Threads beyond that end when they are idle.
        """
        self._pool.resize(count)
        self._readers.resize(count)

    @property
    def idle_seconds(self) -> float:
        """How long the loop has waited for something to do, since it was made."""
        return self.direct.idle_ns / 1e9

    def close(self) -> None:
        if not self.is_closed():
            for pool in self._pools:
                pool.close()
            self.direct.remove(self._wakeup)
            os.close(self._wakeup)
        super().close()

    def _on_wakeup(self, mask: int) -> None:
        os.eventfd_read(self._wakeup)  # what it is for runs at the end of this turn

    def _report(self, message: str, error: BaseException) -> None:
        self.call_exception_handler({"message": message, "exception": error})


def _job(work: Callable[[], T], done: Callable[[T | None, BaseException | None], None]) -> Job:
    def job() -> Callable[[], None]:
        try:
            result = work()
        except BaseException as error:
            failure = error
            return lambda: done(None, failure)
        return lambda: done(result, None)

    return job


class _WorkerPool:
    """Threads that run jobs in the order given; what a job returns is posted to the loop."""

    def __init__(self, size: int, post: Callable[[Callable[[], None]], None], niceness: int = 0) -> None:
        self._niceness = niceness
        self._size = max(1, size)
        self._post = post
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._ended: list[threading.Thread] = []
        self._unfinished = 0

    def submit(self, job: Job) -> None:
        self._unfinished += 1
        if self._unfinished > len(self._threads) and len(self._threads) < self._size:
            name = f"tidelog-io-{len(self._threads)}"
            thread = threading.Thread(target=self._work, name=name, daemon=True)
            self._threads.append(thread)
            thread.start()
        self._jobs.put(job)

    def resize(self, size: int) -> None:
        size = max(1, size)
        for _ in range(len(self._threads) - size):
            self._jobs.put(None)
            # Which thread takes the end does not matter: they are alike, and `close` waits for all of them.
            self._ended.append(self._threads.pop())
        self._size = size

    def _finish(self, finish: Callable[[], None]) -> None:
        self._unfinished -= 1
        finish()

    def close(self) -> None:
        """Let what was submitted finish; its results are dropped."""
        for _ in self._threads:
            self._jobs.put(None)
        for thread in (*self._threads, *self._ended):
            thread.join()
        self._threads.clear()
        self._ended.clear()

    def _work(self) -> None:
        if self._niceness:
            # On Linux this is the priority of the thread alone.
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), self._niceness)
        while (job := self._jobs.get()) is not None:
            self._post(partial(self._finish, job()))


def _ignore(message: str, error: BaseException) -> None:
    """A selector without a loop has nobody to tell."""


def _descriptor(fileobj: FileDescriptorLike) -> int:
    return fileobj if isinstance(fileobj, int) else fileobj.fileno()


def _epoll_mask(events: int) -> int:
    return (READ if events & selectors.EVENT_READ else 0) | (WRITE if events & selectors.EVENT_WRITE else 0)
