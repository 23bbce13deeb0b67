"""A connection of the metrics server, plain or with TLS: one request comes in, one response goes out.

asyncio's own TLS reserves 256 KiB for each connection and does the arithmetic of handshakes on the loop. Here
a connection has the bytes that the peer sent, and the arithmetic runs on a thread.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence
from concurrent.futures import Executor
from contextlib import suppress
from typing import Final, Protocol

RECEIVED_BYTES: Final = 16 * 1024
"""One read takes at most this much: the largest record of TLS."""

MOST_RECEIVED: Final = 256 * 1024
"""The most bytes of a TLS connection: a chain of certificates has less, and messages of TLS have no end."""

HEAD_END: Final = b"\r\n\r\n"


class TooLong(Exception):
    """The head of a request is longer than it may be."""


class HttpConnection(Protocol):
    async def read_head(self, most: int) -> bytes:
        """The head of the request, of at most so many bytes.

        Raises TooLong, or OSError if the peer ends the connection before.
        """

    async def write(self, parts: Sequence[bytes]) -> None:
        """Send the parts of a response, each when the peer has taken enough of those before."""


class PlainConnection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def read_head(self, most: int) -> bytes:
        received = bytearray()
        while HEAD_END not in received:
            if len(received) > most:
                raise TooLong
            received += await _received(self._reader)
        return bytes(received)

    async def write(self, parts: Sequence[bytes]) -> None:
        for part in parts:
            self._writer.write(part)
            await self._writer.drain()


class TlsConnection:
    """The handshake comes first: `shake_hands`, with the thread that does its arithmetic."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, context: ssl.SSLContext
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._received_bytes = 0

    async def shake_hands(self, executor: Executor) -> None:
        """Raises OSError (ssl.SSLError is one) if the handshake fails, TooLong if it takes too many bytes."""
        loop = asyncio.get_running_loop()
        is_done = False
        while not is_done:
            await self._receive()
            try:
                is_done = await loop.run_in_executor(executor, self._step)
            finally:
                if not self._writer.is_closing():
                    self._send()  # of a failure, too: the alert says why

    def _step(self) -> bool:
        """On a thread: whether the handshake is done. A closed connection costs nothing."""
        if self._writer.is_closing():
            raise ConnectionAbortedError("the connection was closed before its turn")
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        return True

    async def read_head(self, most: int) -> bytes:
        head = bytearray()
        while HEAD_END not in head:
            if len(head) > most:
                raise TooLong
            try:
                head += self._tls.read(RECEIVED_BYTES)
            except ssl.SSLWantReadError:
                await self._receive()
        return bytes(head)

    async def write(self, parts: Sequence[bytes]) -> None:
        for part in parts:
            self._tls.write(part)
            self._send()
            await self._writer.drain()
        with suppress(ssl.SSLWantReadError):
            self._tls.unwrap()  # tells the peer that this is the end, and does not wait for its answer
        self._send()

    async def _receive(self) -> None:
        part = await _received(self._reader)
        self._received_bytes += len(part)
        if self._received_bytes > MOST_RECEIVED:
            raise TooLong
        self._incoming.write(part)

    def _send(self) -> None:
        self._writer.write(self._outgoing.read())


async def _received(reader: asyncio.StreamReader) -> bytes:
    part = await reader.read(RECEIVED_BYTES)
    if not part:
        raise ConnectionResetError("the peer ended the connection")
    return part
