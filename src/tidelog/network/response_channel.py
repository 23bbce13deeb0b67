"""The sending half of a channel: responses leave in the order of their requests, as fast as the peer reads.

A request that gets its response releases its memory and its place in the request queue, and is recorded.
"""

from __future__ import annotations

import logging
import socket
from abc import ABC, abstractmethod
from collections.abc import Sequence
from time import perf_counter_ns
from typing import Final

from tidelog.network.channel_state import (
    BATCHED,
    BUSY,
    CLOSE_STARTED,
    CLOSED,
    CLOSING,
    DEFERRED,
    DEFERRED_COMPLETED,
    GATHERED,
    OPEN,
    REQUEST_COMPLETED,
    REQUEST_IN_PROGRESS,
    RESPONSE_DEFERRED,
    RESPONSE_HELD,
    RESPONSE_PENDING,
    SEND_BLOCKED,
    SEND_COMPLETED,
)
from tidelog.network.frames import SIZE
from tidelog.network.loop import READ, WRITE
from tidelog.network.output import COPIED_BYTES, Output, read_together
from tidelog.network.request import NO_BYTES, FastRequest, Part, Request, part_size
from tidelog.network.request_channel import RequestChannel

log = logging.getLogger("tidelog.network")

BATCH_BYTES: Final = 64 * 1024
"""The responses of a batch are sent when they have so many bytes, or when the batch ends."""

LateResponse = tuple[Request, Sequence[Part], int]  # a request, its response, and when that was given


