"""The answering half of a connection: answers leave in order, at the pace of their peer, and are accounted.

What a request held (its frame's memory, its place among those in progress) goes back when it is answered.
"""

from __future__ import annotations

import logging
import socket
from abc import ABC, abstractmethod
from collections.abc import Sequence
from time import perf_counter_ns
from typing import Final

from tidelog.network.loop import READ, WRITE
from tidelog.network.output import COPIED_BYTES, Output, read_together
from tidelog.network.request import LENGTH, NO_BYTES, Part, Request, Taken, part_size
from tidelog.network.request_channel import RequestChannel

log = logging.getLogger("tidelog.network")

# Why a channel cannot simply read the next frame; 0 is the ordinary state.
BUSY: Final = 1  # a request is being worked on or waits in a purgatory
SENDING: Final = 2  # an answer waits until the peer takes more
FILLING: Final = 4  # a frame is partly here
SAVED: Final = 8  # whole frames are here and wait for their turn
BULK: Final = 16  # the last frame was large: read the next length alone, so that its body is not copied
PARKED: Final = 32  # the gate is closed
CORKED: Final = 64  # more frames are at hand: answers are gathered and leave together
CLOSED: Final = 128
DRAINING: Final = 256  # no new request is taken, the connection closes after the present one
DEFERRED: Final = 512  # answers come at the end of this turn of the loop, and others wait for them

NOT_DEFERRED: Final = ~DEFERRED

CORKED_BYTES: Final = 64 * 1024

LateAnswer = tuple[Request, Sequence[Part], int]  # a request, its answer, and when it was given


