"""One blocking connection to a broker: versions are agreed upon, a request goes out, its answer comes back.

Every wait has an end: a broker that does not answer in time raises, and the connection is closed, because
an answer that comes later would be taken for that of the next request.
"""

from __future__ import annotations

import socket
import ssl
import struct
import time
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar

from tidelog import __version__
from tidelog.errors import NetworkException, RequestTimedOut, UnsupportedVersion, error_class
from tidelog.protocol.message import Message
from tidelog.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from tidelog.protocol.wire import read_uvarint

if TYPE_CHECKING:
    from tidelog.clients.security import Security

R = TypeVar("R", bound=Message)

# Larger than any answer to an administrative question; a length beyond it means that no broker is speaking.
MAX_ANSWER_BYTES = 512 * 1024 * 1024

_REQUEST_HEADER = struct.Struct(">hhih")
_CORRELATION_ID = struct.Struct(">i")
_LENGTH = struct.Struct(">i")
_UNSUPPORTED = struct.pack(">h", UnsupportedVersion.code)


def api_key(request: type[Message]) -> int:
    if request.KEY is None:
        raise TypeError(f"{request.__name__} is no request")
    return request.KEY


def api_name(request: type[Message]) -> str:
    """The name of an API as Kafka's documentation has it: that of its request, without the last word."""
    return request.__name__.removesuffix("Request")


def agreed_version(
    request: type[Message], served: Mapping[int, tuple[int, int]], address: str, at_most: int | None = None
) -> int:
    """The newest version of a request that both sides speak, and that is no newer than `at_most`."""
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
    """A whole request as it goes over the wire, its length first."""
    name = None if client_id is None else client_id.encode()
    fixed = _REQUEST_HEADER.pack(
        api_key(type(request)), version, correlation_id, -1 if name is None else len(name)
    )
    tags = b"\x00" if type(request).FLEXIBLE.has(version) else b""
    frame = request.encode(version, fixed + (name or b"") + tags)
    return _LENGTH.pack(len(frame)) + frame


def answer_body(request: type[Message], version: int, frame: bytes) -> bytes:
    """What follows the header of an answer: its correlation id and, in flexible versions, tagged fields."""
    position = _CORRELATION_ID.size
    # The answer to ApiVersions has no tags in its header, so that any client can read it.
    if not request.FLEXIBLE.has(version) or request is ApiVersionsRequest:
        return frame[position:]
    count, position = read_uvarint(frame, position)
    for _ in range(count):
        _tag, position = read_uvarint(frame, position)
        size, position = read_uvarint(frame, position)
        position += size
    return frame[position:]


def split_address(address: str) -> tuple[str, int]:
    """Host and port of `host:port` or `[host]:port`."""
    host, colon, port = address.strip().rpartition(":")
    if not colon or not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(f"broker address {address!r}: expected host:port, such as localhost:9092")
    return host.strip("[]"), int(port)


class Connection:
    """`with Connection(host, port) as broker: broker.call(MetadataRequest(...), MetadataResponse)`."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        client_id: str = "tidelog",
        connect_timeout: float = 10.0,
        request_timeout: float = 30.0,
        security: Security | None = None,
    ) -> None:
        self.host = host
        self.port = port
        self.client_id = client_id
        self.request_timeout = request_timeout
        self.versions: dict[int, tuple[int, int]] = {}
        self._correlation_id = 0
        try:
            self._socket = socket.create_connection((host, port), connect_timeout)
        except OSError as error:
            raise NetworkException(f"cannot connect to {host}:{port}: {error.strerror or error}") from None
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            if security is not None and security.context is not None:
                self._encrypt(security.context)
            self._agree_on_versions()
            if security is not None:
                self._authenticate(security)
        except BaseException:
            self.close()
            raise

    def call(
        self, request: Message, answer: type[R], *, version: int | None = None, timeout: float | None = None
    ) -> R:
        """Send a request and wait for its answer, at the newest version that both sides speak."""
        agreed = self.version_for(type(request)) if version is None else version
        return answer.decode(self._exchange(request, agreed, timeout), agreed)

    def serves(self, request: type[Message]) -> bool:
        return request.KEY in self.versions

    def version_for(self, request: type[Message]) -> int:
        """The newest version of a request that both sides speak."""
        return agreed_version(request, self.versions, f"{self.host}:{self.port}")

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
        body = self._exchange(request, version, None)
        if body[:2] == _UNSUPPORTED:
            # A broker that does not know our version says so in version 0, which every broker speaks.
            version = 0
            body = self._exchange(request, version, None)
        answer = ApiVersionsResponse.decode(body, version)
        if answer.error_code:
            raise error_class(answer.error_code)(f"{self.host}:{self.port} refused to name its versions")
        self.versions = {api.api_key: (api.min_version, api.max_version) for api in answer.api_keys}

    def _encrypt(self, context: ssl.SSLContext) -> None:
        from tidelog.clients.errors import TlsFailed

        try:
            self._socket = context.wrap_socket(self._socket, server_hostname=self.host)
        except ssl.SSLError as error:
            raise TlsFailed(f"TLS with {self.host}:{self.port} failed: {error}") from None
        except OSError as error:
            reason = error.strerror or error
            raise NetworkException(f"cannot connect to {self.host}:{self.port}: {reason}") from None

    def _authenticate(self, security: Security) -> None:
        from tidelog.clients.security import answer_to, authentication

        exchange = authentication(security, f"{self.host}:{self.port}")
        try:
            request = next(exchange)
            while True:
                request = exchange.send(self.call(request, answer_to(request)))
        except StopIteration:
            pass  # how long the session lasts does not matter to a tool

    def _exchange(self, request: Message, version: int, timeout: float | None) -> bytes:
        """The body of the answer to a request."""
        api = type(request)
        self._correlation_id += 1
        deadline = time.monotonic() + (self.request_timeout if timeout is None else timeout)
        try:
            self._socket.settimeout(max(0.001, deadline - time.monotonic()))
            self._socket.sendall(request_frame(request, version, self._correlation_id, self.client_id))
            frame = self._read_answer(deadline)
        except TimeoutError:
            self.close()
            raise RequestTimedOut(
                f"{api_name(api)}: no answer from {self.host}:{self.port} in time"
            ) from None
        except OSError as error:
            self.close()
            raise NetworkException(
                f"{api_name(api)}: connection to {self.host}:{self.port} failed: {error.strerror or error}"
            ) from None
        return answer_body(api, version, frame)

    def _read_answer(self, deadline: float) -> bytes:
        (size,) = _LENGTH.unpack(self._read_exactly(_LENGTH.size, deadline))
        if not _CORRELATION_ID.size <= size <= MAX_ANSWER_BYTES:
            raise OSError(f"the answer claims a length of {size} bytes, so this is no Kafka broker")
        frame = self._read_exactly(size, deadline)
        (correlation_id,) = _CORRELATION_ID.unpack_from(frame)
        if correlation_id != self._correlation_id:
            raise OSError(f"answer {correlation_id} came where {self._correlation_id} was due")
        return frame

    def _read_exactly(self, size: int, deadline: float) -> bytes:
        parts = bytearray()
        while len(parts) < size:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise TimeoutError
            self._socket.settimeout(remaining)
            part = self._socket.recv(min(size - len(parts), 1 << 20))
            if not part:
                raise OSError("the broker closed it")
            parts += part
        return bytes(parts)
