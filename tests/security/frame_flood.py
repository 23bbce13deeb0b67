"""Changed frames over several connections at once. The seed and the number of a frame make its bytes.

A failure names seed and number; `FrameFlood(seed, ...).frame(number)` gives the same bytes again.
"""

from __future__ import annotations

import random
import selectors
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from tests.faults.test_fuzzed_requests import EXTREMES, check_answer
from tidelog.protocol.api import ApiKey

CONNECTIONS: Final = 16
CHANGES: Final = [value for values in EXTREMES.values() for value in values]

ANSWER_SECONDS: Final = 60.0
LATE: Final[dict[int, float]] = {
    # A produce may ask for no answer, and these requests for a late one.
    ApiKey.PRODUCE: 0.02,
    ApiKey.FETCH: 0.02,
    ApiKey.JOIN_GROUP: 0.1,
    ApiKey.SYNC_GROUP: 0.1,
    ApiKey.ELECT_LEADERS: 0.1,
}
"""How long an API may leave a frame without an answer before the connection is given up."""


class Outcome(Enum):
    ANSWERED = "answered"
    CLOSED = "closed"
    LATE = "late"


def changed(chance: random.Random, payload: bytes) -> bytes:
    """One to four changes: bytes put, inserted, dropped, repeated, or the rest cut off."""
    data = bytearray(payload)
    for _ in range(chance.choice((1, 1, 2, 3, 4))):
        # The key and the version of the request mostly stay, so that the body is read.
        at = chance.randrange(0 if chance.random() < 0.05 else 4, len(data) + 1) if len(data) >= 4 else 0
        content = chance.choice(CHANGES) if chance.random() < 0.6 else chance.randbytes(chance.randint(1, 8))
        kind = chance.randrange(8)
        if kind <= 3:  # the most frequent change: the frame stays whole, and is handled more often
            data[at : at + len(content)] = content
        elif kind == 4:
            data[at:at] = content
        elif kind == 5:
            del data[at : at + len(content)]
        elif kind == 6:
            data[at:at] = data[at : at + 40]
        else:
            del data[at:]
    return bytes(data)


@dataclass(slots=True, frozen=True)
class Door:
    """A listener, and the frames that log in there. `share` of all connections go through it."""

    address: tuple[str, int]
    share: float = 1.0
    login: tuple[bytes, ...] = ()
    is_answered: bool = True
    """Whether frames are answered by the API's messages; False for frames before a login."""


class FloodFailure(AssertionError):
    """A frame that was answered wrongly or not at all, or that ended the broker."""


@dataclass(slots=True)
class _Sender:
    """A connection with one frame on its way."""

    door: Door
    sock: socket.socket
    number: int = -1
    payload: bytes = b""
    received: bytearray = field(default_factory=bytearray)
    deadline: float = 0.0


class FrameFlood:
    """Sends changed frames of `corpus`; `outcomes` counts what became of them."""

    def __init__(
        self,
        seed: int,
        corpus: Sequence[bytes],
        doors: Sequence[Door],
        *,
        connections: int = CONNECTIONS,
        every: int = 0,
        then: Callable[[int], None] = lambda _sent: None,
    ) -> None:
        """`then` is called with the number of frames after each `every` of them."""
        self._seed = seed
        self._corpus = corpus
        self._doors = doors
        self._connections = connections
        self._every = every
        self._then = then
        self._selector = selectors.DefaultSelector()
        self._next = 0
        self._end = 0
        self._senders: list[_Sender] = []
        self.sent = 0
        self.outcomes: Counter[Outcome] = Counter()

    def frame(self, number: int) -> bytes:
        return changed(random.Random(self._seed << 32 | number), self._corpus[number % len(self._corpus)])

    def run(self, frames: int, first: int = 0) -> None:
        """Send so many frames. Raises FloodFailure."""
        self._next, self._end = first, first + frames
        try:
            for place in range(self._connections):
                self._open(self._door(place))
            while self._senders:
                for key, _ in self._selector.select(0.005):
                    self._receive(key.data)
                self._give_up_late_ones()
        finally:
            for sender in self._senders:
                sender.sock.close()
            self._senders.clear()
            self._selector.close()

    def _door(self, place: int) -> Door:
        """The doors by their shares: each place keeps its door."""
        at = (place + 0.5) / self._connections * sum(door.share for door in self._doors)
        for door in self._doors:
            at -= door.share
            if at < 0:
                return door
        return self._doors[-1]

    def _open(self, door: Door) -> None:
        if self._next >= self._end:
            return
        try:
            sock = socket.create_connection(door.address, ANSWER_SECONDS)
            for frame in door.login:
                sock.sendall(frame)
                (size,) = struct.unpack(">i", sock.recv(4, socket.MSG_WAITALL))
                sock.recv(size, socket.MSG_WAITALL)
        except (OSError, struct.error) as error:
            on_their_way = "\n".join(self._described(sender) for sender in self._senders)
            raise FloodFailure(
                f"no connection ({error}) before frame {self._next}; {on_their_way}"
            ) from error
        sender = _Sender(door, sock)
        self._senders.append(sender)
        self._selector.register(sock, selectors.EVENT_READ, sender)
        self._send(sender)

    def _send(self, sender: _Sender) -> None:
        if self._next >= self._end:
            self._close(sender)
            return
        sender.number, sender.payload = self._next, self.frame(self._next)
        self._next += 1
        self.sent += 1
        if self._every and self.sent % self._every == 0:
            self._then(self.sent)
        sender.received.clear()
        patience = ANSWER_SECONDS
        if len(sender.payload) >= 2:
            patience = LATE.get(int.from_bytes(sender.payload[:2]), ANSWER_SECONDS)
        sender.deadline = time.monotonic() + patience
        try:
            sender.sock.sendall(struct.pack(">i", len(sender.payload)) + sender.payload)
        except OSError:
            self._replace(sender, Outcome.CLOSED)

    def _receive(self, sender: _Sender) -> None:
        try:
            part = sender.sock.recv(1 << 18)
        except OSError:
            part = b""
        if not part:
            self._replace(sender, Outcome.CLOSED)
            return
        received = sender.received
        received += part
        if len(received) < 4 or len(received) - 4 < int.from_bytes(received[:4]):
            return
        if not sender.door.is_answered:
            self._replace(sender, Outcome.ANSWERED)
            return
        try:
            check_answer(sender.payload, bytes(received[4:]))
        except Exception as error:
            raise FloodFailure(f"{self._described(sender)}: {type(error).__name__}: {error}") from error
        self.outcomes[Outcome.ANSWERED] += 1
        self._send(sender)

    def _give_up_late_ones(self) -> None:
        now = time.monotonic()
        for sender in [sender for sender in self._senders if sender.deadline < now]:
            if int.from_bytes(sender.payload[:2]) not in LATE and sender.door.is_answered:
                raise FloodFailure(f"{self._described(sender)}: no answer")
            self._replace(sender, Outcome.LATE)

    def _replace(self, sender: _Sender, outcome: Outcome) -> None:
        self.outcomes[outcome] += 1
        self._close(sender)
        self._open(sender.door)

    def _close(self, sender: _Sender) -> None:
        self._selector.unregister(sender.sock)
        self._senders.remove(sender)
        sender.sock.close()

    def _described(self, sender: _Sender) -> str:
        return f"frame {sender.number} of seed {self._seed}: {sender.payload.hex()}"
