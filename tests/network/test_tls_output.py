"""TlsOutput: files are read once, however slowly the peer takes them."""

from __future__ import annotations

from typing import cast

from tidelog.network.tls_output import TlsOutput
from tidelog.network.tls_transport import CHUNK_BYTES, TlsTransport

SIZE = 1_000_000


class SlowPeer:
    """Takes one chunk, and then nothing until it is asked again."""

    def __init__(self) -> None:
        self.taken = 0
        self._is_full = False

    def flush(self) -> None: ...

    def send(self, data: bytes) -> int:
        self._is_full = not self._is_full
        if not self._is_full:
            raise BlockingIOError
        self.taken += (sent := min(len(data), CHUNK_BYTES))
        return sent


class File:
    """A file part that counts the bytes read from it."""

    size, position = SIZE, 0

    def __init__(self) -> None:
        self.read = 0

    def is_cached(self, size: int, position: int) -> bool:
        return True

    def read_range(self, size: int, position: int) -> bytes:
        self.read += size
        return bytes(size)


def test_a_slow_peer_does_not_make_the_broker_read_a_file_again_and_again() -> None:
    peer, file = SlowPeer(), File()
    output = TlsOutput(cast(TlsTransport, peer))
    output.add([b"head", file])  # type: ignore[list-item]
    while not output.send():
        pass
    assert peer.taken == SIZE + len(b"head")
    # Each chunk that the peer refuses at first is read twice.
    assert file.read <= 2 * SIZE
