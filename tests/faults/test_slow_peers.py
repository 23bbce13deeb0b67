"""Peers that send or read slowly, or not at all, cost their own time and nobody's memory or bytes."""

from __future__ import annotations

import os
import random
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.client import (
    Client,
    batch_of,
    fetch_request,
    peak_bytes,
    produce_request,
    resident_bytes,
    surprises,
)
from tests.support.broker import Broker
from tests.support.scale import scale
from tests.support.wait import eventually
from tidelog.clients.connection import request_frame
from tidelog.protocol.headers import read_response_header
from tidelog.protocol.messages.fetch import FetchResponse
from tidelog.protocol.messages.metadata import MetadataRequest, MetadataResponse
from tidelog.protocol.messages.produce import ProduceResponse
from tidelog.records.batch import crc_is_valid, iter_batches, read_records

MEGABYTE = 1 << 20


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    settings = {
        "log.segment.delete.delay.ms": "0",
        "log.retention.check.interval.ms": "100",
        "socket.listen.backlog.size": "1000",
    }
    with Broker(tmp_path_factory.mktemp("slow"), settings) as running:
        yield running
        assert running.running
        assert surprises(running.log()) == []


@pytest.fixture
def client(broker: Broker) -> Iterator[Client]:
    with Client(broker.address) as connection:
        yield connection


