"""One connection to one broker on an event loop: negotiates API versions, authenticates, sends requests.

The broker answers requests in the order of the calls. A request without an answer in time ends the
connection: the answers to the requests behind it would be late as well. When a connection ends, its
unanswered requests fail with a NetworkException.
"""

from __future__ import annotations

import asyncio
import logging
import math
import socket
import ssl
import struct
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar, cast

from tidelog import __version__
from tidelog.clients.connection import CLOSED, agreed_version, api_key, api_name, reason_of, tls_reason
from tidelog.clients.errors import SslAuthenticationException
from tidelog.clients.metadata import BrokerNode
from tidelog.clients.network_metrics import NetworkMetrics
from tidelog.clients.security import Security, answer_to, authentication, renewal_after
from tidelog.clients.settings import ClientSettings
from tidelog.clients.streams import FrameReader, PlainStream, Stream, TlsStream, open_socket
from tidelog.errors import (
    KafkaError,
    NetworkException,
    RequestTimedOut,
    SaslAuthenticationFailed,
    UnsupportedSaslMechanism,
    UnsupportedVersion,
    error_class,
)
from tidelog.protocol import api as api_table
from tidelog.protocol.headers import read_response_header, request_header
from tidelog.protocol.message import Message, decode, sliced_decoder_for, sliced_encoder_for
from tidelog.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from tidelog.protocol.wire import Buffer, ProtocolError
from tidelog.slices import finished

log = logging.getLogger("tidelog.clients")

HEAD = struct.Struct(">ihhi")
"""The size of a request, API key, version and correlation id."""
SMALL_BYTES = 4096
"""Up to this size a copy of a request costs less than a list of its parts."""
CLIENT_AT = 8
"""Where a request header has the client id."""

R = TypeVar("R", bound=Message)
Done = Callable[[Buffer | None, KafkaError | None], None]
"""Called once for each request, with the body of its answer or with the error."""

# What a closed first connection mostly means: the broker takes our request for a broken TLS handshake.
TLS_HINT = "a listener with TLS does so to a client without it (security.protocol)"


@dataclass(slots=True)
class _InFlight:
    correlation_id: int
    key: int
    version: int
    deadline: float
    done: Done
    sent: float


