"""TlsOutput: files are read once, however slowly the peer takes them, and responses leave in few chunks."""

from __future__ import annotations

from typing import cast

import pytest

from tidelog.network.tls_output import FILE_BYTES, TlsOutput
from tidelog.network.tls_transport import CHUNK_BYTES, TlsTransport

SIZE = 1_000_000


class SlowPeer:
    """Takes one chunk, and then nothing until it is asked again."""

    def __init__(self) -> None:
        self.scratch = memoryview(bytearray(CHUNK_BYTES))
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

    def read_into(self, buffer: memoryview, position: int) -> int:
        self.read += len(buffer)
        buffer[:] = file_bytes(position, len(buffer))
        return len(buffer)


def file_bytes(position: int, size: int) -> bytes:
    """Bytes that differ by their position."""
    start = position % 251
    return (bytes(range(251)) * (size // 251 + 2))[start : start + size]


class QuickPeer:
    """Takes everything, and remembers it."""

    def __init__(self) -> None:
        self.scratch = memoryview(bytearray(CHUNK_BYTES))
        self.chunks: list[bytes] = []

    def flush(self) -> None: ...

    def send(self, data: bytes | memoryview) -> int:
        self.chunks.append(bytes(data))
        return len(data)


def test_a_slow_peer_does_not_make_the_broker_read_a_file_again_and_again() -> None:
    peer, file = SlowPeer(), File()
    output = TlsOutput(cast(TlsTransport, peer))
    output.add([b"head", file])  # type: ignore[list-item]
    while not output.send():
        pass
    assert peer.taken == SIZE + len(b"head")
    # Each chunk that the peer refuses at first is read twice.
    assert file.read <= 2 * SIZE


def test_a_response_of_1_mib_leaves_in_one_turn_of_the_loop() -> None:
    """Its head and its tail travel with the chunks of its file, and need no turn of their own."""
    peer, file = QuickPeer(), File()
    file.size = 1024 * 1024
    output = TlsOutput(cast(TlsTransport, peer))
    output.add([b"h" * 100, file, b"tail"])  # type: ignore[list-item]
    assert output.send()
    assert len(peer.chunks) == 8
    assert b"".join(peer.chunks) == b"h" * 100 + file_bytes(0, file.size) + b"tail"
    assert file.read == file.size


@pytest.mark.parametrize("size", [1, FILE_BYTES - 1, FILE_BYTES, CHUNK_BYTES, CHUNK_BYTES + 1])
@pytest.mark.parametrize("taken", [20_000, FILE_BYTES, CHUNK_BYTES - 1, CHUNK_BYTES])
def test_bytes_and_files_keep_their_order_however_much_a_peer_takes(size: int, taken: int) -> None:
    class Peer(QuickPeer):
        def send(self, data: bytes | memoryview) -> int:
            return super().send(data[:taken])

    peer, file = Peer(), File()
    file.size, file.position = size, 7
    pieces = [b"first", file, b"", b"b" * size, b"between", file, bytearray(b"last")]
    output = TlsOutput(cast(TlsTransport, peer))
    output.add(pieces)  # type: ignore[arg-type]
    while not output.send():
        pass
    of_file = file_bytes(7, size)
    assert b"".join(peer.chunks) == b"first" + of_file + b"b" * size + b"between" + of_file + b"last"


def test_a_file_that_ends_before_its_slice_closes_the_connection() -> None:
    class Cut(File):
        def read_into(self, buffer: memoryview, position: int) -> int:
            return super().read_into(buffer, position) if position < 100_000 else 0

    output = TlsOutput(cast(TlsTransport, QuickPeer()))
    output.add([b"head", Cut()])  # type: ignore[list-item]
    with pytest.raises(ConnectionAbortedError, match="a file ended"):
        while not output.send():
            pass
