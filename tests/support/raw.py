"""Any message, and any bytes, to an address; and what comes back, without a client's opinions in between."""

from __future__ import annotations

import importlib
import re
import socket
import struct
import time
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar, cast

from tests.support import secure
from tidelog.clients.connection import answer_body, request_frame
from tidelog.protocol.json import Json, from_json, to_json
from tidelog.protocol.message import Message

if TYPE_CHECKING:
    from tidelog.clients.security import Security

R = TypeVar("R", bound=Message)


class ConnectionClosed(Exception):
    """The peer closed the connection instead of answering."""


class NoAnswer(Exception):
    """Nothing came within the time-out; the connection is still open."""


def message_class(name: str) -> type[Message]:
    """`MetadataRequest` and the like by name."""
    api = re.sub(r"(Request|Response)$", "", name)
    module = re.sub(r"(?<!^)(?=[A-Z])", "_", api).lower()
    return cast(
        "type[Message]", getattr(importlib.import_module(f"tidelog.protocol.messages.{module}"), name)
    )


class RawConnection:
    def __init__(
        self,
        address: tuple[str, int] | str,
        *,
        client_id: str | None = "raw",
        timeout: float = 10.0,
        security: Security | None = None,
    ) -> None:
        """`security` is the login at a broker with security; without it the user `client` logs in."""
        if isinstance(address, str):
            host, _, port = address.rpartition(":")
            address = (host, int(port))
        self.address = address
        self.client_id = client_id
        self.timeout = timeout
        self.socket = socket.create_connection(address, timeout)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._correlation_id = 0
        self._received = bytearray()
        if secure.is_secured_address(f"{address[0]}:{address[1]}"):
            self._log_in(security or secure.client_security())

    def _log_in(self, security: Security) -> None:
        from tidelog.clients.security import answer_to, authentication

        try:
            self.socket = secure.encrypted(self.socket, self.address[0], security)
            exchange = authentication(security, *self.address, None)
            request = next(exchange)
            while True:
                request = exchange.send(self.ask(request, answer_to(request), 1))
        except StopIteration:
            return
        except BaseException:
            self.close()
            raise

    def call(self, request: Message, version: int, timeout: float | None = None) -> Message:
        """The answer to a request, as a message of the same version."""
        self.send(request, version)
        return self.receive(type(request), version, timeout)

    def ask(self, request: Message, answer: type[R], version: int, timeout: float | None = None) -> R:
        """The answer as a message of the type that is expected."""
        found = self.call(request, version, timeout)
        assert isinstance(found, answer)
        return found

    def call_json(
        self, api: str, version: int, request: dict[str, Json], timeout: float | None = None
    ) -> dict[str, Json]:
        """A request and its answer as JSON, by the API's name."""
        message = from_json(message_class(f"{api}Request"), version, request)
        return to_json(self.call(message, version, timeout), version)

    def send(self, request: Message, version: int) -> int:
        """Send without waiting; the correlation id."""
        self._correlation_id += 1
        self.send_bytes(request_frame(request, version, self._correlation_id, self.client_id))
        return self._correlation_id

    def send_bytes(self, data: bytes) -> None:
        try:
            self.socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise ConnectionClosed(str(error)) from None

    def send_frame(self, payload: bytes) -> None:
        """Any payload with its right length before it."""
        self.send_bytes(struct.pack(">i", len(payload)) + payload)

    def receive(self, request: type[Message], version: int, timeout: float | None = None) -> Message:
        frame = self.receive_frame(timeout)
        response = message_class(request.__name__.removesuffix("Request") + "Response")
        if response.__name__ == "ApiVersionsResponse" and frame[4:6] == struct.pack(">h", 35):
            version = 0  # a version that the broker does not know is refused in the oldest one
        return response.decode(answer_body(request, version, frame), version)

    def receive_frame(self, timeout: float | None = None) -> bytes:
        """The next answer with its header, without its length."""
        deadline = time.monotonic() + (self.timeout if timeout is None else timeout)
        (size,) = struct.unpack(">i", self._receive_exactly(4, deadline))
        return self._receive_exactly(size, deadline)

    def is_closed_by_peer(self, timeout: float = 5.0) -> bool:
        """Whether the peer closes the connection within the time-out without sending anything more."""
        try:
            self.receive_frame(timeout)
        except ConnectionClosed:
            return True
        except NoAnswer:
            return False
        return False

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _receive_exactly(self, size: int, deadline: float) -> bytes:
        while len(self._received) < size:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise NoAnswer
            self.socket.settimeout(remaining)
            try:
                part = self.socket.recv(1 << 20)
            except TimeoutError:
                raise NoAnswer from None
            except ConnectionResetError as error:
                raise ConnectionClosed(str(error)) from None
            if not part:
                raise ConnectionClosed("end of stream")
            self._received += part
        taken = bytes(self._received[:size])
        del self._received[:size]
        return taken