def slow_socket(broker: Broker) -> socket.socket:
    """A peer with small buffers, so that what it does not read stays with the broker."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.settimeout(30)
    sock.connect(broker.address)
    return sock


def read_frame(sock: socket.socket, step: int = 1 << 16) -> bytes:
    def exactly(size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            part = sock.recv(min(step, size - len(data)))
            assert part, f"the connection ended {size - len(data)} bytes too early"
            data += part
        return bytes(data)

    return exactly(struct.unpack(">i", exactly(4))[0])


def fetched(frame: bytes, version: int) -> bytes:
    """The records of an answer to a fetch of one partition."""
    _, start = read_response_header(1, version, frame, 0)
    partition = FetchResponse.decode(frame[start:], version).responses[0].partitions[0]
    assert partition.error_code == 0
    return bytes(partition.records or b"")  # type: ignore[arg-type]


def descriptors(broker: Broker) -> int:
    return len(os.listdir(f"/proc/{broker.pid}/fd"))


def test_requests_that_come_byte_by_byte_are_answered_and_others_are_not_held_up(
    broker: Broker, client: Client
) -> None:
    assert client.create_topic("bytes", 1) == 0
    frames = {
        number: request_frame(produce_request("bytes", 0, batch_of(b"slow %d" % number)), 9, number, "slow")
        for number in range(scale(20, 200))
    }
    sockets = {number: slow_socket(broker) for number in frames}
    for at in range(max(map(len, frames.values()))):
        for number, sock in sockets.items():
            sock.send(frames[number][at : at + 1])
        if at % 10 == 0:
            assert client.produce("bytes", 0, batch_of(b"quick")).error == 0
    for number, sock in sockets.items():
        answer = read_frame(sock, 1)
        assert answer[:4] == struct.pack(">i", number)
        _, start = read_response_header(0, 9, answer, 0)
        response = ProduceResponse.decode(answer[start:], 9)
        assert response.responses[0].partition_responses[0].error_code == 0
        sock.close()
    stored = [stored.values[0] for stored in client.read_all("bytes", 0)]
    assert sorted(value for value in stored if value and value != b"quick") == sorted(
        b"slow %d" % number for number in frames
    )


def test_frames_cut_anywhere_and_interleaved_with_others_arrive_as_they_were_sent(
    broker: Broker, client: Client
) -> None:
    """What one peer has sent in part is kept apart from the buffer that all others are read into."""
    chance = random.Random(21)
    assert client.create_topic("cut", 4) == 0
    streams: list[bytes] = []
    wanted: list[list[bytes]] = []
    for partition in range(4):
        values = [
            bytes([65 + partition]) * chance.choice((10, 1000, 70_000, 300_000)) for _ in range(scale(12, 60))
        ]
        wanted.append(values)
        streams.append(
            b"".join(
                request_frame(produce_request("cut", partition, batch_of(value)), 9, number, "cut")
                for number, value in enumerate(values)
            )
        )
    sockets = [socket.create_connection(broker.address, 30) for _ in streams]
    sent = [0] * len(streams)
    while any(done < len(stream) for done, stream in zip(sent, streams, strict=True)):
        turn = chance.randrange(len(streams))
        piece = streams[turn][sent[turn] : sent[turn] + chance.choice((1, 7, 500, 5000, 200_000))]
        sockets[turn].sendall(piece)
        sent[turn] += len(piece)
    for partition, sock in enumerate(sockets):
        for number in range(len(wanted[partition])):
            assert read_frame(sock)[:4] == struct.pack(">i", number)
        sock.close()
        assert [stored.values for stored in client.read_all("cut", partition)] == [
            [value] for value in wanted[partition]
        ]


def test_peers_that_never_read_their_answers_hold_no_memory(broker: Broker, client: Client) -> None:
    assert client.create_topic("unread", 1) == 0
    for _ in range(16):
        assert client.produce("unread", 0, batch_of(b"x" * 500_000)).error == 0
    ask = request_frame(fetch_request("unread", 0, 0, max_bytes=8 * MEGABYTE), 11, 1, "deaf")
    before = resident_bytes(broker.pid)
    deaf = [slow_socket(broker) for _ in range(scale(50, 500))]
    for sock in deaf:
        sock.sendall(ask * 20)
    for _ in range(20):
        assert client.produce("unread", 0, batch_of(b"y")).error == 0
        assert len(fetched_by(client, "unread")) > 7 * MEGABYTE
    assert resident_bytes(broker.pid) - before < 30 * MEGABYTE
    for sock in deaf:
        sock.close()


def fetched_by(client: Client, topic: str) -> bytes:
    return bytes(client.fetch(topic, 0, 0, max_bytes=8 * MEGABYTE).records or b"")  # type: ignore[arg-type]


@pytest.mark.parametrize("how", ["records deleted", "retention", "topic deleted"])
def test_a_slow_reader_of_a_segment_that_is_deleted_gets_the_right_bytes(
    broker: Broker, client: Client, how: str
) -> None:
    topic = how.replace(" ", "-")
    configs = {"internal.segment.bytes": "3000000", "file.delete.delay.ms": "0"}
    assert client.create_topic(topic, 1, configs) == 0
    for number in range(40):
        assert client.produce(topic, 0, batch_of(b"%03d" % number * 30_000)).error == 0
    whole = bytes(client.fetch(topic, 0, 0, max_bytes=3 * MEGABYTE).records or b"")  # type: ignore[arg-type]
    with slow_socket(broker) as slow:
        slow.sendall(request_frame(fetch_request(topic, 0, 0, max_bytes=3 * MEGABYTE), 11, 1, "slow"))
        assert slow.recv(1, socket.MSG_PEEK)  # the answer is on its way
        folder = broker.data / f"{topic}-0"
        first = folder / f"{0:020d}.log"
        if how == "records deleted":
            assert client.produce(topic, 0, batch_of(b"x" * 900_000)).error == 0
            assert client.delete_records(topic, 0, -1)[0] == 0
        elif how == "retention":
            assert client.set_configs(2, topic, {"retention.bytes": "1000"}) == 0
        else:
            assert client.delete_topic(topic) == 0
        eventually(lambda: not first.exists(), "the segment is gone")
        # Others write and read on, through the same buffers and on new files.
        if how != "topic deleted":
            for _ in range(10):
                assert client.produce(topic, 0, batch_of(os.urandom(200_000))).error == 0
        assert fetched(read_frame(slow), 11) == whole
    if how != "topic deleted":
        assert client.produce(topic, 0, batch_of(b"after")).error == 0


def test_answers_that_slow_peers_still_read_are_not_touched_by_what_comes_after(
    broker: Broker, client: Client
) -> None:
    """Large answers that are bytes, and slices of files between bytes, while everything around changes."""
    names = [f"long-name-{'x' * 180}-{number}" for number in range(scale(60, 400))]
    for name in names:
        assert client.create_topic(name, 5) == 0
    assert client.create_topic("changing", 1) == 0
    for number in range(30):
        assert client.produce("changing", 0, batch_of(b"%02d" % number * 20_000)).error == 0
    expected = sorted(
        topic.name or "" for topic in client.ask(MetadataRequest(topics=None), MetadataResponse, 9).topics
    )
    records = fetched_by(client, "changing")
    metadata = request_frame(MetadataRequest(topics=None), 9, 1, "slow")
    fetch = request_frame(fetch_request("changing", 0, 0, max_bytes=len(records)), 11, 2, "slow")
    slow = [slow_socket(broker) for _ in range(10)]
    for sock in slow:
        sock.sendall(metadata + fetch + metadata)
    for number in range(50):
        assert client.produce("changing", 0, batch_of(os.urandom(1 + number * 3000))).error == 0
        client.ask(MetadataRequest(topics=None), MetadataResponse, 9)
    for sock in slow:
        for turn in range(3):
            frame = read_frame(sock, 1500)
            if turn == 1:
                assert fetched(frame, 11) == records
                continue
            _, start = read_response_header(3, 9, frame, 0)
            answer = MetadataResponse.decode(frame[start:], 9)
            assert sorted(topic.name or "" for topic in answer.topics) == expected
        sock.close()


def test_every_batch_of_a_slow_fetch_is_whole_while_the_log_grows(broker: Broker, client: Client) -> None:
    assert client.create_topic("growing", 1, {"internal.segment.bytes": "300000"}) == 0
    offset, seen = 0, 0
    with slow_socket(broker) as slow:
        for number in range(scale(40, 400)):
            assert client.produce("growing", 0, batch_of(b"%05d" % number * 2000)).error == 0
            if number % 4 == 3:
                slow.sendall(request_frame(fetch_request("growing", 0, offset), 11, number, "slow"))
                assert client.produce("growing", 0, batch_of(b"meanwhile")).error == 0
                data = fetched(read_frame(slow, 3000), 11)
                for position, header in iter_batches(data):
                    assert crc_is_valid(data, position, header)
                    assert header.base_offset == offset
                    offset = header.next_offset
                    seen += len(read_records(data, position))
    assert seen == offset


def test_thousands_of_connections_opened_and_dropped_leave_nothing_behind(
    broker: Broker, client: Client
) -> None:
    hello = request_frame(MetadataRequest(topics=[]), 9, 1, "short")
    count = descriptors(broker)
    before = 0
    for number in range(10_000):
        if number == 2000:
            before = resident_bytes(broker.pid)
        sock = socket.create_connection(broker.address)
        if number % 3:
            sock.sendall(hello[: number % (len(hello) + 1)])
        if number % 2:  # leave with a reset
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.close()
        if number % 500 == 0:
            assert client.partitions() is not None
    eventually(lambda: descriptors(broker) <= count + 2, "the broker closes what its peers closed")
    assert resident_bytes(broker.pid) - before < 3 * MEGABYTE


def test_frames_that_are_announced_and_never_come_take_no_memory(broker: Broker, client: Client) -> None:
    before = peak_bytes(broker.pid)
    waiting = [slow_socket(broker) for _ in range(30)]
    for sock in waiting:
        sock.sendall(struct.pack(">ihhih", 100_000_000, 0, 9, 1, -1) + b"\0" * 1000)
    assert client.partitions() is not None
    assert peak_bytes(broker.pid) - before < 20 * MEGABYTE
    for sock in waiting:
        sock.close()


def test_a_stop_does_not_wait_for_peers_that_never_read(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker:
        with Client(broker.address) as client:
            assert client.create_topic("t") == 0
            for _ in range(10):
                assert client.produce("t", 0, batch_of(b"x" * 900_000)).error == 0
        deaf = [slow_socket(broker) for _ in range(5)]
        for sock in deaf:
            sock.sendall(request_frame(fetch_request("t", 0, 0, max_bytes=8 * MEGABYTE), 11, 1, "deaf"))
            assert sock.recv(1, socket.MSG_PEEK)
        assert broker.terminate(timeout=20) == 0
        for sock in deaf:
            sock.close()
        broker.start()
        assert "unclean" not in broker.log()
