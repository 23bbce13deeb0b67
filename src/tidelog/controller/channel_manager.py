"""ControllerChannelManager: a queue of requests and a connection for each live broker.

A broker gets its requests in order, one at a time. The first request of the queue is sent again, over a new
connection if necessary, until the broker answers it or is removed. So a broker that is away for a moment
misses no request. An error that a retry would not change, such as a refused login or an unknown version, ends
the request.

The controller calls `add_broker` when a broker joins, `remove_broker` when it is gone, `replace_broker` when
it registered anew, `move_broker` when its address changed, and `close` when it resigns. Callbacks run on the
loop, outside of any event, and put an event into the controller's queue. The callbacks of a removed broker
are never called.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

from tidelog.cluster.transport import BrokerConnection, Transport, is_refused
from tidelog.controller.state_change_log import StateChangeLog
from tidelog.endpoints import Endpoint
from tidelog.errors import KafkaError, NetworkException, RequestTimedOut, UnknownServerError
from tidelog.metadata.state import BrokerRegistration
from tidelog.protocol.api import api_name
from tidelog.protocol.message import Message

BACKOFF_SECONDS = 0.1
"""The wait before a request is sent again, as in Kafka."""

_log = logging.getLogger("tidelog.controller.channels")

Outcome: TypeAlias = Message | KafkaError
Callback: TypeAlias = Callable[[Outcome], None]
"""Called once with the answer, or with the error that ended the request."""

IDLE_CHECK_SECONDS = 0.2
"""How often a channel without requests looks whether its connection is lost."""

QueueTimeListener: TypeAlias = Callable[[int, float], None]
"""Called with a broker's id and the seconds that a request waited in its queue before it was sent."""


@dataclass(slots=True)
class ChannelSettings:
    """`listener` is the control-plane listener if there is one, else the inter-broker listener.

    `timeout` is controller.socket.timeout.ms in seconds.
    """

    listener: str
    timeout: float = 30.0
    backoff: float = BACKOFF_SECONDS


@dataclass(slots=True)
class _QueuedRequest:
    request: Message
    answer: type[Message]
    version: int
    callback: Callback | None
    enqueued: float
    flushes: list[asyncio.Future[None]] = field(default_factory=list)

    def end(self) -> None:
        """The request and those before it are answered or dropped."""
        for flush in self.flushes:
            if not flush.done():
                flush.set_result(None)


