"""Channel: one connection (Kafka's KafkaChannel). It sends the responses in the order of their requests.

Its `RequestReader` reads requests. It is muted while a request is in progress, a response is pending, the
request queue is full or the client is over a quota (`channel_state`). A slow peer delays no other connection.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from time import perf_counter_ns
from typing import TYPE_CHECKING, Final

from tidelog.clock import TimerHandle
from tidelog.network.channel_state import (
    BATCH_ENDED,
    BATCH_STARTED,
    BATCHED,
    BUSY,
    CLOSE_COMPLETED,
    CLOSE_STARTED,
    CLOSED,
    CLOSING,
    DEFERRED,
    DEFERRED_COMPLETED,
    GATHERED,
    OPEN,
    QUEUE_DRAINED,
    QUEUE_FILLED,
    REQUEST_COMPLETED,
    REQUEST_IN_PROGRESS,
    REQUEST_RECEIVED,
    RESPONSE_DEFERRED,
    RESPONSE_HELD,
    RESPONSE_PENDING,
    SEND_BLOCKED,
    SEND_COMPLETED,
    THROTTLE_ENDED,
    THROTTLE_STARTED,
    THROTTLED,
)
from tidelog.network.frames import SIZE
from tidelog.network.listener_security import ANONYMOUS
from tidelog.network.loop import READ, WRITE
from tidelog.network.output import COPIED_BYTES, ChannelSocket, hang_up, make_output, read_together
from tidelog.network.request import NO_BYTES, FastRequest, Part, Request, part_size
from tidelog.network.request_channel import RequestChannel
from tidelog.network.request_metrics import ApiVersionEntry
from tidelog.network.request_reader import RequestReader, first_reader

if TYPE_CHECKING:
    from tidelog.network.authentication_reader import AuthenticationReader
    from tidelog.network.listener_security import ListenerSecurity

log = logging.getLogger("tidelog.network")

BATCH_BYTES: Final = 64 * 1024
"""The responses of a batch are sent when they have so many bytes, or when the batch ends."""

LateResponse = tuple[Request, Sequence[Part], int]  # a request, its response, and when that was given


class Channel:
    """The connection of one client, on the loop of the broker."""

    __slots__ = (
        "_batch",
        "_batch_bytes",
        "_deferred",
        "_on_closed",
        "_output",
        "_reader",
        "_send",
        "_sending",
        "_throttle",
        "_waiting_response",
        "allowed_reads",
        "allowed_writes",
        "client_id",
        "client_software",
        "connection_id",
        "context",
        "fd",
        "interest",
        "is_exempt",
        "is_token_authenticated",
        "last_active_ns",
        "listener",
        "peer",
        "principal",
        "sock",
        "state",
        "tls",
    )

    def __init__(
        self,
        context: RequestChannel,
        sock: ChannelSocket,
        peer: str,
        listener: str,
        connection_id: str,
        on_closed: Callable[[Channel], None],
        security: ListenerSecurity | None = None,
    ) -> None:
        self.context = context
        self.sock = sock
        self.fd = sock.fileno()
        self.peer = peer
        self.listener = listener
        self.connection_id = connection_id
        self.principal = ANONYMOUS
        self.client_id: str | None = None
        self.client_software = ("unknown", "unknown")
        self.last_active_ns = perf_counter_ns()
        self.state = OPEN
        self.interest = READ
        self.is_exempt = False  # from the limits of the request queue
        self.is_token_authenticated = False
        # The topics that the peer may read and write, with the generation of the access rules that allow it.
        self.allowed_reads: dict[str | bytes, int] = {}
        self.allowed_writes: dict[str, int] = {}
        self._send = sock.send
        self._batch: list[bytes] = []
        self._batch_bytes = 0
        self._output, self.tls = make_output(sock, context.loop.sends_files, is_secure=security is not None)
        self._sending: tuple[Request, Sequence[Part], int, int] | None = None
        # How many responses are deferred, and the response that waits for them.
        self._deferred = 0
        self._waiting_response: LateResponse | None = None
        # The timer for the end of the throttle time, and the callback of the handler.
        self._throttle: tuple[TimerHandle, Callable[[], None]] | None = None
        self._on_closed = on_closed
        # None when the channel is closed: a cycle with the reader would wait for the garbage collector.
        self._reader: RequestReader | AuthenticationReader | None
        self._reader = first_reader(self, context, sock, security)
        context.loop.register(self.fd, self._reader.on_event, READ, is_login=self.is_authenticating)

    @property
    def is_open(self) -> bool:
        return not self.state & CLOSED

    @property
    def is_authenticating(self) -> bool:
        """Whether the SASL authentication is not complete yet."""
        return not isinstance(self._reader, RequestReader)

    @property
    def is_busy(self) -> bool:
        """Whether a request has no response yet, or its response is not sent yet."""
        return bool(self.state & BUSY)

    @property
    def has_response_pending(self) -> bool:
        return bool(self.state & RESPONSE_PENDING)

    @property
    def has_request_in_progress(self) -> bool:
        return bool(self.state & REQUEST_IN_PROGRESS)

    @property
    def has_other_requests(self) -> bool:
        """Whether this turn of the loop has other requests too, of this connection or of others."""
        return self.context.clock.crowded or self.state & GATHERED != 0

    @property
    def is_forwarded(self) -> bool:
        return False

    def set_reader(self, reader: RequestReader) -> None:
        """Replace the reader after the authentication."""
        self._reader = reader
        loop = self.context.loop
        loop.unregister(self.fd)
        loop.register(self.fd, reader.on_event, self.interest)

    def send_unasked(self, frame: bytes) -> None:
        """Send a frame of the authentication, which answers no `Request`."""
        self._send_bytes(frame)

    # Requests

    def request_received(self, request: Request) -> None:
        """Mute the channel: the handler has returned, and the response comes later."""
        self.state = REQUEST_RECEIVED[self.state]
        if not request.kept:
            request.release_buffer()
        if request.local_end_ns == 0 and not self.is_exempt:
            request.counted = True
            context = self.context
            context.in_progress += 1
            if context.in_progress >= context.max_in_progress:
                context.check_limits()

    def handler_failed(self, entry: ApiVersionEntry, request: Request | None, error: Exception) -> None:
        """Close the channel after an unexpected error of a handler."""
        log.error(
            "closing the connection of %s: the handler of %s failed", self.peer, entry.name, exc_info=error
        )
        if request is not None and not request.done:
            self._complete(request)
            self.context.record(request, (), perf_counter_ns())
        self.close()

    def request_of(self, request: FastRequest) -> Request:
        """A `Request` for a deferred response, for code that completes any request."""
        _, entry, correlation_id, size, received_ns, started_ns = request
        made = Request(
            self, entry, correlation_id, self.client_id, NO_BYTES, 0, size, received_ns, started_ns
        )
        made.deferred = True
        return made

    def keep_frame(self, request: Request) -> None:
        """Copy the frame of a request out of the shared buffer, unless the channel owns its bytes."""
        if self._reader is None or not self._reader.owns(request.buffer):
            self.context.copy_frame(request)

    # Responses

    def send_frame(self, request: Request, frame: bytes) -> None:
        """Send a response that begins with its size, after the responses of earlier requests."""
        if request.done:
            raise RuntimeError(f"{request.entry.name} from {self.peer} was answered twice")
        if request.deferred:
            self._send_deferred_frame(request, frame)
            return
        responded = perf_counter_ns()
        if self.state & ~REQUEST_IN_PROGRESS or self._batch:
            self._send_late(request, (frame,), responded)
            return
        was_busy = self._complete(request)
        self._send_frame(request, frame, responded)
        if was_busy:
            self._resume()

    def _send_frame(self, request: Request, frame: bytes, responded: int) -> None:
        """Send a response with one system call, unless others are pending.

        The rest of it may become pending.
        """
        try:
            sent = self._send(frame)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError as error:
            self.context.record(request, (frame,), responded)
            self.lost(error)
            return
        if sent != len(frame):
            self._send_rest(request, (memoryview(frame)[sent:],), responded)
        else:
            self.context.record(request, (frame,), responded)

    def defer_response(self) -> None:
        """Defer the response of a fast path to the end of this turn, or until replicas have the records.

        Later responses of the channel wait for it. The fast path keeps the order of its deferred responses.
        """
        self._deferred += 1
        self.state = RESPONSE_DEFERRED[self.state]

    def send_deferred(self, request: FastRequest, frame: bytes) -> None:
        """Send a deferred response: a frame that begins with its size, or nothing."""
        self._deferred = deferred = self._deferred - 1
        if not deferred:
            self.state = DEFERRED_COMPLETED[self.state]
        self.send_now(request, frame)
        if self.state:
            self._after_deferred()

    def send_gathered(self) -> None:
        """Send the gathered responses, although later ones are still deferred."""
        if not self.state & BATCHED:
            self._send_batch()

    def send_now(self, request: FastRequest, frame: bytes) -> None:
        """Send the response of a fast path at once. No earlier response may be deferred."""
        responded = perf_counter_ns()
        if self.state or self._batch:
            self._add_to_batch(frame)
        elif frame:
            self._send_bytes(frame)
        _, entry, _, size, received_ns, started_ns = request
        self.context.clock.now_ns = now = perf_counter_ns()
        entry.count += 1
        entry.record_times(size, received_ns, started_ns, responded, responded, now)

    def send_parts(self, request: Request, parts: Sequence[Part]) -> None:
        """Send a response of bytes and file ranges, with its size in front."""
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
        self.context.record(request, (), responded)
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
        self.context.record(request, (), responded)
        self._send_batch()
        self.drop(reason)
        self._after_deferred()

    def _send_late(self, request: Request, parts: Sequence[Part], responded: int) -> None:
        """Send a response after its handler has returned, in a batch, or with several parts."""
        if self.state & DEFERRED:
            # The deferred responses come first. No request is read until this one is sent.
            self.state = RESPONSE_HELD[self.state]
            self._waiting_response = (request, parts, responded)
            request.done = True
            return
        was_busy = self._complete(request)
        if self.state & CLOSED:
            self.context.record(request, parts, responded)
            return
        frame = parts[0] if len(parts) == 1 and isinstance(parts[0], bytes) else None
        if frame is not None and self.state & BATCHED:
            self._add_to_batch(frame)
            self.context.record(request, parts, responded)
            return
        self._send_batch()
        if frame is not None and len(frame) <= BATCH_BYTES and not self.state & (CLOSED | RESPONSE_PENDING):
            self._send_frame(request, frame, responded)
        else:
            self._send_rest(request, parts, responded)
        if was_busy and not self.state & RESPONSE_PENDING:
            self._resume()

    def _send_deferred_frame(self, request: Request, frame: bytes) -> None:
        """Send the deferred response of a `Request`, together with others of this turn."""
        self._end_deferral(request)
        if not self.state and not self._batch:
            self.send_frame(request, frame)
        else:
            request.done = True
            self._add_to_batch(frame)
            self.context.record(request, (frame,), perf_counter_ns())
        self._after_deferred()

    def _add_to_batch(self, frame: bytes) -> None:
        """Send a response together with the others of its channel in this turn."""
        self._batch.append(frame)
        self._batch_bytes += len(frame)
        if self._batch_bytes >= BATCH_BYTES or not self.state & GATHERED:
            self._send_batch()

    def _end_deferral(self, request: Request) -> None:
        request.deferred = False
        self._deferred -= 1
        if not self._deferred:
            self.state = DEFERRED_COMPLETED[self.state]

    def _after_deferred(self) -> None:
        """Send the response that waited for deferred ones, if the last of them is there."""
        if self.state & DEFERRED:
            return
        waiting_response, self._waiting_response = self._waiting_response, None
        if waiting_response is not None:
            self._send_late(*waiting_response)
        elif self.state & CLOSING:
            self._resume()

    def _complete(self, request: Request) -> bool:
        """Complete a request and release its memory; returns whether it had muted the channel."""
        request.done = True
        if request.memory is not None:
            self.context.release_memory(request)
        request.buffer = NO_BYTES
        if request.counted:
            self.context.no_longer_in_progress(request)
        was_busy = bool(self.state & REQUEST_IN_PROGRESS)
        self.state = REQUEST_COMPLETED[self.state]
        return was_busy

    # Sending

    @property
    def has_batch(self) -> bool:
        """Whether responses wait to be sent together."""
        return bool(self._batch)

    def start_batch(self) -> None:
        """Send the responses of the requests of one read together, when `end_batch` is called."""
        self.state = BATCH_STARTED[self.state]

    def end_batch(self) -> None:
        """Send the responses of the batch, if one was started."""
        if self.state & BATCHED:
            self.state = BATCH_ENDED[self.state]
            self._send_batch()

    def _send_batch(self) -> None:
        if not self._batch:
            return
        data = b"".join(self._batch)
        self._batch.clear()
        self._batch_bytes = 0
        if self.state & CLOSED:
            return
        if self.state & RESPONSE_PENDING:
            self._output.add((data,))
        else:
            self._send_bytes(data)

    def _send_bytes(self, data: bytes) -> None:
        """Send as much as the peer takes. The rest becomes pending."""
        try:
            sent = self._send(data)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError as error:
            self.lost(error)
            return
        if sent != len(data):
            self._output.add((memoryview(data)[sent:],))
            self._wait_to_send()

    def _send_rest(self, request: Request, parts: Sequence[Part], responded: int) -> None:
        if self.state & CLOSED:
            self.context.record(request, parts, responded)
            return
        clock = self.context.clock
        clock.bulk_ns = clock.turn_ns
        waited = bool(self._output)
        self._output.add(parts)
        started = perf_counter_ns() if waited else responded
        try:
            finished = not waited and self._output.send()
        except OSError as error:
            self.context.record(request, parts, responded)
            self.lost(error)
            return
        if finished:
            self.context.record(request, parts, responded)
            return
        self._sending = (request, parts if self.context.log_level else (), responded, started)
        self._wait_to_send()

    def _wait_to_send(self) -> None:
        """Wait until the peer takes more, or until a thread has read the missing range of a file."""
        self.state = SEND_BLOCKED[self.state]
        missing = self._output.missing
        if missing is None:
            self.set_interest(WRITE)
            return
        self.set_interest(0)

        def bring_in() -> None:
            if not self.state & CLOSED:
                missing.bring_in()

        self.context.loop.run_reading(bring_in, self._brought_in)

    def _brought_in(self, _: None, error: BaseException | None) -> None:
        if self.state & CLOSED:
            return
        if isinstance(error, OSError):
            self.lost(error)
        elif error is not None:
            raise error
        else:
            self._output.brought_in()
            self.continue_sending()

    def continue_sending(self) -> None:
        try:
            finished = self._output.send()
        except OSError as error:
            self.lost(error)
            return
        self.last_active_ns = self.context.clock.now_ns
        if not finished:
            self._wait_to_send()
            return
        self.state = SEND_COMPLETED[self.state]
        self._record_sent()
        self._resume()

    def _record_sent(self) -> None:
        """Record the request whose response was pending, if one was."""
        sending, self._sending = self._sending, None
        if sending is not None:
            self.context.record(*sending)

    def set_interest(self, mask: int) -> None:
        """Wait for these events of the socket."""
        if mask != self.interest:
            self.interest = mask
            self.context.loop.modify(self.fd, mask)
            if mask & READ and self.tls is not None:
                self.tls.report_buffered()

    # Muting and closing

    def mute(self) -> None:
        """Read nothing until `unmute`, because the request queue is full."""
        self.state = QUEUE_FILLED[self.state]
        self.set_interest(self.interest & ~READ)

    def unmute(self) -> None:
        """End `mute`: the request queue has room, and the reader listens again."""
        self.state = QUEUE_DRAINED[self.state]

    def throttle(self, seconds: float, ended: Callable[[], None]) -> None:
        """Read no request for some time, because the client is over a quota.

        Call this before the response is sent. `ended` is called when the time is over, or when the channel is
        closed.
        """
        if self.state & CLOSED:
            ended()
            return
        self.state = THROTTLE_STARTED[self.state]
        self._throttle = (self.context.loop.schedule(seconds, self._throttle_ended), ended)

    def _throttle_ended(self) -> None:
        throttle, self._throttle = self._throttle, None
        if throttle is None:
            return
        throttle[1]()
        self.state = THROTTLE_ENDED[self.state]
        self._resume()

    def _resume(self) -> None:
        """Read the next request, unless something else mutes the channel."""
        state, reader = self.state, self._reader
        if reader is None or state & (REQUEST_IN_PROGRESS | RESPONSE_PENDING):
            return
        if not state & CLOSING:
            if not state & THROTTLED:
                reader.resume()
        elif not state & DEFERRED:
            self.close()

    def lost(self, error: OSError | None) -> None:
        """Close the channel after the peer has closed the connection, or after an error of the socket."""
        if error is not None:
            log.debug("connection of %s lost: %s", self.peer, error)
        self.close()

    def drop(self, reason: str) -> None:
        """Close the channel because of a fault of the peer, after the deferred responses."""
        log.warning("closing the connection of %s (listener %s): %s", self.peer, self.listener, reason)
        if self.state & DEFERRED:
            self.state = CLOSE_STARTED[self.state]  # after the deferred responses
        else:
            self.close()

    def drain(self) -> None:
        """Stop reading requests, and close when the last response is sent."""
        if self.state & BUSY:
            self.state = CLOSE_STARTED[self.state]
        else:
            self.close()

    def close(self) -> None:
        """Close the connection now. The response of a request in progress is recorded and dropped."""
        reader, self._reader = self._reader, None
        if reader is None:
            return
        self.state = CLOSE_COMPLETED[self.state]
        context = self.context
        context.loop.unregister(self.fd)
        hang_up(self.sock)
        reader.close()
        throttle, self._throttle = self._throttle, None
        if throttle is not None:
            throttle[0].cancel()
            throttle[1]()
        if context.is_full:
            context.check_limits()
        self._batch.clear()
        self._output.clear()
        self._record_sent()
        self._on_closed(self)
