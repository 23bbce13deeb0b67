"""Connections, memory and requests in progress have their limits, and nobody starves behind them."""

from __future__ import annotations

import errno
import logging
import socket
import struct
import threading
import time

import pytest

from tests.network.harness import all_versions, echo, frame, resident_bytes, serving
from tidelog.endpoints import Endpoint
from tidelog.metrics import Registry
from tidelog.metrics.sampled_stat import Rate, SampleConfig
from tidelog.network import server
from tidelog.network.channel_state import RESPONSE_PENDING, THROTTLED
from tidelog.network.frames import READ_BYTES
from tidelog.network.limits import (
    MOST_ADDRESSES,
    AddressRates,
    ConnectionQuotas,
    ListenerLimits,
    NetworkLimits,
    RateLimit,
)
from tidelog.network.loop import BrokerLoop
from tidelog.network.memory import KEPT_BYTES, LARGEST_KEPT, MemoryPool
from tidelog.network.request import Request
from tidelog.network.request_channel import FIRST_READ_BYTES
from tidelog.network.server import SocketServer


def answer(request: Request) -> None:
    request.respond([struct.pack(">i", request.correlation_id)])


# Memory


def test_a_buffer_that_is_still_looked_at_is_not_given_to_another_frame() -> None:
    pool = MemoryPool()
    first = pool.allocate(100_000)
    late = memoryview(first)[10:20]
    pool.release(first, 100_000)
    assert pool.allocate(100_000) is not first
    late.release()
    second = pool.allocate(100_000)
    pool.release(second, 100_000)
    assert pool.allocate(100_000) is second


def test_the_pool_keeps_a_bounded_amount_for_later() -> None:
    pool = MemoryPool()
    buffers = [pool.allocate(1_000_000) for _ in range(30)]
    assert pool.used == 30_000_000
    for buffer in buffers:
        pool.release(buffer, 1_000_000)
    assert pool.used == 0
    reused = sum(any(pool.allocate(1_000_000) is buffer for buffer in buffers) for _ in range(30))
    assert 1 <= reused <= KEPT_BYTES // 1_000_000


def test_a_very_large_frame_takes_memory_only_as_its_bytes_arrive() -> None:
    pool = MemoryPool()
    before = resident_bytes()
    buffer = pool.allocate(100_000_000)
    assert resident_bytes() - before < 4_000_000
    assert len(buffer) == 100_000_000 > LARGEST_KEPT
    pool.release(buffer, 100_000_000)


def test_the_first_large_frame_of_a_turn_receives_more_than_the_others() -> None:
    with serving(answer) as running:
        context = running.server.context

        def one_turn() -> list[int]:
            return [context.allowance(10 << 20) for _ in range(3)]

        for _ in range(2):
            assert running.on_loop(one_turn) == [FIRST_READ_BYTES, READ_BYTES, READ_BYTES]
        assert running.on_loop(lambda: context.allowance(READ_BYTES + 1)) == READ_BYTES + 1


def test_frames_wait_while_the_memory_is_used_up_and_go_on_in_order() -> None:
    held: list[Request] = []

    def hold(request: Request) -> None:
        request.keep()
        held.append(request)

    size = 200_000
    with serving(hold, NetworkLimits(queued_max_request_bytes=size)) as running:
        context = running.server.context
        clients = [running.client() for _ in range(6)]
        for n, client in enumerate(clients):
            client.send(n, bytes(size))
            # The first has the memory, the others queue up one after another.
            running.wait_until(lambda n=n: len(held) == 1 and len(context.muted) == n)  # type: ignore[misc]
        for served in range(6):
            running.wait_until(lambda served=served: len(held) == served + 1)  # type: ignore[misc]
            assert context.pool.used <= 2 * size
            request = held[served]
            running.on_loop(lambda request=request: answer(request))  # type: ignore[misc]
        assert [request.correlation_id for request in held] == list(range(6))
        assert [client.receive()[0] for client in clients] == list(range(6))
        running.wait_until(lambda: context.pool.used == 0 and not context.is_full)


