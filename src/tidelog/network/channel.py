"""One connection: reads frames, hands one request at a time to the handler, sends responses in order.

A channel is muted while its request is in progress, its response is pending or the request queue is full
(`channel_state`). A peer that sends or reads slowly delays no other connection.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import suppress
from time import perf_counter_ns
from typing import Final

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
    QUEUE_DRAINED,
    QUEUE_FILLED,
    REQUEST_IN_PROGRESS,
    REQUEST_RECEIVED,
    RESPONSE_PENDING,
    UNREADABLE,
)
from tidelog.network.frames import (
    NOWHERE,
    READ_BYTES,
    TO_FRAME,
    TO_SHARED_BUFFER,
    TO_SIZE,
    FrameReader,
    InvalidReceive,
)
from tidelog.network.loop import GONE, READ, WRITE
from tidelog.network.memory import FrameBuffer
from tidelog.network.request import NO_BYTES, FastRequest, Request
from tidelog.network.request_channel import InvalidRequest, RequestChannel
from tidelog.network.request_metrics import ApiVersionEntry
from tidelog.network.response_channel import ResponseChannel, log
from tidelog.network.twins import known_header

KnownHeader = tuple[ApiVersionEntry, int, int]
"""The API version, the correlation id, and where the body begins."""

FRAMES_PER_TURN: Final = 32
"""A channel handles at most so many frames before other channels have their turn."""


def hang_up(sock: socket.socket) -> None:
    """Close a socket. The peer sees the end even if a forked process has the socket open, too."""
    with suppress(OSError):  # the peer has gone already
        sock.shutdown(socket.SHUT_RDWR)
    sock.close()


class Channel(ResponseChannel):
    """The connection of one client, on the loop of the broker."""

    __slots__ = (
        "_client_raw",
        "_frames",
        "_on_closed",
        "_recv_into",
        "_shared",
        "client_id",
    )

    def __init__(
        self,
        context: RequestChannel,
        sock: socket.socket,
        peer: str,
        listener: str,
        connection_id: str,
        on_closed: Callable[[Channel], None],
    ) -> None:
        super().__init__(context, sock, peer, listener, connection_id)
        self.client_id: str | None = None
        self._client_raw = b""  # the client id of the last request, with its length before it
        self._recv_into = sock.recv_into
        self._on_closed = on_closed
        self._shared = context.received
        self._frames = FrameReader(context.received, context.pool)
        context.loop.register(self.fd, self.on_event, READ)

    # Reading

    def on_event(self, mask: int) -> None:
        context = self.context
        if mask != READ or self._state or self._frames.target or context.is_full:
            self._on_unusual(mask)
            return
        shared = self._shared
        buffer = shared.buffer
        try:
            received = self._recv_into(buffer)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._lost(error)
            return
        # The ordinary case: the read is exactly one frame, of an API version and a client that are known.
        known = known_header(buffer, 0, received, context.entries, self._client_raw)
        if known is not None:
            self._handle(known, self.client_id, shared.view[4:received], None)
        elif received:
            self._frames.buffer_updated(received)
            self._handle_frames()
        else:
            self.close()

    def _on_unusual(self, mask: int) -> None:
        state = self._state
        if state & CLOSED:
            return
        if mask & GONE and (not mask & READ or not self._may_read()):
            # Nothing can be sent any more. A channel that may read first reads the peer's last bytes.
            self._lost(None)
            return
        if mask & WRITE and state & RESPONSE_PENDING:
            self._continue_sending()
        if mask & READ and not self._state & CLOSED:
            self._read()

    def _may_read(self) -> bool:
        return not self._state & UNREADABLE and self._frames.target != NOWHERE

    def _read(self) -> None:
        if not self._may_read():
            # To stop listening is a system call: it is made only now that the peer has sent more.
            self._set_interest(self._interest & ~READ)
        elif self.context.is_full and self._must_wait():
            self._mute()
        else:
            self._receive()

    def _must_wait(self) -> bool:
        # A frame that has its memory is read to its end: its memory is released when it is handled.
        context = self.context
        return self._frames.target != TO_FRAME or context.in_progress >= context.max_in_progress

    def _receive(self) -> None:
        frames = self._frames
        target = frames.target
        try:
            received = self._receive_once()
            if target == TO_SIZE and received and frames.missing:
                received = self._receive_once()  # the frame follows its size
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._lost(error)
            return
        except InvalidReceive as error:
            self._refuse_frame(error)
            return
        if not received:
            self.close()
        elif target == TO_SHARED_BUFFER:
            self._handle_frames()
        else:
            frame = frames.next_frame()
            if frame is not None:
                self._handle_new(frame, frames.take_memory())

    def _receive_once(self) -> int:
        context, frames = self.context, self._frames
        space = frames.get_buffer()
        if len(space) > READ_BYTES:
            space = space[: context.allowance(len(space))]
        received = self._recv_into(space)
        if received:
            if frames.target:
                clock = context.clock
                self.last_active_ns = clock.now_ns
                clock.bulk_ns = clock.turn_ns
            if frames.buffer_updated(received) and context.pool.is_out_of_memory:
                context.check_limits()
        return received

    def _handle_frames(self) -> None:
        """Handle the whole frames of one read, as many as may be handled now."""
        frames = self._frames
        handled = 0
        try:
            while handled < FRAMES_PER_TURN and not self._state & UNREADABLE:
                frame = frames.next_frame()
                if frame is None:
                    break
                handled += 1
                if not self._state & BATCHED and (self._batch or frames.has_frame()):
                    self._state = BATCH_STARTED[self._state]
                known = known_header(
                    frames.buffer, frames.start, frames.position, self.context.entries, self._client_raw
                )
                if known is not None:
                    self._handle(known, self.client_id, frame, None)
                else:
                    self._handle_new(frame, None)
            self._end_batch()
            if not self._state & CLOSED:
                self._detach(handled == FRAMES_PER_TURN)
        except InvalidReceive as error:
            self._end_batch()
            self._refuse_frame(error)

    def _end_batch(self) -> None:
        """Send the responses of the requests of one read together."""
        if self._state & BATCHED:
            self._state = BATCH_ENDED[self._state]
            self._send_batch()

    def _detach(self, is_turn_over: bool) -> None:
        """Leave the shared buffer to other connections."""
        frames = self._frames
        frames.detach(is_turn_over or self._state & UNREADABLE != 0)
        if frames.target == NOWHERE:
            if not self._state & UNREADABLE:
                # Only the share of this turn is used up.
                self.context.loop.call_soon(self._continue_saved)
        elif frames.target and self.context.pool.is_out_of_memory:
            self.context.check_limits()

    def _refuse_frame(self, error: InvalidReceive) -> None:
        self._frames.close()
        self._drop(str(error))

    def _continue_saved(self) -> None:
        """Handle frames that were received earlier."""
        if self._frames.target != NOWHERE or self._state & UNREADABLE:
            return
        if self.context.is_full:
            self._mute()
            return
        self._handle_frames()
        self._listen_again()

    # Handling

    def _handle_new(self, frame: memoryview, memory: FrameBuffer | None) -> None:
        """Handle a frame of an API version or a client id that is new here, or with memory of the pool."""
        context = self.context
        try:
            entry, correlation_id, client_id, body_start = context.read_header(frame)
        except InvalidRequest as error:
            if memory is not None:
                context.pool.release(memory, len(frame))
                context.check_limits()
            self._end_batch()
            self._drop(str(error))
            return
        if body_start >= 10:
            length = max(0, int.from_bytes(frame[8:10], "big", signed=True))
            self._client_raw = bytes(frame[8 : 10 + length])
            self.client_id = client_id
        self._handle((entry, correlation_id, body_start), client_id, frame, memory)

    def _handle(
        self, header: KnownHeader, client_id: str | None, frame: memoryview, memory: FrameBuffer | None
    ) -> None:
        """Give a request to the fast path of its API, or to the handler."""
        entry, correlation_id, body_start = header
        context = self.context
        clock = context.clock
        self.last_active_ns = now = clock.now_ns
        size, fast_path, request = len(frame), entry.fast_path, None
        try:
            if (
                fast_path is None
                or context.log_level  # the request log needs a Request
                or not fast_path((self, entry, correlation_id, size, clock.turn_ns, now), frame, body_start)
            ):
                request = Request(
                    self, entry, correlation_id, client_id, frame, body_start, size, clock.turn_ns, now
                )
                request.memory, memory = memory, None
                context.handler(request)
        except Exception as error:
            self._handler_failed(entry, request, error)
        if memory is not None:
            context.pool.release(memory, size)
            context.check_limits()
        if request is not None and not request.done:
            self._request_received(request)

    def _request_received(self, request: Request) -> None:
        """The handler returned without a response: it comes later."""
        self._state = REQUEST_RECEIVED[self._state]
        if not request.kept:
            request.release_buffer()
        if request.local_end_ns == 0:
            request.counted = True
            context = self.context
            context.in_progress += 1
            if context.in_progress >= context.max_in_progress:
                context.check_limits()

    def _handler_failed(self, entry: ApiVersionEntry, request: Request | None, error: Exception) -> None:
        log.error(
            "closing the connection of %s: the handler of %s failed", self.peer, entry.name, exc_info=error
        )
        if request is not None and not request.done:
            self._complete(request)
            self._record(request, (), perf_counter_ns())
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
        frame = request.buffer
        if self._frames.owns(frame):
            return
        copied = bytearray(frame)
        request.memory = copied
        request.buffer = memoryview(copied)
        pool = self.context.pool
        pool.used += len(copied)
        if pool.is_out_of_memory:
            self.context.check_limits()

    def _resume(self) -> None:
        """Handle the next frame that is here, or read."""
        state = self._state
        if state & (CLOSED | REQUEST_IN_PROGRESS | RESPONSE_PENDING):
            return
        if state & CLOSING:
            if not state & DEFERRED:
                self.close()
        elif self._frames.target == NOWHERE:
            self.context.loop.call_soon_in_turn(self._continue_saved)
        else:
            self._listen_again()

    def _listen_again(self) -> None:
        if self._interest != READ and self._may_read():
            self._set_interest(READ)

    # Muting and closing

    def _mute(self) -> None:
        """The request queue is full: wait for a turn to read."""
        self._state = QUEUE_FILLED[self._state]
        self._set_interest(self._interest & ~READ)
        self.context.muted.append(self)

    def unmute(self) -> None:
        """The request queue has room, and it is this channel's turn to read."""
        self._state = QUEUE_DRAINED[self._state]
        if self._state & CLOSED:
            return
        context = self.context
        was_full, context.is_full = context.is_full, False
        if self._frames.target == NOWHERE:
            self._continue_saved()
        else:
            self._listen_again()
            self._read()
        context.is_full = context.is_full or was_full

    def drain(self) -> None:
        """Read no further request, and close when the last response is sent."""
        if self._state & BUSY:
            self._state = CLOSE_STARTED[self._state]
        else:
            self.close()

    def close(self) -> None:
        """Close the connection now. The response of a request in progress is recorded and dropped."""
        if self._state & CLOSED:
            return
        self._state = CLOSE_COMPLETED[self._state]
        context = self.context
        context.loop.unregister(self.fd)
        hang_up(self.sock)
        self._frames.close()
        if context.is_full:
            context.check_limits()
        self._batch.clear()
        self._output.clear()
        sending, self._sending = self._sending, None
        if sending is not None:
            request, parts, responded, started = sending
            self._record(request, parts, responded, started)
        self._on_closed(self)
