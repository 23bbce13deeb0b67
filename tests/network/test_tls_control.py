"""Peers that send messages of TLS itself without end: they are closed, and cost others little."""

from __future__ import annotations

import ctypes
import ctypes.util
import ssl
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import pytest

from tests.network.harness import serving
from tests.network.tls_listener import TlsListener, tls_client
from tidelog.network.loop import BrokerLoop
from tidelog.network.tls_transport import CONTROL_BYTES, RAW_BYTES, TlsTransport

CONTROL, DATA = b"k", b"d"
PAID = DATA * 200
"""As many bytes of requests as may come with 10,000 others."""

KEY_UPDATE_REQUESTED = 1
MOST_KEY_UPDATES = 100_000


class FakeSocket:
    """A peer that sends `message` again and again, `turns` times, and takes `room` bytes of answers."""

    def __init__(self, message: bytes, turns: int, room: int = 1 << 30) -> None:
        self._message = message
        self._turns = turns
        self._room = room
        self.reads = 0

    def fileno(self) -> int:
        return 0

    def recv_into(self, buffer: memoryview) -> int:
        if not self._turns:
            raise BlockingIOError
        self._turns -= 1
        self.reads += 1
        buffer[: len(self._message)] = self._message
        return len(self._message)

    def send(self, data: bytes) -> int:
        taken = min(len(data), self._room)
        self._room -= taken
        return taken


class FakeTls:
    """Answers each CONTROL byte with a byte, and returns the others."""

    def __init__(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO) -> None:
        self._incoming, self._outgoing = incoming, outgoing

    def read(self, size: int, buffer: memoryview) -> int:
        piece = self._incoming.read(size)
        self._outgoing.write(bytes(piece.count(CONTROL)))
        data = piece.replace(CONTROL, b"")
        if not data:
            raise ssl.SSLWantReadError
        buffer[: len(data)] = data
        return len(data)

    def write(self, data: bytes) -> int:
        return self._outgoing.write(data)

    def pending(self) -> int:
        return 0


class NoLoop:
    def call_after(self, _fd: int, _call: Callable[[], None]) -> None: ...


class Peer:
    """A transport over fakes."""

    def __init__(self, sock: FakeSocket) -> None:
        self.outgoing = ssl.MemoryBIO()
        incoming = ssl.MemoryBIO()
        self._sock = sock
        self._buffer = bytearray(RAW_BYTES)
        self.transport = TlsTransport(
            cast("BrokerLoop", NoLoop()),
            cast("Any", sock),
            cast("Any", FakeTls(incoming, self.outgoing)),
            incoming,
            self.outgoing,
            memoryview(bytearray(RAW_BYTES)),
        )

    def receive(self, turns: int) -> int:
        """The bytes of requests in so many turns of the loop."""
        received = 0
        for _ in range(turns):
            with suppress(BlockingIOError):
                received += self.transport.recv_into(self._buffer)
        return received


def test_a_peer_that_sends_hardly_any_requests_is_closed() -> None:
    peer = Peer(FakeSocket(CONTROL * 10_000 + DATA, turns=100))
    with pytest.raises(ConnectionAbortedError, match="no requests"):
        peer.receive(100)


def test_a_peer_that_does_not_read_the_answers_is_closed() -> None:
    """Requests in between do not help."""
    peer = Peer(FakeSocket(CONTROL * 10_000 + PAID, turns=1000, room=100))
    with pytest.raises(ConnectionAbortedError, match="does not read"):
        peer.receive(1000)
    assert peer.outgoing.pending <= CONTROL_BYTES + 10_000


def test_a_peer_that_reads_the_answers_may_go_on() -> None:
    peer = Peer(FakeSocket(CONTROL * 10_000 + PAID, turns=1000))
    assert peer.receive(1000) == 1000 * len(PAID)


def test_one_turn_takes_a_bounded_part_of_what_a_peer_sends() -> None:
    sock = FakeSocket(CONTROL * (RAW_BYTES - 3000) + DATA * 3000, turns=1000)
    assert Peer(sock).receive(1) == 3000 * sock.reads
    assert sock.reads <= 2


class KeyUpdates:
    """A client over OpenSSL's own library: Python's `ssl` sends no key updates."""

    def __init__(self, fd: int) -> None:
        name = ctypes.util.find_library("ssl")
        if name is None:
            pytest.skip("needs OpenSSL's library, for a client that sends key updates")
        self._library = library = ctypes.CDLL(name)
        for function in ("TLS_client_method", "SSL_CTX_new", "SSL_new"):
            getattr(library, function).restype = ctypes.c_void_p
        self._context = ctypes.c_void_p(library.SSL_CTX_new(ctypes.c_void_p(library.TLS_client_method())))
        self._ssl = ctypes.c_void_p(library.SSL_new(self._context))
        library.SSL_set_fd(self._ssl, fd)
        assert library.SSL_connect(self._ssl) == 1

    def send(self) -> bool:
        """Ask the server for new keys; False once it has closed the connection."""
        assert self._library.SSL_key_update(self._ssl, KEY_UPDATE_REQUESTED) == 1
        return bool(self._library.SSL_do_handshake(self._ssl) == 1)

    def close(self) -> None:
        self._library.SSL_free(self._ssl)
        self._library.SSL_CTX_free(self._context)


def test_key_updates_without_end_close_the_connection(tmp_path: Path) -> None:
    listener = TlsListener(tmp_path)
    with serving(security=listener) as running:
        honest = tls_client(running, listener.client_context())
        client = running.client()
        client.sock.settimeout(None)
        updates = KeyUpdates(client.sock.fileno())
        try:
            sent = 0
            while sent < MOST_KEY_UPDATES and updates.send():
                sent += 1
        finally:
            updates.close()
        assert 100 < sent < MOST_KEY_UPDATES
        assert honest.ask(1, b"still served") == (1, b"still served")
        running.wait_until(lambda: len(running.server.channels) == 1, "the other connection is closed")
