"""Frames come in whole, one request at a time; answers go out in order, whatever the peer does."""

from __future__ import annotations

import gc
import os
import random
import socket
import struct
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.network.harness import Client, echo, frame, serving
from tidelog.network.channel import Channel
from tidelog.network.limits import NetworkLimits
from tidelog.network.request import Request
from tidelog.storage.disk import RealDisk
from tidelog.storage.file_slice import FileSlice


def correlation(request: Request) -> bytes:
    return struct.pack(">i", request.correlation_id)


def test_a_request_is_answered() -> None:
    with serving() as running:
        assert running.client().ask(7, b"hello") == (7, b"hello")


def test_requests_of_one_connection_are_answered_in_order() -> None:
    with serving() as running:
        client = running.client()
        client.sock.sendall(b"".join(frame(n, b"x" * (n % 50)) for n in range(1000)))
        assert [client.receive() for _ in range(1000)] == [(n, b"x" * (n % 50)) for n in range(1000)]


@pytest.mark.parametrize("seed", range(5))
def test_it_does_not_matter_how_frames_are_cut_up_on_the_way(seed: int) -> None:
    chance = random.Random(seed)
    sizes = [chance.choice([0, 1, 100, 5000, 70_000, 300_000]) for _ in range(30)]
    stream = b"".join(frame(n, bytes([n]) * size) for n, size in enumerate(sizes))
    with serving() as running:
        client = running.client()
        client.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client.sock.setblocking(False)
        received = bytearray()
        position = 0
        while len(received) < sum(sizes) + 8 * len(sizes):
            if position < len(stream):
                step = chance.choice([1, 2, 3, 5, 13, 1000, 60_000, 400_000])
                try:
                    position += client.sock.send(stream[position : position + step])
                except BlockingIOError:
                    pass
            try:
                received += client.sock.recv(1 << 20)
            except BlockingIOError:
                time.sleep(0)
        expected = b"".join(
            struct.pack(">ii", size + 4, n) + bytes([n]) * size for n, size in enumerate(sizes)
        )
        assert bytes(received) == expected
        assert running.server.context.pool.used == 0


def test_a_request_sent_byte_by_byte_is_answered() -> None:
    with serving() as running:
        client = running.client()
        client.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in frame(3, b"slowly"):
            client.sock.send(bytes([byte]))
        assert client.receive() == (3, b"slowly")


def test_client_ids_may_change_between_requests_and_be_absent() -> None:
    seen: list[str | None] = []

    def note(request: Request) -> None:
        seen.append(request.client_id)
        echo(request)

    names = ["a", "a", "b", "", "ä" * 50, "a"]
    with serving(note) as running:
        client = running.client()
        for n, name in enumerate(names):
            assert client.ask(n, b"body", client=name) == (n, b"body")
        client.sock.sendall(struct.pack(">ihhih", 10, 3, 1, 99, -1))
        assert client.receive() == (99, b"")
        assert seen == [*names, None]


def test_a_client_id_left_over_from_an_earlier_frame_is_not_read_into_a_shorter_one() -> None:
    with serving() as running:
        client = running.client()
        assert client.ask(1, b"", client="c" * 200) == (1, b"")
        # Announces 200 bytes of client id and ends: those bytes are still in the read buffer.
        client.sock.sendall(struct.pack(">ihhih", 10, 3, 1, 2, 200))
        assert client.is_closed_by_peer()


@pytest.mark.parametrize("tags", [b"\0", b"\1\5\3abc"])
def test_tagged_fields_of_a_flexible_header_are_passed_over(tags: bytes) -> None:
    with serving() as running:
        client = running.client()
        assert client.ask(1, b"first", version=9) == (1, b"first")
        message = struct.pack(">hhih", 3, 9, 2, 4) + b"test" + tags + b"body"
        client.sock.sendall(struct.pack(">i", len(message)) + message)
        assert client.receive() == (2, b"body")


def test_a_second_request_waits_until_the_first_is_answered() -> None:
    held: list[Request] = []

    def hold_first(request: Request) -> None:
        if request.correlation_id == 0:
            held.append(request)
        else:
            echo(request)

    with serving(hold_first) as running:
        client = running.client()
        client.sock.sendall(frame(0, b"") + frame(1, b"one") + frame(2, b"two"))
        running.wait_until(lambda: bool(held))
        client.send(3, b"three")
        running.wait_until(lambda: running.server.context.in_progress == 1)
        assert len(held) == 1
        running.on_loop(lambda: held[0].respond([correlation(held[0])]))
        assert [client.receive() for _ in range(4)] == [(0, b""), (1, b"one"), (2, b"two"), (3, b"three")]
        assert running.server.context.in_progress == 0


