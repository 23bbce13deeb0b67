"""Requests that wait hold only what they need, and one that fails troubles nobody else."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.faults.client import Client, batch_of, fetch_request
from tests.faults.faulty_disk import FaultyDisk, InProcess, faulty_broker
from tests.support.wait import eventually
from tidelog.cluster.replica_manager import ReplicaManager
from tidelog.network.server import SocketServer
from tidelog.protocol.messages.fetch import FetchResponse
from tidelog.server.apis import fetch as fetch_api

FRAME_BYTES = 5_000_000


@pytest.fixture
def disk() -> FaultyDisk:
    return FaultyDisk()


@pytest.fixture
def broker(disk: FaultyDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[InProcess]:
    settings = {
        "log.dirs": str(tmp_path / "data"),
        "queued.max.request.bytes": str(2 * FRAME_BYTES),
        "socket.request.max.bytes": str(2 * FRAME_BYTES),
        "message.max.bytes": str(2 * FRAME_BYTES),
    }
    with faulty_broker(monkeypatch, disk, settings) as running:
        try:
            yield running
        finally:
            disk.may_sync.set()


def parts(running: InProcess) -> tuple[SocketServer, ReplicaManager]:
    assert running.broker is not None
    server, replicas = running.broker._server, running.broker._replicas
    assert server is not None
    assert replicas is not None
    return server, replicas


def frame_mappings() -> int:
    """How many large frames this process has in memory: they are mapped, and nothing else is mapped so."""
    with open("/proc/self/maps") as maps:
        lines = [line.split() for line in maps if "/dev/zero" in line]
    sizes = [int(end, 16) - int(start, 16) for start, end in (line[0].split("-") for line in lines)]
    return sum(size >= FRAME_BYTES for size in sizes)


def test_a_produce_that_waits_for_the_disk_has_given_its_memory_back(
    broker: InProcess, disk: FaultyDisk
) -> None:
    server, replicas = parts(broker)
    pool = server.context.pool
    producers = 4  # more than fit the pool together
    with ThreadPoolExecutor(producers) as threads, Client(broker.address) as admin:
        assert admin.create_topic("flushed", producers, {"flush.messages": "1"}) == 0
        disk.may_sync.clear()
        clients = [Client(broker.address) for _ in range(producers)]
        produced = [
            threads.submit(client.produce, "flushed", partition, batch_of(bytes(FRAME_BYTES)))
            for partition, client in enumerate(clients)
        ]
        eventually(
            lambda: all(
                partition.log is not None and partition.log.log_end_offset == 1
                for partition in replicas.topics["flushed"].partitions.values()
            ),
            "every batch is written",
        )
        eventually(lambda: pool.used == 0, "the pool has its memory back")
        eventually(lambda: frame_mappings() == 0, "no frame is kept")
        assert not any(answer.done() for answer in produced)
        disk.may_sync.set()
        assert [answer.result(30).error for answer in produced] == [0] * producers
        for client in clients:
            client.close()


def test_an_idle_broker_keeps_no_large_frame(broker: InProcess) -> None:
    with Client(broker.address) as client:
        assert client.create_topic("plain") == 0
        assert client.produce("plain", 0, batch_of(bytes(FRAME_BYTES))).error == 0
        eventually(lambda: frame_mappings() == 0, "no frame is kept")


def test_a_consumer_whose_answer_fails_is_the_only_one_who_notices(
    broker: InProcess, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    waiting = parts(broker)[1].fetch_purgatory
    with ThreadPoolExecutor(2) as threads, Client(broker.address) as producer:
        assert producer.create_topic("read") == 0
        consumers = [Client(broker.address) for _ in range(2)]
        answer = fetch_api._answer
        calls: list[int] = []

        def failing_first(*arguments: object) -> FetchResponse:
            calls.append(1)
            if len(calls) == 1:
                raise RuntimeError("planted")
            return answer(*arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(fetch_api, "_answer", failing_first)
        request = fetch_request("read", 0, 0, max_wait_ms=60_000)
        answers = [threads.submit(client.ask, request, FetchResponse, 11, 20) for client in consumers]
        eventually(lambda: waiting.delayed == 2, "both consumers wait")
        assert producer.produce("read", 0, batch_of(b"woken")).error == 0
        got = sorted(answer.result(20).error_code for answer in answers)
        assert got == [-1, 0], "the one that failed is told so, the other has its records"
        assert "planted" in caplog.text
        assert producer.produce("read", 0, batch_of(b"more")).error == 0
        for client in consumers:
            client.close()
