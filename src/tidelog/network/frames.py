"""Cuts the byte stream of a connection into frames: 4 bytes with the size, then the bytes. Has no socket.

The caller receives into `get_buffer()`, reports the count to `buffer_updated()`, takes whole frames from
`next_frame()` and calls `detach()` before another connection uses the shared buffer.
"""

from __future__ import annotations

import struct
from typing import Final

from tidelog.network.memory import FrameBuffer, MemoryPool

READ_BYTES: Final = 256 * 1024
"""One read receives at most this much, so that small requests of other connections wait no longer."""

SIZE: Final = struct.Struct(">i")
"""The size that precedes each frame, of requests and of responses."""

# The methods of HTTP, and the preface of HTTP/2.
HTTP_METHODS: Final = frozenset(
    (b"GET ", b"POST", b"PUT ", b"HEAD", b"DELE", b"OPTI", b"PATC", b"CONN", b"TRAC", b"PRI ")
)
TLS_HANDSHAKE: Final = b"\x16\x03"

# The place for the next bytes of the stream.
TO_SHARED_BUFFER: Final = 0
TO_SIZE: Final = 1  # into the 4 bytes that hold the size of the next frame
TO_FRAME: Final = 2  # into the memory of the frame whose size is known
NOWHERE: Final = 3  # `next_frame` first has to return the frames that are here


class InvalidReceive(Exception):
    """The next frame cannot be received, for the reason in the message. The connection has to be closed."""


def other_protocol(begin: bytes) -> str | None:
    """The protocol whose messages begin with these 4 bytes; None unless they are HTTP or TLS."""
    if begin in HTTP_METHODS:
        return "an HTTP request"
    return "a TLS handshake" if begin.startswith(TLS_HANDSHAKE) else None


class ReceiveBuffer:
    """The buffer of one read, which all readers of a broker share, and the limit for the size of a frame.

    `buffer` is at most as large as the largest frame with its size, so a single frame that fills it is
    acceptable.
    """

    __slots__ = ("buffer", "max_size", "view")

    def __init__(self, max_size: int) -> None:
        self.limit(max_size)

    def limit(self, max_size: int) -> None:
        """Accept frames of up to `max_size` bytes (`socket.request.max.bytes`)."""
        self.max_size = max_size
        # A new one: frames of the old buffer may be in use.
        self.buffer = bytearray(min(READ_BYTES, SIZE.size + max_size))
        self.view = memoryview(self.buffer)


