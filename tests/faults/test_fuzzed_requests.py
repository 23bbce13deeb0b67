"""Whatever a peer sends, the broker answers it or closes that connection, and serves everybody else."""

from __future__ import annotations

import random
import socket
import struct
import threading
import time
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.faults.client import Client, batch_of, peak_bytes, resident_bytes, surprises
from tests.faults.corpus import TOPIC, golden_payloads, pointed_payloads, pointed_requests
from tests.support.broker import Broker
from tests.support.raw import ConnectionClosed, NoAnswer, RawConnection
from tests.support.scale import scale
from tidelog.clients.connection import request_frame
from tidelog.protocol.api import API
from tidelog.protocol.headers import read_response_header
from tidelog.protocol.messages.metadata import MetadataRequest, MetadataResponse
from tidelog.protocol.schema import Struct
from tidelog.protocol.wire import ProtocolError
from tidelog.server.apis import served_apis

PRODUCE, FETCH, API_VERSIONS = 0, 1, 18
MEGABYTE = 1 << 20
EXTREMES = {
    1: [b"\0", b"\1", b"\x7f", b"\x80", b"\xff"],
    2: [struct.pack(">h", value) for value in (0, 1, -1, -2, 2**15 - 1, -(2**15))],
    4: [struct.pack(">i", value) for value in (0, 1, -1, -2, 2**31 - 1, -(2**31))],
    5: [b"\xff\xff\xff\xff\x0f", b"\xff\xff\xff\xff\x7f", b"\x80\x80\x80\x80\x08"],
    8: [struct.pack(">q", value) for value in (0, 1, -1, -2, -3, 2**63 - 1, -(2**63))],
}


class Honest(threading.Thread):
    """Produces and fetches all the time, and remembers the first thing that goes wrong."""

    def __init__(self, address: tuple[str, int]) -> None:
        super().__init__(daemon=True)
        self._client = Client(address)
        self._over = threading.Event()
        self.served = 0
        self.slowest = 0.0
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            while not self._over.wait(0.01):
                began = time.monotonic()
                value = b"honest %d" % self.served
                answer = self._client.produce("honest", 0, batch_of(value))
                assert answer.error == 0
                found = self._client.fetch("honest", 0, answer.offset)
                assert found.error_code == 0
                assert found.records is not None
                assert value in bytes(found.records)  # type: ignore[arg-type]
                self.served += 1
                self.slowest = max(self.slowest, time.monotonic() - began)
        except BaseException as error:
            self.failure = error

    def end(self) -> None:
        self._over.set()
        self.join(30)
        self._client.close()


