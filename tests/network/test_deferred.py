"""Requests that are answered at the end of a turn of the loop: answers come in order, and leave together."""

from __future__ import annotations

import random
import socket
from contextlib import AbstractContextManager

import pytest

from tests.network.harness import METADATA, Client, Running, frame, serving
from tests.support.scale import scale
from tidelog.network.request import Request, Taken

NOW, DEFERRED, LATER, NOTHING, REFUSED, RAISING, TAKEN, DEFERRED_NOTHING, DEFERRED_REQUEST = range(1, 10)
TAKEN_RAISING = 10
KINDS = (NOW, DEFERRED, DEFERRED, LATER, TAKEN, DEFERRED_REQUEST)
SOMETIMES_SILENT = (*KINDS, NOTHING, DEFERRED_NOTHING)


class Handler:
    """Answers by the first byte of the body: at once, at the end of the turn, later, or not at all."""

    def __init__(self) -> None:
        self.deferred: list[tuple[Taken, int]] = []
        self.turns: list[int] = []  # how many answers each end of a turn gave

    def take(self, taken: Taken, frame: memoryview, body_start: int) -> bool:
        channel, kind = taken[0], frame[body_start]
        if kind == TAKEN:
            self.end_turn()
            channel.answer_now(taken, answer_to(taken))
        elif kind == TAKEN_RAISING:
            raise ValueError("the test asked for it")
        elif kind in (DEFERRED, DEFERRED_NOTHING, DEFERRED_REQUEST):
            if not self.deferred:
                channel.context.loop.call_soon_in_turn(self.end_turn)
            self.deferred.append((taken, kind))
            channel.taken()
        else:
            return False
        return True

    def __call__(self, request: Request) -> None:
        kind = request.buffer[request.body_start]
        if kind == NOW:
            answer(request)
        elif kind == LATER:
            request.channel.context.loop.call_soon(answer, request)
        elif kind == NOTHING:
            request.respond_nothing()
        elif kind == REFUSED:
            request.close_connection("the test asked for it")
        else:
            raise ValueError("the test asked for it")

    def end_turn(self) -> None:
        deferred, self.deferred = self.deferred, []
        if deferred:
            self.turns.append(len(deferred))
        for taken, kind in deferred:
            if kind == DEFERRED_REQUEST:
                answer(taken[0].request_of(taken))
            else:
                taken[0].answer_taken(taken, b"" if kind == DEFERRED_NOTHING else answer_to(taken))


def taking(handler: Handler) -> AbstractContextManager[Running]:
    return serving(handler, short_ways={METADATA: handler.take})


def answer_to(taken: Taken) -> bytes:
    return b"\0\0\0\4" + taken[2].to_bytes(4, "big")


def answer(request: Request) -> None:
    request.respond([request.correlation_id.to_bytes(4, "big")])


def send(client: Client, kinds: list[int]) -> list[int]:
    """Send requests of these kinds at once; the correlation ids of those that are answered."""
    client.sock.sendall(b"".join(frame(at, bytes([kind])) for at, kind in enumerate(kinds)))
    return [at for at, kind in enumerate(kinds) if kind not in (NOTHING, DEFERRED_NOTHING)]


@pytest.mark.parametrize("seed", range(scale(5, 50)))
def test_answers_come_in_the_order_of_their_requests(seed: int) -> None:
    rng = random.Random(seed)
    with taking(Handler()) as running:
        clients = [running.client() for _ in range(3)]
        for _ in range(20):
            asked = [
                send(client, [rng.choice(SOMETIMES_SILENT) for _ in range(rng.randrange(1, 90))])
                for client in clients
            ]
            for client, awaited in zip(clients, asked, strict=True):
                assert [client.receive()[0] for _ in awaited] == awaited


def test_what_arrives_together_is_ended_together() -> None:
    handler = Handler()
    with taking(handler) as running:
        client = running.client()
        for at in send(client, [DEFERRED] * 20):
            assert client.receive()[0] == at
        assert handler.turns == [20]
        assert not any(channel.is_busy for channel in running.server.channels.values())


@pytest.mark.parametrize(
    "kinds", [[DEFERRED, DEFERRED, REFUSED], [DEFERRED, NOW, REFUSED], [DEFERRED, DEFERRED, LATER, RAISING]]
)
def test_what_came_before_a_connection_is_closed_has_its_answer(kinds: list[int]) -> None:
    with taking(Handler()) as running:
        client = running.client()
        for at in send(client, kinds)[:-1]:
            assert client.receive()[0] == at
        assert client.is_closed_by_peer()


def test_a_connection_that_goes_away_while_its_answers_are_deferred_harms_nobody() -> None:
    handler = Handler()
    with taking(handler) as running:
        for _ in range(20):
            gone, stays = running.client(), running.client()
            send(gone, [DEFERRED, LATER, DEFERRED])
            gone.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            gone.close()
            assert [stays.receive()[0] for _ in send(stays, [DEFERRED, NOW, LATER, DEFERRED])] == [0, 1, 2, 3]
        assert not handler.deferred


@pytest.mark.parametrize("size", [1, 300_000])
def test_a_short_way_that_fails_closes_its_connection_and_no_other(size: int) -> None:
    with taking(Handler()) as running:
        unlucky, other = running.client(), running.client()
        for client in (unlucky, other):
            assert [client.receive()[0] for _ in send(client, [NOW])] == [0]
        unlucky.sock.sendall(frame(1, bytes([TAKEN_RAISING]) * size))
        assert unlucky.is_closed_by_peer()
        other.sock.sendall(frame(1, bytes([TAKEN]) * size))
        assert other.receive()[0] == 1
        pool = running.server.context.pool
        running.wait_until(lambda: pool.used == 0, "the memory of both frames is back")
