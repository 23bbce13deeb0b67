"""A very small HTTP server for `GET /metrics` and `GET /health`, on the broker's own loop.

A connection carries one short request and its response. Any other request gets an HTTP error or no response.
"""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Self
from urllib.parse import parse_qs

from tidelog.metrics.dialects import Confluent, Dialect, Strimzi
from tidelog.metrics.prometheus import CONTENT_TYPE, Text
from tidelog.metrics.registry import Registry
from tidelog.slices import Slices, finished

log = logging.getLogger("tidelog.metrics")

MAX_REQUEST_BYTES: Final = 8192
TIMEOUT_SECONDS: Final = 5.0
SCRAPE_SECONDS: Final = 30.0
"""How long a peer may take for reading the text, of which a broker with many partitions has megabytes."""

MAX_CONNECTIONS: Final = 32


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
        self._open = 0

    async def bind(self) -> None:
        """Bind the port and serve `/health`. Raises OSError if the port is in use."""
        context = None if self._tls is None else _PresentContext.of(self._tls)
        self._server = await asyncio.start_server(
            self._serve,
            self._host,
            self._port,
            limit=MAX_REQUEST_BYTES,
            ssl=context,
            ssl_handshake_timeout=None if context is None else TIMEOUT_SECONDS,
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

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            if self._open <= MAX_CONNECTIONS:
                async with asyncio.timeout(TIMEOUT_SECONDS):
                    head = await reader.readuntil(b"\r\n\r\n")
                async with asyncio.timeout(SCRAPE_SECONDS):
                    for part in await self._answer(head):
                        writer.write(part)
                        await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # a peer that is slow, gone or sends too much gets no response
        finally:
            self._open -= 1
            writer.close()

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


class _PresentContext(ssl.SSLContext):
    """Makes each connection with the context that `present` returns then.

    A context that takes its place in the handshake changes neither the versions nor who has to show a
    certificate.
    """

    present: Callable[[], ssl.SSLContext]

    @classmethod
    def of(cls, present: Callable[[], ssl.SSLContext]) -> Self:
        context = cls(ssl.PROTOCOL_TLS_SERVER)
        context.present = present
        return context

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        return self.present().wrap_bio(incoming, outgoing, server_side, server_hostname, session)


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
