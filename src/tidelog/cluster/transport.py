"""Transport: requests from this broker to other brokers.

The controller, the coordinators and the replica fetchers open their connections here. The server passes the
implementation in: sockets in a real broker, a simulated network in tests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from tidelog.endpoints import Endpoint
from tidelog.errors import KafkaError
from tidelog.protocol.message import Message
from tidelog.protocol.wire import Buffer

R = TypeVar("R", bound=Message)


class BrokerConnection(Protocol):
    """A connection to one broker. The broker answers one request after the other."""

    @property
    def closed(self) -> bool: ...

    @property
    def correlation_id(self) -> int:
        """The correlation id of the newest request, for logs."""

    def version_for(self, request: type[Message], *, at_most: int | None = None) -> int:
        """The newest version of a request that both sides have. UnsupportedVersion if there is none."""

    async def call(
        self,
        request: Message,
        answer: type[R],
        *,
        version: int | None = None,
        timeout: float | None = None,
        in_slices: bool = False,
    ) -> R:
        """Send a request and return its answer; by default in the newest version that both sides have.

        With `in_slices` other tasks run while the request is encoded and the answer is decoded.

        Raises NetworkException if the connection ends first, RequestTimedOut after `timeout` seconds (the
        connection is closed then), UnsupportedVersion if the other side does not have the version.
        """

    def send(
        self,
        key: int,
        version: int,
        body: Sequence[Buffer],
        done: Callable[[Buffer | None, KafkaError | None], None],
        *,
        timeout: float | None = None,
    ) -> None:
        """Send a request and call `done` with the body of its answer, or with the error that `call` raises.

        `done` is called once, in the turn of the loop that receives the answer.
        """

    def close(self, reason: str = "it was closed") -> None: ...


class Transport(Protocol):
    async def connect(self, broker_id: int, endpoint: Endpoint, *, timeout: float) -> BrokerConnection:
        """Connect and log in. Raises NetworkException or RequestTimedOut if the broker cannot be reached,
        SaslAuthenticationFailed or SslAuthenticationException if it refuses this broker."""


def is_refused(error: Exception) -> bool:
    """Whether `connect` failed because nobody listens at the address. A time-out is no refusal."""
    return isinstance(error.__cause__ or error.__context__, ConnectionRefusedError)


async def refuses_connections(
    transport: Transport, broker_id: int, endpoint: Endpoint, *, timeout: float
) -> bool:
    """Whether nobody listens at the address of a broker. False if it answers, or if there is no answer."""
    try:
        connection = await transport.connect(broker_id, endpoint, timeout=timeout)
    except KafkaError as error:
        return is_refused(error)
    connection.close("the broker accepts connections")
    return False


EndpointOf = Callable[[int], Endpoint | None]
"""The endpoint of a live broker on the inter-broker listener; None if there is none."""
