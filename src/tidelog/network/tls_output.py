"""TlsOutput: the bytes and file ranges that a TLS channel still has to send, in order."""

from __future__ import annotations

from typing import Final

from tidelog.network.output import SENDFILE_BYTES, NotCached, Output
from tidelog.network.request import Part, part_size
from tidelog.network.tls_transport import CHUNK_BYTES, TlsTransport

FILE_BYTES: Final = 128 * 1024
"""So much is read from files before it is encrypted and sent.

A peer that takes a chunk and then no more makes the next read begin behind that chunk: to read more at a time
would read it again.
"""

SENDS_PER_TURN: Final = 8
"""After this many chunks other channels come first."""


class TlsOutput(Output):
    """An Output that reads the file ranges, because the kernel cannot encrypt them.

    It keeps at most one chunk that the peer has not taken, so that a slow peer costs little memory.
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
        """The next bytes to send, up to CHUNK_BYTES.

        Raises NotCached if the first of them are not in the page cache. A chunk is larger than FILE_BYTES, so
        that the head and the tail of a response share the chunks of its file ranges.
        """
        first = self._parts[0]
        if isinstance(first, bytes | bytearray | memoryview) and (
            len(self._parts) == 1 or len(first) >= CHUNK_BYTES
        ):
            return first
        scratch = self._transport.scratch
        filled, of_files, sent_of_slice = 0, 0, self._sent_of_slice
        for part in self._parts:
            room = CHUNK_BYTES - filled
            if isinstance(part, bytes | bytearray | memoryview):
                remaining = len(part)
                size = min(room, remaining)
                scratch[filled : filled + size] = part if size == remaining else memoryview(part)[:size]
            else:
                remaining, start = part.size - sent_of_slice, part.position + sent_of_slice
                sent_of_slice = 0
                if not remaining:
                    continue
                size = min(room, remaining, FILE_BYTES - of_files)
                if not size:
                    break
                try:
                    size = min(size, self._cached_size(part, start, min(remaining, SENDFILE_BYTES)))
                except NotCached:
                    if not filled:
                        raise
                    self.missing = None  # the bytes before it go first
                    break
                size = part.read_into(scratch[filled : filled + size], start)
                if not size:
                    raise ConnectionAbortedError(
                        f"a file ended {remaining} bytes before the slice being sent does"
                    )
                of_files += size
                if size == remaining:
                    self._cached_end = 0  # the next range has positions of its own
            filled += size
            if size < remaining or filled == CHUNK_BYTES:
                break
        return scratch[:filled]

    def _advance(self, sent: int) -> None:
        """Remove the sent bytes, and empty parts."""
        parts, whole = self._parts, 0
        for part in parts:
            remaining = part_size(part) - self._sent_of_slice
            if sent < remaining:
                self._keep_rest(whole, part, sent)
                break
            sent -= remaining
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