class ControllerChannelManager:
    def __init__(
        self,
        transport: Transport,
        settings: ChannelSettings,
        log: StateChangeLog,
        *,
        on_queue_time: QueueTimeListener | None = None,
    ) -> None:
        self._transport = transport
        self._settings = settings
        self._state_change_log = log
        self._on_queue_time = on_queue_time
        self._channels: dict[int, _BrokerChannel] = {}
        self.on_refused: Callable[[int, int], None] | None = None
        """Called with a broker whose address refused a connection, and how many in a row."""
        self.on_answered: Callable[[int], None] | None = None
        """Called with a broker that answers without an error after connections were refused."""

    @property
    def broker_ids(self) -> list[int]:
        return list(self._channels)

    def queue_size(self, broker_id: int) -> int:
        """The requests that a broker has not answered; 0 if it has no channel."""
        channel = self._channels.get(broker_id)
        return 0 if channel is None else len(channel.queue)

    @property
    def total_queue_size(self) -> int:
        return sum(len(channel.queue) for channel in self._channels.values())

    def add_brokers(self, brokers: Iterable[BrokerRegistration]) -> None:
        for broker in brokers:
            self.add_broker(broker)

    def add_broker(self, broker: BrokerRegistration) -> None:
        """Open a channel to a broker, unless there is one."""
        if broker.broker_id in self._channels:
            return
        endpoint = broker.endpoint(self._settings.listener)
        if endpoint is None:
            _log.error(
                "broker %d has no listener %s: the controller cannot reach it",
                broker.broker_id,
                self._settings.listener,
            )
            return
        self._channels[broker.broker_id] = _BrokerChannel(
            broker.broker_id,
            endpoint,
            self._transport,
            self._settings,
            self._state_change_log,
            self,
            self._on_queue_time,
        )

    def remove_broker(self, broker_id: int) -> None:
        """Close the channel to a broker and drop its requests."""
        channel = self._channels.pop(broker_id, None)
        if channel is not None:
            channel.close()

    def replace_broker(self, broker: BrokerRegistration) -> None:
        """Open a new channel to a broker that registered anew, and drop the requests of the old channel."""
        self.remove_broker(broker.broker_id)
        self.add_broker(broker)

    def move_broker(self, broker_id: int, endpoint: Endpoint) -> None:
        """Send the queued and later requests of a broker to its new address."""
        self._channels[broker_id].move(endpoint)

    def close(self) -> None:
        """Close all channels."""
        for broker_id in self.broker_ids:
            self.remove_broker(broker_id)

    def send(
        self,
        broker_id: int,
        request: Message,
        answer: type[Message],
        version: int,
        callback: Callback | None = None,
    ) -> None:
        """Queue a request for a broker. A broker without a channel gets nothing."""
        channel = self._channels.get(broker_id)
        if channel is None:
            name = _name_of(request)
            _log.warning("not sending %s to broker %d, which is offline", name, broker_id)
            return
        channel.put(request, answer, version, callback)

    async def flush(self, broker_ids: Iterable[int]) -> None:
        """Wait until brokers have answered the requests that are queued now, or are removed."""
        flushes = [
            self._channels[broker_id].flush() for broker_id in broker_ids if broker_id in self._channels
        ]
        if flushes:
            await asyncio.wait(flushes)


