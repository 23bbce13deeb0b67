"""RequestChannel: the receive buffer, the handler and the request queue's limits, shared by a broker's
channels.

The request queue is full while `queued.max.requests` requests are in progress or `queued.max.request.bytes`
are in use. Channels that try to read meanwhile are muted. Later they are unmuted in the same order.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter_ns
from typing import TYPE_CHECKING, Final, Protocol

from tidelog.errors import error_name
from tidelog.network.frames import READ_BYTES, ReceiveBuffer
from tidelog.network.memory import MemoryPool
from tidelog.network.request import FastPath, Handler, Part, Request, part_size
from tidelog.network.request_metrics import ApiVersionEntry, RequestChannelMetrics
from tidelog.protocol.api import API, ApiKey
from tidelog.protocol.headers import read_request_header
from tidelog.protocol.wire import ProtocolError

if TYPE_CHECKING:
    from tidelog.network.loop import BrokerLoop
    from tidelog.network.request_reader import RequestReader

FIRST_READ_BYTES: Final = 1024 * 1024
"""The first channel of a turn receives so much of a large frame: fewer turns take less CPU, and other
channels wait for one such read at most."""

TRACE: Final = 5

Versions = Callable[[int], "tuple[int, int] | None"]
Formatter = Callable[[Request, "Sequence[Part] | None"], str]

request_log = logging.getLogger("tidelog.request")

TRACED_ONLY: Final = 1
"""A level below all of the request log: requests are traced, and have no line."""


class Tracer(Protocol):
    """Is called for each completed request. All times are those of perf_counter_ns."""

    def completed(
        self, request: Request, response_bytes: int, responded_ns: int, send_start_ns: int, sent_ns: int
    ) -> None: ...


class InvalidRequest(Exception):
    """A frame is not a request of a served API. Its connection is closed, with this message in the log."""


class RequestChannel:
    __slots__ = (
        "_fast_paths",
        "_formatter",
        "_handler",
        "_large_turn_ns",
        "_resuming",
        "_tracer",
        "_versions",
        "clock",
        "entries",
        "handler",
        "in_progress",
        "is_full",
        "log_level",
        "loop",
        "max_in_progress",
        "metrics",
        "muted",
        "pool",
        "received",
    )

    def __init__(
        self,
        loop: BrokerLoop,
        handler: Handler,
        versions: Versions,
        metrics: RequestChannelMetrics,
        *,
        max_frame: int,
        max_in_progress: int,
        pool: MemoryPool,
        formatter: Formatter | None = None,
        fast_paths: Mapping[int, FastPath] | None = None,
    ) -> None:
        self.loop = loop
        self.clock = loop.direct
        self.handler = self._handler = handler
        self._versions = versions
        self.metrics = metrics
        self.received = ReceiveBuffer(max_frame)
        self.max_in_progress = max_in_progress
        self.pool = pool
        self._formatter = formatter
        self._fast_paths = fast_paths or {}
        self.entries: dict[int, ApiVersionEntry] = {}
        self.is_full = False
        self.in_progress = 0
        self.muted: deque[RequestReader] = deque()
        self._resuming = False
        self._large_turn_ns = 0
        # 0 without a tracer and a request log, so that a request costs one comparison.
        self.log_level = 0
        self._tracer: Tracer | None = None
        self.refresh_log_level()

    def allowance(self, wanted: int) -> int:
        """The number of bytes of a large frame that a channel may receive in this turn, at most `wanted`."""
        turn_ns = self.clock.turn_ns
        is_first = turn_ns != self._large_turn_ns
        self._large_turn_ns = turn_ns
        return min(wanted, FIRST_READ_BYTES if is_first else READ_BYTES)

    # Headers

    def read_header(self, frame: memoryview) -> tuple[ApiVersionEntry, int, str | None, int]:
        """The API version, correlation id, client id and start of the body of a frame.

        Raises InvalidRequest.
        """
        if len(frame) < 8:
            raise InvalidRequest(f"a frame of {len(frame)} bytes is too short for a request header")
        api_key = int.from_bytes(frame[0:2], "big", signed=True)
        api_version = int.from_bytes(frame[2:4], "big", signed=True)
        served = self._versions(api_key)
        if served is None:
            raise InvalidRequest(f"API key {api_key} is not served")
        too_new = api_version > served[1]
        # An ApiVersions request of a later version gets a response: it tells the client what is served.
        if api_version < served[0] or (too_new and api_key != ApiKey.API_VERSIONS):
            raise InvalidRequest(
                f"version {api_version} of {API[api_key].name} is not served "
                f"(versions {served[0]} to {served[1]} are)"
            )
        try:
            _, _, correlation_id, client_id, body_start = read_request_header(frame, 0)
        except ProtocolError as error:
            raise InvalidRequest(f"{API[api_key].name} version {api_version}: {error}") from error
        return self._entry(api_key, api_version, too_new), correlation_id, client_id, body_start

    def _entry(self, api_key: int, api_version: int, too_new: bool) -> ApiVersionEntry:
        name = API[api_key].name
        flexible = API[api_key].is_flexible(api_version)
        if too_new:
            # Not added: a peer could fill the table with versions that no broker serves.
            return ApiVersionEntry(api_key, api_version, name, flexible, self.metrics.of(name))
        entry = self.metrics.entry(api_key, api_version, name, flexible)
        if (api_key, api_version) != (ApiKey.CONTROLLED_SHUTDOWN, 0):  # the one header without a client id
            entry.fast_path = self._fast_paths.get(api_key)
            self.entries[api_key << 16 | api_version] = entry
        return entry

    # The limits of the request queue

    def check_limits(self) -> None:
        """Mute or unmute channels after the requests in progress or the memory in use have changed."""
        if self._is_over_limits():
            self.is_full = True
        elif self.is_full and not self._resuming:
            self._resuming = True
            self.loop.call_soon_in_turn(self._unmute_channels)

    def _is_over_limits(self) -> bool:
        return self.in_progress >= self.max_in_progress or self.pool.is_out_of_memory

    def _unmute_channels(self) -> None:
        self._resuming = False
        # The queue counts as full until the last channel is unmuted: later channels wait behind it.
        while self.muted:
            if self._is_over_limits():
                return
            self.muted.popleft().take_turn()
        if not self._is_over_limits():
            self.is_full = False

    # The memory of requests, and completed requests

    def copy_frame(self, request: Request) -> None:
        """Copy the frame of a request out of the shared buffer, into memory that counts for the pool."""
        copied = bytearray(request.buffer)
        request.memory = copied
        request.buffer = memoryview(copied)
        self.pool.used += len(copied)
        if self.pool.is_out_of_memory:
            self.check_limits()

    def release_memory(self, request: Request) -> None:
        """Return the memory of a request's frame to the pool."""
        memory = request.memory
        if memory is not None:
            request.memory = None
            self.pool.release(memory, request.size)
            if self.is_full:
                self.check_limits()

    def no_longer_in_progress(self, request: Request) -> None:
        """Free the place of a request in the request queue."""
        if request.counted:
            request.counted = False
            self.in_progress -= 1
            if self.is_full:
                self.check_limits()

    def record(self, request: Request, parts: Sequence[Part], responded_ns: int, started_ns: int = 0) -> None:
        """Record the times of a request whose response is sent, and write its line of the request log."""
        self.clock.now_ns = now = perf_counter_ns()
        request.metrics.record(request, responded_ns, started_ns or responded_ns, now)
        if self.log_level:
            self.log_request(request, parts, responded_ns, started_ns or responded_ns, now)

    # The request log

    def refresh_log_level(self) -> None:
        """Apply the level of the request log. To be called when it may have changed."""
        if request_log.isEnabledFor(TRACE):
            self.log_level = TRACE
        elif request_log.isEnabledFor(logging.DEBUG):
            self.log_level = logging.DEBUG
        else:
            self.log_level = 0 if self._tracer is None else TRACED_ONLY
        tracing = self.log_level == TRACE and self._formatter is not None
        self.handler = self._traced if tracing else self._handler

    def trace(self, tracer: Tracer | None) -> None:
        """Call `tracer` for each request from now on; None ends that."""
        self._tracer = tracer
        self.refresh_log_level()

    def _traced(self, request: Request) -> None:
        # Described before it is handled: the handler may release the frame, or write into it.
        if self._formatter is not None:
            request.description = self._formatter(request, None)
        self._handler(request)

    def log_request(
        self, request: Request, parts: Sequence[Part], responded_ns: int, send_start_ns: int, sent_ns: int
    ) -> None:
        """Pass a completed request to the tracer, and write its line of the request log."""
        channel = request.channel
        if self._tracer is not None:
            response_bytes = sum(map(part_size, parts))
            self._tracer.completed(request, response_bytes, responded_ns, send_start_ns, sent_ns)
            if self.log_level == TRACED_ONLY:
                return
        local_end = request.local_end_ns or responded_ns
        fields: dict[str, object] = {
            "api": request.metrics.name,
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
