"""One connection: whole frames to the handler, one request at a time, answers in order.

Frames that arrive whole are handled where the loop's buffer received them; a partial or large frame
gets a buffer of its own. A peer that sends or reads slowly holds its own memory and nobody's time.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import suppress
from time import perf_counter_ns
from typing import Final

from tidelog.network.accounting import ApiVersionEntry
from tidelog.network.answering import (
    BULK,
    BUSY,
    CLOSED,
    CORKED,
    DEFERRED,
    DRAINING,
    FILLING,
    PARKED,
    SAVED,
    SENDING,
    AnsweringChannel,
    log,
)
from tidelog.network.loop import GONE, READ, WRITE
from tidelog.network.memory import FrameBuffer
from tidelog.network.request import LENGTH, NO_BYTES, Request, Taken
from tidelog.network.request_channel import READ_BYTES, BadFrame, RequestChannel
from tidelog.network.twins import known_header

KnownHeader = tuple[ApiVersionEntry, int, int]
"""The API and version, the correlation id, and where the body begins."""

FRAMES_PER_TURN: Final = 32


# How requests of HTTP begin: its methods, and the preface of HTTP/2.
HTTP_METHODS: Final = frozenset(
    (b"GET ", b"POST", b"PUT ", b"HEAD", b"DELE", b"OPTI", b"PATC", b"CONN", b"TRAC", b"PRI ")
)
TLS_HANDSHAKE: Final = b"\x16\x03"


def other_protocol(begin: bytes) -> str | None:
    """What the first four bytes of a connection are, where they are no length of Kafka's protocol."""
    if begin in HTTP_METHODS:
        return "an HTTP request"
    return "a TLS handshake" if begin.startswith(TLS_HANDSHAKE) else None


def hang_up(sock: socket.socket) -> None:
    """Close a socket, also where a process forked from this one has it open: the peer shall see the end."""
    with suppress(OSError):  # the peer has gone already
        sock.shutdown(socket.SHUT_RDWR)
    sock.close()


