"""Bytes from peers that have not logged in: TLS that is none, SASL out of order, requests without a login."""

from __future__ import annotations

import random
import socket
import ssl
import struct
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.client import resident_bytes, surprises
from tests.faults.corpus import golden_payloads, pointed_payloads
from tests.security.frame_flood import changed
from tests.security.honest import Honest
from tests.security.login_fuzz import SaslFuzz, encoded
from tests.security.test_connections import client_hello
from tests.support.broker import Broker
from tests.support.ports import free_ports
from tests.support.scale import scale
from tidelog.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from tidelog.protocol.messages.sasl_handshake import SaslHandshakeRequest
from tidelog.security.sasl.authenticator import SaslState
from tidelog.security.security_folder import BrokerAddress, FolderOptions, SecurityFolder

MEGABYTE = 1 << 20
SASL_KEYS = (17, 18, 36)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("login") / "security"
    SecurityFolder(path).create(FolderOptions([BrokerAddress(1, "localhost", 9092)]))
    return path


@pytest.fixture(scope="module")
def broker(folder: Path) -> Iterator[Broker]:
    """A plain listener for the honest client, and listeners that ask for a login."""
    tls, plain = free_ports(2)
    settings = {
        "listeners": f"PLAINTEXT://127.0.0.1:0,SASL_SSL://127.0.0.1:{tls},SASL_PLAINTEXT://127.0.0.1:{plain}",
        "sasl.enabled.mechanisms": "SCRAM-SHA-512",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(folder / "broker-1.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(folder / "ca.pem"),
        "listener.name.sasl_ssl.ssl.client.auth": "requested",
        "connection.failed.authentication.delay.ms": "0",
    }
    with Broker(folder.parent / "broker", settings) as running:
        yield running


def address_of(broker: Broker, listener: str) -> tuple[str, int]:
    listeners = dict(each.split("://") for each in broker.settings["listeners"].split(","))
    host, _, port = listeners[listener].rpartition(":")
    return host, int(port)


def payload(chance: random.Random, corpus: list[bytes], logins: list[bytes]) -> bytes:
    chosen = chance.choice(logins if chance.random() < 0.7 else corpus)
    data = changed(chance, chosen) if chance.random() < 0.7 else chosen
    return struct.pack(">i", len(data)) + data


def test_nothing_that_comes_before_a_login_harms_the_broker(broker: Broker, folder: Path) -> None:
    chance = random.Random(17)
    corpus = golden_payloads() + pointed_payloads(bytes(16))
    logins = [data for data in corpus if struct.unpack_from(">h", data)[0] in SASL_KEYS]
    assert logins
    hello = client_hello()
    context = ssl.create_default_context(cafile=str(folder / "ca.pem"))
    before = resident_bytes(broker.pid)
    with Honest(broker.address):
        for number in range(scale(300, 20_000)):
            listener = "SASL_SSL" if number % 2 else "SASL_PLAINTEXT"
            with socket.create_connection(address_of(broker, listener), 10) as peer:
                try:
                    if number % 4 == 1:
                        peer.sendall(changed(chance, hello) if number % 8 == 1 else chance.randbytes(200))
                        continue
                    stream = context.wrap_socket(peer, server_hostname="localhost") if number % 2 else peer
                    for _ in range(chance.randint(1, 3)):
                        stream.sendall(payload(chance, corpus, logins))
                    stream.settimeout(0.02)
                    stream.recv(1000)
                except OSError:
                    continue  # closed, timed out or refused: what counts is the broker
    assert broker.running
    assert surprises(broker.log()) == []
    assert resident_bytes(broker.pid) - before < 60 * MEGABYTE


LARGE = b"a" * 500_000  # a little less than sasl.server.max.receive.size


@pytest.mark.parametrize(
    ("mechanism", "message"),
    [
        ("SCRAM-SHA-512", b"n,,n=" + LARGE + b",r=x"),
        ("SCRAM-SHA-512", b"n,,n=" + LARGE + b",r="),
        ("SCRAM-SHA-512", b"n,a=" + LARGE + b",n=a,r="),
        ("SCRAM-SHA-512", b"n,,n=a,r=x" + b",a=b" * 120_000),
        ("OAUTHBEARER", b"n,a=" + LARGE + b",\1auth=Bearer x\1"),
        ("OAUTHBEARER", b"n,a=" + b"=2C" * 160_000 + b",\1auth=Bearer x\1\1"),
        ("OAUTHBEARER", b"n,,\1" + b"a=b\1" * 120_000),
        ("PLAIN", LARGE + b"\0" + LARGE),
    ],
    ids=lambda value: value if isinstance(value, str) else bytes(value[:6]).hex(),
)
def test_a_large_message_of_a_login_takes_little_memory(mechanism: str, message: bytes) -> None:
    fuzz = SaslFuzz(random.Random(1), [])
    machine = next(made for made in iter(fuzz.machine, None) if made.state is SaslState.INITIAL_REQUEST)
    machine.receive(encoded(SaslHandshakeRequest(mechanism=mechanism), 1))
    frame = encoded(SaslAuthenticateRequest(auth_bytes=message), 2)
    tracemalloc.start()
    try:
        step = machine.receive(frame)
        while step.work is not None:
            step = machine.resume(step.work(), None)
        assert not step.is_complete
        assert tracemalloc.get_traced_memory()[1] < 12 * len(frame)
    finally:
        tracemalloc.stop()


def test_a_request_before_the_login_is_never_answered(broker: Broker) -> None:
    for data in pointed_payloads(bytes(16)):
        with socket.create_connection(address_of(broker, "SASL_PLAINTEXT"), 10) as peer:
            peer.sendall(struct.pack(">i", len(data)) + data)
            assert peer.recv(100) == b"", f"{data[:4].hex()} is answered without a login"


def test_a_large_frame_before_the_login_takes_no_memory(broker: Broker) -> None:
    before = resident_bytes(broker.pid)
    with socket.create_connection(address_of(broker, "SASL_PLAINTEXT"), 10) as peer:
        peer.sendall(struct.pack(">ihh", 50 * MEGABYTE, 36, 2))
        assert peer.recv(1) == b""
    assert resident_bytes(broker.pid) - before < 5 * MEGABYTE