class _BrokerChannel:
    """The queue of one broker and the task that works it off."""

    def __init__(
        self,
        broker_id: int,
        endpoint: Endpoint,
        transport: Transport,
        settings: ChannelSettings,
        log: StateChangeLog,
        manager: ControllerChannelManager,
        on_queue_time: QueueTimeListener | None,
    ) -> None:
        self.queue: deque[_QueuedRequest] = deque()
        self._broker_id = broker_id
        self._endpoint = endpoint
        self._transport = transport
        self._settings = settings
        self._log = log
        self._manager = manager
        self._on_queue_time = on_queue_time
        self._connection: BrokerConnection | None = None
        self._loop = asyncio.get_running_loop()
        self._filled = asyncio.Event()
        self._is_unreachable = False
        self._refusals = 0
        self._was_refused = False
        self._worker = self._begin()

    def _begin(self) -> asyncio.Task[None]:
        return self._loop.create_task(self._work(), name=f"controller-to-broker-{self._broker_id}")

    def move(self, endpoint: Endpoint) -> None:
        # The first request may be waiting for the old address: a new task sends it again.
        self._worker.cancel()
        self._disconnect("the broker has another address")
        self._endpoint = endpoint
        self._worker = self._begin()

    def put(self, request: Message, answer: type[Message], version: int, callback: Callback | None) -> None:
        self.queue.append(_QueuedRequest(request, answer, version, callback, self._loop.time()))
        self._filled.set()

    def flush(self) -> asyncio.Future[None]:
        """A future that is done when the requests in the queue are answered or dropped."""
        done: asyncio.Future[None] = self._loop.create_future()
        if self.queue:
            self.queue[-1].flushes.append(done)
        else:
            done.set_result(None)
        return done

    def close(self) -> None:
        self._worker.cancel()
        while self.queue:
            self.queue.popleft().end()
        self._disconnect("the broker was removed")

    async def _work(self) -> None:
        while True:
            await self._wait()
            while self.queue:
                # The request stays at the head until it is answered, so that the queue's size counts it.
                queued = self.queue[0]
                if self._on_queue_time is not None:
                    self._on_queue_time(self._broker_id, self._loop.time() - queued.enqueued)
                outcome = await self._outcome(queued)
                self.queue.popleft()
                self._deliver(queued, outcome)
                queued.end()

    async def _wait(self) -> None:
        """Wait for a request. Reopen a connection that is lost meanwhile, to find out whether the broker is
        gone.
        """
        while not self.queue:
            self._filled.clear()
            try:
                async with asyncio.timeout(IDLE_CHECK_SECONDS):
                    await self._filled.wait()
            except TimeoutError:
                if self._connection is not None and self._connection.closed:
                    await self._reconnect()

    async def _reconnect(self) -> None:
        while not self.queue:
            try:
                await self._connect()
                return
            except KafkaError as error:
                _log.debug("cannot reach broker %d: %s", self._broker_id, error)
            await asyncio.sleep(self._settings.backoff)

    async def _connect(self) -> BrokerConnection:
        try:
            connection = await self._transport.connect(
                self._broker_id, self._endpoint, timeout=self._settings.timeout
            )
        except KafkaError as error:
            self._refusals = self._refusals + 1 if is_refused(error) else 0
            if self._refusals:
                self._was_refused = True
                if self._manager.on_refused is not None:
                    self._manager.on_refused(self._broker_id, self._refusals)
            raise
        self._connection = connection
        self._refusals = 0
        if self._is_unreachable:
            _log.info("connected to broker %d again", self._broker_id)
            self._is_unreachable = False
        return connection

    def _deliver(self, queued: _QueuedRequest, outcome: Outcome) -> None:
        if queued.callback is None:
            return
        try:
            queued.callback(outcome)
        except Exception:  # a mistake of the callback must not end the channel
            _log.exception("the answer of broker %d to %s", self._broker_id, _name_of(queued.request))

    async def _outcome(self, queued: _QueuedRequest) -> Outcome:
        """The answer of the broker, or the error that ended the request."""
        while True:
            try:
                return await self._exchange(queued)
            except (NetworkException, RequestTimedOut) as error:
                self._retry_later(queued, error)
            except KafkaError as error:
                return self._ended(queued, error)
            except Exception as error:  # no request may stop the queue behind it
                _log.exception("%s to broker %d", _name_of(queued.request), self._broker_id)
                return self._ended(queued, UnknownServerError(f"{type(error).__name__}: {error}"))
            await asyncio.sleep(self._settings.backoff)

    async def _exchange(self, queued: _QueuedRequest) -> Message:
        connection = self._connection
        if connection is None or connection.closed:
            connection = await self._connect()
        answer = await connection.call(
            queued.request,
            queued.answer,
            version=queued.version,
            timeout=self._settings.timeout,
            in_slices=True,
        )
        self._log.info(
            "received the answer of broker %d to %s v%d with error code %s",
            self._broker_id,
            _name_of(queued.request),
            queued.version,
            getattr(answer, "error_code", 0),
            correlation_id=connection.correlation_id,
        )
        if self._was_refused and not getattr(answer, "error_code", 0):
            self._was_refused = False
            if self._manager.on_answered is not None:
                self._manager.on_answered(self._broker_id)
        return answer

    def _retry_later(self, queued: _QueuedRequest, error: KafkaError) -> None:
        self._disconnect("the request failed and is sent again")
        if not self._is_unreachable:  # once per absence: the back-off is short
            self._is_unreachable = True
            name = _name_of(queued.request)
            _log.warning("cannot send %s to broker %d, retrying: %s", name, self._broker_id, error)

    def _ended(self, queued: _QueuedRequest, error: KafkaError) -> KafkaError:
        self._disconnect("the request failed")
        _log.error("%s to broker %d failed: %s", _name_of(queued.request), self._broker_id, error)
        return error

    def _disconnect(self, reason: str) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close(reason)


def _name_of(request: Message) -> str:
    return type(request).__name__ if request.KEY is None else api_name(request.KEY)