class AnsweringChannel(ABC):
    __slots__ = (
        "_behind",
        "_corked",
        "_corked_bytes",
        "_deferred",
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
        self._state = 0
        self._interest = READ
        self._corked: list[bytes] = []
        self._corked_bytes = 0
        self._output = Output(sock)
        self._sending: tuple[Request, Sequence[Part], int, int] | None = None
        # How many requests are deferred, and the answer that waits for theirs.
        self._deferred = 0
        self._behind: LateAnswer | None = None

    @abstractmethod
    def close(self) -> None:
        """Close the connection now."""

    @abstractmethod
    def _go_on(self) -> None:
        """An answer is sent: take the next request."""

    @property
    def is_open(self) -> bool:
        return not self._state & CLOSED

    @property
    def is_busy(self) -> bool:
        """A request is being worked on, or its answer is not yet sent."""
        return bool(self._state & (BUSY | SENDING | DEFERRED))

    @property
    def is_sending(self) -> bool:
        return bool(self._state & SENDING)

    @property
    def awaits_answer(self) -> bool:
        return bool(self._state & BUSY)

    def release_frame(self, request: Request) -> None:
        memory = request.memory
        if memory is not None:
            request.memory = None
            pool = self.context.pool
            pool.give_back(memory, request.size)
            if self.context.closed:
                self.context.update_gate()

    def now_waiting(self, request: Request) -> None:
        if request.counted:
            request.counted = False
            self.context.in_progress -= 1
            if self.context.closed:
                self.context.update_gate()

    @property
    def has_company(self) -> bool:
        """Whether other requests are at hand in this turn of the loop, of this connection or of others."""
        return self.context.clock.crowded or self._state & (CORKED | DEFERRED) != 0

    # Answering

    def answer_frame(self, request: Request, frame: bytes) -> None:
        if request.done:
            raise RuntimeError(f"{request.entry.name} from {self.peer} was answered twice")
        if request.deferred:
            self._answer_deferred(request, frame)
            return
        responded = perf_counter_ns()
        if self._state or request.memory is not None:
            self._answer_late(request, (frame,), responded)
            return
        request.done = True
        try:
            sent = self._send(frame)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError as error:
            self._account(request, (frame,), responded)
            self._lost(error)
            return
        if sent != len(frame):
            self._send_rest(request, (memoryview(frame)[sent:],), responded)
            return
        context = self.context
        context.clock.now_ns = now = perf_counter_ns()
        request.kind.record(request, responded, responded, now)
        if context.log_level:
            context.log_request(request, (frame,), responded, responded, now)

    def taken(self) -> None:
        """A short way took a request. The next ones are handled meanwhile, and later answers wait for its."""
        self._deferred += 1
        self._state |= DEFERRED

    def answer_taken(self, taken: Taken, frame: bytes) -> None:
        """Answer a request that was `taken`: with a frame that begins with its length, or with nothing."""
        self._deferred = deferred = self._deferred - 1
        if not deferred:
            self._state &= NOT_DEFERRED
        self.answer_now(taken, frame)
        if self._state:
            self._after_deferred()

    def answer_now(self, taken: Taken, frame: bytes) -> None:
        """The same for a request that its short way answers before it returns; none before it is deferred."""
        responded = perf_counter_ns()
        if self._state or self._corked:
            self._cork(frame)
        elif frame:
            self._send_bytes(frame)
        _, entry, _, size, received_ns, started_ns = taken
        self.context.clock.now_ns = now = perf_counter_ns()
        entry.count += 1
        entry.kind.times.record(size, received_ns, started_ns, responded, responded, now)

    def answer_parts(self, request: Request, parts: Sequence[Part]) -> None:
        if request.done:
            raise RuntimeError(f"{request.entry.name} from {self.peer} was answered twice")
        size = sum(map(part_size, parts))
        if size <= COPIED_BYTES:
            frame = read_together(size, parts)
            if frame is not None:
                self.answer_frame(request, frame)
                return
        head = LENGTH.pack(size)
        if parts and type(parts[0]) is bytes:
            framed: list[Part] = [head + parts[0], *parts[1:]]
        else:
            framed = [head, *parts]
        self._answer_late(request, framed, perf_counter_ns())

    def answer_nothing(self, request: Request) -> None:
        if request.done:
            raise RuntimeError(f"{request.entry.name} from {self.peer} was answered twice")
        responded = perf_counter_ns()
        was_busy = self._end(request)
        self._account(request, (), responded)
        if was_busy:
            self._go_on()

    def refuse(self, request: Request, reason: str) -> None:
        if request.done:
            raise RuntimeError(f"{request.entry.name} from {self.peer} was answered twice")
        responded = perf_counter_ns()
        if request.deferred:
            self._end_deferral(request)
        self._end(request)
        self._account(request, (), responded)
        self._flush_corked()
        self._drop(reason)
        self._after_deferred()

    def _answer_late(self, request: Request, parts: Sequence[Part], responded: int) -> None:
        """An answer that comes after the handler's return, that is corked, or that has several parts."""
        if self._state & DEFERRED:
            # Those before it are answered first, and until then no other request is taken.
            self._state |= BUSY
            self._behind = (request, parts, responded)
            request.done = True
            return
        was_busy = self._end(request)
        if self._state & CLOSED:
            self._account(request, parts, responded)
            return
        if self._state & CORKED and len(parts) == 1 and isinstance(parts[0], bytes):
            self._corked.append(parts[0])
            self._corked_bytes += len(parts[0])
            if self._corked_bytes >= CORKED_BYTES:
                self._flush_corked()
            self._account(request, parts, responded)
            return
        self._flush_corked()
        self._send_rest(request, parts, responded)
        if was_busy and not self._state & SENDING:
            self._go_on()

    def _answer_deferred(self, request: Request, frame: bytes) -> None:
        """Answer a deferred request. The answers of one connection in one turn leave together."""
        self._end_deferral(request)
        if not self._state and not self._corked:
            self.answer_frame(request, frame)
        else:
            request.done = True
            self._cork(frame)
            self._account(request, (frame,), perf_counter_ns())
        self._after_deferred()

    def _cork(self, frame: bytes) -> None:
        """Have an answer leave with the others of its connection in this turn."""
        self._corked.append(frame)
        self._corked_bytes += len(frame)
        if not self._state & (DEFERRED | CORKED):
            self._flush_corked()

    def _end_deferral(self, request: Request) -> None:
        request.deferred = False
        self._deferred -= 1
        if not self._deferred:
            self._state &= ~DEFERRED

    def _after_deferred(self) -> None:
        if self._state & DEFERRED:
            return
        behind, self._behind = self._behind, None
        if behind is not None:
            self._answer_late(*behind)
        elif self._state & DRAINING:
            self._go_on()

    def _end(self, request: Request) -> bool:
        """Mark a request as answered and return what it held; says whether the channel had waited for it."""
        request.done = True
        if request.memory is not None:
            self.release_frame(request)
        request.buffer = NO_BYTES
        if request.counted:
            self.now_waiting(request)
        was_busy = bool(self._state & BUSY)
        self._state &= ~BUSY
        return was_busy

    def _account(self, request: Request, parts: Sequence[Part], responded: int, started: int = 0) -> None:
        context = self.context
        context.clock.now_ns = now = perf_counter_ns()
        request.kind.record(request, responded, started or responded, now)
        if context.log_level:
            context.log_request(request, parts, responded, started or responded, now)

    # Sending

    def _flush_corked(self) -> None:
        if not self._corked:
            return
        data = b"".join(self._corked)
        self._corked.clear()
        self._corked_bytes = 0
        if self._state & CLOSED:
            return
        if self._state & SENDING:
            self._output.add((data,))
        else:
            self._send_bytes(data)

    def _send_bytes(self, data: bytes) -> None:
        """Send answers now, as far as the peer takes them; the rest follows when it takes more."""
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
            self._account(request, parts, responded)
            return
        clock = self.context.clock
        clock.bulk_ns = clock.turn_ns
        waited = bool(self._output)
        self._output.add(parts)
        started = perf_counter_ns() if waited else responded
        try:
            finished = not waited and self._output.send()
        except OSError as error:
            self._account(request, parts, responded)
            self._lost(error)
            return
        if finished:
            self._account(request, parts, responded)
            return
        self._sending = (request, parts if self.context.log_level else (), responded, started)
        self._wait_to_send()

    def _wait_to_send(self) -> None:
        self._state |= SENDING
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
        self._state &= ~SENDING
        sending, self._sending = self._sending, None
        if sending is not None:
            request, parts, responded, started = sending
            self._account(request, parts, responded, started)
        self._go_on()

    def _set_interest(self, mask: int) -> None:
        if mask != self._interest:
            self._interest = mask
            self.context.loop.modify(self.fd, mask)

    def _lost(self, error: OSError | None) -> None:
        if error is not None:
            log.debug("connection of %s lost: %s", self.peer, error)
        self.close()

    def _drop(self, reason: str) -> None:
        log.warning("closing the connection of %s (listener %s): %s", self.peer, self.listener, reason)
        if self._state & DEFERRED:
            self._state |= DRAINING  # what came before has its answers first
        else:
            self.close()
