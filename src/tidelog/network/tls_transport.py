"""TlsTransport: the TLS connection of a channel, with the same methods as a socket.

OpenSSL works on memory (`ssl.MemoryBIO`): one system call receives or sends many records. That takes less CPU
than `ssl.SSLSocket`, which makes two calls for each record of 16 KiB that it receives.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, cast

from tidelog.network.loop import READ, BrokerLoop

RAW_BYTES: Final = 130 * 1024
"""One system call receives at most this much. The memory of a connection grows up to it, and stays."""

CHUNK_BYTES: Final = 130 * 1024
"""This much is encrypted, then sent. A slow reader keeps at most one such chunk in memory."""

SEND_BYTES: Final = 256 * 1024
"""One `send` takes at most this much, so that other connections have their turn."""

RECORD_BYTES: Final = 16 * 1024
"""The largest record of TLS. Pieces of a response are joined up to this size."""

CONTROL_BYTES: Final = 64 * 1024
"""A peer may send so much more than bytes of requests, and have so many answers of TLS itself unread.

Handshake messages after the handshake, such as key updates, cost the loop time, and memory for answers.
A record has 16 KiB, so that real clients stay far below.
"""

BYTES_PER_DATA: Final = 64
"""A byte of a request may come with so many others: the smallest record has 23 bytes for one."""

Buffer = bytes | bytearray | memoryview


class TlsTransport:
    """A TLS connection after its handshake.

    `recv_into` and `send` raise BlockingIOError like those of a socket. If the peer does not take all of a
    `send`, it reports one byte less than it has encrypted, so that its caller waits and calls again. The next
    `send` has to begin with the bytes that were not reported.
    """

    __slots__ = (
        "_control",
        "_fd",
        "_incoming",
        "_is_reported",
        "_loop",
        "_outgoing",
        "_owed",
        "_raw",
        "_read",
        "_saw_end",
        "_sock",
        "_tls",
        "_unsent",
        "_write",
        "scratch",
    )

    def __init__(
        self,
        loop: BrokerLoop,
        sock: socket.socket,
        tls: ssl.SSLObject,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        raw: memoryview,
    ) -> None:
        """`raw` is a buffer for encrypted bytes, which all connections of a loop use in turn."""
        self._loop = loop
        self._sock = sock
        self._fd = sock.fileno()
        self._tls = tls
        self._incoming = incoming
        self._outgoing = outgoing
        self._raw = raw
        self.scratch = raw[:CHUNK_BYTES]
        self._read = cast("Callable[[int, memoryview], int]", tls.read)  # with a buffer it returns a count
        self._write = tls.write
        self._unsent: memoryview | None = None  # encrypted bytes that the peer has not taken
        self._owed = 0  # bytes that are encrypted but not reported as sent: 0 or 1
        self._saw_end = False
        self._is_reported = False
        self._control = 0  # bytes of TLS messages that carry no request

    def fileno(self) -> int:
        return self._sock.fileno()

    @property
    def cipher(self) -> str:
        """The cipher suite, such as TLS_AES_256_GCM_SHA384."""
        cipher = self._tls.cipher()
        return "unknown" if cipher is None else cipher[0]

    @property
    def version(self) -> str:
        """The version of TLS, such as TLSv1.3."""
        return self._tls.version() or "unknown"

    # Receiving

    def recv_into(self, buffer: bytearray | memoryview) -> int:
        """Receive up to the size of `buffer`; 0 at the end of the connection.

        Raises ConnectionAbortedError for a peer that sends only messages of TLS and no requests.
        """
        size = len(buffer)
        view = memoryview(buffer)
        incoming, tls, raw = self._incoming, self._tls, self._raw
        received, is_drained, control = 0, False, self._control
        reads = size // RAW_BYTES + 1  # others have their turn, however little of it is for us
        while received < size:
            if incoming.pending or tls.pending():
                try:
                    count = self._read(size - received, view[received:])
                except ssl.SSLWantReadError:
                    continue  # part of a record, or a message that is not for us: nothing is left
                if not count:
                    self._saw_end = True
                    break
                received += count
                control = max(0, control - BYTES_PER_DATA * count)
            elif is_drained or self._saw_end or not reads:
                break
            elif control > CONTROL_BYTES:
                raise ConnectionAbortedError("it sends messages of TLS and no requests")
            else:
                try:
                    count = self._sock.recv_into(raw)
                except (BlockingIOError, InterruptedError):
                    break
                if not count:
                    self._saw_end = True
                    break
                incoming.write(raw[:count])
                control += count
                reads -= 1
                is_drained = count < len(raw)
        self._control = control
        if self._outgoing.pending:  # an answer of TLS itself
            if self._unsent is None:
                self._send_encrypted()
            elif self._outgoing.pending > CONTROL_BYTES:
                raise ConnectionAbortedError("it does not read the answers to its messages of TLS")
        if received:
            if received == size or self._saw_end:
                self.report_buffered()
            return received
        if self._saw_end:
            return 0
        raise BlockingIOError

    def recv(self, size: int) -> bytes:
        """Receive up to `size` bytes; none at the end of the connection."""
        buffer = bytearray(size)
        return bytes(buffer[: self.recv_into(buffer)])

    def report_buffered(self) -> None:
        """Call the owner again if decrypted bytes are buffered, which the kernel does not report."""
        if not self._is_reported and (self._incoming.pending or self._tls.pending() or self._saw_end):
            self._is_reported = True
            self._loop.call_after(self._fd, self._report)

    def _report(self) -> None:
        self._is_reported = False
        has_bytes = self._incoming.pending or self._tls.pending() or self._saw_end
        if has_bytes and self._sock.fileno() >= 0:
            self._loop.dispatch(self._fd, READ)

    # Sending

    def send(self, data: Buffer, flags: int = 0) -> int:
        """Encrypt and send; returns the number of bytes that were sent completely."""
        if self._unsent is not None:
            self.flush()
        done, self._owed = self._owed, 0
        size = min(len(data), SEND_BYTES)
        view = data if size <= RECORD_BYTES else memoryview(data)
        while done < size:
            end = min(size, done + CHUNK_BYTES)
            while done < end:
                done += self._write(view[done:end])
            if not self._send_encrypted():
                self._owed = 1
                if done == 1:
                    raise BlockingIOError
                return done - 1
        return done

    def sendmsg(self, pieces: Sequence[Buffer], ancillary: tuple[()] = (), flags: int = 0) -> int:
        """Send the first pieces. Small ones share a record."""
        joined: list[Buffer] = []
        size = 0
        for piece in pieces:
            if joined and size + len(piece) > RECORD_BYTES:
                break
            joined.append(piece)
            size += len(piece)
        return self.send(joined[0] if len(joined) == 1 else b"".join(joined))

    def flush(self) -> None:
        """Send the remaining encrypted bytes.

        Raises BlockingIOError if the peer does not take all of them.
        """
        unsent = self._unsent
        if unsent is None:
            return
        sent = self._sock.send(unsent)
        if sent < len(unsent):
            self._unsent = unsent[sent:]
            raise BlockingIOError
        self._unsent = None

    def _send_encrypted(self) -> bool:
        """Send the bytes that OpenSSL has encrypted; returns whether the peer has taken all of them."""
        data = self._outgoing.read()
        try:
            sent = self._sock.send(data)
        except (BlockingIOError, InterruptedError):
            sent = 0
        if sent == len(data):
            return True
        self._unsent = memoryview(data)[sent:]
        return False

    # Closing

    def shutdown(self, how: int) -> None:
        """Send the end (close_notify) if the peer takes it at once, and shut the socket down."""
        with suppress(OSError, ValueError):
            self._tls.unwrap()
        with suppress(OSError):
            if self._unsent is None and self._outgoing.pending:
                self._sock.send(self._outgoing.read())
        self._sock.shutdown(how)

    def close(self) -> None:
        self._sock.close()
