"""Readers of connections whose clients authenticate.

`AuthenticationReader` reads the frames of a new connection for its `Authenticator`. After the authentication,
a `RequestReader` replaces it, or a `SessionReader` if the session has an end. A `SessionReader` closes the
connection at the first request after that end, unless the client re-authenticates.
"""

from __future__ import annotations

import logging
from time import perf_counter_ns
from typing import TYPE_CHECKING, Final

from tidelog.clock import TimerHandle
from tidelog.network.channel_state import CLOSED, RESPONSE_PENDING
from tidelog.network.frames import SIZE
from tidelog.network.listener_security import (
    AuthenticationStep,
    Authenticator,
    ListenerSecurity,
    Session,
)
from tidelog.network.loop import GONE, READ, WRITE
from tidelog.network.memory import FrameBuffer
from tidelog.network.output import ChannelSocket
from tidelog.network.request import Request
from tidelog.network.request_channel import RequestChannel
from tidelog.network.request_reader import KnownHeader, RequestReader
from tidelog.protocol.api import ApiKey

if TYPE_CHECKING:
    from tidelog.network.channel import Channel

log = logging.getLogger("tidelog.network")

READ_BYTES: Final = 16 * 1024
"""Memory grows by so much: a peer that only announces a large frame gets none."""

LEAST_REAUTHENTICATION_NS: Final = 1_000_000_000
"""A client may re-authenticate once a second."""


