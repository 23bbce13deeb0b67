"""The byte stream of a connection: cuts frames out of the received bytes, and sends parts without joining
them.

Plain sockets are read and written directly on the loop, which costs less than asyncio's transports. TLS uses
the transports.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol, cast

from tidelog.clients.connection import CLOSED
from tidelog.protocol.wire import Buffer
from tidelog.records.loops import Block

# Larger than any answer. A larger length means that the peer is no Kafka broker.
MAX_FRAME_BYTES = 1 << 30
SMALL_FRAMES = 64 * 1024
# For a large frame the system collects this many bytes before it wakes us, instead of a few packets.
GATHERED = 1 << 20
MAX_PARTS = 512  # the system accepts 1024 at a time
LOOK_AGAIN_SECONDS = 0.005

_LENGTH = struct.Struct(">i")


def open_socket(loop: asyncio.AbstractEventLoop, family: int, kind: int, protocol: int) -> socket.socket:
    """A socket of the system, or of the loop if that has sockets of its own."""
    made: socket.socket = getattr(loop, "open_socket", socket.socket)(family, kind, protocol)
    return made


class FrameReader:
    """Cuts frames out of a stream. `deliver` gets each frame without its length.

    Small frames share a buffer and are copied out of it. A large frame is received into its own buffer.
    """

    __slots__ = ("_deliver", "_filled", "_have", "_large", "_shared", "_view")

    def __init__(self, deliver: Callable[[Buffer], None]) -> None:
        self._deliver = deliver
        self._shared = bytearray(SMALL_FRAMES)
        self._view = memoryview(self._shared)
        self._have = 0
        self._large: memoryview | None = None
        self._filled = 0

    @property
    def missing(self) -> int:
        """The bytes that a large frame still lacks; 0 if none has begun."""
        return 0 if self._large is None else len(self._large) - self._filled

    def get_buffer(self, hint: int) -> memoryview:
        """The buffer for the next bytes."""
        if self._large is not None:
            return self._large[self._filled :]
        return self._view[self._have :]

    def buffer_updated(self, count: int) -> None:
        """Process `count` received bytes. Raises ValueError if they are no frames."""
        if self._large is not None:
            self._filled += count
            if self._filled == len(self._large):
                whole, self._large = self._large, None
                self._deliver(whole)
            return
        have, position, view = self._have + count, 0, self._view
        while have - position >= 4:
            (size,) = _LENGTH.unpack_from(view, position)
            if not 4 <= size <= MAX_FRAME_BYTES:
                raise ValueError(f"it claims a length of {size} bytes, so no Kafka broker is speaking")
            end = position + 4 + size
            if end > have:
                if size + 4 > SMALL_FRAMES:
                    self._large = memoryview(Block(size))
                    self._filled = have - position - 4
                    self._large[: self._filled] = view[position + 4 : have]
                    position = have
                break
            self._deliver(bytes(view[position + 4 : end]))
            position = end
        rest = have - position
        if rest and position:
            self._shared[:rest] = self._shared[position:have]
        self._have = rest


Drained = Callable[[], object]


class Stream(Protocol):
    def write(self, parts: Sequence[Buffer], drained: Drained | None = None) -> None:
        """Send the parts one after the other, now or as soon as the peer accepts them.

        `drained` is called later, once the system has all written bytes, and never after close.
        """

    def close(self) -> None: ...


class DirectLoop(Protocol):
    """The loop of a broker: its poll calls descriptors itself, which costs less than asyncio's handles."""

    def register(self, fd: int, on_event: Callable[[int], None], mask: int) -> None: ...

    def modify(self, fd: int, mask: int) -> None: ...

    def unregister(self, fd: int) -> None: ...


READ, WRITE = 1, 4
"""EPOLLIN and EPOLLOUT, which only Linux has."""


