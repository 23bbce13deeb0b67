"""Valid requests of every API with changed bytes: answered, or the connection ends; nobody else notices."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator

import pytest

from tests.faults.client import peak_bytes, resident_bytes, surprises
from tests.faults.corpus import golden_payloads, pointed_payloads
from tests.faults.test_fuzzed_requests import EXTREMES, Target
from tests.security.honest import Honest
from tests.support.broker import Broker
from tests.support.raw import RawConnection
from tests.support.scale import scale
from tidelog.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse

MEGABYTE = 1 << 20
CHANGES = [value for values in EXTREMES.values() for value in values]


@pytest.fixture
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    settings = {"auto.create.topics.enable": "false", "group.initial.rebalance.delay.ms": "0"}
    with Broker(tmp_path_factory.mktemp("frames"), settings) as broker:
        with RawConnection(broker.address) as connection:
            topic = CreateTopicsRequest.CreatableTopic(name="fuzzed", num_partitions=2, replication_factor=1)
            made = connection.ask(CreateTopicsRequest(topics=[topic]), CreateTopicsResponse, 7)
        yield Target(broker, made.topics[0].topic_id)


def changed(chance: random.Random, payload: bytes) -> bytes:
    """One to four changes: bytes put, inserted, dropped, repeated, or the rest cut off."""
    data = bytearray(payload)
    for _ in range(chance.randint(1, 4)):
        # The key and the version of the request mostly stay, so that the body is read.
        at = chance.randrange(0 if chance.random() < 0.05 else 4, len(data) + 1) if len(data) >= 4 else 0
        content = chance.choice(CHANGES) if chance.random() < 0.6 else chance.randbytes(chance.randint(1, 8))
        kind = chance.randrange(6)
        if kind <= 1:
            data[at : at + len(content)] = content
        elif kind == 2:
            data[at:at] = content
        elif kind == 3:
            del data[at : at + len(content)]
        elif kind == 4:
            data[at:at] = data[at : at + 40]
        else:
            del data[at:]
    return bytes(data)


def test_changed_requests_of_every_api(target: Target) -> None:
    chance = random.Random(20_390)
    corpus = golden_payloads() + pointed_payloads(target.topic_id)
    before = resident_bytes(target.broker.pid)
    with Honest(target.broker.address):
        for number in range(scale(5000, 1_000_000)):
            target.send(changed(chance, corpus[number % len(corpus)]))
    target.forget()
    assert surprises(target.broker.log()) == []
    assert resident_bytes(target.broker.pid) - before < 80 * MEGABYTE
    assert peak_bytes(target.broker.pid) < 300 * MEGABYTE
    target.broker.restart()
    with Honest(target.broker.address):
        pass
    assert surprises(target.broker.log()) == []


def test_frames_shorter_than_a_header_close_the_connection(target: Target) -> None:
    whole = struct.pack(">hhih", 3, 9, 1, -1) + b"\0"
    for size in range(len(whole)):
        assert target.send(whole[:size]) is None
    assert surprises(target.broker.log()) == []
