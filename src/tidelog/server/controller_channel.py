"""ControllerChannel: requests from this broker to the active controller.

Kafka's counterpart is NodeToControllerChannelManager. The requests wait in one queue and are sent one at a
time. If the connection is lost, or the broker is not the controller, a request is sent again after a back-off
of 100 ms, to the controller known then. The same happens if another broker becomes the controller during the
wait, because the former one may hang and never answer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import NamedTuple, TypeAlias, TypeVar

from tidelog.cluster.transport import BrokerConnection, Transport
from tidelog.endpoints import Endpoint
from tidelog.errors import ErrorCode, NetworkException, RequestTimedOut
from tidelog.protocol.api import api_name
from tidelog.protocol.message import Message
from tidelog.server.apis.error_codes import ErrorCodes

BACKOFF_SECONDS = 0.1
"""The wait before a request is sent again, as in Kafka."""

_log = logging.getLogger("tidelog.server.controller_channel")

R = TypeVar("R", bound=Message)


class ControllerNode(NamedTuple):
    """The active controller and its inter-broker endpoint."""

    broker_id: int
    endpoint: Endpoint


ControllerProvider: TypeAlias = Callable[[], ControllerNode | None]
"""The active controller as this broker knows it; None while there is none."""


class _Repeated:
    """Calls a function every so many seconds until `cancel`."""

    __slots__ = ("_call", "_seconds", "_timer")

    def __init__(self, seconds: float, call: Callable[[], None]) -> None:
        self._seconds = seconds
        self._call = call
        self._schedule()

    def _schedule(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._seconds, self._run)

    def _run(self) -> None:
        self._schedule()
        self._call()

    def cancel(self) -> None:
        self._timer.cancel()


class ControllerChannel:
    """`timeout` limits one attempt in seconds, `retry_timeout` all attempts of a request."""

    def __init__(
        self,
        transport: Transport,
        controller: ControllerProvider,
        *,
        timeout: float,
        retry_timeout: float,
        backoff: float = BACKOFF_SECONDS,
    ) -> None:
        self._transport = transport
        self._controller = controller
        self._timeout = timeout
        self._retry_timeout = retry_timeout
        self._backoff = backoff
        self._turn = asyncio.Lock()  # first come, first served: the queue
        self._node: ControllerNode | None = None
        self._connection: BrokerConnection | None = None
        self._error_codes = ErrorCodes()
        self._waiting: asyncio.Timeout | None = None  # ends the present attempt
        self._is_closed = False

    async def call(
        self, request: Message, answer: type[R], *, timeout: float | None = None, version: int | None = None
    ) -> R:
        """The answer of the active controller.

        Without `version`, the request has the newest version that both sides know. Raises RequestTimedOut if
        no controller answers within `timeout` seconds (or the retry time-out), UnsupportedVersion if the
        controller does not serve the request, NetworkException after `close`.
        """
        limit = self._retry_timeout if timeout is None else timeout
        try:
            async with asyncio.timeout(limit), self._turn:
                while True:
                    answered = await self._attempt(request, answer, version)
                    if answered is not None:
                        return answered
                    await asyncio.sleep(self._backoff)
        except TimeoutError:
            name = api_name(request.KEY) if request.KEY is not None else type(request).__name__
            raise RequestTimedOut(f"{name}: no controller answered within {limit:g} s") from None

    async def _attempt(self, request: Message, answer: type[R], version: int | None) -> R | None:
        """The answer; None if the request is to be sent again."""
        try:
            async with asyncio.timeout(None) as waiting:
                self._waiting = waiting
                check = self._give_up_on_change(waiting)
                try:
                    return await self._exchange(request, answer, version)
                finally:
                    check.cancel()
                    self._waiting = None
        except TimeoutError:
            self._disconnect("another broker is the controller")
            return None
        except asyncio.CancelledError:
            # The controller may answer it long after this. The next request must not wait for that.
            self._disconnect("the request was given up")
            raise

    def _give_up_on_change(self, waiting: asyncio.Timeout) -> _Repeated:
        """End the wait when this broker learns of another controller."""
        controller = self._controller()

        def check() -> None:
            if self._controller() != controller and not waiting.expired():
                waiting.reschedule(asyncio.get_running_loop().time())

        return _Repeated(self._backoff, check)

    async def _exchange(self, request: Message, answer: type[R], version: int | None) -> R | None:
        try:
            connection = await self._connected()
            if connection is None:
                return None
            answered = await connection.call(request, answer, version=version, timeout=self._timeout)
        except (NetworkException, RequestTimedOut) as error:
            self._disconnect("the request failed")
            if self._is_closed:
                raise
            _log.debug("the controller cannot be reached, retrying: %s", error)
            return None
        if ErrorCode.NOT_CONTROLLER in self._error_codes.of(answered):
            self._disconnect("the broker is not the controller")
            return None
        return answered

    async def _connected(self) -> BrokerConnection | None:
        if self._is_closed:
            raise NetworkException("the channel to the controller is closed: this broker stops")
        node = self._controller()
        if node != self._node:
            self._disconnect("another broker is the controller")
            self._node = node
        if node is None:
            return None
        if self._connection is None or self._connection.closed:
            self._connection = await self._transport.connect(
                node.broker_id, node.endpoint, timeout=self._timeout
            )
        return self._connection

    def _disconnect(self, reason: str) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close(reason)

    def close(self) -> None:
        """Fail the requests in the queue, and end a running connect."""
        self._is_closed = True
        if self._waiting is not None and not self._waiting.expired():
            self._waiting.reschedule(asyncio.get_running_loop().time())
        self._disconnect("this broker stops")
