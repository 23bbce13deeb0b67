"""A plain stream sends and receives alike on the loop of a broker and on any other loop."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager

import pytest

from tests.support.wait import eventually_async
from tidelog.clients.connection import CLOSED
from tidelog.clients.streams import FrameReader, PlainStream
from tidelog.network.loop import BrokerLoop

LARGE = 3_000_000
NewLoop = Callable[[], asyncio.AbstractEventLoop]


class Peers:
    """A stream, the frames that it delivered, why it was lost, and the socket of its peer."""

    def __init__(self) -> None:
        own, self.peer = socket.socketpair()
        for sock in (own, self.peer):
            sock.setblocking(False)
        self.frames: list[bytes] = []
        self.lost: list[str] = []
        reader = FrameReader(lambda frame: self.frames.append(bytes(frame)))
        self.stream = PlainStream(asyncio.get_running_loop(), own, reader, self.lost.append)

    async def send(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self.peer, data)

    async def receive(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            data += await asyncio.get_running_loop().sock_recv(self.peer, size - len(data))
        return bytes(data)


@contextmanager
def peers() -> Iterator[Peers]:
    made = Peers()
    try:
        yield made
    finally:
        made.stream.close()
        made.peer.close()


@pytest.fixture(params=[BrokerLoop, asyncio.SelectorEventLoop], ids=["broker", "asyncio"])
def run(request: pytest.FixtureRequest) -> Callable[[Coroutine[None, None, None]], None]:
    new_loop: NewLoop = request.param

    def run(test: Coroutine[None, None, None]) -> None:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(asyncio.wait_for(test, 20))

    return run


Run = Callable[[Coroutine[None, None, None]], None]


@pytest.mark.parametrize("size", [4, 100, LARGE])
def test_frames_arrive_whole(run: Run, size: int) -> None:
    body = os.urandom(size)

    async def test() -> None:
        with peers() as made:
            for _ in range(2):
                await made.send(struct.pack(">i", size) + body + struct.pack(">i", 4) + b"next")
            await eventually_async(lambda: len(made.frames) == 4, "all frames")
            assert made.frames == [body, b"next"] * 2

    run(test())


def test_what_the_peer_does_not_take_at_once_follows(run: Run) -> None:
    parts = [os.urandom(LARGE), b"tail"]

    async def test() -> None:
        drained: list[int] = []
        with peers() as made:
            for number in range(2):
                made.stream.write(parts, lambda number=number: drained.append(number))
            assert drained == []
            assert await made.receive(2 * (LARGE + 4)) == b"".join(parts) * 2
            await eventually_async(lambda: drained == [0, 1], "everything is sent")
            await made.send(struct.pack(">i", 4) + b"more")
            await eventually_async(lambda: made.frames == [b"more"], "another frame")

    run(test())


@pytest.mark.parametrize("waits_to_send", [False, True])
def test_a_peer_that_is_gone_ends_the_stream_once(run: Run, waits_to_send: bool) -> None:
    async def test() -> None:
        with peers() as made:
            if waits_to_send:
                made.stream.write([bytes(LARGE)])
            made.peer.close()
            await eventually_async(lambda: made.lost, "the end of the stream")
            assert len(made.lost) == 1
            assert waits_to_send or made.lost == [CLOSED]
            made.stream.write([b"late"])

    run(test())


def test_a_closed_stream_delivers_nothing_and_is_not_lost(run: Run) -> None:
    async def test() -> None:
        with peers() as made:
            made.stream.write([bytes(LARGE)])
            made.stream.close()
            await asyncio.sleep(0)
            assert made.lost == []
            assert made.frames == []

    run(test())
