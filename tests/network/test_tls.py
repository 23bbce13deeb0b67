"""Channels over TLS: handshakes beside the loop, large frames both ways, slow peers, and the end."""

from __future__ import annotations

import logging
import os
import socket
import ssl
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.network.harness import Running, echo, frame, serving
from tests.network.tls_listener import BurstClient, TlsListener, tls_client
from tests.support.certificates import make_authority, make_certificate
from tests.support.cold_disk import ColdDisk
from tests.support.wait import eventually
from tidelog.network.limits import NetworkLimits
from tidelog.network.request import Request
from tidelog.network.tls_transport import RAW_BYTES, RECORD_BYTES
from tidelog.storage.file_slice import FileSlice

VERSIONS = [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3]
SIZES = [1, RECORD_BYTES - 1, RECORD_BYTES + 1, 3 * RAW_BYTES + 5, 5_000_000]


@pytest.fixture
def listener(tmp_path: Path) -> TlsListener:
    return TlsListener(tmp_path)


@pytest.fixture
def running(listener: TlsListener) -> Iterator[Running]:
    with serving(security=listener) as running:
        yield running


@pytest.mark.parametrize("version", VERSIONS, ids=lambda version: version.name)
def test_requests_of_every_size_are_answered(
    running: Running, listener: TlsListener, version: ssl.TLSVersion
) -> None:
    client = tls_client(running, listener.client_context(version=version))
    for number, size in enumerate([*SIZES, 0, *reversed(SIZES)]):
        body = os.urandom(size)
        assert client.ask(number, body) == (number, body)


def test_requests_in_one_burst_are_answered_in_order(running: Running, listener: TlsListener) -> None:
    """The bytes of later requests wait in the TLS layer, where no poll of the kernel sees them."""
    client = BurstClient(running, listener.client_context())
    bodies = [os.urandom(size) for size in (10, 300_000, 5, 70_000, 0, 262_140, 1, 600_000, 2)]
    sender = client.send(b"".join(frame(number, body) for number, body in enumerate(bodies)))
    for number, body in enumerate(bodies):
        assert client.receive() == (number, body)
    sender.join()


def test_a_burst_behind_a_waiting_request_is_answered_later(listener: TlsListener) -> None:
    waiting: list[Request] = []

    def handler(request: Request) -> None:
        if request.correlation_id == 0:
            waiting.append(request)
        else:
            echo(request)

    with serving(handler, security=listener) as running:
        client = tls_client(running, listener.client_context())
        client.sock.sendall(b"".join(frame(number, b"x" * 1000) for number in range(200)))
        eventually(lambda: waiting, "the first request is handled")
        running.on_loop(lambda: waiting[0].respond([struct.pack(">i", 0)]))
        assert client.receive() == (0, b"")
        for number in range(1, 200):
            assert client.receive() == (number, b"x" * 1000)


def test_a_request_right_behind_the_handshake_is_answered(running: Running, listener: TlsListener) -> None:
    """The client's last message of the handshake and its first request come in one segment."""
    client = BurstClient(running, listener.client_context(version=ssl.TLSVersion.TLSv1_3))
    client.send(frame(7, b"early")).join()
    assert client.receive() == (7, b"early")


def test_a_slow_reader_gets_every_byte(listener: TlsListener, tmp_path: Path) -> None:
    content = os.urandom(3_000_000)
    (tmp_path / "file").write_bytes(content)
    file = FileSlice(ColdDisk().open(str(tmp_path / "file")), 0, len(content))

    def handler(request: Request) -> None:
        head = struct.pack(">i", request.correlation_id)
        empty = FileSlice(file.handle, 100, 0)
        request.respond([head, b"a" * 20_000, b"b", file, b"", empty, b"c", file, b"d"])

    expected = b"a" * 20_000 + b"b" + content + b"c" + content + b"d"
    with serving(handler, security=listener) as running:
        slow = tls_client(running, listener.client_context(), receive_buffer=65536)
        slow.send(1)
        channel = eventually(lambda: next(iter(running.server.channels.values()), None), "there is a channel")
        running.wait_until(lambda: channel.has_response_pending, "the response does not fit into the sockets")
        other = tls_client(running, listener.client_context())
        assert other.ask(2) == (2, expected)
        assert slow.receive() == (1, expected)


