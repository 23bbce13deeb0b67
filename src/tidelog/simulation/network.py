"""A simulated network: streams between hosts that arrive late, in order, or not at all.

A cut link holds what is sent over it, as TCP repeats what was not acknowledged, and delivers it when the link
is restored. A host that lost its power answers nothing. A host that is refused gets no new connection to
another one, as a firewall or a proxy does it. A delayed connection delivers what it has after newer ones,
also when its sender has closed it.
"""

from __future__ import annotations

import errno
import os
import random
import socket
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from tidelog.network.loop import GONE, READ, WRITE

if TYPE_CHECKING:
    from tidelog.protocol.wire import Buffer
    from tidelog.simulation.process import Process

WINDOW_BYTES: Final = 1 << 18
"""How much a socket takes before the peer reads it."""

FIRST_DESCRIPTOR: Final = 1_000_000
FIRST_EPHEMERAL_PORT: Final = 40_000

FIRST_REPEAT_SECONDS: Final = 1.0
"""The wait before a connection attempt is repeated, as in Linux; each further wait is twice as long."""

At = Callable[[float, Callable[[], None]], None]
"""Calls a function after a delay in seconds."""

Address = tuple[str, int]


class Network:
    def __init__(self, rng: random.Random, after: At) -> None:
        self._rng = rng
        self.after = after
        self._sockets: dict[int, SimSocket] = {}
        self._listening: dict[Address, SimSocket] = {}
        self._descriptor = FIRST_DESCRIPTOR
        self._port = FIRST_EPHEMERAL_PORT
        self._cut: set[tuple[str, str]] = set()
        self._numbers: dict[str, int] = {}  # of hosts, for their IP addresses
        self._held: dict[tuple[str, str], list[Callable[[], None]]] = {}
        self._slow: dict[tuple[str, str], float] = {}
        self._down: set[str] = set()
        self._refused: set[tuple[str, str]] = set()
        self._base: dict[tuple[str, str], float] = {}

    # Sockets

    def open(self, process: Process) -> SimSocket:
        self._descriptor += 1
        made = self._sockets[self._descriptor] = SimSocket(self, process, self._descriptor)
        return made

    def socket_of(self, fd: int) -> SimSocket | None:
        return self._sockets.get(fd)

    def sockets_of(self, process: Process) -> list[SimSocket]:
        return [sock for sock in self._sockets.values() if sock.process is process]

    def forget(self, sock: SimSocket) -> None:
        self._sockets.pop(sock.fd, None)
        if self._listening.get(sock.address) is sock:
            del self._listening[sock.address]

    def listen(self, sock: SimSocket, address: Address) -> Address:
        host, port = address
        address = (host, port or self.new_port())
        if address in self._listening:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        self._listening[address] = sock
        return address

    def listener(self, address: Address) -> SimSocket | None:
        return self._listening.get(address)

    def new_port(self) -> int:
        self._port += 1
        return self._port

    # Links

    def ip_address(self, host: str) -> str:
        """The address that a host has for others. It is not resolved: links have the names of hosts."""
        number = self._numbers.setdefault(host, len(self._numbers) + 1)
        return f"10.0.{number >> 8}.{number & 255}"

    def cut(self, source: str, target: str) -> None:
        """Hold everything that is sent from one host to another."""
        self._cut.add((source, target))

    def restore(self, source: str, target: str) -> None:
        self._cut.discard((source, target))
        for arrive in self._held.pop((source, target), []):
            arrive()

    def restore_all(self) -> None:
        self._slow.clear()
        self._refused.clear()
        for source, target in sorted(self._cut):
            self.restore(source, target)

    def refuse(self, source: str, target: str) -> None:
        """Refuse new connections from one host to another, until `accept`."""
        self._refused.add((source, target))

    def accept(self, source: str, target: str) -> None:
        self._refused.discard((source, target))

    def is_refused(self, source: str, target: str) -> bool:
        return (source, target) in self._refused

    @property
    def cut_links(self) -> list[tuple[str, str]]:
        return sorted(self._cut)

    def slow_down(self, source: str, target: str, seconds: float) -> None:
        """Add up to `seconds` to everything that is sent from one host to another; 0 ends it."""
        if seconds:
            self._slow[source, target] = seconds
        else:
            self._slow.pop((source, target), None)

    def delay_connections(self, source: str, target: str, seconds: float) -> None:
        """Hold what the present connections carry from one host to another. New connections are in time."""
        for sock in self._sockets.values():
            if sock.host == source and sock.peer is not None and sock.peer.host == target:
                sock.delay(seconds)

    def power_off(self, host: str) -> None:
        self._down.add(host)

    def has_power(self, host: str) -> bool:
        return host not in self._down

    def power_on(self, host: str) -> None:
        self._down.discard(host)
        for sock in list(self._sockets.values()):
            if sock.peer is not None and sock.peer.lost_power and sock.peer.host == host and sock.outstanding:
                self.send(host, sock.host, 0, sock.reset)

    def latency(self, source: str, target: str) -> float:
        base = self._base.get((source, target))
        if base is None:
            base = self._base[source, target] = 50e-6 if source == target else self._rng.uniform(1e-4, 1e-3)
        seconds = base * self._rng.uniform(0.8, 1.5)
        slow = self._slow.get((source, target))
        return seconds if slow is None else seconds + self._rng.uniform(0.2, 1.0) * slow

    def send(
        self,
        source: str,
        target: str,
        not_before: float,
        action: Callable[[], None],
        now: float = 0.0,
        *,
        even_without_power: bool = False,
    ) -> float:
        """Let `action` happen at the target, at the earliest at `not_before`; returns when.

        It does not happen if the target has no power then, unless `even_without_power`.
        """
        delay = max(self.latency(source, target), not_before - now)
        self.after(delay, lambda: self._arrive(source, target, action, even_without_power))
        return now + delay

    def _arrive(
        self, source: str, target: str, action: Callable[[], None], even_without_power: bool = False
    ) -> None:
        if (source, target) in self._cut:
            again = lambda: self._arrive(source, target, action, even_without_power)  # noqa: E731
            self._held.setdefault((source, target), []).append(again)
        elif even_without_power or target not in self._down:
            action()