def test_memory_is_back_as_soon_as_the_request_no_longer_needs_its_bytes() -> None:
    held: list[Request] = []

    def decode_and_wait(request: Request) -> None:
        request.keep()
        held.append(request)
        request.release_buffer()
        request.waiting()

    with serving(decode_and_wait, NetworkLimits(queued_max_request_bytes=100_000)) as running:
        clients = [running.client() for _ in range(5)]
        for n, client in enumerate(clients):
            client.send(n, bytes(300_000))
        running.wait_until(lambda: len(held) == 5)
        assert running.server.context.pool.used == 0


def test_a_half_sent_frame_returns_its_memory_when_its_peer_goes() -> None:
    with serving(limits=NetworkLimits(queued_max_request_bytes=1000)) as running:
        rude, polite = running.client(), running.client()
        rude.sock.sendall(frame(1, bytes(400_000))[:200_000])
        running.wait_until(lambda: running.server.context.pool.used > 0)
        polite.send(2, b"waiting")
        rude.close()
        assert polite.receive() == (2, b"waiting")
        assert running.server.context.pool.used == 0


# Requests in progress


def test_sockets_are_not_read_while_too_many_requests_are_in_progress() -> None:
    held: list[Request] = []
    with serving(held.append, NetworkLimits(queued_max_requests=3)) as running:
        clients = [running.client() for _ in range(10)]
        for n, client in enumerate(clients):
            client.send(n)
            running.wait_until(
                lambda n=n: len(held) + len(running.server.context.muted) == n + 1  # type: ignore[misc]
            )
        assert len(running.server.context.muted) == 7
        for served in range(10):
            running.wait_until(lambda served=served: len(held) > served)  # type: ignore[misc]
            assert running.server.context.in_progress <= 3
            request = held[served]
            running.on_loop(lambda request=request: answer(request))  # type: ignore[misc]
        assert [request.correlation_id for request in held] == list(range(10))
        assert [client.receive()[0] for client in clients] == list(range(10))
        running.wait_until(lambda: not running.server.context.is_full)


def test_requests_that_wait_in_a_purgatory_do_not_count_as_in_progress() -> None:
    held: list[Request] = []

    def wait(request: Request) -> None:
        held.append(request)
        request.waiting()

    with serving(wait, NetworkLimits(queued_max_requests=2)) as running:
        for n in range(8):
            running.client().send(n)
        running.wait_until(lambda: len(held) == 8)
        assert running.server.context.in_progress == 0


def test_frames_put_aside_wait_for_room_as_well() -> None:
    held: list[Request] = []
    with serving(held.append, NetworkLimits(queued_max_requests=1)) as running:
        first, second = running.client(), running.client()
        first.sock.sendall(frame(0, b"") + frame(1, b""))
        running.wait_until(lambda: len(held) == 1)
        second.send(2)
        running.wait_until(lambda: len(running.server.context.muted) == 1)
        for served in range(3):
            running.wait_until(lambda served=served: len(held) == served + 1)  # type: ignore[misc]
            assert running.server.context.in_progress == 1
            request = held[served]
            running.on_loop(lambda request=request: answer(request))  # type: ignore[misc]
        assert [first.receive()[0], first.receive()[0], second.receive()[0]] == [0, 1, 2]
        assert [request.correlation_id for request in held] == [0, 2, 1]


# Connections


def test_connections_above_the_limit_wait_until_one_closes() -> None:
    with serving(limits=NetworkLimits(max_connections=2)) as running:
        first, second, third = running.client(), running.client(), running.client()
        assert first.ask(1) == (1, b"")
        assert second.ask(2) == (2, b"")
        third.send(3)
        running.wait_until(lambda: running.server.acceptors["PLAINTEXT"].waits_for_room)
        assert len(running.server.channels) == 2
        first.close()
        assert third.receive() == (3, b"")


def test_the_inter_broker_listener_is_served_at_the_limit_and_the_longest_idle_makes_room() -> None:
    limits = NetworkLimits(max_connections=2, inter_broker_listener_name="INTERNAL")
    with serving(limits=limits, listeners=("CLIENTS", "INTERNAL")) as running:
        older, newer = running.client("CLIENTS"), running.client("CLIENTS")
        for client in (newer, older, newer):
            client.ask(1)
        broker = running.client("INTERNAL")
        assert broker.ask(5) == (5, b"")
        assert older.is_closed_by_peer()
        assert newer.ask(6) == (6, b"")