def test_a_range_that_is_not_cached_is_brought_in(listener: TlsListener, tmp_path: Path) -> None:
    content = os.urandom(600_000)
    (tmp_path / "file").write_bytes(content)
    disk = ColdDisk()
    file = FileSlice(disk.open(str(tmp_path / "file")), 0, len(content))

    def handler(request: Request) -> None:
        request.respond([struct.pack(">i", request.correlation_id), file, b"<", file])

    with serving(handler, security=listener) as running:
        disk.evict()
        client = tls_client(running, listener.client_context())
        assert client.ask(1) == (1, content + b"<" + content)
        assert disk.brought_in


def test_the_principal_comes_from_the_certificate(tmp_path: Path) -> None:
    listener = TlsListener(tmp_path, client_auth=ssl.CERT_OPTIONAL)
    with serving(security=listener) as running:
        certificate = make_certificate(listener.authority, "alice")
        tls_client(running, listener.client_context(certificate=certificate)).ask(1)
        tls_client(running, listener.client_context()).ask(1)
        principals = [channel.principal for channel in running.server.channels.values()]
        assert principals == ["User:127.0.0.1", "User:ANONYMOUS"]


def test_handshakes_run_beside_the_loop(running: Running, listener: TlsListener) -> None:
    for _ in range(3):
        tls_client(running, listener.client_context()).ask(1)
    on_loop = running.on_loop(threading.current_thread)
    assert len(listener.threads) == 3
    assert on_loop not in listener.threads


def failures(running: Running) -> int:
    return sum(security.metrics.failed.count for security in running.server.security.values())


def test_a_certificate_of_another_authority_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tidelog.network")
    listener = TlsListener(tmp_path, client_auth=ssl.CERT_REQUIRED)
    with serving(security=listener) as running:
        stranger = make_certificate(make_authority("another"), "mallory")
        for certificate in (stranger, None):
            context = listener.client_context(certificate=certificate, version=ssl.TLSVersion.TLSv1_2)
            with pytest.raises((ssl.SSLError, ConnectionError)):
                tls_client(running, context)
        running.wait_until(lambda: failures(running) == 2, "both are counted")
        assert not running.server.channels
        assert not running.server.handshakes
    lines = [line for line in caplog.messages if "failed authentication" in line]
    assert "certificate is refused" in lines[0]
    assert "peer did not return a certificate" in lines[1]


def test_a_principal_that_cannot_be_built_refuses_the_connection(
    running: Running, listener: TlsListener
) -> None:
    listener.refusal = ValueError("no such user")
    client = tls_client(running, listener.client_context())
    assert client.is_closed_by_peer()
    running.wait_until(lambda: failures(running) == 1, "the failure is counted")


