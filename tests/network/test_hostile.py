"""Nothing a peer sends stops the broker or costs the others anything."""

from __future__ import annotations

import logging
import os
import random
import resource
import socket
import struct
import threading
import time

import pytest

from tests.network.harness import Client, Running, frame, resident_bytes, serving
from tests.support.scale import scale
from tests.support.wait import eventually
from tidelog.network.limits import NetworkLimits
from tidelog.network.request import Request


def still_serves(running: Running) -> bool:
    client = running.client()
    served = client.ask(4711, b"well") == (4711, b"well")
    client.close()
    return served


@pytest.mark.parametrize("length", [-1, -(2**31), 2**31 - 1, 104_857_601])
def test_a_length_out_of_bounds_closes_that_connection_with_a_line_that_names_it(
    length: int, caplog: pytest.LogCaptureFixture
) -> None:
    with serving() as running:
        client, other = running.client(), running.client()
        other.ask(1)
        client.sock.sendall(struct.pack(">i", length) + b"whatever")
        assert client.is_closed_by_peer()
        assert other.ask(2) == (2, b"")
        host, port = client.sock.getsockname()
        lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
        assert len(lines) == 1
        assert f"{host}:{port}" in lines[0]
        assert f"a frame of {length} bytes was announced" in lines[0]
        assert running.server.context.pool.used == 0


@pytest.mark.parametrize("arrival", ["alone", "after another", "with another", "in two parts"])
def test_a_frame_above_the_limit_is_refused_however_it_arrives(
    arrival: str, caplog: pytest.LogCaptureFixture
) -> None:
    handled: list[int] = []

    def note(request: Request) -> None:
        handled.append(request.correlation_id)
        request.respond([struct.pack(">i", request.correlation_id)])

    small, large = frame(1, b""), frame(2, bytes(2000))
    with serving(note, NetworkLimits(socket_request_max_bytes=1000)) as running:
        client = running.client()
        if arrival == "after another":
            client.sock.sendall(small)
            client.receive()
        if arrival == "with another":
            client.sock.sendall(small + large)
            client.receive()
        elif arrival == "in two parts":
            client.sock.sendall(large[:2])
            channels = running.server.channels
            running.wait_until(lambda: any(c._reader._frames.filled for c in channels.values()))
            client.sock.sendall(large[2:])
        else:
            client.sock.sendall(large)
        assert client.is_closed_by_peer()
        assert 2 not in handled
        assert f"a frame of {len(large) - 4} bytes was announced (0 to 1000 are accepted" in caplog.text
        assert running.client().ask(3) == (3, b"")


def test_the_largest_allowed_frame_is_served_also_after_the_limit_changed() -> None:
    largest = frame(1, bytes(2000))
    with serving(limits=NetworkLimits(socket_request_max_bytes=1000)) as running:
        limits = NetworkLimits(socket_request_max_bytes=len(largest) - 4)
        running.on_loop(lambda: running.server.update_limits(limits))
        client = running.client()
        assert client.ask(1, bytes(2000)) == (1, bytes(2000))
        client.send(2, bytes(2001))
        assert client.is_closed_by_peer()


