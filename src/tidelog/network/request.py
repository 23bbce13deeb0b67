"""One request: what a handler reads from, and where it leaves its answer.

The frame's bytes belong to the network until the handler returns; `keep()` makes them the handler's.
Every request is ended once: by `respond`, `respond_frame`, `respond_nothing` or `close_connection`.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from tidelog.network.accounting import ApiVersionEntry, RequestKind
    from tidelog.network.channel import Channel
    from tidelog.network.memory import FrameBuffer

LENGTH: Final = struct.Struct(">i")
NO_BYTES: Final = memoryview(b"")


class FilePart(Protocol):
    """A stretch of an open file that is sent without passing through the process."""

    @property
    def position(self) -> int: ...

    @property
    def size(self) -> int: ...

    def fileno(self) -> int: ...

    def read_cached(self) -> bytes | bytearray | None:
        """The bytes of the stretch; None where they would have to come from the disk first."""

    def is_cached(self, size: int, position: int) -> bool:
        """Whether a range of the file can be sent without waiting for the disk."""

    def bring_in(self, size: int, position: int, ahead: int = 0) -> None:
        """Wait until a range of the file has come from the disk. For threads beside the loop.

        The disk is asked for `ahead` bytes if those are more.
        """


Part = bytes | bytearray | memoryview | FilePart
Handler = Callable[["Request"], None]

# A request that a short way took: its channel, API version and correlation id, its size, when its frame was
# received, and when its turn came. A tuple, because one is made for every small request.
Taken = tuple["Channel", "ApiVersionEntry", int, int, int, int]

ShortWay = Callable[[Taken, memoryview, int], bool]
"""Given a small request, its frame and the start of the body: takes it, or leaves it to the handler (False).

No `Request` is made of what it takes. `Channel.answer_taken` answers, at the end of this turn of the loop at
the latest. The frame's bytes belong to the network as soon as it returns.
"""


def part_size(part: Part) -> int:
    return len(part) if isinstance(part, bytes | bytearray | memoryview) else part.size


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
        "kind",
        "local_end_ns",
        "memory",
        "received_ns",
        "size",
        "started_ns",
        "temporary_bytes",
        "throttle_ns",
    )

    def __init__(
        self,
        channel: Channel,
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
        self.kind: RequestKind = entry.kind
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

    def respond(self, parts: Sequence[Part]) -> None:
        """Send an answer: response header and body, without the length, which is put in front here."""
        if len(parts) == 1 and type(parts[0]) is bytes:
            body = parts[0]
            self.channel.answer_frame(self, LENGTH.pack(len(body)) + body)
        else:
            self.channel.answer_parts(self, parts)

    def respond_frame(self, frame: bytes) -> None:
        """Send an answer that already begins with its 4-byte length: the shortest way out."""
        self.channel.answer_frame(self, frame)

    def respond_nothing(self) -> None:
        """End a request that wants no answer (acks=0)."""
        self.channel.answer_nothing(self)

    def close_connection(self, reason: str) -> None:
        """End the request by closing its connection, with a line that names the peer."""
        self.channel.refuse(self, reason)

    def keep(self) -> memoryview:
        """Keep the frame's bytes past the handler's return; copies only where the buffer is shared."""
        if not self.kept:
            self.kept = True
            if self.memory is None:
                self.channel.keep_frame(self)
        return self.buffer

    def release_buffer(self) -> None:
        """Give the frame's memory back before the answer, as soon as nothing reads from it any more."""
        self.buffer = NO_BYTES
        if self.memory is not None:
            self.channel.release_frame(self)

    def waiting(self) -> None:
        """Say that the request waits for others now (in a purgatory) and is not being worked on."""
        if self.local_end_ns == 0:
            self.local_end_ns = time.perf_counter_ns()
        self.channel.now_waiting(self)

    def set_kind(self, name: str) -> None:
        """Account the request under another name: FetchFollower instead of FetchConsumer."""
        self.kind = self.channel.context.accounting.kind(name)

    def count_error(self, code: int, n: int = 1) -> None:
        """Account an error code of the answer; a request that counts none is accounted as NONE."""
        if self.errors is None:
            self.errors = {}
        self.errors[code] = self.errors.get(code, 0) + n
