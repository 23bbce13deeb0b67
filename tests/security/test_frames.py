"""Valid requests of every API with changed bytes: answered, or the connection ends; nobody else notices."""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from tests.faults.client import Client, peak_bytes, resident_bytes, surprises
from tests.faults.corpus import golden_payloads, pointed_payloads
from tests.faults.test_fuzzed_requests import Target
from tests.security.frame_flood import Door, FloodFailure, FrameFlood, Outcome
from tests.security.honest import TOPIC as HONEST
from tests.security.honest import Honest
from tests.security.siege import Siege
from tests.security.test_connections import client_hello
from tests.security.test_hostile_fields import golden_requests
from tests.server.filled_requests import CASES, FilledRequests
from tests.support.broker import Broker
from tests.support.cluster import ClusterOfBrokers
from tests.support.ports import free_ports
from tests.support.raw import ConnectionClosed
from tests.support.scale import scale
from tests.support.tls_broker import TlsFiles
from tidelog.clients.connection import request_frame
from tidelog.errors import ErrorCode, KafkaError
from tidelog.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from tidelog.protocol.messages.sasl_handshake import SaslHandshakeRequest
from tidelog.protocol.wire import ProtocolError
from tidelog.security.jaas import PLAIN_MODULE
from tidelog.server.apis import served_apis

MEGABYTE = 1 << 20
SEED = 20_390
FRAMES = scale(3_000, 1_000_000)
FRAMES_BETWEEN_BROKERS = 100_000
# What a controller says of strange brokers and of partitions whose brokers it has taken away.
EXPECTED_ERRORS = ("the brokers have different listeners", "no replica may lead")
CONNECTIONS = 48
TIDY_AFTER = 20_000
"""Frames that make topics leave some behind: they are deleted after so many frames, as their memory is not
what is looked for here."""

MOST_GROWTH = scale(80, 300) * MEGABYTE
"""The long form has bombs. The threads that unpack keep memory for the next ones."""

KEPT = {HONEST, "fuzzed", "t", "__consumer_offsets", "__transaction_state"}


def log_in(name: str) -> tuple[bytes, ...]:
    token = SaslAuthenticateRequest(auth_bytes=f"\0{name}\0{name}-secret".encode())
    handshake = SaslHandshakeRequest(mechanism="PLAIN")
    return request_frame(handshake, 1, 1, "flood"), request_frame(token, 2, 2, "flood")


class Fortress:
    """A broker with an authorizer and listeners of several kinds, and the frames that are changed."""

    def __init__(self, folder: Path) -> None:
        tls, sasl = free_ports(2)
        keys = folder / "keys"
        keys.mkdir()
        files = TlsFiles(keys)
        users = 'user_admin="admin-secret" user_guest="guest-secret"'
        settings = {
            "listeners": f"PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:{tls},SASL_PLAINTEXT://127.0.0.1:{sasl}",
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.sasl_plaintext.plain.sasl.jaas.config": f"{PLAIN_MODULE} required {users};",
            "connection.failed.authentication.delay.ms": "0",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": files.server,
            "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
            "super.users": "User:ANONYMOUS;User:admin",
            "delegation.token.secret.key": "flood-secret",
            "metrics.listener": f"127.0.0.1:{free_ports(1)[0]}",
            "auto.create.topics.enable": "false",
            "log.segment.delete.delay.ms": "0",
        }
        self.broker = Broker(folder, settings).start()
        with Client(self.broker.address) as client:
            for name in ("fuzzed", "t", HONEST):
                assert client.create_topic(name, 2, {"retention.bytes": "1000000"}) == 0
            filled = self._filled_payloads(client)
        self.tls = ("127.0.0.1", tls)
        self.corpus = golden_payloads() + pointed_payloads(bytes(16)) + filled
        secured = ("127.0.0.1", sasl)
        self.doors = [
            Door(self.broker.address, 0.5),
            Door(secured, 0.2, log_in("admin")),
            Door(secured, 0.1, log_in("guest")),
            Door(secured, 0.2, is_answered=False),
        ]

    def _filled_payloads(self, client: Client) -> list[bytes]:
        """Requests of members, transactions and topics that are there."""
        made = []
        for key in CASES:
            api = served_apis()[key]
            for version in range(scale(api.max_version, api.min_version), api.max_version + 1):
                with suppress(ConnectionClosed, ProtocolError, KafkaError, AssertionError):
                    made.append(
                        request_frame(FilledRequests(client).of(key, version), version, 7, "fuzz")[4:]
                    )
        return made

    def tidy(self) -> None:
        """Delete the topics that frames have made."""
        with Client(self.broker.address) as client:
            for name in client.partitions():
                if name not in KEPT:
                    assert client.delete_topic(name) in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


@pytest.fixture
def fortress(tmp_path: Path) -> Iterator[Fortress]:
    made = Fortress(tmp_path)
    try:
        yield made
    finally:
        made.broker.close()