@pytest.mark.parametrize(
    "garbage", [frame(1, b""), b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\xff\xff", bytes(99)]
)
def test_other_protocols_are_closed(
    running: Running, caplog: pytest.LogCaptureFixture, garbage: bytes
) -> None:
    caplog.set_level(logging.INFO, "tidelog.network")
    client = running.client()
    client.sock.sendall(garbage)
    client.sock.shutdown(socket.SHUT_WR)
    while client.sock.recv(100):
        pass
    running.wait_until(lambda: failures(running) == 1, "the failure is counted")
    assert len([line for line in caplog.messages if "failed authentication" in line]) == 1
    assert running.server.quotas.total == 0


def test_a_flood_of_failures_is_no_flood_of_lines(
    running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tidelog.network")
    begun = time.monotonic()
    for _ in range(60):
        client = running.client()
        client.sock.sendall(bytes(99))
        client.is_closed_by_peer()
    running.wait_until(lambda: failures(running) == 60, "all are counted")
    # Eleven lines for each second that has begun; sixty failures take less than three where nothing disturbs.
    seconds = int(time.monotonic() - begun) + 2
    assert len(caplog.messages) <= min(60, 11 * seconds)


def test_a_handshake_that_takes_too_long_is_closed(listener: TlsListener) -> None:
    with serving(limits=NetworkLimits(connections_max_idle_ms=200), security=listener) as running:
        client = running.client()
        client.sock.sendall(b"\x16")
        assert client.is_closed_by_peer()
        running.wait_until(lambda: failures(running) == 1, "the failure is counted")


def test_handshakes_count_as_connections(listener: TlsListener) -> None:
    limits = NetworkLimits(max_connections_per_ip=2)
    with serving(limits=limits, security=listener) as running:
        silent = [running.client() for _ in range(2)]
        running.wait_until(lambda: len(running.server.handshakes) == 2, "both are accepted")
        third = running.client()
        assert third.is_closed_by_peer()
        silent[0].close()
        running.wait_until(lambda: len(running.server.handshakes) == 1, "the end of one is seen")
        assert tls_client(running, listener.client_context()).ask(1) == (1, b"")


def test_a_stop_closes_handshakes(listener: TlsListener) -> None:
    with serving(security=listener) as running:
        client = running.client()
        client.sock.sendall(b"\x16\x03")
        running.wait_until(lambda: len(running.server.handshakes) == 1, "it is accepted")
    # The server is closed here.
    assert not running.server.handshakes


def test_the_end_is_told_before_the_socket_closes(running: Running, listener: TlsListener) -> None:
    client = tls_client(running, listener.client_context())
    assert isinstance(client.sock, ssl.SSLSocket)
    client.sock.suppress_ragged_eofs = False
    assert client.ask(1) == (1, b"")
    running.on_loop(lambda: [channel.close() for channel in list(running.server.channels.values())])
    assert client.sock.recv(1) == b""  # without close_notify this raises SSLEOFError


def test_the_end_of_the_client_closes_the_channel(running: Running, listener: TlsListener) -> None:
    client = tls_client(running, listener.client_context())
    client.ask(1)
    assert isinstance(client.sock, ssl.SSLSocket)
    client.sock.setblocking(False)
    with suppress(ssl.SSLWantReadError):
        client.sock.unwrap()  # close_notify, but the TCP connection stays open
    running.wait_until(lambda: not running.server.channels, "the channel is closed")


def test_a_damaged_record_closes_its_connection_alone(running: Running, listener: TlsListener) -> None:
    good = tls_client(running, listener.client_context())
    bad = tls_client(running, listener.client_context())
    bad.ask(1)
    raw = socket.socket(fileno=os.dup(bad.sock.fileno()))
    raw.sendall(b"\x17\x03\x03\x00\x20" + bytes(32))
    raw.close()
    running.wait_until(lambda: len(running.server.channels) == 1, "one channel is left")
    assert good.ask(2) == (2, b"")


def test_new_connections_get_the_new_context(
    running: Running, listener: TlsListener, tmp_path: Path
) -> None:
    old_trust = listener.client_context()
    old = tls_client(running, old_trust)
    old.ask(1)
    (tmp_path / "other").mkdir()
    other = TlsListener(tmp_path / "other")
    listener.context = other.context
    assert tls_client(running, other.client_context()).ask(2) == (2, b"")
    with pytest.raises(ssl.SSLCertVerificationError):
        tls_client(running, old_trust)
    assert old.ask(3) == (3, b"")


def test_the_metrics_tell_ciphers_and_authentications(running: Running, listener: TlsListener) -> None:
    tls_client(running, listener.client_context(version=ssl.TLSVersion.TLSv1_3)).ask(1)
    found = {family.name: family.samples for family in running.metrics.families()}
    prefix = "kafka_server_socket_server_metrics_"
    labels = (("listener", "PLAINTEXT"), ("networkProcessor", "0"))
    assert found[prefix + "successful_authentication_total"] == [(labels, 1)]
    assert found[prefix + "failed_authentication_total"] == [(labels, 0)]
    ((cipher, count),) = found[prefix + "connections"]
    assert count == 1
    assert ("protocol", "TLSv1.3") in cipher
