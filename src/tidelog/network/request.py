"""One request: a handler reads its frame and gives its response.

The bytes of the frame are valid until the handler returns; `keep()` makes them valid until the response.
A handler completes each request once: by `respond`, `respond_frame`, `respond_nothing` or `close_connection`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Final, Protocol

from tidelog.network.frames import SIZE

if TYPE_CHECKING:
    from tidelog.network.channel import Channel
    from tidelog.network.memory import FrameBuffer
    from tidelog.network.request_channel import RequestChannel
    from tidelog.network.request_metrics import ApiVersionEntry, RequestMetrics

NO_BYTES: Final = memoryview(b"")


@lru_cache(1024)
def client_address(peer: str) -> str:
    """The address of a peer as Java writes it: without the port, and IPv6 with all eight groups.

    A dual-stack socket reports IPv4 peers as mapped IPv6 addresses. The result is the IPv4 address, which
    access rules name.
    """
    host = peer.rpartition(":")[0].strip("[]")
    if ":" in host:
        import ipaddress

        address = ipaddress.IPv6Address(host.partition("%")[0])
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        host = ":".join(format(int(group, 16), "x") for group in address.exploded.split(":"))
    return host


class FilePart(Protocol):
    """A range of an open file, which the kernel sends."""

    @property
    def position(self) -> int: ...

    @property
    def size(self) -> int: ...

    def fileno(self) -> int: ...

    def read_range(self, size: int, position: int) -> bytes:
        """These bytes of the file."""

    def read_into(self, buffer: memoryview, position: int) -> int:
        """Fill `buffer` with the bytes of the file from `position`; returns how many there are."""

    def read_cached(self) -> bytes | bytearray | None:
        """The bytes of the range; None unless the page cache has them."""

    def is_cached(self, size: int, position: int) -> bool:
        """Whether the page cache has these bytes of the file."""

    def bring_in(self, size: int, position: int, ahead: int = 0) -> None:
        """Read these bytes of the file into the page cache. Blocks: to be called on a thread.

        Reads ahead up to `ahead` bytes in all.
        """


Part = bytes | bytearray | memoryview | FilePart
Handler = Callable[["Request"], None]

# A request on a fast path: channel, API version, correlation id, size, the times at which its frame was
# received and its handling began. A tuple, because one is made for every small request.
FastRequest = tuple["Channel", "ApiVersionEntry", int, int, int, int]

FastPath = Callable[[FastRequest, memoryview, int], bool]
"""Handles a small request from its frame and the start of its body, without a `Request`.