def test_changed_requests_of_every_api(fortress: Fortress) -> None:
    """In the long form a million of them, while the broker is besieged in other ways, too."""
    broker = fortress.broker
    before, began = resident_bytes(broker.pid), time.monotonic()

    def tidy(sent: int) -> None:
        fortress.tidy()
        resident = resident_bytes(broker.pid) // MEGABYTE
        slowest = max(honest.times)
        print(
            f"{sent} frames, {time.monotonic() - began:.0f} s, {resident} MiB, slowest {slowest:.3f} s",
            flush=True,
        )

    flood = FrameFlood(
        SEED, fortress.corpus, fortress.doors, connections=CONNECTIONS, every=TIDY_AFTER, then=tidy
    )
    with ExitStack() as stack:
        honest = stack.enter_context(Honest(broker.address))
        if scale(0, 1):
            siege = stack.enter_context(Siege(broker.address, fortress.tls, client_hello(), "fuzzed"))
        flood.run(FRAMES)
        if scale(0, 1):
            print(f"slow bytes {siege.slow_bytes}, garbage {siege.garbage}, bombs {siege.bombs}")
            assert min(siege.slow_bytes, siege.garbage, siege.bombs) > 10
    print(flood.outcomes, f"before {before // MEGABYTE} MiB")
    assert flood.outcomes[Outcome.ANSWERED] > FRAMES // 10
    fortress.tidy()
    assert surprises(broker.log()) == []
    assert resident_bytes(broker.pid) - before < MOST_GROWTH
    assert peak_bytes(broker.pid) < scale(300, 600) * MEGABYTE
    broker.restart()
    with Honest(broker.address):
        pass
    assert surprises(broker.log()) == []


def payloads_between_brokers() -> list[bytes]:
    """Requests of a controller and of brokers. Their epochs are the highest, so none is stale."""
    apis = {key: api for key, api in served_apis(cluster=True).items() if key not in served_apis()}
    right = {"broker_epoch": -1, "controller_epoch": 2**31 - 1, "is_kraft_controller": False}
    payloads = []
    for message, version in golden_requests(apis):
        if apis[message.KEY or 0].serves(version):
            for name, value in right.items():
                if hasattr(message, name):
                    setattr(message, name, value)
            payloads.append(request_frame(message, version, 7, "1")[4:])
    return payloads


@pytest.mark.long
def test_changed_requests_between_brokers(tmp_path: Path) -> None:
    """They may take the cluster apart: whoever sends them may do that. The broker goes on."""
    with ClusterOfBrokers(tmp_path, 1) as cluster:
        broker = cluster[1]
        before = resident_bytes(broker.pid)
        corpus = payloads_between_brokers()
        # One connection: a request over an older one than the newest is of an earlier controller.
        flood = FrameFlood(SEED, corpus, [Door(broker.address)], connections=1)
        flood.run(FRAMES_BETWEEN_BROKERS)
        print(flood.outcomes, f"{before // MEGABYTE}, then {resident_bytes(broker.pid) // MEGABYTE} MiB")
        assert flood.outcomes[Outcome.ANSWERED] > FRAMES_BETWEEN_BROKERS // 10
        assert surprises(broker.log(), EXPECTED_ERRORS) == []
        assert resident_bytes(broker.pid) - before < 80 * MEGABYTE
        broker.restart(kill=True)  # a controlled shutdown would wait for a controller that the frames made up
        with Honest(broker.address):
            pass


class TestFailures:
    """What the flood says about a broker that answers wrongly."""

    def serve(self, answer: bytes | None) -> tuple[str, int]:
        import socket

        listener = socket.create_server(("127.0.0.1", 0))

        def run() -> None:
            while True:
                peer, _ = listener.accept()
                with peer:
                    received = peer.recv(1 << 16)
                    while answer is not None and received:
                        peer.sendall(answer)
                        received = peer.recv(1 << 16)

        threading.Thread(target=run, daemon=True).start()
        address: tuple[str, int] = listener.getsockname()
        return address

    def test_a_wrong_answer_names_seed_and_frame(self) -> None:
        address = self.serve(struct.pack(">ii", 4, 99))
        flood = FrameFlood(5, golden_payloads(), [Door(address)], connections=2)
        with pytest.raises(FloodFailure, match=r"frame \d+ of seed 5: [0-9a-f]+: AssertionError"):
            flood.run(100)

    def test_the_same_seed_makes_the_same_frames(self) -> None:
        address = self.serve(None)
        corpus = golden_payloads()
        flood = FrameFlood(5, corpus, [Door(address)])
        frames = [flood.frame(number) for number in range(300)]
        flood.run(100)
        assert flood.outcomes[Outcome.CLOSED] == 100
        assert [FrameFlood(5, corpus, []).frame(number) for number in range(300)] == frames
        assert [FrameFlood(6, corpus, []).frame(number) for number in range(300)] != frames


def test_frames_shorter_than_a_header_close_the_connection(tmp_path: Path) -> None:
    whole = struct.pack(">hhih", 3, 9, 1, -1) + b"\0"
    with Broker(tmp_path) as broker:
        target = Target(broker, bytes(16))
        for size in range(len(whole)):
            assert target.send(whole[:size]) is None
        target.forget()
        assert surprises(broker.log()) == []
