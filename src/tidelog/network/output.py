"""Output: the bytes and file ranges that a channel still has to send, in order (Kafka's NetworkSend).

The kernel sends ranges of files without a copy if it can; otherwise they are read and sent. Sending stops at
a range outside of the page cache (`missing`) until a thread has read it.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from time import perf_counter_ns
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from tidelog.network.frames import SIZE
from tidelog.network.request import FilePart, Part

if TYPE_CHECKING:
    from tidelog.network.tls_transport import TlsTransport

ChannelSocket: TypeAlias = "socket.socket | TlsTransport"

SENDFILE_BYTES: Final = 1024 * 1024
"""One call sends at most this much."""

BROUGHT_IN_BYTES: Final = 256 * 1024
"""A thread reads so much from the disk before it is sent. Small, because others wait while it is sent."""

CACHED_NS: Final = 1_000_000_000
"""Pages found in the page cache are believed to stay for so long: to look again costs system calls."""

SENDS_PER_TURN: Final = 4
"""After this many calls other channels come first, however much the peer would take."""

PIECES_PER_CALL: Final = 64

COPIED_RANGE_BYTES: Final = 256 * 1024
"""How much of a file is read at a time where the kernel cannot send it."""

COPIED_BYTES: Final = 32 * 1024
"""Up to this size a copy is cheaper than the three calls that header, file and tail take."""


def hang_up(sock: ChannelSocket) -> None:
    """Close a socket. The peer sees the end even if a forked process has the socket open, too."""
    with suppress(OSError):  # the peer has gone already
        sock.shutdown(socket.SHUT_RDWR)
    sock.close()


def read_together(size: int, parts: Sequence[Part]) -> bytes | None:
    """A small response as one frame, with the bytes of its files; None if a file is not in the page cache."""
    pieces: list[bytes | bytearray | memoryview] = [SIZE.pack(size)]
    for part in parts:
        if type(part) is bytes or isinstance(part, bytes | bytearray | memoryview):
            pieces.append(part)
            continue
        try:
            data = part.read_cached()
        except OSError:
            return None
        if data is None or len(data) != part.size:
            return None
        pieces.append(data)
    return b"".join(pieces)


class MissingRange(NamedTuple):
    """A range of a file that is not in the page cache."""

    part: FilePart
    size: int
    position: int
    ahead: int  # how much the disk may read ahead, the range included

    def bring_in(self) -> None:
        self.part.bring_in(self.size, self.position, self.ahead)


class NotCached(Exception):
    """The next range is not in the page cache: `missing` names it."""


class Output:
    __slots__ = (
        "_cached_end",
        "_cached_until",
        "_parts",
        "_sends_files",
        "_sent_of_slice",
        "_sock",
        "missing",
    )

    def __init__(self, sock: ChannelSocket, sends_files: bool = True) -> None:
        self._sock = sock
        self._sends_files = sends_files
        self._parts: list[Part] = []
        self._sent_of_slice = 0
        # The position up to which the page cache has the present slice, and until when this is assumed.
        self._cached_end = self._cached_until = 0
        self.missing: MissingRange | None = None

    def __bool__(self) -> bool:
        return bool(self._parts)

    def add(self, parts: Sequence[Part]) -> None:
        self._parts.extend(parts)

    def clear(self) -> None:
        self._parts.clear()

    def brought_in(self) -> None:
        """Continue after the missing range was read. It is sent even if it was evicted again."""
        missing, self.missing = self.missing, None
        if missing is not None:
            self._cached_end = missing.position + missing.size
            self._cached_until = perf_counter_ns() + CACHED_NS

    def send(self) -> bool:
        """Send as much as possible; returns whether everything is sent. Raises the OSError of the socket.

        After False the channel waits for the disk if `missing` is set, and for the peer otherwise.
        """
        parts = self._parts
        try:
            for _ in range(SENDS_PER_TURN):
                if not parts:
                    return True
                first = parts[0]
                if isinstance(first, bytes | bytearray | memoryview):
                    self._send_bytes()
                else:
                    self._send_slice(first)
        except (BlockingIOError, InterruptedError, NotCached):
            return False
        return not parts

    def _send_bytes(self) -> None:
        parts = self._parts
        if len(parts) == 1 or not isinstance(parts[1], bytes | bytearray | memoryview):
            self._send_piece()
            return
        pieces: list[bytes | bytearray | memoryview] = []
        for part in parts[:PIECES_PER_CALL]:
            if not isinstance(part, bytes | bytearray | memoryview):
                break
            pieces.append(part)
        # MSG_MORE: the kernel sends the header together with the slice that follows.
        more = socket.MSG_MORE if len(pieces) < len(parts) else 0
        sent = self._sock.sendmsg(pieces, (), more)
        whole = 0
        for piece in pieces:
            if sent < len(piece):
                parts[whole] = memoryview(piece)[sent:]
                break
            sent -= len(piece)
            whole += 1
        del parts[:whole]

    def _send_piece(self) -> None:
        """Send one piece of bytes: the head of a response before a slice, or its tail."""
        parts = self._parts
        piece = parts[0]
        assert isinstance(piece, bytes | bytearray | memoryview)
        sent = self._sock.send(piece, socket.MSG_MORE if len(parts) > 1 else 0)
        if sent < len(piece):
            parts[0] = memoryview(piece)[sent:]
        else:
            del parts[0]

    def _send_slice(self, part: FilePart) -> None:
        remaining = part.size - self._sent_of_slice
        if remaining:
            start = part.position + self._sent_of_slice
            size = self._cached_size(part, start, min(remaining, SENDFILE_BYTES))
            if self._sends_files:
                sent = os.sendfile(self._sock.fileno(), part.fileno(), start, size)
            else:
                data = part.read_range(min(size, COPIED_RANGE_BYTES), start)
                sent = self._sock.send(data) if data else 0
            if sent == 0:
                raise ConnectionAbortedError(
                    f"a file ended {remaining} bytes before the slice being sent does"
                )
            self._sent_of_slice += sent
            if sent < remaining:
                return
        self._sent_of_slice = self._cached_end = 0
        del self._parts[0]

    def _cached_size(self, part: FilePart, start: int, size: int) -> int:
        """The number of bytes from `start` on, up to `size`, in the page cache.

        Raises NotCached if there are none.
        """
        now = perf_counter_ns()
        if start < self._cached_end and now < self._cached_until:
            return min(size, self._cached_end - start)
        if not part.is_cached(size, start):
            self.missing = MissingRange(part, min(size, BROUGHT_IN_BYTES), start, size)
            raise NotCached
        self._cached_end = start + size
        self._cached_until = now + CACHED_NS
        return size


def make_output(
    sock: ChannelSocket, sends_files: bool, *, is_secure: bool
) -> tuple[Output, TlsTransport | None]:
    """The output of a new channel, and its TLS connection if it has one. A plain listener is not secure."""
    if is_secure:
        from tidelog.network.tls_output import TlsOutput
        from tidelog.network.tls_transport import TlsTransport

        if isinstance(sock, TlsTransport):
            return TlsOutput(sock), sock
    return Output(sock, sends_files), None
