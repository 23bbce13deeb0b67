"""Requests that are answered at the end of a turn of the loop: answers come in order, and leave together."""

from __future__ import annotations

import logging
import random
import socket
from contextlib import AbstractContextManager

import pytest

from tests.network.harness import METADATA, Client, Running, frame, serving
from tests.support.scale import scale
from tidelog.network.limits import NetworkLimits
from tidelog.network.request import FastRequest, Request

NOW, DEFERRED, LATER, NOTHING, REFUSED, RAISING, TAKEN, DEFERRED_NOTHING, DEFERRED_REQUEST = range(1, 10)
TAKEN_RAISING = 10
KINDS = (NOW, DEFERRED, DEFERRED, LATER, TAKEN, DEFERRED_REQUEST)
SOMETIMES_SILENT = (*KINDS, NOTHING, DEFERRED_NOTHING)


class Handler:
    """Answers by the first byte of the body: at once, at the end of the turn, later, or not at all."""

    def __init__(self, padding: int = 0) -> None:
        self._padding = bytes(padding)  # behind the correlation id of every answer
        self.deferred: list[tuple[FastRequest, int]] = []
        self.turns: list[int] = []  # how many answers each end of a turn gave

    def take(self, taken: FastRequest, frame: memoryview, body_start: int) -> bool:
        channel, kind = taken[0], frame[body_start]
        if kind == TAKEN:
            self.end_turn()
            channel.send_now(taken, self.answer_to(taken))
        elif kind == TAKEN_RAISING:
            raise ValueError("the test asked for it")
        elif kind in (DEFERRED, DEFERRED_NOTHING, DEFERRED_REQUEST):
            if not self.deferred:
                channel.context.loop.call_soon_in_turn(self.end_turn)
            self.deferred.append((taken, kind))
            channel.defer_response()
        else:
            return False
        return True

    def __call__(self, request: Request) -> None:
        kind = request.buffer[request.body_start]
        if kind == NOW:
            self.answer(request)
        elif kind == LATER:
            request.channel.context.loop.call_soon(self.answer, request)
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
                self.answer(taken[0].request_of(taken))
            else:
                taken[0].send_deferred(taken, b"" if kind == DEFERRED_NOTHING else self.answer_to(taken))

    def answer_to(self, taken: FastRequest) -> bytes:
        answer = taken[2].to_bytes(4, "big") + self._padding
        return len(answer).to_bytes(4, "big") + answer

    def answer(self, request: Request) -> None:
        request.respond([request.correlation_id.to_bytes(4, "big") + self._padding])


def taking(handler: Handler) -> AbstractContextManager[Running]:
    return serving(handler, fast_paths={METADATA: handler.take})


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


@pytest.mark.parametrize("seed", range(scale(3, 30)))
def test_a_full_queue_and_a_slow_peer_change_no_order(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    rng = random.Random(seed)
    handler = Handler(padding=20_000)
    limits = NetworkLimits(
        queued_max_requests=2, queued_max_request_bytes=100, socket_send_buffer_bytes=16_384
    )
    with serving(handler, limits, fast_paths={METADATA: handler.take}) as running:
        clients = [running.client() for _ in range(4)]
        for _ in range(4):
            asked = [
                send(client, [rng.choice(SOMETIMES_SILENT) for _ in range(rng.randrange(1, 70))])
                for client in clients
            ]
            for client, awaited in zip(clients, asked, strict=True):
                assert [client.receive()[0] for _ in awaited] == awaited
        assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


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
def test_a_fast_path_that_fails_closes_its_connection_and_no_other(size: int) -> None:
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


def test_what_came_before_a_frame_above_the_limit_has_its_answer() -> None:
    handler, limits = Handler(), NetworkLimits(socket_request_max_bytes=1000)
    with serving(handler, limits, fast_paths={METADATA: handler.take}) as running:
        client = running.client()
        client.sock.sendall(frame(1, bytes([DEFERRED])) + frame(2, bytes([DEFERRED]) * 2000))
        assert client.receive()[0] == 1
        assert client.is_closed_by_peer()
