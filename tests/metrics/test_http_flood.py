"""Many connections to the metrics port at once: half-open handshakes, slow requests, a scraper between."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.security.test_connections import client_hello
from tests.support.tls_broker import TlsFiles
from tidelog.metrics import http
from tidelog.metrics.http import MAX_CONNECTIONS, Health, MetricsServer
from tidelog.metrics.registry import Registry

FLOOD = 300


@pytest.fixture
def files(tmp_path: Path) -> TlsFiles:
    return TlsFiles(tmp_path)


def context_of(files: TlsFiles) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.server)
    return context


@asynccontextmanager
async def metrics_server(tls: Callable[[], ssl.SSLContext] | None) -> AsyncIterator[MetricsServer]:
    server = MetricsServer(Registry(), "127.0.0.1", 0, lambda: Health(True), tls)
    await server.bind()
    server.start()
    try:
        yield server
    finally:
        await server.close()


def ended_at_once(peers: list[socket.socket]) -> int:
    """How many connections the server has ended."""
    ended = 0
    for peer in peers:
        peer.settimeout(0.001)
        try:
            while peer.recv(65_536):
                pass
            ended += 1
        except TimeoutError:
            pass
        except OSError:
            ended += 1
    return ended


def scraped(server: MetricsServer, files: TlsFiles) -> bytes:
    host, port = server.address
    with (
        socket.create_connection((host, port), 10) as plain,
        files.client_context().wrap_socket(plain, server_hostname="localhost") as sock,
    ):
        sock.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        answer = b""
        while part := sock.recv(65_536):
            answer += part
        return answer


def test_half_open_handshakes_are_few_and_a_scraper_is_served_between(files: TlsFiles) -> None:
    context, hello = context_of(files), client_hello()

    def flood(server: MetricsServer) -> int:
        peers = [socket.create_connection(server.address, 10) for _ in range(FLOOD)]
        try:
            for peer in peers[::2]:
                peer.sendall(hello)
            assert scraped(server, files).startswith(b"HTTP/1.1 200 OK")
            return ended_at_once(peers)
        finally:
            for peer in peers:
                peer.close()

    async def scenario() -> None:
        async with metrics_server(lambda: context) as server:
            assert await asyncio.to_thread(flood, server) >= FLOOD - MAX_CONNECTIONS

    asyncio.run(scenario())


def test_no_handshake_is_made_on_the_loop(files: TlsFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = set()

    class Watched(ssl.SSLObject):
        def do_handshake(self) -> None:
            threads.add(threading.current_thread())
            super().do_handshake()

    context = context_of(files)
    monkeypatch.setattr(context, "sslobject_class", Watched, raising=False)

    async def scenario() -> None:
        async with metrics_server(lambda: context) as server:
            assert b"200 OK" in await asyncio.to_thread(scraped, server, files)

    asyncio.run(scenario())
    assert threads
    assert threading.main_thread() not in threads


def test_an_open_handshake_takes_little_memory(files: TlsFiles) -> None:
    """asyncio's own TLS would take 256 KiB for each."""
    import tracemalloc

    context, hello = context_of(files), client_hello()

    async def scenario() -> None:
        async with metrics_server(lambda: context) as server:
            tracemalloc.start()
            before = tracemalloc.get_traced_memory()[0]
            peers = [await asyncio.open_connection(*server.address) for _ in range(MAX_CONNECTIONS)]
            for _, writer in peers:
                writer.write(hello)
            for reader, _ in peers:
                assert await reader.read(1)
            grown = tracemalloc.get_traced_memory()[0] - before
            tracemalloc.stop()
            assert grown < MAX_CONNECTIONS * 100_000
            for _, writer in peers:
                writer.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("tls", [False, True])
def test_a_slow_request_ends(files: TlsFiles, monkeypatch: pytest.MonkeyPatch, tls: bool) -> None:
    monkeypatch.setattr(http, "TIMEOUT_SECONDS", 0.05)
    context = context_of(files)

    async def scenario() -> None:
        async with metrics_server((lambda: context) if tls else None) as server:
            reader, writer = await asyncio.open_connection(*server.address)
            writer.write(client_hello()[:20] if tls else b"GET /metrics")
            assert await asyncio.wait_for(reader.read(), 10) == b""
            writer.close()

    asyncio.run(scenario())


def test_messages_of_tls_without_a_request_have_an_end(files: TlsFiles) -> None:
    """Records of alerts and key updates bring no request, and cost the loop time."""
    context = context_of(files)

    def talk(server: MetricsServer) -> bool:
        with socket.create_connection(server.address, 10) as plain:
            sock = files.client_context().wrap_socket(plain, server_hostname="localhost")
            try:
                for _ in range(20_000):  # 440 KB of records with a byte each
                    sock.sendall(b"x")
                return not sock.recv(1)
            except OSError:
                return True

    async def scenario() -> None:
        async with metrics_server(lambda: context) as server:
            assert await asyncio.to_thread(talk, server)

    asyncio.run(scenario())