class Target:
    """The broker under test, and a connection that is made anew when the broker closed the last one."""

    def __init__(self, broker: Broker, topic_id: bytes) -> None:
        self.broker = broker
        self.topic_id = topic_id
        self.corpus = golden_payloads() + pointed_payloads(topic_id)
        self._connection: RawConnection | None = None

    def send(self, payload: bytes) -> bytes | None:
        """The answer to a payload, or None for a closed connection."""
        if self._connection is None:
            self._connection = RawConnection(self.broker.address)
        try:
            self._connection.send_frame(payload)
            # A produce may ask for no answer and a fetch for a late one: those are not waited for.
            patience = 0.02 if payload[:2] in (b"\0\0", b"\0\1") else 20.0
            answer = self._connection.receive_frame(patience)
        except ConnectionClosed:
            self.forget()
            return None
        except NoAnswer:
            self.forget()
            if payload[:2] in (b"\0\0", b"\0\1"):
                return None
            raise
        check_answer(payload, answer)
        return answer

    def forget(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def check_answer(payload: bytes, answer: bytes) -> None:
    """It is the answer to this request, and a whole message of the version that was asked for."""
    key, version, correlation_id = struct.unpack_from(">hhi", payload)
    if key == API_VERSIONS and not served_apis()[key].serves(version):
        version = 0
    found, start = read_response_header(key, version, answer, 0)
    assert found == correlation_id
    API[key].response.decode(answer[start:], version)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """A broker with an honest client at work, which must come to no harm."""
    with Broker(tmp_path_factory.mktemp("fuzzed"), {"auto.create.topics.enable": "false"}) as broker:
        with Client(broker.address) as client:
            assert client.create_topic("honest", 1, {"retention.bytes": "1000000"}) == 0
            assert client.create_topic(TOPIC, 2) == 0
            for _ in range(10):
                assert client.produce(TOPIC, 0, batch_of(b"x" * 100)).error == 0
            wanted = MetadataRequest.MetadataRequestTopic(name=TOPIC)
            found = client.ask(MetadataRequest(topics=[wanted]), MetadataResponse, 12).topics[0]
        target = Target(broker, found.topic_id)
        before = resident_bytes(broker.pid)
        honest = Honest(broker.address)
        honest.start()
        try:
            yield target
        finally:
            target.forget()
            honest.end()
        if honest.failure is not None:
            raise honest.failure
        assert broker.running
        assert honest.served > 10
        assert honest.slowest < 10
        assert surprises(broker.log()) == []
        assert resident_bytes(broker.pid) - before < 60 * MEGABYTE
        assert peak_bytes(broker.pid) < 300 * MEGABYTE


@st.composite
def mutations(draw: st.DrawFn) -> list[tuple[str, float, bytes]]:
    """Up to five changes: what is done, where (as a share of the length), and with which bytes."""
    kinds = st.sampled_from(["put", "insert", "drop", "cut", "repeat"])
    extreme = st.sampled_from([value for values in EXTREMES.values() for value in values])
    content = st.one_of(extreme, st.binary(min_size=1, max_size=8))
    change = st.tuples(kinds, st.floats(0, 1), content)
    return draw(st.lists(change, min_size=1, max_size=5))


def mutated(payload: bytes, changes: list[tuple[str, float, bytes]]) -> bytes:
    data = bytearray(payload)
    for kind, share, content in changes:
        # The header stays mostly whole, so that the body is looked at.
        at = min(len(data), 8 + int(share * max(0, len(data) - 8)))
        if kind == "put":
            data[at : at + len(content)] = content
        elif kind == "insert":
            data[at:at] = content
        elif kind == "drop":
            del data[at : at + len(content)]
        elif kind == "cut":
            del data[at:]
        else:
            data[at:at] = data[at : at + 40]
    return bytes(data)


seeded = settings(
    derandomize=True,
    deadline=None,
    database=None,
    max_examples=scale(1500, 50_000),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@seeded
@given(which=st.floats(0, 0.999999), changes=mutations())
def test_mutated_requests_are_answered_or_close_the_connection(
    target: Target, which: float, changes: list[tuple[str, float, bytes]]
) -> None:
    target.send(mutated(target.corpus[int(which * len(target.corpus))], changes))


def test_every_request_of_the_corpus_is_answered(target: Target) -> None:
    for payload in target.corpus:
        answer = target.send(payload)
        if payload[:2] not in (b"\0\0", b"\0\1"):
            assert answer is not None, f"{payload[:4].hex()} closes the connection: {payload.hex()}"


def test_garbage_is_never_answered_with_harm(target: Target) -> None:
    chance = random.Random(11)
    keys = sorted(served_apis())
    for _ in range(scale(300, 20_000)):
        body = chance.randbytes(chance.randrange(200))
        if chance.random() < 0.7:
            api = served_apis()[chance.choice(keys)]
            version = chance.randint(api.min_version, api.max_version)
            body = struct.pack(">hhih", api.key, version, 1, -1) + b"\0" * chance.randrange(2) + body
        target.send(body)


def test_a_request_cut_at_any_byte_closes_the_connection_or_is_answered(target: Target) -> None:
    for payload in pointed_payloads(target.topic_id)[:: scale(9, 1)]:
        for end in range(len(payload)):
            target.send(payload[:end])


@pytest.mark.parametrize("size", sorted(EXTREMES))
def test_counts_and_numbers_at_their_ends_at_every_place_of_a_request(target: Target, size: int) -> None:
    """Among them every count of an array, a string, records or tags that is larger than what is left."""
    chance = random.Random(size)
    payloads = pointed_payloads(target.topic_id)
    for payload in chance.sample(payloads, scale(40, len(payloads))):
        for at in range(8, len(payload) - size + 1):
            data = bytearray(payload)
            data[at : at + size] = chance.choice(EXTREMES[size])
            target.send(bytes(data))


def fields_of(struct: Struct, version: int) -> Iterator[tuple[Struct, str, object, bool]]:
    """Every field of a message and of the structs in it: holder, name, value, whether it may be null."""
    for field in type(struct).FIELDS:
        if not field.present(version):
            continue
        value = getattr(struct, field.name)
        yield struct, field.name, value, bool(field.nullable(version)) or field.is_optional_struct
        for inner in value if isinstance(value, list) else [value]:
            if isinstance(inner, Struct):
                yield from fields_of(inner, version)


def hostile_values(value: object, nullable: bool) -> list[object]:
    values: list[object] = [None] if nullable else []
    if isinstance(value, bool):
        values.append(not value)
    elif isinstance(value, int):
        values += [0, -1, -2, -7, *(sign * 2**bits - 1 for sign in (1, -1) for bits in (7, 15, 31, 63))]
        values += [-(2**bits) for bits in (7, 15, 31, 63)]
    elif isinstance(value, str):
        values += ["", "\0", ".", "..", "a/../b", "x" * 300, "x" * 32_767, "é\n", "\U0001f600"]
    elif isinstance(value, list):
        values += [[], value * 2, value * 500]
    elif isinstance(value, bytes | bytearray | memoryview):
        values += [b"", bytes(61), b"\xff" * 61, bytes(value) * 2, bytes(value)[:-1], bytes(16)]
    return values


def test_fields_at_their_ends_nulls_and_empty_lists_get_a_kafka_error_and_no_harm(target: Target) -> None:
    sent = 0
    for key, version, message in pointed_requests(target.topic_id):
        api = served_apis()[key]
        if scale(0, 1) == 0 and version not in (api.min_version, api.max_version):
            continue
        for holder, name, value, nullable in list(fields_of(message, version)):
            for hostile in hostile_values(value, nullable):
                setattr(holder, name, hostile)
                try:
                    payload = request_frame(message, version, 3, "fuzz")[4:]
                except (ProtocolError, struct.error, OverflowError, TypeError, ValueError):
                    continue
                sent += 1
                target.send(payload)
            setattr(holder, name, value)
    assert sent > 500


def test_two_gigabytes_of_length_cost_the_sender_its_connection(target: Target) -> None:
    before = resident_bytes(target.broker.pid)
    for length in (2**31 - 1, -1, -(2**31), 104_857_601):
        with socket.create_connection(target.broker.address, 10) as sock:
            sock.sendall(struct.pack(">i", length) + b"\0\3\0\0")
            assert sock.recv(1) == b""
    assert resident_bytes(target.broker.pid) - before < 8 * MEGABYTE