def test_a_request_without_an_answer_lets_the_next_one_through() -> None:
    def silent_on_even(request: Request) -> None:
        if request.correlation_id % 2:
            echo(request)
        else:
            request.respond_nothing()

    with serving(silent_on_even) as running:
        client = running.client()
        client.sock.sendall(b"".join(frame(n, b"") for n in range(10)))
        assert [client.receive()[0] for _ in range(5)] == [1, 3, 5, 7, 9]


def test_kept_bytes_stay_while_others_are_received() -> None:
    kept: list[tuple[Request, memoryview]] = []

    def keep_first(request: Request) -> None:
        if request.correlation_id == 0:
            kept.append((request, request.keep()[request.body_start :]))
        else:
            echo(request)

    with serving(keep_first) as running:
        patient, busy = running.client(), running.client()
        patient.send(0, b"precious" * 100)
        running.wait_until(lambda: bool(kept))
        for n in range(1, 50):
            busy.ask(n, b"noise" * 500)
        request, body = kept[0]
        assert bytes(body) == b"precious" * 100
        running.on_loop(lambda: request.respond([correlation(request) + bytes(body)]))
        assert patient.receive() == (0, b"precious" * 100)
        assert running.server.context.pool.used == 0


def test_bytes_that_are_not_kept_are_gone_when_the_handler_has_returned() -> None:
    held: list[Request] = []
    with serving(held.append) as running:
        running.client().send(1, b"body")
        running.wait_until(lambda: bool(held))
        assert bytes(held[0].buffer) == b""


def test_an_answer_is_made_of_bytes_and_file_slices(tmp_path: Path) -> None:
    content = os.urandom(3_000_000)
    (tmp_path / "log").write_bytes(content)
    file = RealDisk().open(str(tmp_path / "log"))

    def answer(request: Request) -> None:
        request.respond(
            [
                correlation(request) + b"<",
                FileSlice(file, 1000, 2_500_000),
                b"|",
                memoryview(b"-"),
                FileSlice(file, 0, 10),
                FileSlice(file, 5, 0),
                b">",
            ]
        )

    with serving(answer) as running:
        client = running.client()
        for n in range(3):
            expected = b"<" + content[1000:2_501_000] + b"|-" + content[:10] + b">"
            assert client.ask(n) == (n, expected)


def test_a_file_that_became_too_short_closes_the_connection_instead_of_hanging(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"short")
    file = RealDisk().open(str(tmp_path / "log"))
    with serving(lambda request: request.respond([correlation(request), FileSlice(file, 0, 100)])) as running:
        client = running.client()
        client.send(1)
        with pytest.raises(ConnectionError):
            client.receive()


def test_an_answer_larger_than_the_socket_takes_arrives_whole() -> None:
    answer = os.urandom(8_000_000)
    with serving(lambda request: request.respond([correlation(request) + answer])) as running:
        client = running.client()
        client.sock.sendall(frame(1, b"") + frame(2, b""))
        assert client.receive() == (1, answer)
        assert client.receive() == (2, answer)


@pytest.mark.parametrize(("size", "is_bulk"), [(100, False), (8_000_000, True)])
def test_a_late_answer_keeps_the_loop_from_watching_only_if_it_is_large(size: int, is_bulk: bool) -> None:
    held: list[Request] = []
    with serving(held.append) as running:
        client = running.client()
        client.send(1)
        running.wait_until(lambda: bool(held))
        clock = running.server.context.clock
        assert clock.bulk_ns == 0
        running.on_loop(lambda: held[0].respond([correlation(held[0]) + bytes(size)]))
        assert client.receive() == (1, bytes(size))
        assert (clock.bulk_ns > 0) == is_bulk


def test_a_peer_that_does_not_read_holds_up_nobody_else() -> None:
    big = bytes(4_000_000)

    def answer(request: Request) -> None:
        request.respond([correlation(request) + (big if request.client_id == "deaf" else b"")])

    with serving(answer) as running:
        deaf, well = running.client(), running.client()
        for n in range(3):
            deaf.send(n, client="deaf")
        running.wait_until(lambda: any(c.has_response_pending for c in running.server.channels.values()))
        for n in range(100):
            assert well.ask(n) == (n, b"")
        assert deaf.receive() == (0, big)


def test_the_answer_of_a_connection_that_is_gone_is_accounted_and_dropped() -> None:
    held: list[Request] = []
    with serving(held.append) as running:
        client = running.client()
        client.send(1)
        running.wait_until(lambda: bool(held))
        client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()  # with a reset
        running.wait_until(lambda: not running.server.channels)
        running.on_loop(lambda: held[0].respond([correlation(held[0])]))
        assert held[0].metrics.total.count == 1
        assert running.server.context.in_progress == 0


