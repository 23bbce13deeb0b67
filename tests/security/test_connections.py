"""Peers that are slow, silent or speak TLS to a plain listener take nobody else's time and little memory."""

from __future__ import annotations

import random
import socket
import ssl
import struct
from collections.abc import Callable, Iterator

import pytest

from tests.faults.client import BROKER_LOGGER, Client, resident_bytes, surprises
from tests.faults.corpus import pointed_payloads
from tests.security.honest import Honest
from tests.support.broker import Broker
from tests.support.ports import free_port
from tests.support.raw import ConnectionClosed, NoAnswer, RawConnection
from tests.support.scale import scale
from tests.support.tls_broker import TlsFiles
from tests.support.wait import eventually
from tidelog.clients.connection import request_frame
from tidelog.protocol.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from tidelog.protocol.messages.metadata import MetadataRequest

MEGABYTE = 1 << 20
SLOW = 200


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return TlsFiles(tmp_path_factory.mktemp("keys"))


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, files: TlsFiles) -> Iterator[Broker]:
    settings = {
        "listeners": f"PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:{free_port()}",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": files.server,
    }
    with Broker(tmp_path_factory.mktemp("connections"), settings) as running:
        yield running
        assert surprises(running.log()) == []


def client_hello() -> bytes:
    """The first bytes of a TLS client."""
    out = ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        ssl.create_default_context().wrap_bio(
            ssl.MemoryBIO(), out, server_hostname="localhost"
        ).do_handshake()
    return out.read()


def test_two_hundred_slow_connections_cost_the_others_nothing(broker: Broker) -> None:
    frame = request_frame(MetadataRequest(topics=None), 9, 7, "slow")
    before = resident_bytes(broker.pid)
    peers = [socket.create_connection(broker.address, 10) for _ in range(SLOW)]
    try:
        with Honest(broker.address):
            for at in range(len(frame)):
                for peer in peers:
                    peer.sendall(frame[at : at + 1])
            for peer in peers:
                assert struct.unpack(">i", peer.recv(4, socket.MSG_WAITALL))[0] > 8
            # Half frames that never end, the largest announced size among them.
            for number, peer in enumerate(peers):
                size = 104_857_600 if number % 2 else len(frame)
                peer.sendall(struct.pack(">i", size) + frame[4 : 4 + number % 20])
        assert resident_bytes(broker.pid) - before < 40 * MEGABYTE
    finally:
        for peer in peers:
            peer.close()


def test_tls_and_other_protocols_on_a_plain_listener_end_in_one_line(broker: Broker) -> None:
    hello = client_hello()
    chance = random.Random(443)
    starts = [hello, hello[: len(hello) // 2], b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"SSH-2.0-x\r\n"]
    starts += [chance.randbytes(chance.randint(4, 300)) for _ in range(scale(100, 5000))]
    with Honest(broker.address):
        for start in starts:
            with RawConnection(broker.address) as connection:
                try:
                    connection.send_bytes(start)
                    connection.socket.shutdown(socket.SHUT_WR)
                    connection.receive_frame(5)
                except (ConnectionClosed, NoAnswer, OSError):
                    pass
    assert "Traceback" not in broker.log()


@pytest.fixture(params=["PLAINTEXT", "SSL"])
def connect(broker: Broker, files: TlsFiles, request: pytest.FixtureRequest) -> Callable[[], RawConnection]:
    """Makes connections to one of the listeners."""
    if request.param == "PLAINTEXT":
        return lambda: RawConnection(broker.address)
    address = broker.settings["listeners"].rpartition("//")[2]
    context = files.client_context()

    def encrypted() -> RawConnection:
        connection = RawConnection(address)
        connection.socket = context.wrap_socket(connection.socket, server_hostname="localhost")
        return connection

    return encrypted


def test_a_secret_of_one_connection_is_in_no_answer_and_no_log_line_of_others(
    broker: Broker, connect: Callable[[], RawConnection]
) -> None:
    """Receive buffers and encoders are used again: what an earlier request left there must not come out."""
    secret = "planted-7f3a-secret"
    with Client(broker.address) as admin:
        assert admin.create_topic("t") in (0, 36)
        broker_id = admin.broker_id()
        assert admin.set_configs(BROKER_LOGGER, broker_id, {"root": "TRACE"}) == 0
        config = IncrementalAlterConfigsRequest.AlterableConfig(name="ssl.key.password", value=secret * 50)
        resource = IncrementalAlterConfigsRequest.AlterConfigsResource(
            resource_type=4, resource_name="77", configs=[config]
        )
        planted = request_frame(IncrementalAlterConfigsRequest(resources=[resource]), 1, 1, "c")[4:]
        payloads = pointed_payloads(bytes(16))
        chance = random.Random(5)
        found = []
        for number in range(scale(200, 20_000)):
            with connect() as victim:
                victim.send_frame(planted if number % 3 else planted[: chance.randrange(20, len(planted))])
                try:
                    victim.receive_frame(5)
                except (ConnectionClosed, NoAnswer):
                    pass
            payload = payloads[number % len(payloads)]
            with connect() as other:
                # A frame that ends early would be read beyond its end, if any is.
                data = payload if number % 2 else payload[: chance.randrange(10, len(payload))]
                other.send_frame(data)
                try:
                    answer = other.receive_frame(0.02 if data[:2] in (b"\0\0", b"\0\1") else 5)
                except (ConnectionClosed, NoAnswer):
                    continue
                if secret.encode()[:12] in answer:
                    found.append(payload[:4].hex())
        assert found == []
        assert admin.set_configs(BROKER_LOGGER, broker_id, {"root": "INFO"}) == 0
    eventually(lambda: "IncrementalAlterConfigs" in broker.log(), "the log has the requests")
    assert secret not in broker.log()
