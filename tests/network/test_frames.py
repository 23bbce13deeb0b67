"""The FrameReader: whatever pieces the bytes of a connection arrive in, the same frames come out."""

from __future__ import annotations

import struct

import pytest

from tidelog.network.frames import (
    NOWHERE,
    READ_BYTES,
    TO_FRAME,
    TO_SHARED_BUFFER,
    TO_SIZE,
    FrameReader,
    InvalidReceive,
    ReceiveBuffer,
)
from tidelog.network.memory import FrameBuffer, MemoryPool

LIMIT = 1_000_000
LARGE = READ_BYTES // 2  # from here on the next size is received alone


def framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


class Peer:
    """Feeds a reader as a channel does, and collects its frames."""

    def __init__(self, max_size: int = LIMIT, pool_limit: int = -1) -> None:
        self.pool = MemoryPool(pool_limit)
        self.shared = ReceiveBuffer(max_size)
        self.reader = FrameReader(self.shared, self.pool)
        self.frames: list[bytes] = []
        self.reads = 0

    def feed(self, data: bytes) -> None:
        """Receive all of `data`, in as many reads as the reader's buffers make of it."""
        while data:
            space = self.reader.get_buffer()
            part, data = data[: len(space)], data[len(space) :]
            space[: len(part)] = part
            self.reads += 1
            self.reader.buffer_updated(len(part))
            self.take()

    def take(self) -> None:
        while (frame := self.reader.next_frame()) is not None:
            self.frames.append(bytes(frame))
            self.give_back(len(frame))
        self.reader.detach(paused=False)
        self.shared.view[:] = bytes([0xEE]) * len(self.shared.view)  # another connection reads

    def give_back(self, size: int) -> None:
        if self.reader.memory is not None:
            self.pool.release(self.reader.take_memory(), size)


BODIES = [b"", b"a", b"bcd", b"\0\0\0\1", b"efghijk"]
STREAM = b"".join(map(framed, BODIES))


def test_frames_may_be_cut_at_every_byte() -> None:
    for first in range(len(STREAM) + 1):
        for second in range(first, len(STREAM) + 1):
            peer = Peer()
            for piece in (STREAM[:first], STREAM[first:second], STREAM[second:]):
                peer.feed(piece)
            assert peer.frames == BODIES, (first, second)
            assert peer.pool.used == 0


def test_frames_may_arrive_byte_by_byte() -> None:
    peer = Peer()
    for at in range(len(STREAM)):
        peer.feed(STREAM[at : at + 1])
    assert peer.frames == BODIES
    assert peer.pool.used == 0


def test_several_frames_of_one_read_stay_in_the_shared_buffer() -> None:
    peer = Peer()
    reader = peer.reader
    reader.get_buffer()[: len(STREAM)] = STREAM
    reader.buffer_updated(len(STREAM))
    position = 0
    for at, body in enumerate(BODIES):
        frame = reader.next_frame()
        assert frame is not None
        assert bytes(frame) == body
        assert frame.obj is peer.shared.buffer
        assert not reader.owns(frame)
        assert reader.memory is None
        assert (reader.start, reader.position) == (position, position + 4 + len(body))
        assert reader.has_frame() == (at + 1 < len(BODIES))
        position = reader.position
    assert reader.next_frame() is None
    reader.detach(paused=False)
    assert reader.target == TO_SHARED_BUFFER


@pytest.mark.parametrize("size", [READ_BYTES - 4, READ_BYTES - 3, LARGE - 1, LARGE, LIMIT])
def test_large_frames_follow_each_other_and_small_ones(size: int) -> None:
    bodies = [bytes([n]) * size for n in range(3)] + [b"small", b"", b"\7" * size, b"last"]
    peer = Peer()
    peer.feed(b"".join(map(framed, bodies)))
    assert [(len(frame), frame[:1]) for frame in peer.frames] == [(len(body), body[:1]) for body in bodies]
    assert peer.pool.used == 0


def test_a_frame_behind_a_large_one_is_received_where_it_stays() -> None:
    peer = Peer()
    peer.feed(framed(bytes(READ_BYTES)))
    assert (peer.reader.target, peer.reader.missing) == (TO_SIZE, 4)
    peer.feed(framed(bytes(LARGE))[:4])
    assert (peer.reader.target, peer.reader.missing) == (TO_FRAME, LARGE)
    before = peer.reads
    peer.feed(bytes(LARGE))
    assert peer.reads == before + 1
    peer.feed(framed(b"small"))
    assert peer.frames[-1] == b"small"
    assert peer.reader.target == TO_SHARED_BUFFER


