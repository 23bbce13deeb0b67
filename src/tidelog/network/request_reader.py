"""RequestReader: reads the requests of one connection and hands them to the handler, one at a time and in
order.

It receives from the socket, cuts frames with a `FrameReader` and reads their headers. It does not read while
its `Channel` has a request in progress or a pending response, or while the request queue is full.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Final

from tidelog.network.channel_state import BATCHED, CLOSED, RESPONSE_PENDING, UNREADABLE
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
from tidelog.network.output import ChannelSocket
from tidelog.network.request import Request
from tidelog.network.request_channel import InvalidRequest, RequestChannel
from tidelog.network.request_metrics import ApiVersionEntry
from tidelog.network.twins import known_header

if TYPE_CHECKING:
    from tidelog.network.authentication_reader import AuthenticationReader
    from tidelog.network.channel import Channel
    from tidelog.network.listener_security import ListenerSecurity

KnownHeader = tuple[ApiVersionEntry, int, int]
"""The API version, the correlation id, and where the body begins."""

FRAMES_PER_TURN: Final = 32
"""A reader handles at most so many frames before other connections have their turn."""


GATHERED_BYTES: Final = 1024 * 1024
"""The system collects so much of a large frame before it wakes the loop, instead of a few packets."""

WORTH_GATHERING: Final = 128 * 1024
"""For less than this the two system calls would cost more than they save."""


class RequestReader:
    """The receiving end of one `Channel`."""

    __slots__ = (
        "_channel",
        "_client_raw",
        "_context",
        "_frames",
        "_gathered",
        "_recv_into",
        "_shared",
        "_sock",
    )

    def __init__(self, channel: Channel, context: RequestChannel, sock: ChannelSocket) -> None:
        self._channel = channel
        self._context = context
        self._recv_into = sock.recv_into
        self._sock = sock if isinstance(sock, socket.socket) else None  # None with TLS
        self._gathered = 1
        self._shared = context.received
        self._frames = FrameReader(context.received, context.pool)
        self._client_raw = b""  # the client id of the last request, with its length before it

    # Receiving

    def on_event(self, mask: int) -> None:
        """Handle the readiness of the socket; `mask` has the events."""
        context, channel = self._context, self._channel
        if mask != READ or channel.state or self._frames.target or context.is_full:
            self._on_unusual(mask)
            return
        shared = self._shared
        buffer = shared.buffer
        try:
            received = self._recv_into(buffer)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            channel.lost(error)
            return
        # The ordinary case: the read is exactly one frame, of an API version and a client that are known.
        known = known_header(buffer, 0, received, context.entries, self._client_raw)
        if known is not None:
            self._handle(known, channel.client_id, shared.view[4:received], None)
        elif received:
            self._frames.buffer_updated(received)
            self._handle_frames()
        else:
            channel.close()

    def _on_unusual(self, mask: int) -> None:
        channel = self._channel
        state = channel.state
        if state & CLOSED:
            return
        if mask & GONE and (not mask & READ or not self._may_read()):
            # Nothing can be sent any more. A channel that may read reads the last bytes of the peer first.
            channel.lost(None)
            return
        if mask & WRITE and state & RESPONSE_PENDING:
            channel.continue_sending()
        if mask & READ and not channel.state & CLOSED:
            self._read()

    def _may_read(self) -> bool:
        return not self._channel.state & UNREADABLE and self._frames.target != NOWHERE

    def _read(self) -> None:
        if not self._may_read():
            # To stop listening is a system call, so it is made only when the peer has really sent more.
            channel = self._channel
            channel.set_interest(channel.interest & ~READ)
        elif self._context.is_full and self._must_wait():
            self._wait_for_turn()
        else:
            self._receive()

    def _must_wait(self) -> bool:
        if self._channel.is_exempt:
            return False
        # A frame with memory of the pool is read to its end, because the memory is released only then.
        context = self._context
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
            self._channel.lost(error)
            return
        except InvalidReceive as error:
            self._refuse_frame(error)
            return
        if not received:
            self._channel.close()
        elif target == TO_SHARED_BUFFER:
            self._handle_frames()
        else:
            frame = frames.next_frame()
            if frame is not None:
                self._handle_new(frame, frames.take_memory())

    def _receive_once(self) -> int:
        context, frames = self._context, self._frames
        space = frames.get_buffer()
        if len(space) > READ_BYTES:
            space = space[: context.allowance(len(space))]
        received = self._recv_into(space)
        if received:
            if frames.target:
                clock = context.clock
                self._channel.last_active_ns = clock.now_ns
                clock.bulk_ns = clock.turn_ns
            if frames.buffer_updated(received) and context.pool.is_out_of_memory:
                context.check_limits()
            missing = frames.missing if frames.target == TO_FRAME else 0
            wanted = min(missing, GATHERED_BYTES) if missing >= WORTH_GATHERING else 1
            if wanted != self._gathered:
                self._gather(wanted)
        return received

    def _gather(self, wanted: int) -> None:
        """Let the system wake the loop when `wanted` bytes have arrived, or the peer has closed."""
        if self._sock is not None:
            self._gathered = wanted
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, wanted)

    # Frames

    def _handle_frames(self) -> None:
        """Handle the whole frames of one read, as long as the channel may read."""
        channel, frames = self._channel, self._frames
        handled = 0
        try:
            while handled < FRAMES_PER_TURN and not channel.state & UNREADABLE:
                frame = frames.next_frame()
                if frame is None:
                    break
                handled += 1
                if not channel.state & BATCHED and (channel.has_batch or frames.has_frame()):
                    channel.start_batch()
                known = known_header(
                    frames.buffer, frames.start, frames.position, self._context.entries, self._client_raw
                )
                if known is not None:
                    self._handle(known, channel.client_id, frame, None)
                else:
                    self._handle_new(frame, None)
            channel.end_batch()
            if not channel.state & CLOSED:
                self._detach(handled == FRAMES_PER_TURN)
        except InvalidReceive as error:
            channel.end_batch()
            self._refuse_frame(error)

    def _detach(self, is_turn_over: bool) -> None:
        """Leave the shared buffer to other connections."""
        frames, state = self._frames, self._channel.state
        frames.detach(is_turn_over or state & UNREADABLE != 0)
        if frames.target == NOWHERE:
            if not state & UNREADABLE:
                # Only the allowance of this turn is used up.
                self._context.loop.call_soon(self._continue_saved)
        elif frames.target and self._context.pool.is_out_of_memory:
            self._context.check_limits()

    def _refuse_frame(self, error: InvalidReceive) -> None:
        self._frames.close()
        self._channel.drop(str(error))

    def _continue_saved(self) -> None:
        """Handle frames that were received earlier."""
        if self._frames.target != NOWHERE or self._channel.state & UNREADABLE:
            return
        if self._context.is_full and not self._channel.is_exempt:
            self._wait_for_turn()
            return
        self._handle_frames()
        self._listen_again()

    # Requests

    def _handle_new(self, frame: memoryview, memory: FrameBuffer | None) -> None:
        """Handle a frame with a new API version or client id, or with memory of the pool."""
        context, channel = self._context, self._channel
        try:
            entry, correlation_id, client_id, body_start = context.read_header(frame)
        except InvalidRequest as error:
            if memory is not None:
                context.pool.release(memory, len(frame))
                context.check_limits()
            channel.end_batch()
            channel.drop(str(error))
            return
        if body_start >= 10:
            length = max(0, int.from_bytes(frame[8:10], "big", signed=True))
            self._client_raw = bytes(frame[8 : 10 + length])
            channel.client_id = client_id
        self._handle((entry, correlation_id, body_start), client_id, frame, memory)

    def _handle(
        self, header: KnownHeader, client_id: str | None, frame: memoryview, memory: FrameBuffer | None
    ) -> None:
        """Give a request to the fast path of its API, or to the handler."""
        entry, correlation_id, body_start = header
        context, channel = self._context, self._channel
        clock = context.clock
        channel.last_active_ns = now = clock.now_ns
        size, fast_path, request = len(frame), entry.fast_path, None
        try:
            if (
                fast_path is None
                or context.log_level  # the request log needs a Request
                or not fast_path(
                    (channel, entry, correlation_id, size, clock.turn_ns, now), frame, body_start
                )
            ):
                request = Request(
                    channel, entry, correlation_id, client_id, frame, body_start, size, clock.turn_ns, now
                )
                request.memory, memory = memory, None
                context.handler(request)
        except Exception as error:
            channel.handler_failed(entry, request, error)
        if memory is not None:
            context.pool.release(memory, size)
            context.check_limits()
        if request is not None and not request.done:
            channel.request_received(request)

    def owns(self, frame: memoryview) -> bool:
        """Whether the bytes of this frame are the connection's own, and are never overwritten."""
        return self._frames.owns(frame)

    # Muting and closing

    def resume(self) -> None:
        """Continue after a mute: handle the next received frame, or receive."""
        if self._frames.target == NOWHERE:
            self._context.loop.call_soon_in_turn(self._continue_saved)
        else:
            self._listen_again()

    def _listen_again(self) -> None:
        channel = self._channel
        if channel.interest != READ and self._may_read():
            channel.set_interest(READ)

    def _wait_for_turn(self) -> None:
        """Mute the channel until `take_turn` is called, because the request queue is full."""
        self._channel.mute()
        self._context.muted.append(self)

    def take_turn(self) -> None:
        """Read again: the request queue has room, and it is the turn of this connection."""
        channel, context = self._channel, self._context
        channel.unmute()
        if channel.state & CLOSED:
            return
        was_full, context.is_full = context.is_full, False
        if self._frames.target == NOWHERE:
            self._continue_saved()
        else:
            self._listen_again()
            self._read()
        context.is_full = context.is_full or was_full

    def close(self) -> None:
        """Release the memory of the frame that is being received."""
        self._frames.close()


def first_reader(
    channel: Channel, context: RequestChannel, sock: ChannelSocket, security: ListenerSecurity | None
) -> RequestReader | AuthenticationReader:
    """The reader of a new channel. With SASL it authenticates the client first."""
    authenticator = None if security is None else security.authenticator(channel)
    if security is None or authenticator is None:
        return RequestReader(channel, context, sock)
    from tidelog.network.authentication_reader import AuthenticationReader

    return AuthenticationReader(channel, context, sock, security, authenticator)