def test_a_listener_may_have_a_limit_of_its_own() -> None:
    limits = NetworkLimits(listeners={"SMALL": ListenerLimits(max_connections=1)})
    with serving(limits=limits, listeners=("SMALL", "LARGE")) as running:
        running.client("SMALL").ask(1)
        waiting = running.client("SMALL")
        waiting.send(2)
        running.wait_until(lambda: running.server.acceptors["SMALL"].waits_for_room)
        assert [running.client("LARGE").ask(n) for n in range(3)] == [(0, b""), (1, b""), (2, b"")]
        assert running.server.quotas.by_listener == {"SMALL": 1, "LARGE": 3}


def test_an_address_has_only_so_many_connections() -> None:
    with serving(limits=NetworkLimits(max_connections_per_ip=2)) as running:
        clients = [running.client() for _ in range(2)]
        assert [client.ask(1) for client in clients] == [(1, b"")] * 2
        assert running.client().is_closed_by_peer()
        clients[0].close()
        running.wait_until(lambda: len(running.server.channels) == 1)
        assert running.client().ask(4) == (4, b"")


def test_an_override_replaces_the_limit_of_an_address() -> None:
    limits = ConnectionQuotas(
        NetworkLimits(max_connections_per_ip=0, max_connections_per_ip_overrides={"10.0.0.1": 1}), ["L"], 0.0
    )
    assert limits.admit("L", "10.0.0.1")
    assert not limits.admit("L", "10.0.0.1")
    assert not limits.admit("L", "10.0.0.2")
    limits.forget("L", "10.0.0.1")
    assert limits.admit("L", "10.0.0.1")


def test_a_rate_limit_lets_a_seconds_worth_through_and_then_one_at_a_time() -> None:
    rate = RateLimit(10, 0.0)
    for _ in range(10):
        assert rate.delay(0.0) == 0
        rate.take()
    assert rate.delay(0.0) == pytest.approx(0.1)
    assert rate.delay(0.05) == pytest.approx(0.05)
    assert rate.delay(0.1001) == 0


def test_connections_made_too_quickly_are_accepted_later() -> None:
    with serving(limits=NetworkLimits(max_connection_creation_rate=2)) as running:
        # The kernel has them all before the loop accepts the first, however slowly this thread connects.
        connected = threading.Event()
        running.loop.call_soon_threadsafe(connected.wait, 20)
        clients = [running.client() for _ in range(4)]
        connected.set()
        assert [client.ask(n) for n, client in enumerate(clients)] == [(n, b"") for n in range(4)]
        assert running.server.acceptors["PLAINTEXT"].blocked_ns > 0


def test_limits_change_while_running() -> None:
    with serving() as running:
        clients = [running.client() for _ in range(5)]
        for client in clients:
            client.ask(1)
        running.on_loop(lambda: running.server.update_limits(NetworkLimits(max_connections=2)))
        assert len(running.server.channels) == 2
        assert [client.is_closed_by_peer() for client in clients[:3]] == [True] * 3
        assert clients[4].ask(9) == (9, b"")


# Idle connections


