"""TlsOutput: the bytes and file ranges that a TLS channel still has to send, in order."""

from __future__ import annotations

from typing import Final

from tidelog.network.output import SENDFILE_BYTES, NotCached, Output
from tidelog.network.request import Part, part_size
from tidelog.network.tls_transport import CHUNK_BYTES, TlsTransport

GATHERED_BYTES: Final = CHUNK_BYTES
"""So much is read from files, and joined with the bytes between them, before it is encrypted and sent.

A peer that takes a chunk and then no more makes the next read begin behind that chunk: to read more at a time
would read it again.
"""

SENDS_PER_TURN: Final = 16
"""After this many chunks other channels come first."""


class TlsOutput(Output):
    """An Output that reads the file ranges: the kernel cannot encrypt them.

    Nothing is kept but a chunk that the peer has not taken, so that a slow reader costs little memory.
    """

    __slots__ = ("_transport",)

    def __init__(self, transport: TlsTransport) -> None:
        super().__init__(transport, sends_files=False)
        self._transport = transport

    def send(self) -> bool:
        transport = self._transport
        try:
            for _ in range(SENDS_PER_TURN):
                transport.flush()
                if not self._parts:
                    return True
                self._advance(transport.send(self._gather()))
        except (BlockingIOError, InterruptedError, NotCached):
            return False
        return not self._parts

    def _gather(self) -> bytes | bytearray | memoryview:
        """The next bytes to send, up to GATHERED_BYTES. NotCached if the first of them are on the disk."""
        pieces: list[bytes | bytearray | memoryview] = []
        room, sent_of_slice = GATHERED_BYTES, self._sent_of_slice
        for part in self._parts:
            if isinstance(part, bytes | bytearray | memoryview):
                if not pieces and len(part) >= room:
                    return part
                piece: bytes | bytearray | memoryview = memoryview(part)[:room] if len(part) > room else part
                is_whole = len(piece) == len(part)
            else:
                left, start = part.size - sent_of_slice, part.position + sent_of_slice
                sent_of_slice = 0
                if not left:
                    continue
                try:
                    size = min(room, self._cached_size(part, start, min(left, SENDFILE_BYTES)))
                except NotCached:
                    if not pieces:
                        raise
                    self.missing = None  # the pieces before it go first
                    break
                piece = part.read_range(size, start)
                if not piece:
                    raise ConnectionAbortedError(
                        f"a file ended {left} bytes before the slice being sent does"
                    )
                is_whole = len(piece) == left
                if is_whole:
                    self._cached_end = 0  # the next range has positions of its own
            pieces.append(piece)
            room -= len(piece)
            if not is_whole or room <= 0:
                break
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _advance(self, sent: int) -> None:
        """Forget what was sent, and parts of no bytes."""
        parts, whole = self._parts, 0
        for part in parts:
            left = part_size(part) - self._sent_of_slice
            if sent < left:
                self._keep_rest(whole, part, sent)
                break
            sent -= left
            self._sent_of_slice = 0
            whole += 1
        if whole:
            self._cached_end = 0
            del parts[:whole]

    def _keep_rest(self, at: int, part: Part, sent: int) -> None:
        if isinstance(part, bytes | bytearray | memoryview):
            if sent:
                self._parts[at] = memoryview(part)[sent:]
        else:
            self._sent_of_slice += sent
