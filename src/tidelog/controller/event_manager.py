"""ControllerEventManager: the queue of the controller's events.

A task runs one event at a time, in order. So no other event changes the state that an event reads.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeVar

from tidelog.clock import Clock
from tidelog.errors import KafkaError
from tidelog.metadata.async_tree import SessionExpired
from tidelog.metadata.operations import Fenced
from tidelog.metrics.registry import Histogram

T = TypeVar("T")

STUCK_SECONDS = 10.0
"""How long the running event may go on after its session expired: by then ZooKeeper has refused its calls."""

_log = logging.getLogger("tidelog.controller")


class ControllerState(IntEnum):
    """The kinds of events, with the numbers of Kafka's metric ControllerState."""

    IDLE = 0
    CONTROLLER_CHANGE = 1
    BROKER_CHANGE = 2
    TOPIC_CHANGE = 3
    TOPIC_DELETION = 4
    ALTER_PARTITION_REASSIGNMENT = 5
    AUTO_LEADER_BALANCE = 6
    MANUAL_LEADER_BALANCE = 7
    CONTROLLED_SHUTDOWN = 8
    ISR_CHANGE = 9
    LEADER_AND_ISR_RESPONSE_RECEIVED = 10
    LOG_DIR_CHANGE = 11
    CONTROLLER_SHUTDOWN = 12
    UNCLEAN_LEADER_ELECTION_ENABLE = 13
    TOPIC_UNCLEAN_LEADER_ELECTION_ENABLE = 14
    LIST_PARTITION_REASSIGNMENT = 15
    UPDATE_METADATA_RESPONSE_RECEIVED = 16

    @property
    def metric_name(self) -> str:
        """The name of the metric with the rate and time of these events."""
        if self is ControllerState.BROKER_CHANGE:
            return "LeaderElectionRateAndTimeMs"
        if self is ControllerState.ALTER_PARTITION_REASSIGNMENT:
            return "PartitionReassignmentRateAndTimeMs"
        words = "".join(word.capitalize() for word in self.name.split("_"))
        return f"{words}RateAndTimeMs"


class EventCleared(Exception):
    """The event was dropped or cancelled, because the session expired or the controller stops."""


@dataclass(slots=True)
class ControllerEvent:
    """An event: its kind, its name, and the coroutine function that processes it.

    `abandoned` is called if the event is removed from the queue before it begins.
    """

    state: ControllerState
    name: str
    process: Callable[[], Awaitable[None]]
    abandoned: Callable[[], None] | None = None
    queued_at: float = 0.0


class EventMetrics:
    """The times of events in the queue, and of the processing of each kind of event, in milliseconds."""

    def __init__(self, clock: Clock) -> None:
        self.queue_time = Histogram(clock=clock.monotonic)
        self.event_times = {
            state: Histogram(clock=clock.monotonic)
            for state in ControllerState
            if state is not ControllerState.IDLE
        }

    def processed(self, state: ControllerState, seconds: float) -> None:
        if state is not ControllerState.IDLE:
            self.event_times[state].record(round(seconds * 1000))


class ControllerEventManager:
    """`moved` is awaited after an event that found another controller elected."""

    def __init__(self, clock: Clock, moved: Callable[[], Awaitable[None]]) -> None:
        self.metrics = EventMetrics(clock)
        self.state = ControllerState.IDLE
        """The kind of the event that is processed."""
        self._clock = clock
        self._moved = moved
        self._running: ControllerEvent | None = None
        self._queue: deque[ControllerEvent] = deque()
        self._filled = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def queue_size(self) -> int:
        return len(self._queue)

    @property
    def is_started(self) -> bool:
        """Whether the manager was started and is not closed."""
        return self._task is not None

    @property
    def is_idle(self) -> bool:
        """Whether no event is running or waiting."""
        return not self._queue and self._running is None

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
        """Abandon the events in the queue, and process this one after the running event.

        If the running event does not end within STUCK_SECONDS, it is cancelled, so that the broker can
        register again.
        """
        self._clear()
        self.put(event)
        if (running := self._running) is not None:
            asyncio.get_running_loop().call_later(STUCK_SECONDS, self._end_stuck, running)

    def _end_stuck(self, event: ControllerEvent) -> None:
        if self._running is event and self._task is not None:
            _log.error(
                "the controller's event %s goes on %d s after its session expired: it is cancelled at %s",
                event.name,
                STUCK_SECONDS,
                self._task.get_stack(),
            )
            self._task.cancel()

    async def call(self, state: ControllerState, name: str, process: Callable[[], Awaitable[T]]) -> T:
        """Put an event and wait for it; returns its result or raises its error.

        Raises EventCleared if the event is abandoned or cancelled. If the caller is cancelled, the event
        still runs to its end.
        """
        result: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        async def run() -> None:
            try:
                value = await process()
            except asyncio.CancelledError:
                abandoned()
                raise
            except Exception as error:
                if not result.done():
                    result.set_exception(error)
                if isinstance(error, KafkaError):
                    return  # an answer to the client, not a failure of the event
                raise
            if not result.done():
                result.set_result(value)

        def abandoned() -> None:
            if not result.done():
                result.set_exception(EventCleared(name))

        self.put(ControllerEvent(state, name, run, abandoned))
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
            self.state, self._running = event.state, event
            try:
                await self._process(event)
            except asyncio.CancelledError:
                if (task := self._task) is None:
                    raise
                # Not by `close`: a task that the event waited for was cancelled. The next events follow.
                task.uncancel()
                _log.error("the controller's event %s was cancelled", event.name)
            finally:
                self.state, self._running = ControllerState.IDLE, None
            self.metrics.processed(event.state, self._clock.monotonic() - began)

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
