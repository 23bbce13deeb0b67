"""BrokerLoop: the event loop of a broker.

It is asyncio's loop, with a fast path for the broker's own sockets. The poll itself calls the callbacks of
the descriptors given to `register`, without asyncio's handles, contexts and queues. Tasks, futures, signals
and streams are asyncio's. The loop is also the broker's Scheduler.
"""

from __future__ import annotations

import asyncio
import os
import select
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final, Protocol, TypeVar, cast

from tidelog.clock import Clock, SystemClock, TimerHandle

if TYPE_CHECKING:
    from _typeshed import FileDescriptorLike

T = TypeVar("T")
OnEvent = Callable[[int], None]
Job = Callable[[], Callable[[], None]]
"""Runs on a thread. Returns a callback for the loop."""

ResolvedAddress = tuple[int, int, int, str, "tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes]"]

READ: Final = select.EPOLLIN
WRITE: Final = select.EPOLLOUT
GONE: Final = select.EPOLLHUP | select.EPOLLERR

EVENTS_PER_POLL: Final = 128
"""One poll returns at most so many descriptors, so that timers run between polls."""


ROUNDS_PER_TURN: Final = 4
"""After so many rounds of `call_soon_in_turn` the loop polls, even if there is more to run."""


BACKGROUND_NICENESS: Final = 10
"""To delete a large file keeps a core busy for a tenth of a second: requests go first."""

HANDSHAKE_THREADS: Final = 2
"""Few, so that many clients that connect at once leave time for the loop and for other threads."""

AUTHENTICATION_THREADS: Final = 8
"""Threads that check credentials. They have nothing else to do: a directory or token provider that is slow
delays logins alone."""

LOGIN_NS: Final = 1_000_000
"""Connections that log in get this much of a turn, so that a thousand of them do not delay a request."""

WATCH_NS: Final = 100_000
QUICK_NS: Final = 400_000
"""A wait as short as this, wake-up included, would have been shorter by watching (polling without sleep).

A virtual machine takes up to 100 us to wake a core: an event that comes after 50 us is seen after 200.
"""

CALM_NS: Final = 5_000_000
"""Large frames and responses make many short waits, and watching does not make them faster."""

QUICK_ENOUGH: Final = 2
RARELY: Final = 4096
NEVER: Final = 1 << 62
"""For a single core: the peer could not run while the loop watches."""


class Poller(Protocol):
    """The calls of `select.epoll` that the selector needs."""

    def register(self, fd: int, eventmask: int) -> None: ...

    def modify(self, fd: int, eventmask: int) -> None: ...

    def unregister(self, fd: int) -> None: ...

    def poll(self, timeout: float | None, maxevents: int) -> list[tuple[int, int]]: ...

    def close(self) -> None: ...