class ResponseChannel(ABC):
    """The half of a `Channel` that sends responses."""

    __slots__ = (
        "_batch",
        "_batch_bytes",
        "_deferred",
        "_held",
        "_interest",
        "_output",
        "_send",
        "_sending",
        "_state",
        "client_software",
        "connection_id",
        "context",
        "fd",
        "last_active_ns",
        "listener",
        "peer",
        "principal",
        "sock",
    )

    def __init__(
        self, context: RequestChannel, sock: socket.socket, peer: str, listener: str, connection_id: str
    ) -> None:
        self.context = context
        self.sock = sock
        self.fd = sock.fileno()
        self.peer = peer
        self.listener = listener
        self.connection_id = connection_id
        self.principal = "User:ANONYMOUS"
        self.client_software = ("unknown", "unknown")
        self.last_active_ns = perf_counter_ns()
        self._send = sock.send
        self._state = OPEN
        self._interest = READ
        self._batch: list[bytes] = []
        self._batch_bytes = 0
        self._output = Output(sock)
        self._sending: tuple[Request, Sequence[Part], int, int] | None = None
        # How many responses are deferred, and the response that waits for them.
        self._deferred = 0
        self._held: LateResponse | None = None

    @abstractmethod
    def close(self) -> None:
        """Close the connection now."""

    @abstractmethod
    def _resume(self) -> None:
        """A response is sent: read the next request."""

    @property
    def is_open(self) -> bool:
        return not self._state & CLOSED

    @property
    def is_busy(self) -> bool:
        """A request has no response yet, or its response is not sent yet."""
        return bool(self._state & BUSY)

    @property
    def has_response_pending(self) -> bool:
        return bool(self._state & RESPONSE_PENDING)

    @property
    def has_request_in_progress(self) -> bool:
        return bool(self._state & REQUEST_IN_PROGRESS)

    def release_memory(self, request: Request) -> None:
        memory = request.memory
        if memory is not None:
            request.memory = None
            pool = self.context.pool
            pool.release(memory, request.size)
            if self.context.is_full:
                self.context.check_limits()

    def now_waiting(self, request: Request) -> None:
        """A request does not count as in progress any more."""
        if request.counted:
            request.counted = False
            self.context.in_progress -= 1
            if self.context.is_full:
                self.context.check_limits()

    @property
    def has_other_requests(self) -> bool:
        """Whether this turn of the loop has other requests too, of this connection or of others."""
        return self.context.clock.crowded or self._state & GATHERED != 0

    # Responses

    def send_frame(self, request: Request, frame: bytes) -> None:
        """Send a response that begins with its size. Responses of earlier requests leave before it."""
        if request.done:
            raise RuntimeError(f"{request.entry.name} from {self.peer} was answered twice")
        if request.deferred:
            self._send_deferred_frame(request, frame)
            return
        responded = perf_counter_ns()
        if self._state or request.memory is not None:
            self._send_late(request, (frame,), responded)
            return
        request.done = True
        try:
            sent = self._send(frame)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError as error:
            self._record(request, (frame,), responded)
            self._lost(error)
            return
        if sent != len(frame):
            self._send_rest(request, (memoryview(frame)[sent:],), responded)
            return
        context = self.context
        context.clock.now_ns = now = perf_counter_ns()
        request.metrics.record(request, responded, responded, now)
        if context.log_level:
            context.log_request(request, (frame,), responded, responded, now)

    def defer_response(self) -> None:
        """A fast path gives its response later in this turn. Later responses of the channel wait for it."""
        self._deferred += 1
        self._state = RESPONSE_DEFERRED[self._state]

    def send_deferred(self, request: FastRequest, frame: bytes) -> None:
        """Send a deferred response: a frame that begins with its size, or nothing."""
        self._deferred = deferred = self._deferred - 1
        if not deferred:
            self._state = DEFERRED_COMPLETED[self._state]
        self.send_now(request, frame)
        if self._state:
            self._after_deferred()

    def send_now(self, request: FastRequest, frame: bytes) -> None:
        """Send the response of a fast path before it returns. No response before it may be deferred."""
        responded = perf_counter_ns()
        if self._state or self._batch:
            self._add_to_batch(frame)
        elif frame:
            self._send_bytes(frame)
        _, entry, _, size, received_ns, started_ns = request
        self.context.clock.now_ns = now = perf_counter_ns()
        entry.count += 1
        entry.record_times(size, received_ns, started_ns, responded, responded, now)

    def send_parts(self, request: Request, parts: Sequence[Part]) -> None:
        """Send a response of bytes and file ranges, its size before it."""
        if request.done:
            raise RuntimeError(f"{request.entry.name} from {self.peer} was answered twice")
        size = sum(map(part_size, parts))
        if size <= COPIED_BYTES:
            frame = read_together(size, parts)
            if frame is not None:
                self.send_frame(request, frame)
                return
        head = SIZE.pack(size)
        if parts and type(parts[0]) is bytes:
            framed: list[Part] = [head + parts[0], *parts[1:]]
        else:
            framed = [head, *parts]
        self._send_late(request, framed, perf_counter_ns())

    def send_nothing(self, request: Request) -> None:
        """Complete a request without a response."""
        if request.done:
            raise RuntimeError(f"{request.entry.name} from {self.peer} was answered twice")
        responded = perf_counter_ns()
        was_busy = self._complete(request)
        self._record(request, (), responded)
        if was_busy:
            self._resume()

    def refuse(self, request: Request, reason: str) -> None:
        """Complete a request by closing the channel, after the responses of earlier requests."""
        if request.done:
            raise RuntimeError(f"{request.entry.name} from {self.peer} was answered twice")
        responded = perf_counter_ns()
        if request.deferred:
            self._end_deferral(request)
        self._complete(request)
        self._record(request, (), responded)
        self._send_batch()
        self._drop(reason)
        self._after_deferred()

    def _send_late(self, request: Request, parts: Sequence[Part], responded: int) -> None:
        """Send a response that came after its handler returned, that is in a batch, or that has parts."""
        if self._state & DEFERRED:
            # The deferred responses come first. No request is read until this one is sent.
            self._state = RESPONSE_HELD[self._state]
            self._held = (request, parts, responded)
            request.done = True
            return
        was_busy = self._complete(request)
        if self._state & CLOSED:
            self._record(request, parts, responded)
            return
        if self._state & BATCHED and len(parts) == 1 and isinstance(parts[0], bytes):
            self._batch.append(parts[0])
            self._batch_bytes += len(parts[0])
            if self._batch_bytes >= BATCH_BYTES:
                self._send_batch()
            self._record(request, parts, responded)
            return
        self._send_batch()
        self._send_rest(request, parts, responded)
        if was_busy and not self._state & RESPONSE_PENDING:
            self._resume()

    def _send_deferred_frame(self, request: Request, frame: bytes) -> None:
        """Send the deferred response of a `Request`, together with others of this turn."""
        self._end_deferral(request)
        if not self._state and not self._batch:
            self.send_frame(request, frame)
        else:
            request.done = True
            self._add_to_batch(frame)
            self._record(request, (frame,), perf_counter_ns())
        self._after_deferred()

    def _add_to_batch(self, frame: bytes) -> None:
        """Send a response together with the others of its channel in this turn."""
        self._batch.append(frame)
        self._batch_bytes += len(frame)
        if not self._state & GATHERED:
            self._send_batch()

    def _end_deferral(self, request: Request) -> None:
        request.deferred = False
        self._deferred -= 1
        if not self._deferred:
            self._state = DEFERRED_COMPLETED[self._state]

    def _after_deferred(self) -> None:
        """Send the response that waited for deferred ones, if the last of them is there."""
        if self._state & DEFERRED:
            return
        held, self._held = self._held, None
        if held is not None:
            self._send_late(*held)
        elif self._state & CLOSING:
            self._resume()

    def _complete(self, request: Request) -> bool:
        """Complete a request and release what it holds; says whether it had muted the channel."""
        request.done = True
        if request.memory is not None:
            self.release_memory(request)
        request.buffer = NO_BYTES
        if request.counted:
            self.now_waiting(request)
        was_busy = bool(self._state & REQUEST_IN_PROGRESS)
        self._state = REQUEST_COMPLETED[self._state]
        return was_busy

    def _record(self, request: Request, parts: Sequence[Part], responded: int, started: int = 0) -> None:
        context = self.context
        context.clock.now_ns = now = perf_counter_ns()
        request.metrics.record(request, responded, started or responded, now)
        if context.log_level:
            context.log_request(request, parts, responded, started or responded, now)

    # Sending

    def _send_batch(self) -> None:
        if not self._batch:
            return
        data = b"".join(self._batch)
        self._batch.clear()
        self._batch_bytes = 0
        if self._state & CLOSED:
            return
        if self._state & RESPONSE_PENDING:
            self._output.add((data,))
        else:
            self._send_bytes(data)

    def _send_bytes(self, data: bytes) -> None:
        """Send as much as the peer takes; the rest is pending."""
        try:
            sent = self._send(data)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError as error:
            self._lost(error)
            return
        if sent != len(data):
            self._output.add((memoryview(data)[sent:],))
            self._wait_to_send()

    def _send_rest(self, request: Request, parts: Sequence[Part], responded: int) -> None:
        if self._state & CLOSED:
            self._record(request, parts, responded)
            return
        clock = self.context.clock
        clock.bulk_ns = clock.turn_ns
        waited = bool(self._output)
        self._output.add(parts)
        started = perf_counter_ns() if waited else responded
        try:
            finished = not waited and self._output.send()
        except OSError as error:
            self._record(request, parts, responded)
            self._lost(error)
            return
        if finished:
            self._record(request, parts, responded)
            return
        self._sending = (request, parts if self.context.log_level else (), responded, started)
        self._wait_to_send()

    def _wait_to_send(self) -> None:
        """Wait until the peer takes more, or until a thread has read the missing range of a file."""
        self._state = SEND_BLOCKED[self._state]
        missing = self._output.missing
        if missing is None:
            self._set_interest(WRITE)
            return
        self._set_interest(0)

        def bring_in() -> None:
            if not self._state & CLOSED:
                missing.bring_in()

        self.context.loop.run_reading(bring_in, self._brought_in)

    def _brought_in(self, _: None, error: BaseException | None) -> None:
        if self._state & CLOSED:
            return
        if isinstance(error, OSError):
            self._lost(error)
        elif error is not None:
            raise error
        else:
            self._output.brought_in()
            self._continue_sending()

    def _continue_sending(self) -> None:
        try:
            finished = self._output.send()
        except OSError as error:
            self._lost(error)
            return
        self.last_active_ns = self.context.clock.now_ns
        if not finished:
            self._wait_to_send()
            return
        self._state = SEND_COMPLETED[self._state]
        sending, self._sending = self._sending, None
        if sending is not None:
            request, parts, responded, started = sending
            self._record(request, parts, responded, started)
        self._resume()

    def _set_interest(self, mask: int) -> None:
        if mask != self._interest:
            self._interest = mask
            self.context.loop.modify(self.fd, mask)

    def _lost(self, error: OSError | None) -> None:
        if error is not None:
            log.debug("connection of %s lost: %s", self.peer, error)
        self.close()

    def _drop(self, reason: str) -> None:
        """Close the channel because of its peer; deferred responses are sent before."""
        log.warning("closing the connection of %s (listener %s): %s", self.peer, self.listener, reason)
        if self._state & DEFERRED:
            self._state = CLOSE_STARTED[self._state]  # after the deferred responses
        else:
            self.close()