class AuthenticationReader:
    """Has the methods of RequestReader that a `Channel` calls."""

    def __init__(
        self,
        channel: Channel,
        context: RequestChannel,
        sock: ChannelSocket,
        security: ListenerSecurity,
        authenticator: Authenticator,
    ) -> None:
        self._channel = channel
        self._context = context
        self._sock = sock
        self._security = security
        self._authenticator = authenticator
        # The size or the frame that is being received. What follows is left for the next reader.
        self._received = bytearray()
        self._wanted = SIZE.size
        self._has_size = False
        self._is_waiting = False  # for work, or for the end of the delay
        self._timer: TimerHandle | None = None

    def on_event(self, mask: int) -> None:
        channel = self._channel
        if channel.state & CLOSED:
            return
        if mask & GONE and (not mask & READ or self._is_waiting):
            channel.lost(None)
            return
        if mask & WRITE and channel.state & RESPONSE_PENDING:
            channel.continue_sending()
        if mask & READ and not channel.state & CLOSED:
            self._read()

    def _read(self) -> None:
        channel = self._channel
        if self._is_waiting or channel.state & RESPONSE_PENDING:
            channel.set_interest(channel.interest & ~READ)
            return
        try:
            part = self._sock.recv(min(self._wanted - len(self._received), READ_BYTES))
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            channel.lost(error)
            return
        if not part:
            channel.close()
            return
        channel.last_active_ns = perf_counter_ns()
        self._received += part
        if len(self._received) < self._wanted:
            return
        if not self._has_size:
            self._begin_frame(SIZE.unpack(self._received)[0])
            if self._wanted:
                return
        frame = bytes(self._received)
        self._expect(SIZE.size, has_size=False)
        self._do(self._authenticator.receive(frame))

    def _begin_frame(self, size: int) -> None:
        limit = self._security.max_receive_size
        if not 0 <= size <= limit:
            self._expect(SIZE.size, has_size=False)
            self._security.metrics.failed.mark()
            problem = f"a frame of {size} bytes before the client is authenticated (at most {limit} are read)"
            self._channel.drop(problem)
            self._wanted = -1
            return
        self._expect(size, has_size=True)

    def _expect(self, size: int, *, has_size: bool) -> None:
        self._received = bytearray()
        self._wanted, self._has_size = size, has_size

    # Steps

    def _do(self, step: AuthenticationStep) -> None:
        channel = self._channel
        if channel.state & CLOSED:
            return
        if step.work is not None:
            self._wait()
            self._context.loop.run_authentication(step.work, self._worked)
            return
        if step.is_failed:
            self._security.metrics.failed.mark()
            delay = self._security.failure_delay_seconds if step.is_delayed else 0.0
            if delay > 0:
                self._wait()
                self._timer = self._context.loop.schedule(delay, lambda: self._fail(step))
            else:
                self._fail(step)
            return
        if step.is_complete:
            self._complete(step)
            return
        self._answer(step)

    def _answer(self, step: AuthenticationStep) -> None:
        if step.response is not None:
            self._channel.send_unasked(SIZE.pack(len(step.response)) + step.response)

    def _wait(self) -> None:
        self._is_waiting = True
        self._channel.set_interest(0)

    def _worked(self, result: object, error: BaseException | None) -> None:
        if self._channel.state & CLOSED:
            return
        self._is_waiting = False
        self._do(self._authenticator.resume(result, error))
        self.resume()

    def _fail(self, step: AuthenticationStep) -> None:
        channel = self._channel
        self._timer = None
        if channel.state & CLOSED:
            return
        failures = self._security.metrics.failures
        failures.log(channel.listener, channel.peer, step.reason, self._context.loop.time())
        self._is_waiting = True
        self._answer(step)
        if not channel.state & CLOSED:
            channel.drain()

    def _complete(self, step: AuthenticationStep) -> None:
        channel, metrics = self._channel, self._security.metrics
        session = self._authenticator.session
        assert session is not None
        metrics.successful.mark()
        if not session.supports_reauthentication:
            metrics.successful_no_reauth += 1
        channel.principal = session.principal
        channel.is_token_authenticated = session.is_token_authenticated
        software = self._authenticator.client_software
        if software is not None:
            channel.client_software = software
        channel.set_reader(reader_of(channel, self._context, self._sock, self._security, session))
        self._answer(step)

    # What a channel calls

    def resume(self) -> None:
        channel = self._channel
        if not self._is_waiting and not channel.state & CLOSED and channel.interest != READ:
            channel.set_interest(READ)

    def owns(self, frame: memoryview) -> bool:
        return False

    def close(self) -> None:
        self._received = bytearray()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class SessionReader(RequestReader):
    """Reads the requests of a client whose session ends."""

    __slots__ = ("_authenticator", "_began_ns", "_expires_ns", "_security", "_session")

    def __init__(
        self,
        channel: Channel,
        context: RequestChannel,
        sock: ChannelSocket,
        security: ListenerSecurity,
        session: Session,
    ) -> None:
        super().__init__(channel, context, sock)
        self._security = security
        self._authenticator: Authenticator | None = None
        self._began_ns = 0  # when the last re-authentication began
        self._renew(session)

    def _renew(self, session: Session) -> None:
        self._session = session
        lifetime = session.lifetime_ms
        self._expires_ns = None if lifetime is None else perf_counter_ns() + lifetime * 1_000_000

    def _handle(
        self, header: KnownHeader, client_id: str | None, frame: memoryview, memory: FrameBuffer | None
    ) -> None:
        now = perf_counter_ns()
        expires = self._expires_ns
        if self._authenticator is None:
            if header[0].api_key == ApiKey.SASL_HANDSHAKE and expires is not None and self._may_begin(now):
                self._began_ns = now
                self._authenticator = self._security.authenticator(self._channel, self._session)
            elif expires is not None and now > expires:
                self._expire(frame, memory)
                return
        if self._authenticator is None:
            super()._handle(header, client_id, frame, memory)
            return
        entry, correlation_id, body_start = header
        channel = self._channel
        channel.last_active_ns = now
        request = Request(channel, entry, correlation_id, client_id, frame, body_start, len(frame), now, now)
        request.memory = memory
        self._do(request, self._authenticator, self._authenticator.receive(bytes(frame)))
        if not request.done:
            channel.request_received(request)

    def _may_begin(self, now: int) -> bool:
        return not self._began_ns or now - self._began_ns >= LEAST_REAUTHENTICATION_NS

    def _expire(self, frame: memoryview, memory: FrameBuffer | None) -> None:
        if memory is not None:
            self._context.pool.release(memory, len(frame))
            self._context.check_limits()
        self._security.metrics.expired_killed += 1
        self._channel.end_batch()
        self._channel.drop("its session has ended, and it did not re-authenticate")

    def _do(self, request: Request, authenticator: Authenticator, step: AuthenticationStep) -> None:
        loop = self._context.loop
        if request.done:
            return
        if step.work is not None:
            loop.run_authentication(
                step.work,
                lambda result, error: self._do(request, authenticator, authenticator.resume(result, error)),
            )
        elif step.is_failed:
            self._security.metrics.failed_reauthentications.mark()
            delay = self._security.failure_delay_seconds if step.is_delayed else 0.0
            if delay > 0:
                loop.schedule(delay, lambda: self._fail(request, step))
            else:
                self._fail(request, step)
        else:
            if step.is_complete:
                session = authenticator.session
                assert session is not None
                self._authenticator = None
                self._renew(session)
                # The principal is the same, but a token may follow a password.
                self._channel.is_token_authenticated = session.is_token_authenticated
                self._security.metrics.reauthenticated((perf_counter_ns() - self._began_ns) / 1e9)
            request.respond([step.response or b""])

    def _fail(self, request: Request, step: AuthenticationStep) -> None:
        if request.done:
            return
        channel = self._channel
        reason = f"re-authentication failed: {step.reason}"
        if step.response is None or channel.state & CLOSED:
            request.close_connection(reason)
            return
        log.warning("closing the connection of %s (listener %s): %s", channel.peer, channel.listener, reason)
        channel.end_batch()  # a response of a batch would be lost with the connection
        request.respond([step.response])
        if not channel.state & CLOSED:
            channel.drain()


def reader_of(
    channel: Channel,
    context: RequestChannel,
    sock: ChannelSocket,
    security: ListenerSecurity,
    session: Session,
) -> RequestReader:
    """The reader of an authenticated connection."""
    if session.lifetime_ms is None:
        return RequestReader(channel, context, sock)
    return SessionReader(channel, context, sock, security, session)