@pytest.mark.parametrize(
    ("begin", "name"),
    [
        (b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n", "an HTTP request"),
        (b"POST /topics HTTP/1.1\r\n\r\n", "an HTTP request"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "an HTTP request"),
        (bytes.fromhex("160301020001000001fc0303"), "a TLS handshake"),
    ],
)
def test_a_peer_that_speaks_another_protocol_is_told_apart_in_the_log(
    begin: bytes, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    with serving() as running:
        client = running.client()
        client.sock.sendall(begin)
        assert client.is_closed_by_peer()
        (line,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
        host, port = client.sock.getsockname()
        assert f"{host}:{port} (listener PLAINTEXT): {name} came" in line
        assert "a frame of" not in line


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (b"", "a frame of 0 bytes is too short"),
        (b"\0\3", "a frame of 2 bytes is too short"),
        (struct.pack(">hhih", 999, 0, 1, -1), "API key 999 is not served"),
        (struct.pack(">hhih", -1, 0, 1, -1), "API key -1 is not served"),
        (struct.pack(">hhih", 3, 14, 1, -1), "version 14 of Metadata is not served (versions 0 to 13 are)"),
        (struct.pack(">hhih", 3, -1, 1, -1), "version -1 of Metadata is not served"),
        (struct.pack(">hhi", 3, 1, 1), "10 are expected"),
        (struct.pack(">hhih", 3, 1, 1, 30_000) + b"short", "client id of 30000 bytes"),
        (struct.pack(">hhih", 3, 9, 1, -1), "tagged fields"),
        (struct.pack(">hhih", 3, 9, 1, -1) + b"\xff\xff\xff\xff\x0f", "Metadata version 9"),
    ],
)
def test_what_is_not_a_request_closes_the_connection_with_the_reason(
    message: bytes, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    with serving() as running:
        client = running.client()
        client.sock.sendall(struct.pack(">i", len(message)) + message)
        assert client.is_closed_by_peer()
        assert reason in caplog.text
        assert still_serves(running)


def test_an_api_versions_request_from_the_future_reaches_the_handler() -> None:
    seen: list[tuple[int, int]] = []

    def note(request: Request) -> None:
        seen.append((request.api_key, request.api_version))
        request.respond([struct.pack(">i", request.correlation_id)])

    with serving(note) as running:
        client = running.client()
        for version in (14, 15, 32_767):
            assert client.ask(1, key=18, version=version)[0] == 1
        assert seen == [(18, 14), (18, 15), (18, 32_767)]
        assert not running.server.context.entries


def test_valid_requests_before_garbage_are_answered() -> None:
    with serving() as running:
        client = running.client()
        client.sock.sendall(frame(1, b"one") + frame(2, b"two") + struct.pack(">i", -5))
        assert client.receive() == (1, b"one")
        assert client.receive() == (2, b"two")
        assert client.is_closed_by_peer()


@pytest.mark.parametrize("seed", range(scale(20, 1000)))
def test_garbage_never_stops_the_broker(seed: int) -> None:
    chance = random.Random(seed)
    with serving(limits=NetworkLimits(socket_request_max_bytes=10_000)) as running:
        for _ in range(10):
            client = running.client()
            good = bytearray(frame(1, chance.randbytes(chance.randrange(200)), version=chance.randrange(14)))
            for _ in range(chance.randrange(1, 8)):
                good[chance.randrange(len(good))] = chance.randrange(256)
            cut = chance.randrange(len(good) + 1)
            try:
                client.sock.sendall(bytes(good[:cut]) + chance.randbytes(chance.randrange(50)))
                client.sock.shutdown(socket.SHUT_WR)
                while client.sock.recv(65536):
                    pass
            except OSError:
                pass
            client.close()
        assert still_serves(running)
        running.wait_until(lambda: not running.server.channels)
        assert running.server.context.pool.used == 0


def test_peers_that_send_a_byte_at_a_time_cost_the_others_nothing() -> None:
    with serving() as running:
        slow = [running.client() for _ in range(50)]
        message = frame(9, b"patience" * 3)
        well = running.client()
        for byte in message[:-1]:
            for client in slow:
                client.sock.send(bytes([byte]))
            assert well.ask(1) == (1, b"")
        for client in slow:
            client.sock.send(message[-1:])
        assert [client.receive() for client in slow] == [(9, b"patience" * 3)] * 50


def test_an_announced_but_unsent_frame_takes_no_memory() -> None:
    with serving() as running:
        before = resident_bytes()
        clients = [running.client() for _ in range(50)]
        for client in clients:
            client.sock.sendall(struct.pack(">i", 100_000_000) + b"begun")
        running.wait_until(lambda: running.server.context.pool.used == 50 * 100_000_000)
        assert resident_bytes() - before < 50_000_000
        for client in clients:
            client.close()
        running.wait_until(lambda: running.server.context.pool.used == 0)
        assert still_serves(running)


def test_connections_opened_and_dropped_by_the_thousand_leave_nothing_behind() -> None:
    with serving(limits=NetworkLimits(socket_listen_backlog_size=1000)) as running:
        address = running.server.addresses["PLAINTEXT"]
        descriptors = len(os.listdir("/proc/self/fd"))
        for n in range(5000):
            sock = socket.create_connection(address)
            if n % 3 == 0:
                sock.sendall(frame(n, b"")[: n % 40])
            if n % 2 == 0:  # leave with a reset
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            sock.close()
        running.wait_until(lambda: not running.server.channels)
        assert still_serves(running)
        running.wait_until(lambda: not running.server.channels)
        assert len(os.listdir("/proc/self/fd")) <= descriptors + 1
        assert running.server.quotas.total == 0


def test_a_flood_of_pipelined_requests_does_not_keep_others_waiting() -> None:
    def work(request: Request) -> None:
        end = time.perf_counter() + 0.0002
        while time.perf_counter() < end:
            pass
        request.respond_nothing()
        order.append(request.client_id or "")
        if order == ["well", "flood"]:
            asked.wait(20)

    order: list[str] = []
    asked = threading.Event()
    with serving(work) as running:
        well = running.client()
        well.send(0, client="well")
        running.wait_until(lambda: order == ["well"])
        flooding = running.client()
        flooding.sock.sendall(frame(1, b"", client="flood") * 2000)
        eventually(lambda: "flood" in order, "the flood has begun")
        well.send(1, client="well")
        asked.set()
        running.wait_until(lambda: order.count("well") == 2)
        assert order.index("well", 1) < 2000


def test_running_out_of_descriptors_pauses_accepting_and_recovers(caplog: pytest.LogCaptureFixture) -> None:
    with serving() as running:
        address = running.server.addresses["PLAINTEXT"]
        client = socket.socket()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        highest = max(int(fd) for fd in os.listdir("/proc/self/fd"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest, hard))
        try:
            fillers: list[int] = []
            while True:
                try:
                    fillers.append(os.dup(client.fileno()))
                except OSError:
                    break
            client.connect(address)
            client.sendall(frame(1, b""))
            eventually(lambda: "cannot accept" in caplog.text, "it pauses")
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            for filler in fillers:
                os.close(filler)
        client.settimeout(10)
        assert client.recv(100)[4:8] == struct.pack(">i", 1)
        client.close()


def test_an_idle_connection_is_cheap() -> None:
    count = scale(400, 2000)
    with serving(limits=NetworkLimits(socket_listen_backlog_size=1000)) as running:
        warm = [Client(running.server.addresses["PLAINTEXT"]) for _ in range(20)]
        for client in warm:
            client.ask(1)
        before = resident_bytes()
        clients = [socket.create_connection(running.server.addresses["PLAINTEXT"]) for _ in range(count)]
        for sock in clients:
            sock.sendall(frame(1, b""))
            sock.recv(100)
        grown = resident_bytes() - before
        for sock in clients:
            sock.close()
        for client in warm:
            client.close()
    # Both ends live in this process, so this is more than the broker's share.
    assert grown / count < 10_000
