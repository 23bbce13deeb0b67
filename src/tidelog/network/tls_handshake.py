"""TlsHandshake: a connection between its accept and its channel.

The loop receives and sends; OpenSSL's arithmetic runs on a thread, one step at a time. The memory of a
handshake is bounded: OpenSSL refuses longer messages than the protocol has.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Final

from tidelog.clock import TimerHandle
from tidelog.network.listener_security import ListenerSecurity
from tidelog.network.loop import GONE, READ, WRITE, BrokerLoop
from tidelog.network.tls_transport import RECORD_BYTES, TlsTransport

MOST_SECONDS: Final = 60.0
"""A handshake takes at most so long, or connections.max.idle.ms if that is less.

Kafka only closes connections that are idle: a client that sends a byte now and then may keep one for ever.
"""


@dataclass(slots=True, frozen=True)
class Secured:
    """A connection after its handshake."""

    transport: TlsTransport
    principal: str


class TlsHandshake:
    """Calls `on_secured` or `on_failed` once, unless `close` is called before."""

    def __init__(
        self,
        loop: BrokerLoop,
        sock: socket.socket,
        security: ListenerSecurity,
        context: ssl.SSLContext,
        peer: str,
        listener: str,
        raw: memoryview,
        *,
        seconds: float,
        on_secured: Callable[[TlsHandshake, Secured], None],
        on_failed: Callable[[TlsHandshake, str], None],
    ) -> None:
        """`on_secured` gets a socket that is not registered at the loop, `on_failed` the reason."""
        self._loop = loop
        self.sock = sock
        self.fd = sock.fileno()
        self._security = security
        self.peer = peer
        self.listener = listener
        self._raw = raw
        self._on_secured = on_secured
        self._on_failed = on_failed
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._unsent = b""
        self._principal: str | None = None
        self._is_stepping = False
        self.is_open = True
        self.is_busy = False  # as a channel without a request
        self.last_active_ns = perf_counter_ns()
        self._interest = READ
        loop.register(self.fd, self._on_event, READ, is_login=True)
        self._timer: TimerHandle = loop.schedule(seconds, self._expire)

    def close(self) -> None:
        """Close the connection. The result of a running step is dropped."""
        if not self.is_open:
            return
        self._leave_loop()
        with suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)
        self.sock.close()

    def _leave_loop(self) -> None:
        self.is_open = False
        self._timer.cancel()
        self._loop.unregister(self.fd)

    def _fail(self, reason: str) -> None:
        self.close()
        self._on_failed(self, reason)

    def _expire(self) -> None:
        self._fail("the handshake takes too long")

    def _on_event(self, mask: int) -> None:
        if mask & GONE and (self._is_stepping or not mask & READ):
            self._fail("the client closed the connection")
        elif self._is_stepping:
            return
        elif mask & WRITE and self._unsent:
            self._send()
        elif mask & READ:
            self._receive()

    def _receive(self) -> None:
        try:
            count = self.sock.recv_into(self._raw, RECORD_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._fail(str(error))
            return
        if not count:
            self._fail("the client closed the connection")
            return
        self._incoming.write(self._raw[:count])
        self._is_stepping = True
        self._wait_for(0)
        self._loop.run_handshake(self._step, self._stepped)

    def _step(self) -> str | None:
        """Continue the handshake, on a thread; returns the principal at its end, None before."""
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return None
        certificate = self._tls.getpeercert(binary_form=True)
        return self._security.principal_of(certificate, self.peer.rpartition(":")[0])

    def _stepped(self, principal: str | None, error: BaseException | None) -> None:
        self._is_stepping = False
        if not self.is_open:
            return
        self._unsent = self._outgoing.read()
        if error is not None:
            with suppress(OSError):
                self.sock.send(self._unsent)  # the alert that tells the client why
            self._fail(_reason(error))
            return
        self._principal = principal
        self._send()

    def _send(self) -> None:
        """Send the answer of a step, then wait for the client or end."""
        try:
            sent = self.sock.send(self._unsent) if self._unsent else 0
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError as error:
            self._fail(str(error))
            return
        self._unsent = self._unsent[sent:]
        if self._unsent:
            self._wait_for(WRITE)
        elif self._principal is None:
            self._wait_for(READ)
        else:
            self._leave_loop()
            transport = TlsTransport(
                self._loop, self.sock, self._tls, self._incoming, self._outgoing, self._raw
            )
            self._on_secured(self, Secured(transport, self._principal))
            transport.report_buffered()  # a request may have come right behind the handshake

    def _wait_for(self, mask: int) -> None:
        if mask != self._interest:
            self._interest = mask
            self._loop.modify(self.fd, mask)


def _reason(error: BaseException) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the client's certificate is refused: {error.verify_message}"
    if isinstance(error, ssl.SSLError) and error.reason:
        return f"SSL handshake failed: {error.reason.lower().replace('_', ' ')}"
    return str(error) or type(error).__name__