class FrameReader:
    """The frames of one connection.

    A frame that arrives whole is a view of the shared buffer. A frame that arrives in pieces has memory of
    the pool; the caller takes it after `next_frame` (`take_memory`) and releases it. After a large frame, the
    size of the next one is received alone: that frame is then received into its own memory, without a copy.
    """

    __slots__ = (
        "_end",
        "_filled",
        "_filling",
        "_pool",
        "_shared",
        "_size",
        "_view",
        "buffer",
        "memory",
        "position",
        "start",
        "target",
    )

    def __init__(self, shared: ReceiveBuffer, pool: MemoryPool) -> None:
        self._shared = shared
        self._pool = pool
        self.target = TO_SHARED_BUFFER
        # The bytes that `next_frame` cuts: `buffer[position:_end]`. The last frame began at `start`.
        self.buffer = shared.buffer
        self._view = shared.view
        self.start = self.position = self._end = 0
        # The size or the frame that is being received, and how much of it is here.
        self._filling: FrameBuffer | None = None
        self._size = self._filled = 0
        self.memory: FrameBuffer | None = None

    @property
    def filled(self) -> int:
        """The number of received bytes of the present frame, or of its size."""
        return self._filled

    @property
    def missing(self) -> int:
        """The number of missing bytes of the present frame, or of its size."""
        return self._size - self._filled if self._filling is not None else 0

    def get_buffer(self) -> memoryview:
        """The place for the next bytes of the stream."""
        if self._filling is not None:
            return memoryview(self._filling)[self._filled : self._size]
        if self.target == NOWHERE:
            raise RuntimeError("frames that are here have to be taken before more is received")
        return self._shared.view

    def buffer_updated(self, count: int) -> bool:
        """Note that `count` bytes were received into `get_buffer()`; returns whether that took memory of the
        pool.

        Raises InvalidReceive if a size is not acceptable.
        """
        filling = self._filling
        if filling is None:
            shared = self._shared
            self.buffer, self._view = shared.buffer, shared.view
            self.position, self._end = 0, count
            return False
        self._filled += count
        if self.target == TO_SIZE and self._filled == SIZE.size:
            self._begin_frame(self._check(SIZE.unpack_from(filling)[0]))
            return True
        return False

    def next_frame(self) -> memoryview | None:
        """The next whole frame without its size; None if more bytes are needed.

        Raises InvalidReceive if the next size is not acceptable, after the frames before it were returned.
        """
        if self._filling is not None:
            is_whole = self._filled == self._size and self.target == TO_FRAME
            return self._filled_frame() if is_whole else None
        start = self.position
        body = start + SIZE.size
        if self._end < body:
            return None
        size = SIZE.unpack_from(self.buffer, start)[0]
        if not 0 <= size <= self._shared.max_size:
            self._check(size)
        end = body + size
        if end > self._end:
            return None
        self.start = start
        self.position = end
        return self._view[body:end]

    def has_frame(self) -> bool:
        """Whether another whole frame has arrived, of any size."""
        remaining = self._end - self.position - SIZE.size
        return remaining >= 0 and 0 <= SIZE.unpack_from(self.buffer, self.position)[0] <= remaining

    def take_memory(self) -> FrameBuffer:
        """The memory of the frame that `next_frame` returned last. The caller releases it to the pool."""
        memory, self.memory = self.memory, None
        assert memory is not None
        return memory

    def detach(self, paused: bool) -> None:
        """Move the remaining bytes out of the shared buffer, into memory of this connection.

        For a `paused` connection, they stay there until `next_frame` is called again. Otherwise the
        incomplete frame gets memory of the pool. Raises InvalidReceive if the pool has none.
        """
        position, end = self.position, self._end
        if position == end:
            self._clear()
        elif paused:
            if self.target != NOWHERE:
                self.buffer = bytearray(self._view[position:end])
                self._view = memoryview(self.buffer)
                self.position, self._end = 0, end - position
                self.target = NOWHERE
        else:
            incomplete = self._view[position:end]
            self._clear()
            self._begin(incomplete)

    def owns(self, frame: memoryview) -> bool:
        """Whether the bytes of this frame are the connection's own, and are never overwritten."""
        return frame.obj is self.buffer and self.target == NOWHERE

    def close(self) -> None:
        """Release memory to the pool, and drop what was received."""
        if self._filling is not None and self.target == TO_FRAME:
            self._pool.release(self._filling, self._size)
        self._filling = None
        self._clear()

    def _clear(self) -> None:
        """Nothing is left to cut."""
        if self._filling is None:
            self.target = TO_SHARED_BUFFER
        self.buffer, self._view = self._shared.buffer, self._shared.view
        self.position = self._end = 0

    def _begin(self, incomplete: memoryview) -> None:
        if len(incomplete) < SIZE.size:
            self._begin_size()
        else:
            self._begin_frame(SIZE.unpack_from(incomplete)[0])
            incomplete = incomplete[SIZE.size :]
        assert self._filling is not None
        self._filling[: len(incomplete)] = incomplete
        self._filled = len(incomplete)

    def _begin_size(self) -> None:
        self._filling = bytearray(SIZE.size)
        self._size, self._filled = SIZE.size, 0
        self.target = TO_SIZE

    def _begin_frame(self, size: int) -> None:
        try:
            self._filling = self._pool.allocate(size)
        except (MemoryError, OSError, ValueError) as error:
            self._filling = None
            raise InvalidReceive(f"there is no memory for a frame of {size} bytes ({error})") from error
        self._size, self._filled = size, 0
        self.target = TO_FRAME

    def _filled_frame(self) -> memoryview:
        filling, size = self._filling, self._size
        assert filling is not None
        self.memory, self._filling = filling, None
        self._filled = 0
        if size >= READ_BYTES // 2:
            self._begin_size()
        else:
            self.target = TO_SHARED_BUFFER
        return memoryview(filling)[:size]

    def _check(self, size: int) -> int:
        if 0 <= size <= self._shared.max_size:
            return size
        protocol = other_protocol(SIZE.pack(size))
        if protocol is not None:
            raise InvalidReceive(f"{protocol} came, and this port speaks Kafka's protocol without TLS")
        raise InvalidReceive(
            f"a frame of {size} bytes was announced "
            f"(0 to {self._shared.max_size} are accepted, socket.request.max.bytes)"
        )
