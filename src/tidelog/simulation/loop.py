"""The event loop of a simulated process: BrokerLoop on virtual time, with simulated sockets and threads.

Selector, timers, tasks and turns are those of the real loop. Only the poll, the clock, the sockets and the
threads differ. A job of a thread happens at one moment, chosen by the seed, and its result arrives later.
"""

from __future__ import annotations

import asyncio
import heapq
import socket
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TypeVar, cast

from tidelog.cluster.worker import Done
from tidelog.errors import NotLeaderOrFollower
from tidelog.network.loop import GONE, BrokerLoop, Job, ResolvedAddress, WorkerPool
from tidelog.simulation.network import SimSocket

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from tidelog.simulation.process import Process

T = TypeVar("T")


class SimPoller:
    """`select.epoll` over simulated sockets. It never waits: the world runs a loop only when it has work."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._masks: dict[int, int] = {}

    def register(self, fd: int, eventmask: int) -> None:
        self._masks[fd] = eventmask
        self._process.has_events = True

    def modify(self, fd: int, eventmask: int) -> None:
        self._masks[fd] = eventmask
        self._process.has_events = True

    def unregister(self, fd: int) -> None:
        self._masks.pop(fd, None)

    def poll(self, timeout: float | None, maxevents: int) -> list[tuple[int, int]]:
        if not self._process.has_events:
            return []
        socket_of = self._process.world.network.socket_of
        events = []
        for fd, mask in self._masks.items():
            sock = socket_of(fd)
            if sock is not None and (ready := sock.readiness() & (mask | GONE)):
                events.append((fd, ready))
        if len(events) > 1:
            self._process.rng.shuffle(events)
        # Readiness is a level: the loop looks again until nothing is ready.
        self._process.has_events = bool(events)
        return events[:maxevents]

    def close(self) -> None:
        self._masks.clear()


class SimPool:
    """Threads of a simulated process. Jobs begin in order. A pool of one thread also ends them in order."""

    def __init__(self, process: Process, size: int) -> None:
        self._process = process
        self._size = size
        self._running = 0
        self._waiting: deque[Job] = deque()

    def submit(self, job: Job) -> None:
        self._waiting.append(job)
        self._begin_jobs()

    def _begin_jobs(self) -> None:
        while self._waiting and self._running < self._size:
            self._running += 1
            self._process.after(self._process.job_seconds(), partial(self._run, self._waiting.popleft()))

    def _run(self, job: Job) -> None:
        """Run a job at one moment. Its result arrives once its disk operations have taken their time."""
        process = self._process
        finish = job()
        process.after(process.job_seconds() + process.take_thread_delay(), partial(self._end, finish))

    def _end(self, finish: Callable[[], None]) -> None:
        self._running -= 1
        self._process.loop.post(finish)
        self._begin_jobs()

    def resize(self, size: int) -> None:
        self._size = max(1, size)
        self._begin_jobs()

    def close(self) -> None:
        """There is no thread to wait for."""


class SimWorker:
    """The append worker of a simulated broker: one task at a time, in order."""

    def __init__(self, loop: SimLoop) -> None:
        self._pool = SimPool(loop.process, 1)
        self._loop = loop
        self._closed = False

    def submit(self, work: Callable[[], T], done: Done[T]) -> None:
        if self._closed:
            self._loop.post(partial(done, None, NotLeaderOrFollower("this broker stops")))
            return

        def job() -> Callable[[], None]:
            try:
                result = work()
            except BaseException as error:
                return partial(done, None, error)
            return partial(done, result, None)

        self._pool.submit(job)

    def close(self) -> None:
        self._closed = True


class SimLoop(BrokerLoop):
    """The loop of one simulated process. The world calls `run_turn`; nobody else runs it."""

    sends_files = False

    items_per_slice = 20
    """Long work ends its slices by count: what fits into a moment of real time differs from run to run."""

    def __init__(self, process: Process, io_threads: int = 8) -> None:
        self.process = process
        self.is_in_turn = False
        self._executors: dict[Executor | None, SimPool] = {}
        super().__init__(io_threads, process.clock, SimPoller(process))
        self._clock_resolution = 1e-9
        self.set_debug(False)

    # Turns

    def run_turn(self) -> None:
        """Poll once and run what is due, as `run_forever` does again and again."""
        self.is_in_turn = True
        asyncio._set_running_loop(self)
        try:
            self._run_once()  # type: ignore[attr-defined]
        finally:
            asyncio._set_running_loop(None)
            self.is_in_turn = False

    def next_turn(self) -> float | None:
        """When the loop has something to do next; None if it waits for others."""
        direct = self.direct
        if self._ready or direct.turn or direct.posted:  # type: ignore[attr-defined]
            return 0.0
        scheduled: list[asyncio.TimerHandle] = self._scheduled  # type: ignore[attr-defined]
        while scheduled:
            handle = scheduled[0]
            if not handle._cancelled:
                return handle._when  # type: ignore[attr-defined, no-any-return]
            heapq.heappop(scheduled)
            handle._scheduled = False  # type: ignore[attr-defined]
            self._timer_cancelled_count -= 1  # type: ignore[attr-defined]
        return None

    def time(self) -> float:
        return self.process.world.now

    # Threads

    def _make_pool(self, size: int, niceness: int = 0) -> WorkerPool:
        return SimPool(self.process, size)

    def _open_wakeup(self) -> int:
        return -1

    def _close_wakeup(self) -> None:
        """The loop needs no descriptor to be woken."""

    def _make_self_pipe(self) -> None:
        """Signals and other threads do not exist here."""

    def _close_self_pipe(self) -> None:
        """There is none."""

    def _write_to_self(self) -> None:
        """The world sees callbacks of `call_soon_threadsafe` by itself."""

    def post(self, callback: Callable[[], None]) -> None:
        self.direct.posted.append(callback)

    def run_in_executor(
        self, executor: Executor | None, func: Callable[..., T], *args: object
    ) -> asyncio.Future[T]:
        future: asyncio.Future[T] = self.create_future()

        def done(result: T | None, error: BaseException | None) -> None:
            if future.done():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(cast("T", result))

        def job() -> Callable[[], None]:
            try:
                result = func(*args)
            except BaseException as error:
                return partial(done, None, error)
            return partial(done, result, None)

        pool = self._executors.get(executor)
        if pool is None:
            # Executors of our code have one thread; asyncio's own has many.
            pool = self._executors[executor] = SimPool(self.process, 8 if executor is None else 1)
        pool.submit(job)
        return future

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """There is no thread to wait for."""

    # Sockets

    def resolve(self, host: str | None, port: int) -> list[ResolvedAddress]:
        return [_resolved(host or self.process.host.name, port)]

    async def getaddrinfo(  # type: ignore[override]
        self, host: str, port: int, **hints: object
    ) -> list[ResolvedAddress]:
        return [_resolved(host, port)]

    def open_socket(self, family: int, kind: int, protocol: int) -> socket.socket:
        return cast("socket.socket", self.process.world.network.open(self.process))

    async def sock_connect(self, sock: socket.socket, address: object) -> None:
        future: asyncio.Future[None] = self.create_future()

        def done(error: OSError | None) -> None:
            if future.done() or not self.process.is_alive:
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(None)

        cast("SimSocket", sock).connect(cast("tuple[str, int]", address), done)
        await future


def _resolved(host: str, port: int) -> ResolvedAddress:
    return (socket.AF_INET, socket.SOCK_STREAM, 0, "", (host, port))
