"""What a connection still has to send: bytes and stretches of files, in order, at the pace of its peer.

Nothing is copied: bytes are sent from where they are, files by the kernel.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from typing import Final

from tidelog.network.request import LENGTH, FilePart, Part

SENDFILE_BYTES: Final = 1024 * 1024
SENDS_PER_TURN: Final = 4
"""After this many calls others have their turn, however much the peer would take."""

PIECES_PER_CALL: Final = 64

COPIED_BYTES: Final = 32 * 1024
"""Up to this size a copy is cheaper than the three calls that header, file and tail take."""


def read_together(size: int, parts: Sequence[Part]) -> bytes | None:
    """A small answer, its files read into it and its length before it; None when a file cannot be read."""
    pieces: list[bytes | bytearray | memoryview] = [LENGTH.pack(size)]
    for part in parts:
        if isinstance(part, bytes | bytearray | memoryview):
            pieces.append(part)
            continue
        try:
            data = os.pread(part.fileno(), part.size, part.position)
        except OSError:
            return None
        if len(data) != part.size:
            return None
        pieces.append(data)
    return b"".join(pieces)


class Output:
    __slots__ = ("_parts", "_sent_of_slice", "_sock")

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._parts: list[Part] = []
        self._sent_of_slice = 0

    def __bool__(self) -> bool:
        return bool(self._parts)

    def add(self, parts: Sequence[Part]) -> None:
        self._parts.extend(parts)

    def clear(self) -> None:
        self._parts.clear()

    def send(self) -> bool:
        """Send until all is gone (True) or it is enough for now (False); OSError when the peer is gone."""
        parts = self._parts
        try:
            for _ in range(SENDS_PER_TURN):
                if not parts:
                    return True
                first = parts[0]
                if isinstance(first, bytes | bytearray | memoryview):
                    self._send_bytes()
                else:
                    self._send_slice(first)
        except (BlockingIOError, InterruptedError):
            return False
        return not parts

    def _send_bytes(self) -> None:
        parts = self._parts
        pieces: list[bytes | bytearray | memoryview] = []
        for part in parts[:PIECES_PER_CALL]:
            if not isinstance(part, bytes | bytearray | memoryview):
                break
            pieces.append(part)
        # The kernel waits for the slice that follows instead of sending a header by itself.
        more = socket.MSG_MORE if len(pieces) < len(parts) else 0
        sent = self._sock.sendmsg(pieces, (), more)
        whole = 0
        for piece in pieces:
            if sent < len(piece):
                parts[whole] = memoryview(piece)[sent:]
                break
            sent -= len(piece)
            whole += 1
        del parts[:whole]

    def _send_slice(self, part: FilePart) -> None:
        left = part.size - self._sent_of_slice
        if left:
            start = part.position + self._sent_of_slice
            sent = os.sendfile(self._sock.fileno(), part.fileno(), start, min(left, SENDFILE_BYTES))
            if sent == 0:
                raise ConnectionAbortedError(f"a file ended {left} bytes before the slice being sent does")
            self._sent_of_slice += sent
            if sent < left:
                return
        self._sent_of_slice = 0
        del self._parts[0]