class PlainStream:
    """A socket on the loop. `lost` is called once, with the reason, if it ends without a call of close."""

    __slots__ = (
        "_closed",
        "_direct",
        "_drained",
        "_gathered",
        "_loop",
        "_lost",
        "_queue",
        "_reader",
        "_socket",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        reader: FrameReader,
        lost: Callable[[str], None],
    ) -> None:
        self._loop = loop
        self._socket = sock
        self._reader = reader
        self._lost = lost
        self._queue: deque[memoryview] = deque()
        self._drained: list[Drained] = []
        self._closed = False
        self._gathered = 1
        self._direct = cast("DirectLoop", loop) if hasattr(loop, "register") else None
        if self._direct is not None:
            self._direct.register(sock.fileno(), self._on_event, READ)
        else:
            loop.add_reader(sock.fileno(), self._readable)

    def write(self, parts: Sequence[Buffer], drained: Drained | None = None) -> None:
        if self._closed:
            return
        idle = not self._queue
        if idle and drained is None and len(parts) == 1:
            self._send_one(parts[0])
            return
        self._queue.extend(memoryview(part) for part in parts if len(part))
        if drained is not None:
            self._drained.append(drained)
        if idle:
            self._send()
            self._await_writable()

    def _send_one(self, data: Buffer) -> None:
        """Send a small request, which is one part."""
        try:
            sent = self._socket.send(data)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError as error:
            self._end(error.strerror or str(error))
            return
        if sent < len(data):
            self._queue.append(memoryview(data)[sent:])
            self._await_writable()

    def _await_writable(self) -> None:
        if not self._queue or self._closed:
            return
        if self._direct is not None:
            self._direct.modify(self._socket.fileno(), READ | WRITE)
        else:
            self._loop.add_writer(self._socket.fileno(), self._writable)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._direct is not None:
            self._direct.unregister(self._socket.fileno())
        else:
            self._loop.remove_reader(self._socket.fileno())
            self._loop.remove_writer(self._socket.fileno())
        self._queue.clear()
        self._drained.clear()
        self._socket.close()

    def _send(self) -> None:
        queue = self._queue
        try:
            while queue:
                if len(queue) <= MAX_PARTS:
                    sent = self._socket.sendmsg(queue)
                else:
                    sent = self._socket.sendmsg([queue[index] for index in range(MAX_PARTS)])
                while queue and len(queue[0]) <= sent:
                    sent -= len(queue.popleft())
                if sent:
                    queue[0] = queue[0][sent:]
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._end(error.strerror or str(error))
            return
        if self._drained:
            called, self._drained = self._drained, []
            for drained in called:
                self._loop.call_soon(drained)

    def _on_event(self, mask: int) -> None:
        """The broker's loop found the socket ready, or its peer gone, which the next receive says."""
        if mask & WRITE and self._queue:
            self._writable()
        if mask != WRITE and not self._closed:
            self._readable()

    def _writable(self) -> None:
        self._send()
        if self._queue or self._closed:
            return
        if self._direct is not None:
            self._direct.modify(self._socket.fileno(), READ)
        else:
            self._loop.remove_writer(self._socket.fileno())

    def _readable(self) -> None:
        try:
            count = self._socket.recv_into(self._reader.get_buffer(-1))
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._end(error.strerror or str(error))
            return
        if count == 0:
            self._end(CLOSED)
            return
        if count == self._reader.missing:
            self._gather(1)  # before the delivery, which may wake a thread that wants to run then
        try:
            self._reader.buffer_updated(count)
        except ValueError as error:
            self._end(str(error))
            return
        missing = self._reader.missing
        if (missing or self._gathered != 1) and not self._closed:
            self._gather(min(missing, GATHERED) or 1)

    def _gather(self, wanted: int) -> None:
        """Wake us only when this many bytes have arrived."""
        if wanted != self._gathered:
            self._gathered = wanted
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, wanted)

    def _end(self, reason: str) -> None:
        if not self._closed:
            self.close()
            self._lost(reason)


class TlsStream(asyncio.BufferedProtocol):
    """A stream over asyncio's TLS transport."""

    def __init__(self, reader: FrameReader, lost: Callable[[str], None]) -> None:
        self._reader = reader
        self._lost = lost
        self._transport: asyncio.Transport | None = None
        self._beneath: asyncio.Transport | None = None
        self._drained: list[Drained] = []
        self._closed = True
        self.alert: ssl.SSLError | None = None
        """The alert that ended the stream. In TLS 1.3 a refused certificate shows after the handshake."""

    @classmethod
    async def connect(
        cls,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        context: ssl.SSLContext,
        host: str,
        reader: FrameReader,
        lost: Callable[[str], None],
    ) -> TlsStream:
        """Do the TLS handshake over a connected socket."""
        beneath, stream = await loop.create_connection(lambda: cls(reader, lost), sock=sock)
        transport = await loop.start_tls(beneath, stream, context, server_hostname=host)
        if transport is None or transport.is_closing():
            raise ConnectionResetError(CLOSED)
        stream._transport, stream._beneath = transport, beneath
        stream._closed = False
        return stream

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reader.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        try:
            self._reader.buffer_updated(nbytes)
        except ValueError as error:
            self._end(str(error))

    def connection_lost(self, exc: Exception | None) -> None:
        if isinstance(exc, ssl.SSLError) and not isinstance(exc, ssl.SSLEOFError):
            self.alert = exc
        self._end(CLOSED if exc is None else str(exc))

    def write(self, parts: Sequence[Buffer], drained: Drained | None = None) -> None:
        if self._transport is None or self._closed:
            return
        self._transport.writelines(parts)
        if drained is not None:
            self._drained.append(drained)
            if len(self._drained) == 1:
                asyncio.get_running_loop().call_soon(self._look_whether_drained)

    def _look_whether_drained(self) -> None:
        """Check whether the socket has taken everything: asyncio has no event for that."""
        if self._closed or self._transport is None or self._beneath is None:
            return
        if self._transport.get_write_buffer_size() or self._beneath.get_write_buffer_size():
            asyncio.get_running_loop().call_later(LOOK_AGAIN_SECONDS, self._look_whether_drained)
            return
        called, self._drained = self._drained, []
        for drained in called:
            drained()

    def close(self) -> None:
        self._closed = True
        self._drained.clear()
        if self._transport is not None:
            self._transport.abort()

    def _end(self, reason: str) -> None:
        if not self._closed:
            self.close()
            self._lost(reason)
