"""The link between a simulated client and the simulated ZooKeeper: bytes in order, with latency and cuts.

A cut link holds the bytes back, as TCP does. If it heals in time, the connection continues.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol


class Timers(Protocol):
    """The part of an event loop that a link needs."""

    def call_later(self, delay: float, callback: Callable[[], None], /) -> object: ...

    def time(self) -> float: ...

    def is_closed(self) -> bool: ...


class Pipe:
    """One direction of a connection. None stands for its end.

    Bytes arrive on the loop of the receiver: a paused process gets them when it runs again.
    """

    __slots__ = ("_arrived", "_broken", "_deliver", "_latency", "_loop", "_travelling", "cut")

    def __init__(
        self,
        loop: Timers,
        latency: Callable[[], float],
        deliver: Callable[[bytes | None], None],
        cut: Callable[[], bool],
    ) -> None:
        self._loop = loop
        self._latency = latency
        self._deliver = deliver
        self.cut = cut
        self._travelling: deque[bytes | None] = deque()
        self._arrived = 0
        """How many of the travelling parts have arrived at the cut."""
        self._broken = False

    def send(self, data: bytes | None) -> None:
        if not self._broken and not self._loop.is_closed():
            self._travelling.append(data)
            self._loop.call_later(self._latency(), self._arrive)

    def keep_first(self, count: int) -> None:
        """Lose all travelling parts but the first ones."""
        while len(self._travelling) > count:
            self._travelling.pop()

    @property
    def travelling(self) -> int:
        return len(self._travelling)

    def break_off(self) -> None:
        """The receiver is gone: nothing arrives any more."""
        self._broken = True
        self._travelling.clear()

    def _arrive(self) -> None:
        # The parts may take different times, but they arrive in order.
        self._arrived += 1
        self.flush()

    def flush(self) -> None:
        """Deliver what has arrived, unless the link is cut."""
        while self._arrived and self._travelling and not self.cut():
            self._arrived -= 1
            self._deliver(self._travelling.popleft())


class SimulatedTransport(asyncio.Transport):
    """The client's end of a connection, for an asyncio protocol."""

    def __init__(self, to_server: Pipe, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self.to_server = to_server
        self._protocol = protocol
        self._closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self._closed:
            self.to_server.send(bytes(data))

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self.to_server.send(None)

    def abort(self) -> None:
        self.close()

    def is_closing(self) -> bool:
        return self._closed

    def receive(self, data: bytes | None) -> None:
        """Called by the pipe from the server."""
        if self._closed:
            return
        if data is None:
            self._closed = True
            self._protocol.connection_lost(None)
        else:
            self._protocol.data_received(data)