def test_a_peer_that_has_stopped_sending_still_gets_its_answer() -> None:
    held: list[Request] = []
    with serving(held.append) as running:
        client = running.client()
        client.send(1)
        client.sock.shutdown(socket.SHUT_WR)
        running.wait_until(lambda: bool(held))
        running.on_loop(lambda: held[0].respond([correlation(held[0]) + b"late"]))
        assert client.receive() == (1, b"late")
        assert client.is_closed_by_peer()


def test_a_handler_that_fails_closes_its_connection_alone() -> None:
    def fail(request: Request) -> None:
        if request.correlation_id == 13:
            raise ValueError("unlucky")
        echo(request)

    with serving(fail) as running:
        unlucky, other = running.client(), running.client()
        unlucky.send(13)
        assert unlucky.is_closed_by_peer()
        assert other.ask(1) == (1, b"")


def test_answering_twice_is_an_error() -> None:
    raised: list[str] = []

    def twice(request: Request) -> None:
        echo(request)
        try:
            request.respond([b"again"])
        except RuntimeError as error:
            raised.append(str(error))

    with serving(twice) as running:
        assert running.client().ask(1) == (1, b"")
        running.wait_until(lambda: bool(raised))
        assert "answered twice" in raised[0]


@pytest.mark.parametrize(
    "end",
    [
        lambda request: request.respond([correlation(request)]),
        lambda request: request.respond_frame(struct.pack(">ii", 4, request.correlation_id)),
        lambda request: request.respond([struct.pack(">h", 0), struct.pack(">H", request.correlation_id)]),
    ],
)
def test_all_ways_of_answering_frame_the_answer_alike(end: Callable[[Request], None]) -> None:
    with serving(end) as running:
        assert running.client().ask(77) == (77, b"")


def test_closing_lets_a_request_in_progress_be_answered() -> None:
    held: list[Request] = []
    with serving(held.append) as running:
        busy, idle = running.client(), running.client()
        busy.send(1)
        running.wait_until(lambda: bool(held) and len(running.server.channels) == 2)
        running.on_loop(lambda: running.loop.create_task(running.server.close(10)) and None)
        assert idle.is_closed_by_peer()
        with pytest.raises(ConnectionError):
            Client(next(iter(running.server.addresses.values())))
        running.on_loop(lambda: held[0].respond([correlation(held[0]) + b"last"]))
        assert busy.receive() == (1, b"last")
        assert busy.is_closed_by_peer()


def test_large_frames_reuse_memory_and_small_ones_follow_them() -> None:
    large = os.urandom(1_000_000)
    with serving(limits=NetworkLimits(queued_max_request_bytes=4_000_000)) as running:
        client = running.client()
        for n in range(20):
            client.sock.sendall(frame(2 * n, large) + frame(2 * n + 1, b"small"))
            assert client.receive() == (2 * n, large)
            assert client.receive() == (2 * n + 1, b"small")
        assert running.server.context.pool.used == 0


def test_the_system_gathers_a_large_frame_before_it_wakes_the_loop() -> None:
    large = os.urandom(600_000)
    begun, rest = frame(2, large)[:300_000], frame(2, large)[300_000:]
    with serving() as running:
        client = running.client()
        client.ask(1)
        (channel,) = running.server.channels.values()

        def gathered() -> int:
            return channel.sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT)  # type: ignore[union-attr]

        for _ in range(2):
            client.sock.sendall(begun)
            running.wait_until(lambda: gathered() >= len(rest), "the system gathers the rest of the frame")
            client.sock.sendall(rest)
            assert client.receive() == (2, large)
            assert running.on_loop(gathered) == 1
            assert client.ask(3, b"small") == (3, b"small")
        client.sock.sendall(begun)
        running.wait_until(lambda: gathered() >= len(rest), "the system gathers the rest of the frame")
        client.close()
        running.wait_until(lambda: not running.server.channels, "the peer is seen to be gone")
        assert running.server.context.pool.used == 0


def test_a_closed_channel_is_freed_without_the_garbage_collector() -> None:
    def channels() -> int:
        return sum(isinstance(object_, Channel) for object_ in gc.get_objects())

    gc.collect()
    before = channels()
    gc.disable()
    try:
        # Without idle checks, which keep closed channels until their check is due.
        with serving(limits=NetworkLimits(connections_max_idle_ms=-1)) as running:
            for n in range(5):
                client = running.client()
                assert client.ask(n) == (n, b"")
            assert channels() == before + 5
            running.close_clients()
            running.wait_until(lambda: channels() == before, "the channels are freed")
    finally:
        gc.enable()