class SimSocket:
    """The methods of a non-blocking stream socket that brokers and clients call."""

    def __init__(self, network: Network, process: Process, fd: int) -> None:
        self._network = network
        self.process = process
        self.host = process.host.name
        self.fd = fd
        self.address: Address = ("", 0)
        self.peer: SimSocket | None = None
        self.outstanding = 0
        """Bytes that were sent and that the peer has not read."""
        self.lost_power = False
        self._peer_address: Address = ("", 0)
        self._received: deque[bytes] = deque()
        self._taken = 0  # of the first of them
        self._ended = False  # the peer sends no more
        self._error = 0
        self._shut = False
        self._closed = False
        self._backlog: deque[SimSocket] | None = None
        self._last_arrival = 0.0

    # What a poll sees

    def readiness(self) -> int:
        if self._error:
            return READ | WRITE | GONE
        if self._backlog is not None:
            return READ if self._backlog else 0
        mask = READ if self._received or self._ended else 0
        if self.peer is not None and self.outstanding < WINDOW_BYTES:
            mask |= WRITE
        return mask

    def _changed(self) -> None:
        self.process.has_events = True

    # Calls of the process

    def fileno(self) -> int:
        return -1 if self._closed else self.fd

    def setblocking(self, flag: bool) -> None:
        """Every simulated socket is non-blocking."""

    def setsockopt(self, *args: object) -> None:
        """Options change nothing."""

    def getsockopt(self, level: int, option: int) -> int:
        """Only SO_ERROR is asked for."""
        error, self._error = self._error, 0
        return error

    def getsockname(self) -> Address:
        return self.address

    def getpeername(self) -> Address:
        host, port = self._peer_address
        return self._network.ip_address(host), port

    def bind(self, address: Address) -> None:
        self.address = self._network.listen(self, address)

    def listen(self, backlog: int) -> None:
        self._backlog = deque()

    def accept(self) -> tuple[SimSocket, Address]:
        if not self._backlog:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        sock = self._backlog.popleft()
        return sock, sock.getpeername()

    def connect(self, address: Address, done: Callable[[OSError | None], None]) -> None:
        """Connect to a listening socket, then call `done`; a host without power does not answer."""
        self.address = (self.host, self._network.new_port())
        self._peer_address = address
        self._ask(address, done, FIRST_REPEAT_SECONDS)

    def _ask(self, address: Address, done: Callable[[OSError | None], None], wait: float) -> None:
        """Send the request for a connection, and again while the host has no power."""

        def arrive() -> None:
            if self._network.has_power(address[0]):
                self._knock(address, done)
            else:
                self._network.after(wait, again)

        def again() -> None:
            if not self._closed:
                self._ask(address, done, 2 * wait)

        self._network.send(self.host, address[0], 0.0, arrive, even_without_power=True)

    def _knock(self, address: Address, done: Callable[[OSError | None], None]) -> None:
        """At the target: a listening socket makes a socket for this connection."""
        network, listener = self._network, self._network.listener(address)
        is_refused = network.is_refused(self.host, address[0])
        if listener is None or listener._backlog is None or is_refused:
            refused = ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
            network.send(address[0], self.host, 0.0, lambda: done(refused))
            return
        other = network.open(listener.process)
        other.address, other._peer_address = address, self.address
        other.peer = self
        listener._backlog.append(other)
        listener._changed()
        backlog = listener._backlog

        def established() -> None:
            if self._closed or other._closed:
                other._hang_up_of_peer()
                if other in backlog:
                    backlog.remove(other)
                done(ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET)))
                return
            self.peer = other
            done(None)

        network.send(address[0], self.host, 0.0, established)

    def recv(self, size: int) -> bytes:
        buffer = bytearray(size)
        return bytes(buffer[: self.recv_into(buffer)])

    def recv_into(self, buffer: bytearray | memoryview, size: int = 0) -> int:
        self._check()
        view = memoryview(buffer)
        filled = 0
        while self._received and filled < len(view):
            piece = memoryview(self._received[0])[self._taken :]
            count = min(len(piece), len(view) - filled)
            view[filled : filled + count] = piece[:count]
            filled += count
            self._taken += count
            if self._taken == len(self._received[0]):
                self._received.popleft()
                self._taken = 0
        if filled:
            if self.peer is not None:
                self.peer.outstanding -= filled
                self.peer._changed()
            return filled
        if self._ended:
            return 0
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    def send(self, data: Buffer, flags: int = 0) -> int:
        return self.sendmsg((data,))

    def sendmsg(self, parts: Iterable[Buffer], ancillary: object = (), flags: int = 0) -> int:
        self._check()
        peer = self.peer
        if self._shut or peer is None:
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
        room = WINDOW_BYTES - self.outstanding
        if room <= 0:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        data = b"".join(parts)[:room]
        self.outstanding += len(data)
        self._transmit(lambda: peer._deliver(data))
        return len(data)

    def _transmit(self, action: Callable[[], None]) -> None:
        now = self.process.world.now
        target = self._peer_address[0]
        # Strictly later than what was sent before: events of the same moment may happen in any order.
        self._last_arrival = self._network.send(self.host, target, self._last_arrival + 1e-9, action, now)

    def delay(self, seconds: float) -> None:
        """Let nothing that is sent from now on arrive before `seconds` have passed."""
        self._last_arrival = max(self._last_arrival, self.process.world.now + seconds)

    def shutdown(self, how: int) -> None:
        self._check()
        if not self._shut and self.peer is not None:
            self._shut = True
            self._transmit(self.peer._hang_up_of_peer)

    def close(self) -> None:
        if self._closed:
            return
        if self.process.is_alive and self.peer is not None and not self._shut and not self._error:
            self.shutdown(socket.SHUT_RDWR)
        self._close()

    def _close(self) -> None:
        self._closed = True
        self._network.forget(self)
        if self._backlog is not None:
            for sock in self._backlog:
                sock.abort()

    def detach(self) -> int:
        return self.fd

    def _check(self) -> None:
        if self._closed or not self.process.is_alive:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        if self._error:
            raise OSError(self._error, os.strerror(self._error))

    # Events of the network

    def _deliver(self, data: bytes) -> None:
        if self._closed:
            self._refuse_more()
        elif not self._error:
            self._received.append(data)
            self._changed()

    def _refuse_more(self) -> None:
        if self.peer is not None:
            self._network.send(self.host, self.peer.host, 0.0, self.peer.reset)

    def _hang_up_of_peer(self) -> None:
        self._ended = True
        self._changed()

    def reset(self) -> None:
        """The peer is gone: every further call fails."""
        if not self._closed:
            self._error = errno.ECONNRESET
            self._received.clear()
            self._changed()

    # Ends of a process

    def abort(self) -> None:
        """The process ended: the kernel tells the peer."""
        if self._closed:
            return
        self._close()
        peer = self.peer
        if peer is not None and not self._error:
            self._transmit(peer.reset if self._received else peer._hang_up_of_peer)

    def lose_power(self) -> None:
        """The host ended: nobody tells the peer."""
        self.lost_power = True
        self._close_silently()

    def _close_silently(self) -> None:
        self._closed = True
        self._network.forget(self)