class AsyncConnection:
    """`connection = await AsyncConnection.open(node, settings, security)`, then `call` or `send`."""

    def __init__(
        self, node: BrokerNode, settings: ClientSettings, security: Security, metrics: NetworkMetrics
    ) -> None:
        self.node = node
        self.metrics = metrics
        self.versions: dict[int, tuple[int, int]] = {}
        self.features: dict[str, int] = {}
        """The finalized features of the cluster and their levels, such as transaction.version."""
        self.throttled_until = 0.0
        self.last_used = 0.0
        self.closed = False
        self.on_close: Callable[[AsyncConnection], None] | None = None
        self._login_again_at: float | None = None
        """When to log in again, because the session of this connection ends soon."""
        self._held: list[Callable[[], None]] | None = None
        """The requests that wait for the end of a new login."""
        self._login_task: asyncio.Task[None] | None = None
        self._settings = settings
        self._security = security
        self._client_id = settings.client_id or None
        self._loop = asyncio.get_running_loop()
        self._reader = FrameReader(self._received)
        self._stream: Stream | None = None
        self._in_flight: deque[_InFlight] = deque()
        self._unanswered: list[_InFlight] = []
        """Requests without an answer, until the system has taken them."""
        self._correlation_id = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf
        self._header_ends: dict[tuple[int, int], bytes] = {}
        """The end of a request header, from the client id on, by API key and version."""
        self._timeout = settings.request_timeout_ms / 1000

    @classmethod
    async def open(
        cls,
        node: BrokerNode,
        settings: ClientSettings,
        security: Security,
        *,
        timeout: float = 10.0,
        metrics: NetworkMetrics | None = None,
    ) -> AsyncConnection:
        """Connect, negotiate versions, authenticate. Raises NetworkException on failure or time-out.

        SslAuthenticationException and SaslAuthenticationFailed mean that one side refused the other.
        """
        connection = cls(node, settings, security, metrics or NetworkMetrics())
        try:
            async with asyncio.timeout(timeout):
                await connection._connect()
                await connection._agree_on_versions()
                await connection._authenticate()
        except TimeoutError:
            connection.close()
            reason = f"no answer in {timeout:.1f} s"
            raise NetworkException(f"cannot connect to {node.address}: {reason}") from None
        except OSError as error:
            connection.close()
            raise NetworkException(f"cannot connect to {node.address}: {reason_of(error)}") from None
        except NetworkException:
            connection.close()
            alert = getattr(connection._stream, "alert", None)
            if alert is None:
                raise
            raise SslAuthenticationException(f"TLS with {node.address} failed: {alert}") from None
        except BaseException:
            connection.close()
            raise
        return connection

    @property
    def in_flight(self) -> int:
        return len(self._in_flight) + len(self._unanswered) + len(self._held or ())

    @property
    def correlation_id(self) -> int:
        """The correlation id of the newest request, for logs."""
        return self._correlation_id

    def serves(self, request: type[Message]) -> bool:
        return request.KEY in self.versions

    def version_for(self, request: type[Message], *, at_most: int | None = None) -> int:
        """The newest version of a request that both sides support, up to `at_most`."""
        return agreed_version(request, self.versions, self.node.address, at_most)

    async def call(
        self,
        request: Message,
        answer: type[R],
        *,
        version: int | None = None,
        timeout: float | None = None,
        in_slices: bool = False,
    ) -> R:
        """Send a request in the newest version that both sides support, and wait for its answer.

        With `in_slices` other tasks run while the request is encoded and the answer is decoded.
        """
        agreed = self.version_for(type(request)) if version is None else version
        parts = await _encoded_in_slices(request, agreed) if in_slices else (request.encode(agreed),)
        body = await self._exchange_parts(request, agreed, parts, timeout)
        if not in_slices:
            return self._decoded(request, answer, agreed, body)
        try:
            decoded, _ = await finished(sliced_decoder_for(answer, agreed)(body, 0))
        except ProtocolError as error:
            raise self._unreadable(request, error) from None
        return self._with_throttle(decoded)

    def _decoded(self, request: Message, answer: type[R], version: int, body: Buffer) -> R:
        try:
            decoded, _ = decode(answer, version, body)
        except ProtocolError as error:
            raise self._unreadable(request, error) from None
        return self._with_throttle(decoded)

    def _unreadable(self, request: Message, error: ProtocolError) -> NetworkException:
        return NetworkException(f"{api_name(type(request))}: {self.node.address} answered: {error}")

    def _with_throttle(self, answer: R) -> R:
        """The answer, after its throttle time was noted."""
        self.throttle(getattr(answer, "throttle_time_ms", 0))
        return answer

    def send(
        self,
        key: int,
        version: int,
        body: Sequence[Buffer],
        done: Done,
        *,
        timeout: float | None = None,
        answered: bool = True,
    ) -> None:
        """Send a request.

        `done` is always called later, also if the connection is already closed. For a request without an
        answer it gets an empty body once the system has taken the request.
        """
        if self.closed or self._stream is None:
            error = NetworkException(f"the connection to {self.node.address} is closed")
            self._loop.call_soon(done, None, error)
            return
        if self._login_again_at is not None and self._waits_for_login():
            assert self._held is not None
            self._held.append(
                lambda: self.send(key, version, body, done, timeout=timeout, answered=answered)
            )
            return
        self._write(key, version, body, done, timeout, answered)

    def _write(
        self,
        key: int,
        version: int,
        body: Sequence[Buffer],
        done: Done,
        timeout: float | None,
        answered: bool,
    ) -> None:
        assert self._stream is not None
        self._correlation_id = self._correlation_id + 1 & 0x7FFFFFFF
        end = self._header_ends.get((key, version))
        if end is None:
            end = request_header(key, version, 0, self._client_id)[CLIENT_AT:]
            self._header_ends[key, version] = end
        length = len(body[0]) if len(body) == 1 else sum(map(len, body))
        size = CLIENT_AT + len(end) + length
        now = self.last_used = self._loop.time()
        deadline = now + (self._timeout if timeout is None else timeout)
        request = _InFlight(self._correlation_id, key, version, deadline, done, now)
        if answered:
            self._in_flight.append(request)
        else:
            self._unanswered.append(request)
        if deadline < self._timer_at:
            self._set_timer(deadline)
        self.metrics.request_total += 1
        self.metrics.outgoing_byte_total += size + 4
        head = HEAD.pack(size, key, version, self._correlation_id) + end
        parts = (head + body[0],) if len(body) == 1 and length <= SMALL_BYTES else (head, *body)
        self._stream.write(parts, None if answered else lambda: self._taken(request))

    def _taken(self, request: _InFlight) -> None:
        if request in self._unanswered:
            self._unanswered.remove(request)
            request.done(b"", None)

    def throttle(self, milliseconds: int) -> None:
        """Record that the broker asked for a pause. Callers see its end in `throttled_until`."""
        if milliseconds > 0:
            self.metrics.throttle_time.add(milliseconds / 1000)
            self.throttled_until = max(self.throttled_until, self._loop.time() + milliseconds / 1000)

    def close(self, reason: str = "it was closed") -> None:
        """Close the connection. Unanswered requests fail with the reason."""
        if self.closed:
            return
        self.closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._stream is not None:
            self.metrics.connection_close_total += 1
            self._stream.close()
        waiting = [*self._in_flight, *self._unanswered]
        self._in_flight.clear()
        self._unanswered.clear()
        self._release()  # they fail, as the connection is closed
        for request in waiting:
            what = f"{api_table.api_name(request.key)}: connection to {self.node.address}"
            request.done(None, NetworkException(f"{what} failed: {reason}"))
        if self.on_close is not None:
            self.on_close(self)

    def _set_timer(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_at = self._loop.call_at(at, self._check_deadlines), at

    def _check_deadlines(self) -> None:
        self._timer, self._timer_at = None, math.inf
        waiting = [*self._in_flight, *self._unanswered]
        if not waiting:
            return
        now = self._loop.time()
        first = min(waiting, key=lambda request: request.deadline)
        if first.deadline > now:
            self._set_timer(first.deadline)
            return
        name = api_table.api_name(first.key)
        (self._unanswered if first in self._unanswered else self._in_flight).remove(first)
        first.done(None, RequestTimedOut(f"{name}: no answer from {self.node.address} in time"))
        self.close(f"{name} was not answered in time")

    def _received(self, frame: Buffer) -> None:
        if self.closed:
            return
        if not self._in_flight:
            raise ValueError("an answer came that nobody asked for")
        request = self._in_flight.popleft()
        correlation_id, start = read_response_header(request.key, request.version, frame)
        if correlation_id != request.correlation_id:
            self._in_flight.appendleft(request)
            raise ValueError(f"answer {correlation_id} came where {request.correlation_id} was due")
        now = self.last_used = self._loop.time()
        metrics = self.metrics
        metrics.response_total += 1
        metrics.incoming_byte_total += len(frame) + 4
        metrics.request_latency.add(now - request.sent)
        request.done(frame[start:], None)

    # Setting up

    async def _connect(self) -> None:
        host, port = self.node.host, self.node.port
        found = await self._loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        error: OSError | None = None
        for family, kind, protocol, _, address in found:
            sock = open_socket(self._loop, family, kind, protocol)
            try:
                sock.setblocking(False)
                self._tune(sock)
                await self._loop.sock_connect(sock, address)
                await self._attach(sock)
                return
            except OSError as failed:
                sock.close()
                error = failed
                if isinstance(failed, ssl.SSLError) and not isinstance(failed, ssl.SSLEOFError):
                    raise SslAuthenticationException(
                        f"TLS with {self.node.address} failed: {failed}"
                    ) from None
            except BaseException:
                sock.close()
                raise
        raise error or OSError("the name has no address")

    def _tune(self, sock: socket.socket) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # The system sizes buffers by the traffic of a connection, better than any fixed size: with Kafka's
        # default of 64 KB fetches took three times the CPU. So only a given size is set.
        for option, size, name in (
            (socket.SO_SNDBUF, self._settings.send_buffer_bytes, "send.buffer.bytes"),
            (socket.SO_RCVBUF, self._settings.receive_buffer_bytes, "receive.buffer.bytes"),
        ):
            if size != -1 and name in self._settings.given:
                sock.setsockopt(socket.SOL_SOCKET, option, size)

    async def _attach(self, sock: socket.socket) -> None:
        context = self._security.context
        if context is None:
            self._stream = PlainStream(self._loop, sock, self._reader, self.close)
            self.metrics.connection_creation_total += 1
            return
        try:
            self._stream = await TlsStream.connect(
                self._loop, sock, context, self.node.host, self._reader, self.close
            )
        except (ConnectionError, ssl.SSLEOFError) as error:
            raise ConnectionResetError(tls_reason(error)) from None
        self.metrics.connection_creation_total += 1

    async def _agree_on_versions(self) -> None:
        request = ApiVersionsRequest(client_software_name="tidelog", client_software_version=__version__)
        self.versions = {api_key(ApiVersionsRequest): ApiVersionsRequest.VERSIONS}
        version = ApiVersionsRequest.VERSIONS.high
        try:
            body = await self._exchange(request, version)
        except NetworkException as error:
            if self._security.context is None and str(error).endswith(CLOSED):
                raise NetworkException(f"{error}; {TLS_HINT}") from None
            raise
        if int.from_bytes(body[:2], "big", signed=True) == UnsupportedVersion.code:
            # A broker that does not support our version answers in version 0, which all brokers support.
            version = 0
            body = await self._exchange(request, version)
        answer, _ = decode(ApiVersionsResponse, version, body)
        if answer.error_code:
            raise error_class(answer.error_code)(f"{self.node.address} refused to name its versions")
        self.versions = {entry.api_key: (entry.min_version, entry.max_version) for entry in answer.api_keys}
        self.features = {entry.name: entry.max_version_level for entry in answer.finalized_features}

    async def _exchange(self, request: Message, version: int, timeout: float | None = None) -> Buffer:
        """Send a request and wait for the bytes of its answer."""
        return await self._exchange_parts(request, version, (request.encode(version),), timeout)

    async def _exchange_parts(
        self, request: Message, version: int, parts: Sequence[Buffer], timeout: float | None
    ) -> Buffer:
        waiter, done = self._waiter()
        self.send(api_key(type(request)), version, parts, done, timeout=timeout)
        return await waiter

    def _waiter(self) -> tuple[asyncio.Future[Buffer], Done]:
        waiter: asyncio.Future[Buffer] = self._loop.create_future()

        def done(body: Buffer | None, error: KafkaError | None) -> None:
            if waiter.done():
                return
            if error is not None or body is None:
                waiter.set_exception(error or NetworkException("no answer"))
            else:
                waiter.set_result(body)

        return waiter, done

    # Logging in

    async def _authenticate(self) -> None:
        security, node = self._security, self.node
        if security.mechanism is None:
            return
        token = await security.token()
        exchange = authentication(security, node.host, node.port, token)
        try:
            request = next(exchange)
            while True:
                request = exchange.send(await self._login_step(request, answer_to(request)))
        except StopIteration as end:
            lifetime: int = end.value
        except (SaslAuthenticationFailed, UnsupportedSaslMechanism):
            self.metrics.failed_authentication_total += 1
            raise
        self.metrics.successful_authentication_total += 1
        after = renewal_after(lifetime)
        self._login_again_at = None if after is None else self._loop.time() + after

    async def _login_step(self, request: Message, answer: type[R]) -> R:
        """As `call`, also while other requests are held."""
        version = self.version_for(type(request))
        waiter, done = self._waiter()
        if self.closed:
            raise NetworkException(f"the connection to {self.node.address} is closed")
        self._write(api_key(type(request)), version, (request.encode(version),), done, None, True)
        try:
            return decode(answer, version, await waiter)[0]
        except ProtocolError as error:
            raise NetworkException(f"{self.node.address} answered the login with: {error}") from None

    def _waits_for_login(self) -> bool:
        """Whether requests are held. Begins to log in again if it is time."""
        if self._held is not None:
            return True
        assert self._login_again_at is not None
        if self._loop.time() < self._login_again_at:
            return False
        self._held = []
        self._login_task = self._loop.create_task(self._log_in_again(), name=f"login {self.node.address}")
        return True

    async def _log_in_again(self) -> None:
        """Renew the session on this connection (KIP-368). The broker answers the requests before it first."""
        try:
            async with asyncio.timeout(self._timeout):
                await self._authenticate()
        except (KafkaError, TimeoutError) as error:
            reason = str(error) or "no answer in time"
            log.warning("the session with %s was not renewed: %s", self.node.address, reason)
            self.close(f"its session was not renewed: {reason}")
        else:
            self._release()

    def _release(self) -> None:
        held, self._held = self._held or (), None
        for send in held:
            send()


async def _encoded_in_slices(request: Message, version: int) -> Sequence[Buffer]:
    parts = await finished(sliced_encoder_for(type(request), version)(request, b""))
    return cast("Sequence[Buffer]", parts)  # no request has file parts