def test_frames_of_a_paused_connection_are_kept_until_they_are_asked_for() -> None:
    peer = Peer()
    reader = peer.reader
    reader.get_buffer()[: len(STREAM) + 2] = STREAM + b"\0\0"
    reader.buffer_updated(len(STREAM) + 2)
    for n, body in enumerate(BODIES):
        frame = reader.next_frame()
        assert frame is not None
        assert bytes(frame) == body
        assert reader.owns(frame) == (n > 0)
        reader.detach(paused=True)
        peer.shared.view[:] = bytes(len(peer.shared.view))
        assert reader.target == NOWHERE
        with pytest.raises(RuntimeError, match="taken before more"):
            reader.get_buffer()
    peer.take()
    assert (reader.target, reader.filled) == (TO_SIZE, 2)
    peer.feed(b"\0\2ok")
    assert peer.frames == [b"ok"]


TOO_LARGE = framed(bytes(2000))
TLS_HELLO = bytes.fromhex("160301020001000001fc0303")
INVALID = [
    (TOO_LARGE, "a frame of 2000 bytes was announced (0 to 1000 are accepted, socket.request.max.bytes)"),
    (framed(bytes(1001)), "a frame of 1001 bytes was announced"),
    (struct.pack(">i", -1), "a frame of -1 bytes was announced"),
    (struct.pack(">i", -(2**31)), "a frame of -2147483648 bytes was announced"),
    (TLS_HELLO, "a TLS handshake came, and this port speaks Kafka's protocol without TLS"),
    (b"GET / HTTP/1.1\r\n\r\n", "an HTTP request came, and this port speaks Kafka's protocol without TLS"),
    (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "an HTTP request came"),
]


@pytest.mark.parametrize(("data", "message"), INVALID)
@pytest.mark.parametrize("before", [b"", framed(b"one") + framed(b"two"), framed(bytes(1000))])
def test_a_size_that_is_not_acceptable_is_refused_behind_the_frames_before_it(
    before: bytes, data: bytes, message: str
) -> None:
    for cut in (1, 2, 3, 4, 5, len(before) + len(data)):
        peer = Peer(max_size=1000)
        peer.feed(before)
        with pytest.raises(InvalidReceive) as raised:
            for at in range(0, len(data), cut):
                peer.feed(data[at : at + cut])
        assert message in str(raised.value)
        assert b"".join(map(framed, peer.frames)) == before
        peer.reader.close()
        assert peer.pool.used == 0


@pytest.mark.parametrize(("data", "message"), INVALID)
def test_it_is_refused_as_well_where_it_comes_in_one_read_with_others(data: bytes, message: str) -> None:
    peer = Peer(max_size=5000)
    peer.shared.max_size = 1000
    with pytest.raises(InvalidReceive) as raised:
        peer.feed(framed(b"one") + framed(b"") + data)
    assert message in str(raised.value)
    assert peer.frames == [b"one", b""]


def test_the_shared_buffer_holds_no_frame_above_the_limit() -> None:
    shared = ReceiveBuffer(1000)
    assert len(shared.buffer) == 1004
    shared.limit(1 << 30)
    assert len(shared.buffer) == len(shared.view) == READ_BYTES


def test_a_changed_limit_holds_for_the_next_frame() -> None:
    peer = Peer(max_size=10)
    peer.feed(framed(bytes(10)))
    peer.shared.limit(2000)
    peer.feed(TOO_LARGE)
    peer.shared.limit(10)
    with pytest.raises(InvalidReceive):
        peer.feed(framed(bytes(11)))


def test_only_frames_that_arrive_in_pieces_take_memory_of_the_pool() -> None:
    peer = Peer(pool_limit=100)
    reader, pool = peer.reader, peer.pool
    peer.feed(framed(bytes(80)))
    assert pool.used == 0
    peer.feed(framed(bytes(120))[:50])
    # The last frame that is admitted may be larger than what is left.
    assert (pool.used, pool.is_out_of_memory, reader.target) == (120, True, TO_FRAME)
    space = reader.get_buffer()
    assert len(space) == reader.missing == 74
    reader.buffer_updated(74)
    frame = reader.next_frame()
    assert frame is not None
    assert len(frame) == 120
    assert pool.used == 120  # until the caller gives it back
    peer.give_back(len(frame))
    assert reader.memory is None
    assert (pool.used, pool.is_out_of_memory) == (0, False)


@pytest.mark.parametrize("begun", [b"", b"\0\0", framed(bytes(50))[:20], framed(bytes(READ_BYTES)), STREAM])
def test_a_reader_that_is_closed_has_returned_its_memory(begun: bytes) -> None:
    peer = Peer()
    peer.feed(begun)
    peer.reader.close()
    assert peer.pool.used == 0


@pytest.mark.parametrize("cut", [2, 6])
def test_a_frame_that_gets_no_memory_is_refused(cut: int) -> None:
    class NoMemory(MemoryPool):
        def allocate(self, size: int) -> FrameBuffer:
            raise MemoryError("none left")

    peer = Peer()
    peer.reader = FrameReader(peer.shared, NoMemory())
    with pytest.raises(InvalidReceive, match=r"there is no memory for a frame of 10 bytes \(none left\)"):
        for piece in (framed(bytes(10))[:cut], framed(bytes(10))[cut:]):
            peer.feed(piece)
    peer.reader.close()
