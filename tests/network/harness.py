"""A socket server with a handler of the test's choice, and blocking clients to talk to it."""

from __future__ import annotations

import asyncio
import resource
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from tidelog.endpoints import Endpoint
from tidelog.metrics import Registry
from tidelog.network.limits import NetworkLimits
from tidelog.network.listener_security import ListenerSecurity
from tidelog.network.loop import BrokerLoop
from tidelog.network.request import FastPath, Handler, Request
from tidelog.network.server import SocketServer
from tidelog.protocol.headers import request_header

METADATA = 3


def echo(request: Request) -> None:
    """Answers with the correlation id and the body."""
    body = bytes(request.buffer[request.body_start :])
    request.respond([struct.pack(">i", request.correlation_id) + body])


def frame(
    correlation_id: int, body: bytes, *, key: int = METADATA, version: int = 1, client: str = "test"
) -> bytes:
    message = request_header(key, version, correlation_id, client) + body
    return struct.pack(">i", len(message)) + message


def resident_bytes() -> int:
    """The memory that this process has now, whatever it had before."""
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize()


class Client:
    def __init__(self, address: tuple[str, int]) -> None:
        self.sock = socket.create_connection(address, timeout=20)

    def send(self, correlation_id: int, body: bytes = b"", **header: object) -> None:
        self.sock.sendall(frame(correlation_id, body, **header))  # type: ignore[arg-type]

    def receive(self) -> tuple[int, bytes]:
        size = struct.unpack(">i", self._exactly(4))[0]
        answer = self._exactly(size)
        return struct.unpack_from(">i", answer)[0], answer[4:]

    def ask(self, correlation_id: int, body: bytes = b"", **header: object) -> tuple[int, bytes]:
        self.send(correlation_id, body, **header)
        return self.receive()

    def is_closed_by_peer(self) -> bool:
        try:
            return self.sock.recv(1) == b""
        except ConnectionError:
            return True

    def close(self) -> None:
        self.sock.close()

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            received = self.sock.recv(min(1 << 20, size - len(data)))
            if not received:
                raise ConnectionError(f"closed after {len(data)} of {size} bytes")
            data += received
        return bytes(data)


class Running:
    """A server on a loop in a thread; `on_loop` runs a function there and gives its result."""

    def __init__(self, loop: BrokerLoop, server: SocketServer, metrics: Registry) -> None:
        self.loop = loop
        self.server = server
        self.metrics = metrics
        self._clients: list[Client] = []

    def client(self, listener: str | None = None) -> Client:
        addresses = self.server.addresses
        client = Client(addresses[listener] if listener else next(iter(addresses.values())))
        self._clients.append(client)
        return client

    def on_loop(self, function: Callable[[], object]) -> object:
        async def run() -> object:
            return function()

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(20)

    def wait_until(self, condition: Callable[[], bool], what: str = "the condition") -> None:
        """Wait for something that the loop brings about, looking after every turn."""

        async def look() -> None:
            while not condition():
                await asyncio.sleep(0.002)

        try:
            asyncio.run_coroutine_threadsafe(asyncio.wait_for(look(), 20), self.loop).result(25)
        except TimeoutError:
            raise AssertionError(f"{what} did not come about") from None

    def close_clients(self) -> None:
        for client in self._clients:
            client.close()


def all_versions(api_key: int) -> tuple[int, int] | None:
    return (0, 13) if 0 <= api_key < 60 else None


@contextmanager
def serving(
    handler: Handler = echo,
    limits: NetworkLimits | None = None,
    listeners: tuple[str, ...] = ("PLAINTEXT",),
    host: str = "127.0.0.1",
    fast_paths: Mapping[int, FastPath] | None = None,
    security: ListenerSecurity | None = None,
) -> Iterator[Running]:
    """`security` makes every listener a listener with TLS."""
    loop = BrokerLoop(io_threads=2)
    metrics = Registry()
    endpoints = [Endpoint(name, "PLAINTEXT", host, 0) for name in listeners]
    server = SocketServer(
        loop,
        endpoints,
        handler,
        limits or NetworkLimits(),
        metrics,
        versions=all_versions,
        fast_paths=fast_paths,
        security={} if security is None else dict.fromkeys(listeners, security),
    )
    server.start()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    running = Running(loop, server, metrics)
    try:
        yield running
    finally:
        running.close_clients()
        asyncio.run_coroutine_threadsafe(server.close(0.2), loop).result(20)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(20)
        loop.close()
