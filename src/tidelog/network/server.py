"""SocketServer (as in Kafka): the acceptors of a broker's listeners, its connections, and their limits.

`start` binds every endpoint or none. `close` stops accepting, waits for the responses of requests in progress
and closes every connection.
"""

from __future__ import annotations

import asyncio
import errno
import heapq
import logging
import socket
import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from time import perf_counter_ns
from typing import TYPE_CHECKING, Final

from tidelog.clock import TimerHandle
from tidelog.endpoints import Endpoint
from tidelog.metrics.registry import Family, Meter, Registry
from tidelog.network.authentication_log import AuthenticationLog
from tidelog.network.channel import Channel
from tidelog.network.limits import ConnectionQuotas, NetworkLimits
from tidelog.network.listener_security import ListenerSecurity
from tidelog.network.loop import READ, BrokerLoop
from tidelog.network.memory import MemoryPool
from tidelog.network.output import ChannelSocket, hang_up
from tidelog.network.request import FastPath, Handler
from tidelog.network.request_channel import Formatter, RequestChannel, Tracer, Versions
from tidelog.network.request_metrics import RequestChannelMetrics

if TYPE_CHECKING:
    from tidelog.network.tls_handshake import Secured, TlsHandshake

log = logging.getLogger("tidelog.network")

ACCEPTS_PER_TURN: Final = 64
LOGINS_PER_TURN: Final = 8
"""So many connections are accepted in a turn where clients log in: each gets an object of OpenSSL."""

OUT_OF_DESCRIPTORS_PAUSE: Final = 0.5
LEAST_IDLE_CHECK: Final = 0.01
CLOSED_KEPT: Final = 1000
LOOPBACK: Final = ("127.", "::1")
UNPACED: Final = b"reno"  # every kernel has it, and every user may choose it


class Acceptor:
    """The listening socket of one endpoint."""

    def __init__(self, server: SocketServer, endpoint: Endpoint) -> None:
        self._server = server
        self.endpoint = endpoint
        self.sock = _listen(server.loop, endpoint, server.limits)
        self.address: tuple[str, int] = self.sock.getsockname()[:2]
        self._listening = False
        self._is_secured = endpoint.listener in server.security
        self._timer: TimerHandle | None = None
        self.accepted = Meter()
        self._blocked_ns = 0
        self._blocked_since = 0

    def resume(self) -> None:
        """Accept connections, from the start or after a pause."""
        self._timer = None
        if not self._listening and self.sock.fileno() >= 0:
            self._listening = True
            if self._blocked_since:
                self._blocked_ns += perf_counter_ns() - self._blocked_since
                self._blocked_since = 0
            fd = self.sock.fileno()
            self._server.loop.register(fd, self._on_event, READ, is_login=self._is_secured)

    def close(self) -> None:
        self._stop_listening()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        hang_up(self.sock)

    @property
    def blocked_ns(self) -> int:
        """The time for which limits have blocked the acceptor."""
        since = self._blocked_since
        return self._blocked_ns + (perf_counter_ns() - since if since else 0)

    @property
    def waits_for_room(self) -> bool:
        return not self._listening and self._timer is None

    def _stop_listening(self) -> None:
        if self._listening:
            self._listening = False
            self._server.loop.unregister(self.sock.fileno())

    def _pause(self, seconds: float | None) -> None:
        """Leave new connections in the backlog for `seconds`, or until a connection closes."""
        self._stop_listening()
        self._blocked_since = perf_counter_ns()
        if seconds is not None and self._timer is None:
            self._timer = self._server.loop.schedule(seconds, self.resume)

    def _on_event(self, mask: int) -> None:
        name = self.endpoint.listener
        quotas = self._server.quotas
        for _ in range(LOGINS_PER_TURN if self._is_secured else ACCEPTS_PER_TURN):
            if not quotas.has_room(name):
                self._pause(None)
                return
            delay = quotas.delay(name, self._server.loop.time())
            if delay > 0:
                self._pause(delay)
                return
            try:
                sock, address = self.sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    raise
                log.error("listener %s cannot accept connections for now: %s", name, error.strerror)
                self._pause(OUT_OF_DESCRIPTORS_PAUSE)
                return
            self.accepted.mark()
            self._server.open_channel(self, sock, address)