It returns False to leave the request to the handler. Otherwise it sends the response before it returns
(`Channel.send_now`), or defers it (`Channel.defer_response`) and sends it by the end of this turn of the loop
(`Channel.send_deferred`). The frame is valid until it returns.
"""


class RequestSource(Protocol):
    """The source of a request: a `Channel`, or the Envelope of another broker."""

    context: RequestChannel
    listener: str
    peer: str
    connection_id: str
    principal: str
    is_token_authenticated: bool
    client_software: tuple[str, str]
    is_exempt: bool
    allowed_reads: dict[str | bytes, int]
    allowed_writes: dict[str, int]

    @property
    def is_open(self) -> bool: ...

    @property
    def is_forwarded(self) -> bool:
        """Whether another broker passed the request on for its client."""

    def send_frame(self, request: Request, frame: bytes) -> None: ...

    def send_parts(self, request: Request, parts: Sequence[Part]) -> None: ...

    def send_nothing(self, request: Request) -> None: ...

    def refuse(self, request: Request, reason: str) -> None: ...

    def keep_frame(self, request: Request) -> None: ...

    def throttle(self, seconds: float, ended: Callable[[], None]) -> None: ...


def part_size(part: Part) -> int:
    # The exact type of most parts is compared first, because `isinstance` takes longer.
    if type(part) is bytes or isinstance(part, bytes | bytearray | memoryview):
        return len(part)
    return part.size


class Request:
    __slots__ = (
        "api_key",
        "api_version",
        "body_start",
        "buffer",
        "channel",
        "client_id",
        "correlation_id",
        "counted",
        "deferred",
        "description",
        "done",
        "entry",
        "errors",
        "kept",
        "local_end_ns",
        "memory",
        "metrics",
        "received_ns",
        "size",
        "started_ns",
        "temporary_bytes",
        "throttle_ns",
    )

    def __init__(
        self,
        channel: RequestSource,
        entry: ApiVersionEntry,
        correlation_id: int,
        client_id: str | None,
        buffer: memoryview,
        body_start: int,
        size: int,
        received_ns: int,
        started_ns: int,
    ) -> None:
        self.channel = channel
        self.entry = entry
        self.api_key: int = entry.api_key
        self.api_version: int = entry.api_version
        self.metrics: RequestMetrics = entry.metrics
        self.correlation_id = correlation_id
        self.client_id = client_id
        self.buffer = buffer
        self.body_start = body_start
        self.size = size
        self.received_ns = received_ns
        self.started_ns = started_ns
        self.local_end_ns = 0
        self.done = False
        self.counted = False
        self.deferred = False
        self.kept = False
        self.memory: FrameBuffer | None = None
        self.throttle_ns = 0
        self.temporary_bytes = 0
        self.errors: dict[int, int] | None = None
        self.description: str | None = None

    @property
    def listener(self) -> str:
        return self.channel.listener

    @property
    def principal(self) -> str:
        return self.channel.principal

    @property
    def is_token_authenticated(self) -> bool:
        """Whether the client logged in with a delegation token."""
        return self.channel.is_token_authenticated

    @property
    def client_address(self) -> str:
        return client_address(self.channel.peer)

    @property
    def is_forwarded(self) -> bool:
        return self.channel.is_forwarded

    def exempt_connection(self) -> None:
        """Do not mute this connection while the request queue is full.

        For the controller and for followers: the requests in the queue may wait for them.
        """
        self.channel.is_exempt = True

    def throttle(self, ms: int, ended: Callable[[], None]) -> None:
        """Mute the connection for some time, from before the response on, then call `ended`."""
        self.throttle_ns = ms * 1_000_000
        self.channel.throttle(ms / 1000, ended)

    def respond(self, parts: Sequence[Part]) -> None:
        """Send a response: its header and body. This method adds the size."""
        if len(parts) == 1 and type(parts[0]) is bytes:
            body = parts[0]
            self.channel.send_frame(self, SIZE.pack(len(body)) + body)
        else:
            self.channel.send_parts(self, parts)

    def respond_frame(self, frame: bytes) -> None:
        """Send a response that begins with its size."""
        self.channel.send_frame(self, frame)

    def respond_nothing(self) -> None:
        """Complete a request that gets no response (acks=0)."""
        self.channel.send_nothing(self)

    def close_connection(self, reason: str) -> None:
        """Complete the request by closing its connection. The log names the peer and the reason."""
        self.channel.refuse(self, reason)

    def keep(self) -> memoryview:
        """Keep the bytes of the frame after the handler has returned. Copies them out of a shared buffer."""
        if not self.kept:
            self.kept = True
            if self.memory is None:
                self.channel.keep_frame(self)
        return self.buffer

    def release_buffer(self) -> None:
        """Release the memory of the frame before the response is there."""
        self.buffer = NO_BYTES
        if self.memory is not None:
            self.channel.context.release_memory(self)

    def waiting(self) -> None:
        """Note that the request waits in a purgatory, and does not count as in progress any more."""
        if self.local_end_ns == 0:
            self.local_end_ns = time.perf_counter_ns()
        self.channel.context.no_longer_in_progress(self)

    def set_metrics(self, name: str) -> None:
        """Count the request under another name: FetchFollower instead of FetchConsumer."""
        self.metrics = self.channel.context.metrics.of(name)

    def count_error(self, code: int, n: int = 1) -> None:
        """Count an error code of the response. A request without any counts as NONE."""
        if self.errors is None:
            self.errors = {}
        self.errors[code] = self.errors.get(code, 0) + n
