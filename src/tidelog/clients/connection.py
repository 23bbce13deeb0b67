"""One blocking connection to a broker: negotiates API versions, authenticates, sends requests.

Every wait has a time limit. If a broker does not answer in time, the call raises and the connection is
closed, because a late answer would be taken for the answer to the next request.
"""

from __future__ import annotations

import os
import socket
import ssl
import struct
import time
from collections import deque
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar

from tidelog import __version__
from tidelog.errors import KafkaError, NetworkException, RequestTimedOut, UnsupportedVersion, error_class
from tidelog.protocol.headers import read_response_header, request_header
from tidelog.protocol.message import Message
from tidelog.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from tidelog.protocol.wire import Buffer, ProtocolError
from tidelog.records.loops import Block

if TYPE_CHECKING:
    from tidelog.clients.security import Security

R = TypeVar("R", bound=Message)

# Larger than any answer to an admin request. A larger length means that the peer is no Kafka broker.
MAX_ANSWER_BYTES = 512 * 1024 * 1024

CLOSED = "the broker closed it"
"""The reason of a connection that ended without an error of the system."""

_LENGTH = struct.Struct(">i")
_TIME_LIMIT = struct.Struct("ll")  # seconds and microseconds, as in struct timeval
_UNSUPPORTED = struct.pack(">h", UnsupportedVersion.code)


def api_key(request: type[Message]) -> int:
    if request.KEY is None:
        raise TypeError(f"{request.__name__} is no request")
    return request.KEY


def api_name(request: type[Message]) -> str:
    """The name of an API in Kafka's documentation: the name of its request without "Request"."""
    return request.__name__.removesuffix("Request")


def agreed_version(
    request: type[Message], served: Mapping[int, tuple[int, int]], address: str, at_most: int | None = None
) -> int:
    """The newest version of a request that both sides support, up to `at_most`."""
    key, ours = api_key(request), request.VERSIONS
    if key not in served:
        raise UnsupportedVersion(f"the broker {address} does not serve {api_name(request)}")
    lowest, highest = served[key]
    newest = ours.high if at_most is None else min(at_most, ours.high)
    version = min(highest, newest)
    if version < max(lowest, ours.low):
        raise UnsupportedVersion(
            f"{api_name(request)}: the broker {address} speaks versions {lowest} to {highest}, "
            f"we speak {ours.low} to {newest}"
        )
    return version


def request_frame(request: Message, version: int, correlation_id: int, client_id: str | None) -> bytes:
    """The bytes of a request, with its length first."""
    header = request_header(api_key(type(request)), version, correlation_id, client_id)
    frame = request.encode(version, header)
    return _LENGTH.pack(len(frame)) + frame


def answer_body(request: type[Message], version: int, frame: bytes) -> bytes:
    """The bytes after the header of an answer."""
    _, start = read_response_header(api_key(request), version, frame)
    return frame[start:]


def split_address(address: str) -> tuple[str, int]:
    """Host and port of `host:port` or `[host]:port`."""
    host, colon, port = address.strip().rpartition(":")
    if not colon or not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(f"broker address {address!r}: expected host:port, such as localhost:9092")
    return host.strip("[]"), int(port)