class SocketServer:
    def __init__(
        self,
        loop: BrokerLoop,
        endpoints: Sequence[Endpoint],
        handler: Handler,
        limits: NetworkLimits,
        metrics: Registry,
        *,
        versions: Versions,
        formatter: Formatter | None = None,
        fast_paths: Mapping[int, FastPath] | None = None,
        security: Mapping[str, ListenerSecurity] | None = None,
    ) -> None:
        """`security` has the listeners that are not PLAINTEXT, by name."""
        self.loop = loop
        self.security = security or {}
        self.endpoints = list(endpoints)
        self.limits = limits
        self.quotas = ConnectionQuotas(limits, [endpoint.listener for endpoint in endpoints], loop.time())
        self.context = RequestChannel(
            loop,
            handler,
            versions,
            RequestChannelMetrics(metrics),
            max_frame=limits.socket_request_max_bytes,
            max_in_progress=limits.queued_max_requests,
            pool=MemoryPool(limits.queued_max_request_bytes),
            formatter=formatter,
            fast_paths=fast_paths,
        )
        self.acceptors: dict[str, Acceptor] = {}
        self.channels: dict[int, Channel] = {}
        self.handshakes: dict[int, TlsHandshake] = {}
        self._raw: memoryview | None = None  # where TLS connections receive
        self._failures = AuthenticationLog()
        # Refused connections of addresses that open too many. They are closed later.
        self._refused: dict[socket.socket, TimerHandle] = {}
        self._connections = 0
        self._idle_order: list[tuple[int, int, Channel]] = []
        self._idle_timer: TimerHandle | None = None
        self._all_closed: asyncio.Event | None = None
        self._closed = {endpoint.listener: Meter(metrics.clock) for endpoint in endpoints}
        self.expired = 0
        self._register_metrics(metrics)

    @property
    def addresses(self) -> dict[str, tuple[str, int]]:
        """The address of each listener, with the port that the system chose for port 0."""
        return {name: acceptor.address for name, acceptor in self.acceptors.items()}

    def bind(self) -> None:
        """Bind all endpoints or none. Connections wait in the backlog until `start`."""
        try:
            for endpoint in self.endpoints:
                self.acceptors[endpoint.listener] = Acceptor(self, endpoint)
        except OSError:
            for acceptor in self.acceptors.values():
                acceptor.close()
            self.acceptors.clear()
            raise

    def start(self) -> None:
        """Accept connections on every endpoint."""
        if not self.acceptors:
            self.bind()
        for acceptor in self.acceptors.values():
            acceptor.resume()

    def stop_accepting(self) -> None:
        for acceptor in self.acceptors.values():
            acceptor.close()

    async def close(self, timeout_seconds: float = 5.0) -> None:
        """Stop accepting, wait up to `timeout_seconds` for requests in progress, close all connections."""
        self.stop_accepting()
        for handshake in list(self.handshakes.values()):
            handshake.close()
            self._forget_handshake(handshake)
        for channel in list(self.channels.values()):
            channel.drain()
        if self.channels:
            self._all_closed = asyncio.Event()
            try:
                await asyncio.wait_for(self._all_closed.wait(), timeout_seconds)
            except TimeoutError:
                log.warning("%d requests were not answered before closing", len(self.channels))
        for channel in list(self.channels.values()):
            channel.close()
        for sock, timer in self._refused.items():
            timer.cancel()
            hang_up(sock)
        self._refused.clear()
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None

    def update_limits(self, limits: NetworkLimits) -> None:
        """Apply changed settings. The buffers of open sockets stay as they are."""
        self.limits = limits
        self.quotas.update(limits, self.loop.time())
        self.context.received.limit(limits.socket_request_max_bytes)
        self.context.max_in_progress = limits.queued_max_requests
        self.context.pool.limit = limits.queued_max_request_bytes
        self.context.check_limits()
        while self.quotas.excess and self._close_longest_idle():
            pass
        self._resume_acceptors()
        self._check_idle()

    def set_connection_rate(self, host: str | None, rate: int | None) -> None:
        """Set the number of connections per second of an address, or for None of all addresses without a
        limit.
        """
        if host is None:
            self.quotas.addresses.set(None, rate)
            return

        def found(addresses: list[str] | None, error: BaseException | None) -> None:
            if addresses is None:
                log.error("connection_creation_rate of %s is not applied: %s", host, error)
            else:
                self.quotas.addresses.set(addresses, rate)

        self.loop.run_blocking(partial(_addresses, host), found)

    def refresh_log_level(self) -> None:
        """Apply a changed level of the request log."""
        self.context.refresh_log_level()

    def trace(self, tracer: Tracer) -> None:
        """Tell `tracer` of each completed request."""
        self.context.trace(tracer)

    # Connections

    def open_channel(self, acceptor: Acceptor, sock: socket.socket, address: tuple[str, int]) -> None:
        host = address[0].removeprefix("::ffff:")
        listener = acceptor.endpoint.listener
        if not self.quotas.admit(listener, host):
            log.info(
                "refusing a connection of %s on listener %s: it has %d (max.connections.per.ip)",
                host,
                listener,
                self.quotas.limit_of(host),
            )
            sock.close()
            return
        delay = self.quotas.addresses.throttle(host, self.loop.time())
        if delay > 0:
            # As in Kafka, the connection is closed later, so that its client does not connect again at once.
            log.info("closing a connection of %s in %d ms (connection_creation_rate)", host, delay * 1000)
            self.quotas.forget(listener, host)
            self._refused[sock] = self.loop.schedule(delay, partial(self._close_refused, sock))
            return
        sock.setblocking(False)
        self._connections += 1
        local = acceptor.address
        connection_id = f"{local[0]}:{local[1]}-{host}:{address[1]}-{self._connections}"
        peer = f"{host}:{address[1]}"
        security = self.security.get(listener)
        context = security.tls_context() if security is not None else None
        if security is None or context is None:
            self._add_channel(sock, peer, listener, connection_id)
        else:
            self._shake_hands(sock, security, context, peer, listener, connection_id)
        if self.quotas.excess:
            self._close_longest_idle()

    def _add_channel(self, sock: ChannelSocket, peer: str, listener: str, connection_id: str) -> Channel:
        security = self.security.get(listener)
        channel = Channel(self.context, sock, peer, listener, connection_id, self._forget_channel, security)
        # Requests of the controller do not wait for those of clients.
        channel.is_exempt = listener == self.limits.control_plane_listener_name
        self.channels[channel.fd] = channel
        self._watch_idle(channel)
        return channel

    # Handshakes

    def _shake_hands(
        self,
        sock: socket.socket,
        security: ListenerSecurity,
        context: ssl.SSLContext,
        peer: str,
        listener: str,
        connection_id: str,
    ) -> None:
        """Start the TLS handshake of a connection, which gets its channel at the end."""
        from tidelog.network.tls_handshake import MOST_SECONDS, TlsHandshake
        from tidelog.network.tls_transport import RAW_BYTES

        if self._raw is None:
            self._raw = memoryview(bytearray(RAW_BYTES))

        def secured(handshake: TlsHandshake, connection: Secured) -> None:
            del self.handshakes[handshake.fd]
            channel = self._add_channel(connection.transport, peer, listener, connection_id)
            if not channel.is_authenticating:
                channel.principal = connection.principal
                security.metrics.successful.mark()

        def failed(handshake: TlsHandshake, reason: str) -> None:
            self._forget_handshake(handshake)
            self._failures.log(listener, peer, reason, self.loop.time())
            security.metrics.failed.mark()

        idle_ms = self.limits.connections_max_idle_ms
        handshake = TlsHandshake(
            self.loop,
            sock,
            security,
            context,
            peer,
            listener,
            self._raw,
            seconds=min(MOST_SECONDS, idle_ms / 1000) if idle_ms >= 0 else MOST_SECONDS,
            on_secured=secured,
            on_failed=failed,
        )
        self.handshakes[handshake.fd] = handshake

    def _forget_handshake(self, handshake: TlsHandshake) -> None:
        del self.handshakes[handshake.fd]
        self._forget_connection(handshake.listener, handshake.peer)

    def _close_refused(self, sock: socket.socket) -> None:
        del self._refused[sock]
        hang_up(sock)

    def _forget_channel(self, channel: Channel) -> None:
        del self.channels[channel.fd]
        self._forget_connection(channel.listener, channel.peer)
        if not self.channels and self._all_closed is not None:
            self._all_closed.set()

    def _forget_connection(self, listener: str, peer: str) -> None:
        self.quotas.forget(listener, peer.rpartition(":")[0])
        self._closed[listener].count += 1
        self._resume_acceptors()

    def _resume_acceptors(self) -> None:
        for name, acceptor in self.acceptors.items():
            if acceptor.waits_for_room and self.quotas.has_room(name):
                acceptor.resume()

    def _close_longest_idle(self) -> bool:
        """Close the connection that is idle longest on an unprotected listener; returns whether there was
        one.
        """
        connections: chain[Channel | TlsHandshake] = chain(self.channels.values(), self.handshakes.values())
        candidates = [each for each in connections if not self.quotas.is_protected(each.listener)]
        if not candidates:
            return False
        longest = min(candidates, key=lambda each: (each.is_busy, each.last_active_ns))
        log.info("closing the connection of %s, idle longest, to make room (max.connections)", longest.peer)
        longest.close()
        if not isinstance(longest, Channel):
            self._forget_handshake(longest)
        return True

    # Idle connections: each is checked once per connections.max.idle.ms, however many requests it sends.

    def _watch_idle(self, channel: Channel) -> None:
        if self.limits.connections_max_idle_ms < 0:
            return
        due = channel.last_active_ns + self.limits.connections_max_idle_ms * 1_000_000
        heapq.heappush(self._idle_order, (due, id(channel), channel))
        if len(self._idle_order) > 2 * len(self.channels) + CLOSED_KEPT:
            # Closed channels would stay in the queue until their time.
            self._idle_order = [entry for entry in self._idle_order if entry[2].is_open]
            heapq.heapify(self._idle_order)
        if self._idle_timer is None:
            self._set_idle_timer()

    def _set_idle_timer(self) -> None:
        delay = (self._idle_order[0][0] - perf_counter_ns()) / 1e9
        self._idle_timer = self.loop.schedule(max(delay, LEAST_IDLE_CHECK), self._check_idle)

    def _check_idle(self) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None
        idle_ns = self.limits.connections_max_idle_ms * 1_000_000
        now = perf_counter_ns()
        order = self._idle_order
        if idle_ns < 0:
            order.clear()
            return
        again: list[Channel] = []
        while order and order[0][0] <= now:
            channel = heapq.heappop(order)[2]
            if not channel.is_open:
                continue
            active_ns = channel.last_active_ns
            is_idle = active_ns + idle_ns <= now and not channel.has_request_in_progress
            if is_idle:
                # Some bytes of a large request may have arrived without waking the loop (SO_RCVLOWAT).
                self.loop.dispatch(channel.fd, READ)
            if not is_idle or channel.last_active_ns != active_ns:
                again.append(channel)
                continue
            log.info("closing the connection of %s: idle for %d ms", channel.peer, idle_ns // 1_000_000)
            self.expired += 1
            channel.close()
        for channel in again:
            # A channel with a request in progress is not idle: its idle time starts now.
            since = now if channel.has_request_in_progress else channel.last_active_ns
            heapq.heappush(order, (since + idle_ns, id(channel), channel))
        if order:
            self._set_idle_timer()

    # Metrics

    def _register_metrics(self, metrics: Registry) -> None:
        context = self.context
        idle = ShareOfTime(lambda: self.loop.direct.idle_ns, 1.0)
        metrics.gauge("kafka.network", "RequestChannel", "RequestQueueSize", lambda: context.in_progress)
        metrics.gauge("kafka.network", "RequestChannel", "ResponseQueueSize", self._pending_responses)
        metrics.gauge("kafka.network", "SocketServer", "MemoryPoolUsed", lambda: context.pool.used)
        metrics.gauge("kafka.network", "SocketServer", "MemoryPoolAvailable", lambda: context.pool.available)
        metrics.gauge("kafka.network", "SocketServer", "ExpiredConnectionsKilledCount", lambda: self.expired)
        metrics.gauge("kafka.network", "SocketServer", "NetworkProcessorAvgIdlePercent", idle.read)
        metrics.gauge("kafka.server", "KafkaRequestHandlerPool", "RequestHandlerAvgIdlePercent", idle.read)
        for endpoint in self.endpoints:
            blocked = ShareOfTime(partial(self._blocked_ns, endpoint.listener), 0.0)
            metrics.gauge(
                "kafka.network",
                "Acceptor",
                "AcceptorBlockedPercent",
                blocked.read,
                listener=endpoint.listener,
            )
        metrics.collect(self._connection_families)
        if self.security:
            from tidelog.network.authentication_metrics import families

            by_listener = {name: security.metrics for name, security in self.security.items()}
            metrics.collect(lambda: families(by_listener))

    def _blocked_ns(self, listener: str) -> int:
        acceptor = self.acceptors.get(listener)
        return acceptor.blocked_ns if acceptor is not None else 0

    def _pending_responses(self) -> int:
        return sum(channel.has_response_pending for channel in self.channels.values())

    def _connection_families(self) -> Iterator[Family]:
        prefix = "kafka_server_socket_server_metrics_"
        names = [endpoint.listener for endpoint in self.endpoints]
        yield Family(
            prefix + "connection_count",
            "gauge",
            [(_processor(name), self.quotas.by_listener[name]) for name in names],
            "Open connections of a listener.",
        )
        yield Family(
            prefix + "connection_creation_total",
            "counter",
            [(_processor(name), acceptor.accepted.count) for name, acceptor in self.acceptors.items()],
            "Connections that a listener accepted.",
        )
        yield Family(
            prefix + "connection_creation_rate",
            "gauge",
            [(_processor(name), acceptor.accepted.rates()[0]) for name, acceptor in self.acceptors.items()],
            "Connections that a listener accepts each second.",
        )
        yield Family(
            prefix + "connection_close_total",
            "counter",
            [(_processor(name), self._closed[name].count) for name in names],
            "Connections of a listener that were closed.",
        )
        yield Family(
            prefix + "connection_close_rate",
            "gauge",
            [(_processor(name), self._closed[name].rates()[0]) for name in names],
            "Connections of a listener that are closed each second.",
        )
        software: dict[tuple[tuple[str, str], ...], float] = {}
        for channel in self.channels.values():
            name, version = channel.client_software
            labels = (("clientSoftwareName", name), ("clientSoftwareVersion", version))
            key = (*labels, *_processor(channel.listener))
            software[key] = software.get(key, 0) + 1
        by_software = list(software.items())
        yield Family(
            prefix + "connections_software", "gauge", by_software, "Open connections by client software."
        )
        ciphers: dict[tuple[tuple[str, str], ...], float] = {}
        for channel in self.channels.values():
            if channel.tls is not None:
                of_tls = (("cipher", channel.tls.cipher), ("protocol", channel.tls.version))
                key = (*of_tls, *_processor(channel.listener))
                ciphers[key] = ciphers.get(key, 0) + 1
        if ciphers:
            by_cipher = list(ciphers.items())
            yield Family(prefix + "connections", "gauge", by_cipher, "Open connections by TLS cipher.")


class ShareOfTime:
    """The share of time spent on something, between two readings at least a second apart."""

    __slots__ = ("_at", "_share", "_spent", "_spent_ns")

    def __init__(self, spent_ns: Callable[[], int], at_first: float) -> None:
        self._spent_ns = spent_ns
        self._at = perf_counter_ns()
        self._spent = spent_ns()
        self._share = at_first

    def read(self) -> float:
        now, spent = perf_counter_ns(), self._spent_ns()
        if now - self._at >= 1_000_000_000:
            self._share = min(1.0, (spent - self._spent) / (now - self._at))
            self._at, self._spent = now, spent
        return self._share


def _addresses(host: str) -> list[str]:
    return sorted({str(entry[4][0]) for entry in socket.getaddrinfo(host, None)})


def _processor(listener: str) -> tuple[tuple[str, str], ...]:
    return (("listener", listener), ("networkProcessor", "0"))


def _listen(loop: BrokerLoop, endpoint: Endpoint, limits: NetworkLimits) -> socket.socket:
    """A listening socket. Accepted connections inherit its options."""
    where = f"listener {endpoint.listener} ({endpoint.host or '*'}:{endpoint.port})"
    try:
        family, kind, protocol, _, address = loop.resolve(endpoint.host or None, endpoint.port)[0]
        sock = loop.open_socket(family, kind, protocol)
    except OSError as error:
        raise OSError(error.errno, f"{where}: {error.strerror}") from error
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if limits.socket_receive_buffer_bytes != -1:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, limits.socket_receive_buffer_bytes)
        if limits.socket_send_buffer_bytes != -1:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, limits.socket_send_buffer_bytes)
        if str(address[0]).startswith(LOOPBACK):
            _send_unpaced(sock)
        sock.bind(address)
        sock.listen(limits.socket_listen_backlog_size)
    except OSError as error:
        sock.close()
        raise OSError(error.errno, f"{where}: {error.strerror}") from error
    return sock


def _send_unpaced(sock: socket.socket) -> None:
    """Choose a congestion control without pacing, for the loopback.

    BBR sets a timer for every 64 KB that it sends. On the loopback this doubles the CPU of a large response
    and has no use.
    """
    with suppress(OSError, AttributeError):  # only Linux has the option
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, UNPACED)