class DirectSelector(selectors.BaseSelector):
    """A selector for asyncio that calls the broker's descriptors itself."""

    def __init__(self, poller: Poller | None = None) -> None:
        self._epoll: Poller = poller or select.epoll()
        self._poll = self._epoll.poll
        self._keys: dict[int, selectors.SelectorKey] = {}
        self._direct: dict[int, OnEvent] = {}
        self.turn: deque[Callable[[], None]] = deque()
        # Callbacks from other threads. The loop checks them before it sleeps, so they wake it only from
        # sleep.
        self.posted: deque[Callable[[], None]] = deque()
        # Descriptors of connections that log in, and their callbacks. Requests have priority over them.
        self.logins: set[int] = set()
        self.login_callbacks: deque[Callable[[], None]] = deque()
        self._logins_handled = 0
        self._login_ns = LOGIN_NS if poller is None else NEVER  # simulated turns take no time
        self.asleep = False
        self.on_error: Callable[[str, BaseException], None] = _ignore
        self.turn_ns = time.perf_counter_ns()
        self.now_ns = self.turn_ns
        self.idle_ns = 0
        self.crowded = False  # whether more than one descriptor is handled in this turn
        # The number of short waits in a row, and the number from which on the loop polls instead of sleeping.
        self._quick = 0
        self.bulk_ns = 0  # when a large frame or answer was last under way
        may_watch = poller is None and len(os.sched_getaffinity(0)) > 1
        self._quick_enough = QUICK_ENOUGH if may_watch else NEVER

    # The broker's descriptors

    def add(self, fd: int, on_event: OnEvent, mask: int, *, is_login: bool = False) -> None:
        self._epoll.register(fd, mask)
        self._direct[fd] = on_event
        if is_login:
            self.logins.add(fd)

    def change(self, fd: int, mask: int) -> None:
        self._epoll.modify(fd, mask)

    def remove(self, fd: int) -> None:
        if self._direct.pop(fd, None) is not None:
            self._epoll.unregister(fd)
            self.logins.discard(fd)

    def dispatch(self, fd: int, mask: int) -> None:
        on_event = self._direct.get(fd)
        if on_event is None:
            return
        try:
            on_event(mask)
        except Exception as error:
            self.on_error("an event of a socket was not handled", error)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Poll once: call the broker's descriptors, return asyncio's."""
        turn, posted = self.turn, self.posted
        if turn or posted:
            # asyncio chose the timeout without these callbacks and the timers that they schedule.
            self._run_posted()
            self._run_turn()
            timeout = 0.0
        self.asleep = True
        if posted or self.login_callbacks:
            timeout = 0.0
        before = time.perf_counter_ns()
        if self._quick >= self._quick_enough and timeout != 0.0 and before - self.bulk_ns > CALM_NS:
            events = self._watch(before) or self._poll(timeout, EVENTS_PER_POLL + len(self.logins))
        else:
            # Waiting logins are reported by each poll: they must not take the places of requests.
            events = self._poll(timeout, EVENTS_PER_POLL + len(self.logins))
        self.asleep = False
        self.turn_ns = self.now_ns = after = time.perf_counter_ns()
        waited = after - before
        self.idle_ns += waited
        self._quick = self._quick + 1 if waited < QUICK_NS else 0
        logins: Sequence[tuple[int, int]] = ()
        if self.logins:
            logins = [event for event in events if event[0] in self.logins]
            if logins:
                events = [event for event in events if event[0] not in self.logins]
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
        if logins or self.login_callbacks:
            self._run_logins(logins)
        return others

    def _run_logins(self, events: Sequence[tuple[int, int]]) -> None:
        """Handle logins for a limited time. The next poll reports the remaining events again.

        Each turn begins with another event, so that no connection is always the last one.
        """
        end = time.perf_counter_ns() + self._login_ns
        callbacks, direct = self.login_callbacks, self._direct
        try:
            while callbacks:
                callbacks.popleft()()
                if time.perf_counter_ns() >= end:
                    return
            start = self._logins_handled % (len(events) or 1)
            for fd, mask in (*events[start:], *events[:start]):
                self._logins_handled += 1
                if (on_event := direct.get(fd)) is not None:
                    on_event(mask)
                if time.perf_counter_ns() >= end:
                    return
        except Exception as error:
            self.on_error("an event of a login was not handled", error)

    def _watch(self, start: int) -> list[tuple[int, int]]:
        """Poll without sleeping for a moment: a peer may answer at once.

        To sleep and to wake up takes longer than to handle a small request. Each failure makes this four
        times rarer, each success twice as frequent, so it continues only if two of three attempts succeed.
        """
        poll, end = self._poll, start + WATCH_NS
        while True:
            events = poll(0.0, EVENTS_PER_POLL + len(self.logins))
            if events:
                self._quick_enough = max(self._quick_enough >> 1, QUICK_ENOUGH)
                return events
            if time.perf_counter_ns() >= end:
                self._quick = 0
                self._quick_enough = min(self._quick_enough << 2, RARELY)
                return events
            # Yield to a process that waits for this core, such as the peer or a follower on this machine.
            os.sched_yield()

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

    # The selector of asyncio

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
    """The loop of one broker. `io_threads` threads do blocking work, and as many others read from the disk.

    Each thread is started when it is first needed.
    """

    sends_files = True
    """Whether the kernel sends ranges of files to sockets; otherwise they are read and sent."""

    def __init__(self, io_threads: int = 8, clock: Clock | None = None, poller: Poller | None = None) -> None:
        self.direct = DirectSelector(poller)
        super().__init__(self.direct)
        self.direct.on_error = self._report
        self._clock = clock or SystemClock()
        self._pool = self._make_pool(io_threads)
        self._readers = self._make_pool(io_threads)
        self._background = self._make_pool(1, BACKGROUND_NICENESS)
        self._handshakes = self._make_pool(HANDSHAKE_THREADS)
        self._authentications = self._make_pool(AUTHENTICATION_THREADS)
        self._pools = (
            self._pool,
            self._readers,
            self._background,
            self._handshakes,
            self._authentications,
        )
        self._wakeup = self._open_wakeup()

    @property
    def clock(self) -> Clock:
        return self._clock

    def _open_wakeup(self) -> int:
        """A descriptor that wakes the loop when another thread writes to it."""
        wakeup = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.direct.add(wakeup, self._on_wakeup, READ)
        return wakeup

    def _close_wakeup(self) -> None:
        self.direct.remove(self._wakeup)
        os.close(self._wakeup)

    def _make_pool(self, size: int, niceness: int = 0) -> WorkerPool:
        return ThreadPool(size, self.post, niceness)

    def resolve(self, host: str | None, port: int) -> Sequence[ResolvedAddress]:
        """The addresses to listen on. Blocks."""
        # As bytes: a str loads the tables for names in other scripts, which would delay each start.
        name = host.encode() if host is not None and host.isascii() else host
        return socket.getaddrinfo(name, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)

    def open_socket(self, family: int, kind: int, protocol: int) -> socket.socket:
        return socket.socket(family, kind, protocol)

    def register(self, fd: int, on_event: OnEvent, mask: int = READ, *, is_login: bool = False) -> None:
        """Call `on_event(mask)` whenever `fd` is ready; level-triggered. Logins wait for other events."""
        self.direct.add(fd, on_event, mask, is_login=is_login)

    def modify(self, fd: int, mask: int) -> None:
        self.direct.change(fd, mask)

    def unregister(self, fd: int) -> None:
        """Stop calling for `fd`. To be called before it is closed."""
        self.direct.remove(fd)

    def dispatch(self, fd: int, mask: int) -> None:
        """Call the callback of `fd`, as if the poll had reported it as ready."""
        self.direct.dispatch(fd, mask)

    def call_after(self, fd: int, callback: Callable[[], None]) -> None:
        """Run `callback` after this turn. If `fd` logs in, run it when the loop has time for logins."""
        if fd in self.direct.logins:
            self.direct.login_callbacks.append(callback)
        else:
            self.call_soon(callback)

    def call_soon_in_turn(self, callback: Callable[[], None]) -> None:
        """Run `callback` when the events of this turn are handled, before the next poll."""
        self.direct.turn.append(callback)

    def post(self, callback: Callable[[], None]) -> None:
        """Run `callback` on the loop. Any thread may call this; the callbacks of one thread run in order."""
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

    def run_handshake(
        self,
        work: Callable[[], T],
        done: Callable[[T | None, BaseException | None], None],
    ) -> None:
        """Run a step of a TLS handshake: a millisecond of arithmetic, during which other threads run.

        `done` is called when the loop has time for logins.
        """
        callbacks = self.direct.login_callbacks

        def wait(result: T | None, error: BaseException | None) -> None:
            callbacks.append(lambda: done(result, error))

        self._handshakes.submit(_job(work, wait))

    def run_authentication(
        self,
        work: Callable[[], T],
        done: Callable[[T | None, BaseException | None], None],
    ) -> None:
        """Check credentials, which may wait for a directory or a token provider."""
        self._authentications.submit(_job(work, done))

    def set_io_threads(self, count: int) -> None:
        """Run up to `count` blocking jobs, and as many reads, at a time. Excess threads end when idle."""
        self._pool.resize(count)
        self._readers.resize(count)

    @property
    def idle_seconds(self) -> float:
        """The seconds that the loop has waited for events since it was made."""
        return self.direct.idle_ns / 1e9

    def close(self) -> None:
        if not self.is_closed():
            for pool in self._pools:
                pool.close()
            self._close_wakeup()
        super().close()

    def _on_wakeup(self, mask: int) -> None:
        os.eventfd_read(self._wakeup)  # the posted callbacks run at the end of this turn

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


class WorkerPool(Protocol):
    """Runs jobs beside the loop."""

    def submit(self, job: Job) -> None: ...

    def resize(self, size: int) -> None: ...

    def close(self) -> None:
        """Wait for the submitted jobs, and drop their results."""


class ThreadPool:
    """Threads that start jobs in order. A job returns a callback, which is posted to the loop."""

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
            # Any of the threads may end: `close` waits for all of them.
            self._ended.append(self._threads.pop())
        self._size = size

    def _finish(self, finish: Callable[[], None]) -> None:
        self._unfinished -= 1
        finish()

    def close(self) -> None:
        for _ in self._threads:
            self._jobs.put(None)
        for thread in (*self._threads, *self._ended):
            thread.join()
        self._threads.clear()
        self._ended.clear()

    def _work(self) -> None:
        if self._niceness:
            # On Linux this sets the priority of this thread only.
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), self._niceness)
        while (job := self._jobs.get()) is not None:
            self._post(partial(self._finish, job()))


def _ignore(message: str, error: BaseException) -> None:
    """The error handler of a selector without a loop."""


def _descriptor(fileobj: FileDescriptorLike) -> int:
    return fileobj if isinstance(fileobj, int) else fileobj.fileno()


def _epoll_mask(events: int) -> int:
    return (READ if events & selectors.EVENT_READ else 0) | (WRITE if events & selectors.EVENT_WRITE else 0)