def test_an_idle_connection_is_closed_and_a_busy_one_is_not(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[Request] = []

    def hold_some(request: Request) -> None:
        if request.client_id == "held":
            held.append(request)
            request.waiting()
        else:
            echo(request)

    caplog.set_level(logging.INFO, logger="tidelog.network")
    with serving(hold_some, NetworkLimits(connections_max_idle_ms=60_000)) as running:
        idle, waiting, active = running.client(), running.client(), running.client()
        for client in (idle, active):
            client.ask(1)
        waiting.send(1, client="held")
        running.wait_until(lambda: bool(held))
        (busy,) = (
            channel
            for channel in running.server.channels.values()
            if channel.peer.endswith(f":{active.sock.getsockname()[1]}")
        )

        def an_hour_later() -> None:
            """As if an hour had passed, and `active` had asked just now."""
            hour = 3600 * 10**9
            busy.last_active_ns += hour
            monkeypatch.setattr(server, "perf_counter_ns", lambda: time.perf_counter_ns() + hour)
            running.server.update_limits(running.server.limits)

        running.on_loop(an_hour_later)
        assert idle.is_closed_by_peer()
        assert running.server.expired == 1
        assert active.ask(2) == (2, b"")
        running.on_loop(lambda: answer(held[0]))
        assert waiting.receive() == (1, b"")
        assert "idle for 60000 ms" in caplog.text


def test_a_peer_that_sends_a_large_request_slowly_is_not_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system gathers a megabyte before it wakes the loop."""
    body = bytes(range(256)) * 6000
    sent = frame(2, body)
    with serving(limits=NetworkLimits(connections_max_idle_ms=60_000)) as running:
        client = running.client()
        client.ask(1)
        (channel,) = running.server.channels.values()
        sock = channel.sock
        assert isinstance(sock, socket.socket)

        def look_in_an_hour() -> None:
            with monkeypatch.context() as patch:
                patch.setattr(server, "perf_counter_ns", lambda: time.perf_counter_ns() + 3600 * 10**9)
                running.server.update_limits(running.server.limits)

        def is_gathering() -> bool:
            return sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT) > 50_000

        def has_bytes() -> bool:
            try:
                return sock.recv(1, socket.MSG_PEEK) != b""
            except BlockingIOError:
                return False

        client.sock.sendall(sent[:300_000])
        running.wait_until(is_gathering, "the system gathers the rest")
        client.sock.sendall(sent[300_000:340_000])
        running.wait_until(has_bytes, "some bytes are here, and do not wake the loop")
        running.on_loop(look_in_an_hour)
        assert (running.server.expired, running.on_loop(has_bytes)) == (0, False)
        client.sock.sendall(sent[340_000:])
        assert client.receive() == (2, body)
        client.sock.sendall(sent[:300_000])
        running.wait_until(is_gathering, "the system gathers the rest")
        for _ in range(2):  # the first look may find bytes
            running.on_loop(look_in_an_hour)
        assert client.is_closed_by_peer()
        assert running.server.expired == 1


def test_an_idle_connection_is_closed_when_its_time_is_over() -> None:
    with serving(limits=NetworkLimits(connections_max_idle_ms=60)) as running:
        idle = running.client()
        began = time.monotonic()
        idle.ask(1)
        assert idle.is_closed_by_peer()
        assert time.monotonic() - began >= 0.06
        assert running.server.expired == 1


def test_a_peer_that_never_reads_its_answer_is_closed_as_idle() -> None:
    def large(request: Request) -> None:
        request.respond([bytes(20_000_000)])

    with serving(large, NetworkLimits(connections_max_idle_ms=50)) as running:
        running.client().send(1)
        running.wait_until(lambda: running.server.expired == 1)
        assert not running.server.channels


# Listeners


def test_a_port_that_is_taken_is_named_and_no_listener_stays_open() -> None:
    taken = socket.create_server(("127.0.0.1", 0))
    port = taken.getsockname()[1]
    loop = BrokerLoop()
    endpoints = [
        Endpoint("FIRST", "PLAINTEXT", "127.0.0.1", 0),
        Endpoint("SECOND", "PLAINTEXT", "127.0.0.1", port),
    ]
    server = SocketServer(loop, endpoints, echo, NetworkLimits(), Registry(), versions=all_versions)
    with pytest.raises(OSError, match=rf"listener SECOND \(127.0.0.1:{port}\)") as raised:
        server.start()
    assert raised.value.errno == errno.EADDRINUSE
    assert not server.acceptors
    taken.close()
    loop.close()


def test_every_listener_is_served_and_named_in_its_requests() -> None:
    def name_listener(request: Request) -> None:
        request.respond([struct.pack(">i", request.correlation_id) + request.listener.encode()])

    with serving(name_listener, listeners=("A", "B")) as running:
        assert running.client("A").ask(1) == (1, b"A")
        assert running.client("B").ask(2) == (2, b"B")


# Congestion control


def congestion_control(host: str) -> bytes:
    """What a connection that a listener at `host` accepted is sent with."""
    accepted: list[bytes] = []

    def look(request: Request) -> None:
        found = request.channel.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
        accepted.append(found.rstrip(b"\0"))
        answer(request)

    with serving(look, host=host) as running:
        running.client().ask(1)
    return accepted[0]


def test_only_connections_within_the_machine_are_sent_without_pacing() -> None:
    with socket.socket() as plain:
        chosen = plain.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0")
    assert congestion_control("127.0.0.1") == b"reno"
    assert congestion_control("0.0.0.0") == chosen, "what the administrator chose for the network"


# The rate of addresses


def test_an_address_without_a_rate_is_not_counted() -> None:
    rates = AddressRates(SampleConfig())
    rates.set(["10.0.0.1"], 0)
    assert [rates.throttle("10.0.0.2", 0.0) for _ in range(1000)] == [0.0] * 1000
    assert rates.throttle("10.0.0.1", 0.0) == 1.0


def test_an_address_may_open_the_connections_of_all_windows_but_one_at_once() -> None:
    rates = AddressRates(SampleConfig(3, 1000))
    rates.set(None, 2)
    assert [rates.throttle("10.0.0.1", 0.0) for _ in range(4)] == [0.0] * 4
    # The fifth has to wait until five are two a second: refused connections do not count.
    assert [rates.throttle("10.0.0.1", 0.0) for _ in range(3)] == [0.5] * 3
    assert rates.throttle("10.0.0.1", 0.5) == 0.0
    assert rates.throttle("10.0.0.2", 0.5) == 0.0


def test_an_own_rate_goes_before_the_default_and_a_removed_one_falls_back() -> None:
    rates = AddressRates(SampleConfig(2, 1000))
    rates.set(None, 1)
    rates.set(["10.0.0.1"], 100)
    assert [rates.throttle("10.0.0.1", 0.0) for _ in range(50)] == [0.0] * 50
    rates.set(["10.0.0.1"], None)
    assert rates.throttle("10.0.0.1", 0.0) == 0.0
    assert rates.throttle("10.0.0.1", 0.0) == 1.0
    rates.set(None, None)
    assert rates.throttle("10.0.0.1", 0.0) == 0.0


def test_addresses_that_are_idle_are_forgotten() -> None:
    rates = AddressRates(SampleConfig(2, 1000))
    rates.set(None, 1)
    for number in range(MOST_ADDRESSES):
        rates.throttle(str(number), 0.0)
    rates.throttle("new", 10.0)
    assert len(rates._rates) == 1


def test_many_busy_addresses_are_not_all_looked_at_for_each_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tidelog.network.limits.MOST_ADDRESSES", 100)
    measured = 0

    class CountedRate(Rate):
        def measure(self, now_ms: int) -> float:
            nonlocal measured
            measured += 1
            return super().measure(now_ms)

    monkeypatch.setattr("tidelog.network.limits.Rate", CountedRate)
    rates = AddressRates(SampleConfig(2, 1000))
    rates.set(None, 1)
    for number in range(2_000):
        rates.throttle(str(number), 0.0)
    assert measured < 8_000, "a few looks for each connection"


# Throttled channels


def test_a_throttled_channel_sends_its_response_and_reads_nothing_until_the_time_is_over() -> None:
    ended: list[int] = []

    def throttled(request: Request) -> None:
        if request.correlation_id == 1:
            request.throttle(300, lambda: ended.append(1))
        answer(request)

    with serving(throttled) as running:
        client = running.client()
        began = time.monotonic()
        for number in range(1, 6):
            client.send(number)
        assert [client.receive()[0] for _ in range(5)] == [1, 2, 3, 4, 5]
        assert time.monotonic() - began > 0.25
        assert ended == [1]


def test_a_throttled_channel_that_is_closed_ends_its_throttle_once() -> None:
    ended: list[int] = []

    def throttled(request: Request) -> None:
        request.throttle(60_000, lambda: ended.append(1))
        answer(request)

    with serving(throttled) as running:
        client = running.client()
        client.ask(1)
        client.send(2)
        (channel,) = running.server.channels.values()
        assert (channel.state, ended) == (THROTTLED, []), "the response does not wait for the time"
        running.on_loop(channel.drain)
        assert ended == [1]
        assert client.is_closed_by_peer()


def test_a_large_response_of_a_throttled_channel_is_sent_to_its_end() -> None:
    body = b"x" * 20_000_000

    def throttled(request: Request) -> None:
        if request.correlation_id == 1:
            request.throttle(50, lambda: None)
            request.respond([struct.pack(">i", 1) + body])
        else:
            answer(request)

    with serving(throttled) as running:
        client = running.client()
        client.send(1)
        client.send(2)
        channels = running.server.channels
        running.wait_until(
            lambda: [channel.state for channel in channels.values()] == [RESPONSE_PENDING],
            "the time is over, and the response not sent",
        )
        assert client.receive() == (1, body)
        assert client.receive()[0] == 2
