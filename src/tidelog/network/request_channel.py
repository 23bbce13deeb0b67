"""What the channels of a broker share: the read buffer, the handler, and the gate that pushes back.

The gate closes while `queued.max.requests` requests are being worked on or the memory for frames is
used up. A channel that finds it closed is parked; they go on in the order they came, so none starves.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from tidelog.errors import error_name
from tidelog.network.accounting import ApiVersionEntry, RequestAccounting
from tidelog.network.memory import MemoryPool
from tidelog.network.request import LENGTH, Handler, Part, Request, ShortWay, part_size
from tidelog.protocol.api import API, ApiKey
from tidelog.protocol.headers import read_request_header
from tidelog.protocol.wire import ProtocolError

if TYPE_CHECKING:
    from tidelog.network.channel import Channel
    from tidelog.network.loop import BrokerLoop

READ_BYTES: Final = 256 * 1024
"""What a channel receives in one turn at most: small requests of others wait behind no more than this."""

FIRST_READ_BYTES: Final = 1024 * 1024
"""What the first channel of a turn receives of a large frame: fewer turns take less CPU, and others wait for
one such channel at most."""

TRACE: Final = 5

Versions = Callable[[int], "tuple[int, int] | None"]
Formatter = Callable[[Request, "Sequence[Part] | None"], str]

request_log = logging.getLogger("tidelog.request")


class BadFrame(Exception):
    """A frame that no answer can be given to; its connection is closed with this message in the log."""


class RequestChannel:
    __slots__ = (
        "_formatter",
        "_handler",
        "_large_turn_ns",
        "_resuming",
        "_short_ways",
        "_versions",
        "accounting",
        "buffer",
        "clock",
        "closed",
        "entries",
        "handler",
        "in_progress",
        "log_level",
        "loop",
        "max_frame",
        "max_in_progress",
        "max_received",
        "parked",
        "pool",
        "view",
    )

    def __init__(
        self,
        loop: BrokerLoop,
        handler: Handler,
        versions: Versions,
        accounting: RequestAccounting,
        *,
        max_frame: int,
        max_in_progress: int,
        pool: MemoryPool,
        formatter: Formatter | None = None,
        short_ways: Mapping[int, ShortWay] | None = None,
    ) -> None:
        self.loop = loop
        self.clock = loop.direct
        self.handler = self._handler = handler
        self._versions = versions
        self.accounting = accounting
        self.limit_frames(max_frame)
        self.max_in_progress = max_in_progress
        self.pool = pool
        self._formatter = formatter
        self._short_ways = short_ways or {}
        self.buffer = bytearray(READ_BYTES)
        self.view = memoryview(self.buffer)
        self.entries: dict[int, ApiVersionEntry] = {}
        self.closed = False
        self.in_progress = 0
        self.parked: deque[Channel] = deque()
        self._resuming = False
        self._large_turn_ns = 0
        self.log_level = 0
        self.refresh_log_level()

    def limit_frames(self, max_frame: int) -> None:
        """Accept frames of up to `max_frame` bytes (`socket.request.max.bytes`)."""
        self.max_frame = max_frame
        self.max_received = max_frame + LENGTH.size

    def allowance(self, wanted: int) -> int:
        """How many of the `wanted` bytes of a large frame a channel receives in this turn of the loop."""
        turn_ns = self.clock.turn_ns
        is_first = turn_ns != self._large_turn_ns
        self._large_turn_ns = turn_ns
        return min(wanted, FIRST_READ_BYTES if is_first else READ_BYTES)

    # Headers

    def read_header(self, frame: memoryview) -> tuple[ApiVersionEntry, int, str | None, int]:
        """The API, correlation id, client id and start of the body; BadFrame where there is none."""
        if len(frame) < 8:
            raise BadFrame(f"a frame of {len(frame)} bytes is too short for a request header")
        api_key = int.from_bytes(frame[0:2], "big", signed=True)
        api_version = int.from_bytes(frame[2:4], "big", signed=True)
        served = self._versions(api_key)
        if served is None:
            raise BadFrame(f"API key {api_key} is not served")
        too_new = api_version > served[1]
        # An ApiVersions request from the future is answered, so that its sender learns what is served.
        if api_version < served[0] or (too_new and api_key != ApiKey.API_VERSIONS):
            raise BadFrame(
                f"version {api_version} of {API[api_key].name} is not served "
                f"(versions {served[0]} to {served[1]} are)"
            )
        try:
            _, _, correlation_id, client_id, body_start = read_request_header(frame, 0)
        except ProtocolError as error:
            raise BadFrame(f"{API[api_key].name} version {api_version}: {error}") from error
        return self._entry(api_key, api_version, too_new), correlation_id, client_id, body_start

    def _entry(self, api_key: int, api_version: int, too_new: bool) -> ApiVersionEntry:
        name = API[api_key].name
        flexible = API[api_key].is_flexible(api_version)
        if too_new:
            # Not kept in the table: a peer could fill it with versions that nobody serves.
            return ApiVersionEntry(api_key, api_version, name, flexible, self.accounting.kind(name))
        entry = self.accounting.entry(api_key, api_version, name, flexible)
        if (api_key, api_version) != (ApiKey.CONTROLLED_SHUTDOWN, 0):  # the one header without a client id
            entry.short_way = self._short_ways.get(api_key)
            self.entries[api_key << 16 | api_version] = entry
        return entry

    # The gate

    def update_gate(self) -> None:
        """Close or open after the number of requests or the memory in use has changed."""
        if self.in_progress >= self.max_in_progress or self.pool.exhausted:
            self.closed = True
        elif self.closed and not self._resuming:
            self._resuming = True
            self.loop.call_soon_in_turn(self._resume_parked)

    def _resume_parked(self) -> None:
        self._resuming = False
        parked = self.parked
        # Those who come meanwhile find the gate still closed and queue up behind.
        while parked:
            if self.in_progress >= self.max_in_progress or self.pool.exhausted:
                return
            parked.popleft().unpark()
        if self.in_progress < self.max_in_progress and not self.pool.exhausted:
            self.closed = False

    # The request log

    def refresh_log_level(self) -> None:
        """Take over the level of the request log; to be called when it may have changed."""
        if request_log.isEnabledFor(TRACE):
            self.log_level = TRACE
        else:
            self.log_level = logging.DEBUG if request_log.isEnabledFor(logging.DEBUG) else 0
        tracing = self.log_level == TRACE and self._formatter is not None
        self.handler = self._traced if tracing else self._handler

    def _traced(self, request: Request) -> None:
        # Described now: the handler may give the frame's memory back, or write into it.
        if self._formatter is not None:
            request.description = self._formatter(request, None)
        self._handler(request)

    def log_request(
        self, request: Request, parts: Sequence[Part], responded_ns: int, send_start_ns: int, sent_ns: int
    ) -> None:
        """One line with everything that is known of a request that has ended."""
        channel = request.channel
        local_end = request.local_end_ns or responded_ns
        fields: dict[str, object] = {
            "api": request.kind.name,
            "version": request.api_version,
            "correlation_id": request.correlation_id,
            "client_id": request.client_id,
            "connection": channel.connection_id,
            "listener": channel.listener,
            "principal": channel.principal,
            "software": "/".join(channel.client_software),
            "request_bytes": request.size,
            "response_bytes": sum(map(part_size, parts)),
            "temporary_bytes": request.temporary_bytes,
            "total_ms": _ms(sent_ns - request.received_ns),
            "queue_ms": _ms(request.started_ns - request.received_ns),
            "local_ms": _ms(local_end - request.started_ns),
            "remote_ms": _ms(responded_ns - local_end),
            "throttle_ms": _ms(request.throttle_ns),
            "response_queue_ms": _ms(send_start_ns - responded_ns),
            "send_ms": _ms(sent_ns - send_start_ns),
        }
        if request.errors:
            fields["errors"] = ",".join(f"{error_name(code)}:{n}" for code, n in request.errors.items())
        if self.log_level == TRACE and self._formatter is not None:
            fields["request"] = request.description
            fields["response"] = self._formatter(request, parts)
        level = TRACE if "request" in fields else logging.DEBUG
        request_log.log(level, "completed", extra={"fields": fields})


def _ms(ns: int) -> float:
    return round(ns / 1e6, 3)
