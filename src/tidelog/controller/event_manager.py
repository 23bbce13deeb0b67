"""ControllerEventManager: the queue of the controller's events.

A task runs one event at a time, in order: what an event reads and decides is not changed by another one.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

from tidelog.clock import Clock
from tidelog.metadata.async_tree import SessionExpired
from tidelog.metadata.operations import Fenced
from tidelog.metrics.registry import Histogram

T = TypeVar("T")

_log = logging.getLogger("tidelog.controller")


class EventCleared(Exception):
    """The event was removed from the queue before it began: the ZooKeeper session expired."""


@dataclass(slots=True)
class ControllerEvent:
    """An event: its name, and the coroutine function that processes it.

    `abandoned` is called if the event is removed from the queue before it begins.
    """

    name: str
    process: Callable[[], Awaitable[None]]
    abandoned: Callable[[], None] | None = None
    queued_at: float = 0.0


@dataclass(slots=True)
class EventMetrics:
    """`queue_time` is in milliseconds, `event_times` by the name of the event."""

    clock: Clock
    queue_time: Histogram = field(init=False)
    event_times: dict[str, Histogram] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.queue_time = Histogram(clock=self.clock.monotonic)

    def of(self, name: str) -> Histogram:
        found = self.event_times.get(name)
        if found is None:
            found = self.event_times[name] = Histogram(clock=self.clock.monotonic)
        return found


class ControllerEventManager:
    """`moved` is awaited after an event that found another controller elected."""

    def __init__(self, clock: Clock, moved: Callable[[], Awaitable[None]]) -> None:
        self.metrics = EventMetrics(clock)
        self.current: str | None = None
        """The name of the event that is processed, Kafka's ControllerState."""
        self._clock = clock
        self._moved = moved
        self._queue: deque[ControllerEvent] = deque()
        self._filled = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def queue_size(self) -> int:
        return len(self._queue)

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """Stop. The running event is cancelled, the events in the queue are abandoned."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        self._clear()

    def put(self, event: ControllerEvent) -> None:
        """Process an event after those in the queue. A closed manager abandons it."""
        if self._task is None:
            _abandon(event)
            return
        event.queued_at = self._clock.monotonic()
        self._queue.append(event)
        self._filled.set()

    def clear_and_put(self, event: ControllerEvent) -> None:
        """Abandon the events in the queue, and process this one after the running event."""
        self._clear()
        self.put(event)

    async def call(self, name: str, process: Callable[[], Awaitable[T]]) -> T:
        """Put an event and return its result, or raise its error. EventCleared if it is abandoned.

        The event is processed to its end even if the caller is cancelled.
        """
        result: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        async def run() -> None:
            try:
                value = await process()
            except Exception as error:
                if not result.done():
                    result.set_exception(error)
                raise
            if not result.done():
                result.set_result(value)

        def abandoned() -> None:
            if not result.done():
                result.set_exception(EventCleared(name))

        self.put(ControllerEvent(name, run, abandoned))
        return await result

    def _clear(self) -> None:
        while self._queue:
            _abandon(self._queue.popleft())

    async def _run(self) -> None:
        while True:
            while not self._queue:
                self._filled.clear()
                await self._filled.wait()
            event = self._queue.popleft()
            began = self._clock.monotonic()
            self.metrics.queue_time.record(round((began - event.queued_at) * 1000))
            self.current = event.name
            try:
                await self._process(event)
            finally:
                self.current = None
            self.metrics.of(event.name).record(round((self._clock.monotonic() - began) * 1000))

    async def _process(self, event: ControllerEvent) -> None:
        try:
            await event.process()
        except Fenced:
            _log.info("another controller was elected during the event %s", event.name)
            await self._resign()
        except SessionExpired:
            _log.info("the ZooKeeper session expired during the event %s", event.name)
        except Exception:
            _log.exception("the controller's event %s failed", event.name)

    async def _resign(self) -> None:
        try:
            await self._moved()
        except Exception:
            _log.exception("the controller could not resign")


def _abandon(event: ControllerEvent) -> None:
    if event.abandoned is not None:
        event.abandoned()