class Channel(AnsweringChannel):
    __slots__ = (
        "_client_raw",
        "_filled",
        "_filling",
        "_filling_size",
        "_on_closed",
        "_recv_into",
        "_saved",
        "_saved_position",
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
        self._filling: FrameBuffer | None = None
        self._filling_size = self._filled = 0
        self._saved: bytearray | None = None
        self._saved_position = 0
        context.loop.register(self.fd, self.on_event, READ)

    # Reading

    def on_event(self, mask: int) -> None:
        context = self.context
        if mask != READ or self._state or context.closed:
            self._on_unusual(mask)
            return
        buffer = context.buffer
        try:
            received = self._recv_into(buffer)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._lost(error)
            return
        # The ordinary case: exactly one frame, within the limit.
        known = None
        if received <= context.max_received:
            known = known_header(buffer, 0, received, context.entries, self._client_raw)
        if known is not None:
            self._handle(known, self.client_id, context.view[4:received], None)
        elif received:
            self._handle_frames(buffer, context.view, 0, received)
        else:
            self.close()

    def _on_unusual(self, mask: int) -> None:
        state = self._state
        if state & CLOSED:
            return
        if mask & GONE and (not mask & READ or state & (BUSY | SENDING | SAVED | PARKED)):
            # Nothing can be sent any more. Where nothing waits, what the peer said last is read first.
            self._lost(None)
            return
        if mask & WRITE and state & SENDING:
            self._continue_sending()
        if mask & READ and not self._state & CLOSED:
            self._read_unusual()

    def _read_unusual(self) -> None:
        state = self._state
        if state & (BUSY | SENDING | SAVED | PARKED):
            # Only now that the peer sent more is it worth a system call to stop listening.
            self._set_interest(self._interest & ~READ)
            return
        if self.context.closed and self._must_wait():
            self._park()
            return
        try:
            if state & FILLING:
                self._fill()
            elif state & BULK:
                self._read_length()
            else:
                context = self.context
                received = self._recv_into(context.buffer)
                if received:
                    self._handle_frames(context.buffer, context.view, 0, received)
                else:
                    self.close()
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._lost(error)

    def _must_wait(self) -> bool:
        # A frame that has its memory is read to its end: memory comes back only when it is handled.
        return not self._state & FILLING or self.context.in_progress >= self.context.max_in_progress

    def _handle_frames(self, buffer: bytearray, view: memoryview, position: int, end: int) -> None:
        """Handle the whole frames of `buffer[position:end]` and put aside what cannot be handled now."""
        handled = 0
        while end - position >= 4:
            size = LENGTH.unpack_from(buffer, position)[0]
            if not self._length_is_allowed(size):
                return
            frame_end = position + 4 + size
            if frame_end > end:
                break
            if self._corked or self._whole_frame_at(buffer, frame_end, end):
                self._state |= CORKED
            self._handle_frame(buffer, view, position, frame_end)
            position = frame_end
            handled += 1
            if self._state & ~(CORKED | DEFERRED) or handled == FRAMES_PER_TURN:
                break
        self._state &= ~CORKED
        if self._corked:
            self._flush_corked()
        if self._state & CLOSED or position == end:
            self._saved = None
            return
        if self._state & ~DEFERRED or handled == FRAMES_PER_TURN:
            self._save(buffer, view, position, end)
        else:
            self._begin_partial(view[position:end])

    def _whole_frame_at(self, buffer: bytearray, position: int, end: int) -> bool:
        return end - position >= 4 and 0 <= LENGTH.unpack_from(buffer, position)[0] <= end - position - 4

    def _length_is_allowed(self, size: int) -> bool:
        if 0 <= size <= self.context.max_frame:
            return True
        self._flush_corked()
        spoken = other_protocol(LENGTH.pack(size))
        self._drop(
            f"{spoken} came, and this port speaks Kafka's protocol without TLS"
            if spoken is not None
            else f"a frame of {size} bytes was announced "
            f"(0 to {self.context.max_frame} are accepted, socket.request.max.bytes)"
        )
        return False

    def _save(self, buffer: bytearray, view: memoryview, position: int, end: int) -> None:
        """Put received frames aside until the present request is answered."""
        if buffer is not self._saved:
            self._saved = bytearray(view[position:end])
            position = 0
        self._saved_position = position
        self._state |= SAVED
        if not self._state & (BUSY | SENDING):
            # Only this turn's share is used up: others come first, then this goes on.
            self.context.loop.call_soon(self._continue_saved)

    def _continue_saved(self) -> None:
        state = self._state
        if not state & SAVED or state & (BUSY | SENDING | PARKED | CLOSED):
            return
        if self.context.closed:
            self._park()
            return
        saved = self._saved
        assert saved is not None
        self._state &= ~SAVED
        self._handle_frames(saved, memoryview(saved), self._saved_position, len(saved))
        if not self._state & SAVED:
            self._saved = None
        self._listen_again()

    def _begin_partial(self, begun: memoryview) -> None:
        """Give a frame that has not arrived whole a buffer of its own."""
        if len(begun) < 4:
            # Not even the length is known: its bytes are collected first.
            self._filling = bytearray(4)
            self._filling_size = 4
            self._filling[: len(begun)] = begun
            self._filled = len(begun)
            self._state |= FILLING | BULK
            return
        size = LENGTH.unpack_from(begun)[0]
        if not self._start_filling(size):
            return
        body = begun[4:]
        if self._filling is not None:
            self._filling[: len(body)] = body
        self._filled = len(body)

    def _start_filling(self, size: int) -> bool:
        try:
            self._filling = self.context.pool.take(size)
        except (MemoryError, OSError, ValueError) as error:
            self._drop(f"there is no memory for a frame of {size} bytes ({error})")
            return False
        self._filling_size = size
        self._filled = 0
        self._state = self._state & ~BULK | FILLING
        if self.context.pool.exhausted:
            self.context.update_gate()
        return True

    def _read_length(self) -> None:
        """Read the length of the next frame alone, then go on with its body."""
        self._filling = bytearray(4)
        self._filling_size = 4
        self._filled = 0
        self._state |= FILLING
        self._fill()

    def _fill(self) -> None:
        filling = self._filling
        assert filling is not None
        wanted = self._filling_size - self._filled
        if wanted > READ_BYTES:
            wanted = self.context.allowance(wanted)
        received = self._recv_into(memoryview(filling)[self._filled : self._filled + wanted])
        if not received:
            self.close()
            return
        self._filled += received
        clock = self.context.clock
        self.last_active_ns = clock.now_ns
        clock.bulk_ns = clock.turn_ns
        if self._filled < self._filling_size:
            return
        self._state &= ~FILLING
        if self._state & BULK:
            self._length_is_here(filling)
        else:
            self._frame_is_here(filling)

    def _length_is_here(self, filling: FrameBuffer) -> None:
        size = LENGTH.unpack_from(filling)[0]
        self._filling = None
        self._filled = 0
        if self._length_is_allowed(size) and self._start_filling(size):
            if size == 0:
                self._filled = 0
                self._state &= ~FILLING
                self._frame_is_here(self._filling)
            else:
                self._fill()

    def _frame_is_here(self, filling: FrameBuffer | None) -> None:
        assert filling is not None
        size = self._filling_size
        self._filling = None
        if size >= READ_BYTES // 2:
            self._state |= BULK
        self._handle_new(memoryview(filling)[:size], filling)

    # Handling

    def _handle_frame(self, buffer: bytearray, view: memoryview, start: int, end: int) -> None:
        """Handle the whole frame, its length included, that is at `buffer[start:end]`."""
        # Nearly always the API and version are known, and the client id is that of the last request.
        known = known_header(buffer, start, end, self.context.entries, self._client_raw)
        if known is not None:
            self._handle(known, self.client_id, view[start + 4 : end], None)
        else:
            self._handle_new(view[start + 4 : end], None)

    def _handle_new(self, frame: memoryview, memory: FrameBuffer | None) -> None:
        """Handle a frame that is the first of its kind here, or that has memory of its own."""
        context = self.context
        try:
            entry, correlation_id, client_id, body_start = context.read_header(frame)
        except BadFrame as error:
            if memory is not None:
                context.pool.give_back(memory, len(frame))
                context.update_gate()
            self._state &= ~CORKED
            self._flush_corked()
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
        """Offer a request to the short way of its API; the handler gets what that does not take."""
        entry, correlation_id, body_start = header
        context = self.context
        clock = context.clock
        self.last_active_ns = now = clock.now_ns
        size, short_way, request = len(frame), entry.short_way, None
        try:
            if (
                short_way is None
                or context.log_level  # its line in the log is written with the Request
                or not short_way((self, entry, correlation_id, size, clock.turn_ns, now), frame, body_start)
            ):
                request = Request(
                    self, entry, correlation_id, client_id, frame, body_start, size, clock.turn_ns, now
                )
                request.memory, memory = memory, None
                context.handler(request)
        except Exception as error:
            self._handler_failed(entry, request, error)
        if memory is not None:
            context.pool.give_back(memory, size)
            context.update_gate()
        if request is not None and not request.done:
            self._now_busy(request)

    def _now_busy(self, request: Request) -> None:
        """The handler returned without an answer: it comes later."""
        self._state |= BUSY
        if not request.kept:
            request.release_buffer()
        if request.local_end_ns == 0:
            request.counted = True
            context = self.context
            context.in_progress += 1
            if context.in_progress >= context.max_in_progress:
                context.update_gate()

    def _handler_failed(self, entry: ApiVersionEntry, request: Request | None, error: Exception) -> None:
        log.error(
            "closing the connection of %s: the handler of %s failed", self.peer, entry.name, exc_info=error
        )
        if request is not None and not request.done:
            self._end(request)
            self._account(request, (), perf_counter_ns())
        self.close()

    def request_of(self, taken: Taken) -> Request:
        """The Request of what a short way took, to be answered as any other."""
        _, entry, correlation_id, size, received_ns, started_ns = taken
        request = Request(
            self, entry, correlation_id, self.client_id, NO_BYTES, 0, size, received_ns, started_ns
        )
        request.deferred = True
        return request

    def keep_frame(self, request: Request) -> None:
        frame = request.buffer
        saved = self._saved
        if saved is not None and frame.obj is saved:
            return  # the channel's own, and never written again
        copied = bytearray(frame)
        request.memory = copied
        request.buffer = memoryview(copied)
        pool = self.context.pool
        pool.used += len(copied)
        if pool.exhausted:
            self.context.update_gate()

    def _go_on(self) -> None:
        """The channel is free again: the frames put aside come next, then the socket."""
        if self._state & (CLOSED | SENDING | BUSY):
            return
        if self._state & DRAINING:
            self.close()
        elif self._state & SAVED:
            self.context.loop.call_soon_in_turn(self._continue_saved)
        else:
            self._listen_again()

    def _listen_again(self) -> None:
        if not self._state & (BUSY | SENDING | SAVED | PARKED | CLOSED) and self._interest != READ:
            self._set_interest(READ)

    # Interest, parking, closing

    def _park(self) -> None:
        self._state |= PARKED
        self._set_interest(self._interest & ~READ)
        self.context.parked.append(self)

    def unpark(self) -> None:
        """The gate is open again and it is this channel's turn to read."""
        self._state &= ~PARKED
        if self._state & CLOSED:
            return
        context = self.context
        was_closed, context.closed = context.closed, False
        if self._state & SAVED:
            self._continue_saved()
        else:
            self._listen_again()
            self._read_unusual()
        context.closed = context.closed or was_closed

    def drain(self) -> None:
        """Close as soon as no request is in progress; take no further one."""
        if self._state & (BUSY | SENDING | DEFERRED):
            self._state |= DRAINING
        else:
            self.close()

    def close(self) -> None:
        """Close the connection now. A request in progress is accounted when its answer comes, and dropped."""
        if self._state & CLOSED:
            return
        self._state |= CLOSED
        context = self.context
        context.loop.unregister(self.fd)
        hang_up(self.sock)
        if self._filling is not None:
            if not self._state & BULK:
                context.pool.give_back(self._filling, self._filling_size)
                context.update_gate()
            self._filling = None
        self._saved = None
        self._corked.clear()
        self._output.clear()
        sending, self._sending = self._sending, None
        if sending is not None:
            request, parts, responded, started = sending
            self._account(request, parts, responded, started)
        self._on_closed(self)