class Connection:
    """`with Connection(host, port) as broker: broker.call(MetadataRequest(...), MetadataResponse)`.

    The caller can send the next request before it uses an answer: `send`, then `receive` in the same order.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        client_id: str | None = "tidelog",
        connect_timeout: float = 10.0,
        request_timeout: float = 30.0,
        receive_buffer: int | None = None,
        security: Security | None = None,
    ) -> None:
        self.host = host
        self.port = port
        self.address = f"{host}:{port}"
        self.client_id = client_id
        self.request_timeout = request_timeout
        self.versions: dict[int, tuple[int, int]] = {}
        self._correlation_id = 0
        self._waiting: deque[tuple[int, type[Message], int, float]] = deque()
        """Correlation id, API, version and time limit of each unanswered request."""
        self._answers: deque[Buffer] = deque()
        """Answers that came before their `receive`, because of a new login."""
        self._security = security
        self._login_again_at: float | None = None
        try:
            self._socket = socket.create_connection((host, port), connect_timeout)
        except OSError as error:
            raise self._unreachable(error) from None
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if receive_buffer is not None:
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
            context = None if security is None else security.context
            self._encrypted = context is not None
            if context is not None:
                self._encrypt(context)
            else:
                # The socket's own time limits keep it blocking: one call waits for a whole answer.
                self._socket.settimeout(None)
            self._agree_on_versions()
            if security is not None:
                self._authenticate(security)
        except BaseException:
            self.close()
            raise

    def call(
        self, request: Message, answer: type[R], *, version: int | None = None, timeout: float | None = None
    ) -> R:
        """Send a request in the newest version that both sides support, and wait for its answer."""
        agreed = self.version_for(type(request)) if version is None else version
        body = self._exchange(request, agreed, timeout)
        try:
            return answer.decode(body, agreed)
        except ProtocolError as error:
            self.close()
            raise NetworkException(f"{api_name(type(request))}: {self.address} answered: {error}") from None

    def send(self, request: Message, version: int, timeout: float | None = None) -> None:
        """Send a request. `timeout` also applies to `receive` of its answer."""
        if self._login_again_at is not None and time.monotonic() >= self._login_again_at:
            self._log_in_again()
        api = type(request)
        self._correlation_id = self._correlation_id + 1 & 0x7FFFFFFF
        limit = self.request_timeout if timeout is None else timeout
        self._waiting.append((self._correlation_id, api, version, limit))
        try:
            self._limit(limit)
            self._socket.sendall(request_frame(request, version, self._correlation_id, self.client_id))
        except OSError as error:
            raise self._broken(api, error) from None

    def receive(self) -> Buffer:
        """The body of the answer to the oldest unanswered request."""
        return self._answers.popleft() if self._answers else self._receive()

    def _receive(self) -> Buffer:
        expected, api, version, limit = self._waiting.popleft()
        deadline = time.monotonic() + limit
        try:
            (size,) = _LENGTH.unpack(self._read_exactly(_LENGTH.size, deadline))
            if not _LENGTH.size <= size <= MAX_ANSWER_BYTES:
                raise OSError(f"the answer claims a length of {size} bytes, so this is no Kafka broker")
            frame = self._read_exactly(size, deadline)
            correlation_id, start = read_response_header(api_key(api), version, frame)
            if correlation_id != expected:
                raise OSError(f"answer {correlation_id} came where {expected} was due")
        except (OSError, ProtocolError) as error:
            raise self._broken(api, error) from None
        return frame[start:]

    def serves(self, request: type[Message]) -> bool:
        return request.KEY in self.versions

    def version_for(self, request: type[Message], at_most: int | None = None) -> int:
        """The newest version of a request that both sides support, up to `at_most`."""
        return agreed_version(request, self.versions, self.address, at_most)

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _agree_on_versions(self) -> None:
        request = ApiVersionsRequest(client_software_name="tidelog", client_software_version=__version__)
        version = ApiVersionsRequest.VERSIONS.high
        body = self._exchange(request, version)
        if body[:2] == _UNSUPPORTED:
            # A broker that does not support our version answers in version 0, which all brokers support.
            version = 0
            body = self._exchange(request, version)
        answer = ApiVersionsResponse.decode(body, version)
        if answer.error_code:
            raise error_class(answer.error_code)(f"{self.address} refused to name its versions")
        self.versions = {api.api_key: (api.min_version, api.max_version) for api in answer.api_keys}

    def _encrypt(self, context: ssl.SSLContext) -> None:
        from tidelog.clients.errors import SslAuthenticationException

        try:
            self._socket = context.wrap_socket(self._socket, server_hostname=self.host)
        except (ssl.SSLEOFError, ConnectionError) as error:
            raise NetworkException(f"cannot connect to {self.address}: {tls_reason(error)}") from None
        except ssl.SSLError as error:
            raise SslAuthenticationException(f"TLS with {self.address} failed: {error}") from None
        except OSError as error:
            raise self._unreachable(error) from None

    def _authenticate(self, security: Security) -> None:
        from tidelog.clients.security import answer_to, authentication, renewal_after

        exchange = authentication(security, self.host, self.port, security.token_now())
        self._login_again_at = None
        try:
            request = next(exchange)
            while True:
                request = exchange.send(self.call(request, answer_to(request)))
        except StopIteration as end:
            after = renewal_after(end.value)
            self._login_again_at = None if after is None else time.monotonic() + after

    def _log_in_again(self) -> None:
        """Renew the session (KIP-368), behind the answers to earlier requests."""
        assert self._security is not None
        self._answers.extend([self._receive() for _ in range(len(self._waiting))])
        waiting, self._answers = self._answers, deque()
        try:
            self._authenticate(self._security)
        finally:
            self._answers = waiting

    def _exchange(self, request: Message, version: int, timeout: float | None = None) -> bytes:
        """The body of the answer to a request."""
        self.send(request, version, timeout)
        return bytes(self.receive())

    def _read_exactly(self, size: int, deadline: float) -> memoryview:
        view = memoryview(Block(size))
        done = 0
        # A plain socket waits for all bytes in one system call; TLS returns them in pieces.
        flags = 0 if self._encrypted else socket.MSG_WAITALL
        while done < size:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise TimeoutError
            self._limit(remaining)
            count = self._socket.recv_into(view[done:], size - done, flags)
            if not count:
                raise OSError(CLOSED)
            done += count
        return view

    def _limit(self, seconds: float) -> None:
        """Set the time limit of the next call of the socket."""
        if self._encrypted:
            self._socket.settimeout(max(0.001, seconds))
            return
        whole, rest = divmod(max(1000, round(seconds * 1e6)), 1_000_000)
        limit = _TIME_LIMIT.pack(whole, rest)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)

    def _unreachable(self, error: OSError) -> KafkaError:
        return NetworkException(f"cannot connect to {self.address}: {reason_of(error)}")

    def _broken(self, api: type[Message], error: OSError | ProtocolError) -> KafkaError:
        self.close()
        if isinstance(error, BlockingIOError | TimeoutError):
            return RequestTimedOut(f"{api_name(api)}: no answer from {self.address} in time")
        if isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError) and not self.versions:
            from tidelog.clients.errors import SslAuthenticationException

            # In TLS 1.3 a refused certificate shows only after the handshake.
            return SslAuthenticationException(f"TLS with {self.address} failed: {error}")
        return NetworkException(f"{api_name(api)}: connection to {self.address} failed: {reason_of(error)}")


def reason_of(error: OSError | ProtocolError) -> str:
    """The reason of a failed system call, in the system's words."""
    if not isinstance(error, OSError):
        return str(error)
    if isinstance(error, ssl.SSLError):  # its number is no number of the system
        return CLOSED if isinstance(error, ssl.SSLEOFError) else str(error)
    number = error.errno or 0
    words = os.strerror(number) if number > 0 else error.strerror or str(error)
    return words or CLOSED


def tls_reason(error: OSError) -> str:
    """The reason why a TLS handshake failed. A broker that hangs up is seldom a problem of the network."""
    if isinstance(error, ConnectionError | ssl.SSLEOFError) or not error.args:
        return "the broker ended the TLS handshake; the port may be one without TLS (security.protocol)"
    return reason_of(error)
