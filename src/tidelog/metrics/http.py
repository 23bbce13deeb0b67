"""A very small HTTP server for `GET /metrics` and `GET /health`, on the broker's own loop.

A connection carries one short request and its response. Any other request gets an HTTP error or no response.
When there are too many connections, one that has sent no request yet gives way to the newest.
"""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import parse_qs

from tidelog.metrics.dialects import Confluent, Dialect, Strimzi
from tidelog.metrics.http_connection import (
    RECEIVED_BYTES,
    HttpConnection,
    PlainConnection,
    TlsConnection,
    TooLong,
)
from tidelog.metrics.prometheus import CONTENT_TYPE, Text
from tidelog.metrics.registry import Registry
from tidelog.slices import Slices, finished

log = logging.getLogger("tidelog.metrics")

MAX_REQUEST_BYTES: Final = 8192
TIMEOUT_SECONDS: Final = 5.0
SCRAPE_SECONDS: Final = 30.0
"""How long a peer may take for reading the text, of which a broker with many partitions has megabytes."""

MAX_CONNECTIONS: Final = 32
"""Handshakes count, and so do requests that are not whole. The loop accepts so many at a time."""


@dataclass(slots=True)
class Health:
    """Whether the broker serves clients, and the details that `/health` shows."""

    is_healthy: bool
    details: dict[str, object] = field(default_factory=dict)


class MetricsServer:
    """Serves the registry at `http://host:port/metrics` and the health of the broker at `/health`.

    `tls` returns the TLS context of new connections, for https. `partitions` says whether a scrape has
    series for each partition, and `cluster` names the cluster where a dialect has a label for it.
    """

    def __init__(
        self,
        registry: Registry,
        host: str,
        port: int,
        health: Callable[[], Health],
        tls: Callable[[], ssl.SSLContext] | None = None,
        *,
        partitions: Callable[[], bool] = lambda: True,
        cluster: Callable[[], str] = lambda: "",
    ) -> None:
        self._registry = registry
        self._partitions = partitions
        self._cluster = cluster
        self._host = host
        self._port = port
        self._health = health
        self._tls = tls
        self._has_metrics = False
        self._server: asyncio.Server | None = None
        self._handshakes: ThreadPoolExecutor | None = None
        self._answering = 0
        # Connections without a whole request, oldest first.
        self._waiting: dict[asyncio.StreamWriter, None] = {}

    async def bind(self) -> None:
        """Bind the port and serve `/health`. Raises OSError if the port is in use."""
        if self._tls is not None:
            self._tls()  # a wrong setting is noticed at the start
            self._handshakes = ThreadPoolExecutor(1, "tidelog-metrics-handshake")
        self._server = await asyncio.start_server(
            self._serve, self._host, self._port, limit=RECEIVED_BYTES, backlog=MAX_CONNECTIONS
        )

    def start(self) -> None:
        """Serve `/metrics` too. To be called when every part of the broker has its metrics."""
        self._has_metrics = True

    @property
    def address(self) -> tuple[str, int]:
        if self._server is None:
            raise RuntimeError("the metrics server is not started")
        host, port = self._server.sockets[0].getsockname()[:2]
        return str(host), int(port)

    @property
    def url(self) -> str:
        host, port = self.address
        scheme = "http" if self._tls is None else "https"
        return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()
            self._server = None
        if self._handshakes is not None:
            self._handshakes.shutdown(wait=False, cancel_futures=True)
            self._handshakes = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._waiting[writer] = None
        try:
            if len(self._waiting) + self._answering > MAX_CONNECTIONS:
                self._close_oldest()
            async with asyncio.timeout(TIMEOUT_SECONDS):
                connection = await self._connected(reader, writer)
                head = await connection.read_head(MAX_REQUEST_BYTES)
            if self._waiting.pop(writer, writer) is None:
                await self._respond(connection, head)
        except (TimeoutError, OSError, TooLong):
            pass  # a peer that is slow, gone or sends too much gets no response
        finally:
            self._waiting.pop(writer, None)
            writer.close()

    async def _respond(self, connection: HttpConnection, head: bytes) -> None:
        self._answering += 1
        try:
            async with asyncio.timeout(SCRAPE_SECONDS):
                await connection.write(await self._answer(head))
        finally:
            self._answering -= 1

    def _close_oldest(self) -> None:
        """Make room for the newest connection, which is the oldest itself if all others are answered."""
        oldest = next(iter(self._waiting))
        del self._waiting[oldest]
        oldest.transport.abort()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> HttpConnection:
        if self._tls is None or self._handshakes is None:
            return PlainConnection(reader, writer)
        connection = TlsConnection(reader, writer, self._tls())
        await connection.shake_hands(self._handshakes)
        return connection

    async def _answer(self, head: bytes) -> list[bytes]:
        """The parts of the response to a request with this head."""
        words = head.split(b"\r\n", 1)[0].split(b" ")
        if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
            return _response("400 Bad Request", "text/plain", "not an HTTP request\n")
        method, (path, _, query) = words[0], words[1].partition(b"?")
        if path not in (b"/metrics", b"/health", b"/"):
            return _response("404 Not Found", "text/plain", "there are /metrics and /health\n")
        if method not in (b"GET", b"HEAD"):
            return _response("405 Method Not Allowed", "text/plain", "only GET is answered\n")
        head_only = method == b"HEAD"
        if path == b"/health":
            health = self._health()
            status = "200 OK" if health.is_healthy else "503 Service Unavailable"
            text = json.dumps(health.details) + "\n"
            return _response(status, "application/json", text, head_only=head_only)
        if not self._has_metrics:
            return _response("503 Service Unavailable", "text/plain", "the broker is starting\n")
        try:
            metrics = self._text(query.decode("latin-1"))
        except ValueError as error:
            return _response("400 Bad Request", "text/plain", f"{error}\n")
        try:
            parts = await finished(_rendered(metrics, self._registry))
        except Exception as error:
            log.exception("metrics cannot be rendered")
            return _response("500 Internal Server Error", "text/plain", f"{type(error).__name__}\n")
        length = sum(len(part) for part in parts)
        start = _head("200 OK", CONTENT_TYPE, length)
        return [start] if head_only else [start, *parts]

    def _text(self, query: str) -> Text:
        """The text that a query asks for. ValueError for an unknown dialect or value."""
        values = parse_qs(query)
        name = values.get("dialect", ["strimzi"])[-1]
        dialect: Dialect
        if name == "strimzi":
            dialect = Strimzi()
        elif name == "confluent":
            dialect = Confluent(self._cluster())
        else:
            raise ValueError(f"dialect={name}: expected strimzi or confluent")
        wanted = values.get("partitions", [str(self._partitions()).lower()])[-1]
        if wanted not in ("true", "false"):
            raise ValueError(f"partitions={wanted}: expected true or false")
        return Text(dialect, partitions=wanted == "true")


def _rendered(metrics: Text, registry: Registry) -> Slices[list[bytes]]:
    yield from metrics.fill(registry)
    parts: list[bytes] = []
    for part in metrics.parts():
        parts.append(part.encode())
        yield
    return parts


def _head(status: str, content_type: str, length: int) -> bytes:
    return (
        f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\n"
        f"Content-Length: {length}\r\nConnection: close\r\n\r\n"
    ).encode()


def _response(status: str, content_type: str, text: str, *, head_only: bool = False) -> list[bytes]:
    body = text.encode()
    head = _head(status, content_type, len(body))
    return [head] if head_only else [head + body]
