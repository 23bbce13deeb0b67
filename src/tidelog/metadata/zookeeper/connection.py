"""Connection: one TCP or TLS connection to a ZooKeeper server.

It cuts the stream into frames, numbers the requests, and matches answers with requests: ZooKeeper answers in
the order of the requests. The requests of one turn of the loop are sent together.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from struct import Struct
from typing import Protocol, TypeAlias

from tidelog.metadata.tree import TreeUnavailable
from tidelog.metadata.zookeeper import jute
from tidelog.metadata.zookeeper.jute import ErrorCode, JuteError, Notification, Xid

# A list of a million children has 40 MB. A larger length means that the peer is no ZooKeeper.
MAX_FRAME = 1 << 28
MAX_XID = 0x7FFFFFFF

_LENGTH = Struct(">i")


class Settleable(Protocol):
    """The part of a Future that a request needs."""

    def done(self) -> bool: ...

    def set_exception(self, exception: BaseException, /) -> None: ...


@dataclass(slots=True, eq=False)
class Request:
    """A call that waits for its answer.

    `answer` gets the error code and the frame. When `future` is done, the answer is ignored.
    """

    path: str
    payload: bytes
    repeatable: bool
    """Whether it may be sent again after a lost connection, because it changes nothing the second time."""

    future: Settleable
    answer: Callable[[int, bytes], None]

    def fail(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)

    def measure(self, clock: Callable[[], float], note: Callable[[float], None]) -> None:
        """Call `note` with the seconds from now to the answer."""
        began, answer = clock(), self.answer

        def measured(code: int, frame: bytes) -> None:
            note(clock() - began)
            answer(code, frame)

        self.answer = measured


class ConnectionListener(Protocol):
    """Called by the connection, in the order of the bytes."""

    def on_notification(self, notification: Notification) -> None: ...

    def on_control_answer(self, xid: int, code: int) -> None:
        """An answer to a request of the session itself: Xid.AUTH or Xid.SET_WATCHES."""

    def on_lost(self, reason: str) -> None:
        """The connection ended after its handshake, without a call of `close` or `abort`."""


OpenConnection: TypeAlias = Callable[
    [tuple[str, int], ssl.SSLContext | None, ConnectionListener], "Awaitable[Connection]"
]
"""Connects to an address, as `Connection.open` does. A simulation has another one."""


class Connection(asyncio.Protocol):
    """`await Connection.open(...)`, then `handshake`, then `send`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, listener: ConnectionListener) -> None:
        self.pending: deque[tuple[int, Request]] = deque()
        self.last_zxid = 0
        """The number of the last change that the server had made before its last answer."""
        self.last_received = self.last_sent = loop.time()
        self.closed = False
        self._loop = loop
        self._listener = listener
        self._transport: asyncio.Transport | None = None
        self._handshake: asyncio.Future[jute.ConnectResponse] | None = None
        self._received = b""
        self._outgoing: list[bytes] = []
        self._xid = 0

    @classmethod
    async def open(
        cls, address: tuple[str, int], tls: ssl.SSLContext | None, listener: ConnectionListener
    ) -> Connection:
        """Connect and do the TLS handshake. Raises OSError."""
        loop = asyncio.get_running_loop()
        host, port = address
        _, connection = await loop.create_connection(lambda: cls(loop, listener), host, port, ssl=tls)
        return connection

    async def handshake(self, request: bytes) -> jute.ConnectResponse:
        """Send a ConnectRequest and return its answer. Raises ConnectionError if the connection ends."""
        if self.closed:
            raise ConnectionResetError("the server closed the connection")
        self._handshake = self._loop.create_future()
        self._write(jute.framed(request))
        return await self._handshake

    def send(self, request: Request) -> None:
        self._xid = self._xid + 1 if self._xid < MAX_XID else 1
        self.pending.append((self._xid, request))
        self._write(jute.framed_request(self._xid, request.payload))

    def send_control(self, xid: Xid, payload: bytes) -> None:
        self._write(jute.framed_request(xid, payload))

    def close(self) -> None:
        """End the connection when all requests are sent. Unanswered requests stay in `pending`."""
        if not self.closed:
            self._flush()
            self.closed = True
            if self._transport is not None:
                self._transport.close()

    def abort(self, reason: str = "the connection was closed") -> None:
        """End the connection at once."""
        self.closed = True
        self._outgoing.clear()
        if self._transport is not None:
            self._transport.abort()
        if self._handshake is not None and not self._handshake.done():
            self._handshake.set_exception(ConnectionResetError(reason))

    # --- sending

    def _write(self, frame: bytes) -> None:
        if not self._outgoing:
            self._loop.call_soon(self._flush)
        self._outgoing.append(frame)

    def _flush(self) -> None:
        if self._outgoing and self._transport is not None:
            self._transport.write(b"".join(self._outgoing))
            self._outgoing.clear()
            self.last_sent = self._loop.time()

    # --- receiving

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self._end("the server closed the connection" if exc is None else str(exc))

    def data_received(self, data: bytes) -> None:
        self.last_received = self._loop.time()
        received = self._received + data if self._received else data
        at, size = 0, len(received)
        try:
            while size - at >= 4:
                (length,) = _LENGTH.unpack_from(received, at)
                if not 0 <= length <= MAX_FRAME:
                    raise JuteError(f"a frame claims {length} bytes: the server is no ZooKeeper")
                end = at + 4 + length
                if end > size:
                    break
                self._frame(received[at + 4 : end])
                at = end
                if self.closed:
                    return
        except ValueError as error:  # JuteError, or text that is no UTF-8
            self._end(str(error))
            return
        self._received = received[at:]

    def _frame(self, frame: bytes) -> None:
        if self._handshake is not None:
            handshake, self._handshake = self._handshake, None
            response = jute.read_connect_response(frame)
            if not handshake.done():
                handshake.set_result(response)
            return
        xid, zxid, code = jute.read_header(frame)
        if xid > 0:
            if not self.pending or self.pending[0][0] != xid:
                raise JuteError(f"an answer has xid {xid}, which is not the next one")
            if code in (ErrorCode.SESSION_EXPIRED, ErrorCode.SESSION_MOVED):
                raise JuteError(f"the session is not served here any longer (code {code})")
            if zxid > 0:
                self.last_zxid = zxid
            _, request = self.pending.popleft()
            self._answer(request, code, frame)
        elif xid == Xid.NOTIFICATION:
            self._listener.on_notification(jute.read_notification(frame))
        elif xid != Xid.PING:
            self._listener.on_control_answer(xid, code)

    def _answer(self, request: Request, code: int, frame: bytes) -> None:
        if request.future.done():
            return
        try:
            request.answer(code, frame)
        except ValueError as error:
            request.fail(TreeUnavailable(request.path, f"{request.path}: the answer is malformed: {error}"))
            raise

    def _end(self, reason: str) -> None:
        if self.closed:
            return
        greeted = self._handshake is None
        self.abort(reason)
        if greeted:
            self._listener.on_lost(reason)
