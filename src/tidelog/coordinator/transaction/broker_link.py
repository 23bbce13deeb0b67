"""BrokerLink: a connection to another broker, opened by the first request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from tidelog.cluster.transport import BrokerConnection, EndpointOf, Transport
from tidelog.endpoints import Endpoint
from tidelog.errors import NetworkException
from tidelog.protocol.message import Message

R = TypeVar("R", bound=Message)


class BrokerLink:
    """The caller sends one request at a time. `timeout_ms` limits the connect and the request."""

    __slots__ = (
        "_connecting",
        "_connection",
        "_endpoint",
        "_endpoint_of",
        "_timeout_ms",
        "_transport",
        "broker_id",
    )

    def __init__(
        self,
        broker_id: int,
        endpoint_of: EndpointOf,
        transport: Transport,
        timeout_ms: Callable[[], int],
    ) -> None:
        self.broker_id = broker_id
        self._endpoint_of = endpoint_of
        self._transport = transport
        self._timeout_ms = timeout_ms
        self._endpoint: Endpoint | None = None
        self._connection: BrokerConnection | None = None
        self._connecting: asyncio.Timeout | None = None  # ends the present attempt to connect

    async def call(self, request: Message, answer: type[R], *, version: int | None = None) -> R:
        """Send a request. If it fails, closes the connection and raises the error of Transport."""
        connection = await self._connect()
        try:
            return await connection.call(request, answer, version=version, timeout=self._timeout_ms() / 1000)
        except BaseException:
            connection.close("a request failed")
            raise

    async def _connect(self) -> BrokerConnection:
        endpoint = self._endpoint_of(self.broker_id)
        if endpoint is None:
            self.close("the broker is gone")
            raise NetworkException(f"broker {self.broker_id} is not alive")
        if self._connection is not None and (self._connection.closed or endpoint != self._endpoint):
            self.close("the broker has another address")
        if self._connection is None:
            self._connection = await self._opened(endpoint)
            self._endpoint = endpoint
        return self._connection

    async def _opened(self, endpoint: Endpoint) -> BrokerConnection:
        try:
            async with asyncio.timeout(None) as self._connecting:
                return await self._transport.connect(
                    self.broker_id, endpoint, timeout=self._timeout_ms() / 1000
                )
        except TimeoutError:
            raise NetworkException(f"broker {self.broker_id} is not awaited any more") from None
        finally:
            self._connecting = None

    @property
    def is_alive(self) -> bool:
        """Whether the metadata of this broker has the other broker as live."""
        return self._endpoint_of(self.broker_id) is not None

    def close(self, reason: str) -> None:
        """Close the connection. A running request fails, also during a connect."""
        if self._connecting is not None and not self._connecting.expired():
            self._connecting.reschedule(asyncio.get_running_loop().time())
        if self._connection is not None:
            self._connection.close(reason)
            self._connection = None
