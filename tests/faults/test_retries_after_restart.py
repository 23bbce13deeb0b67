"""Idempotent producers whose answers were lost when a broker stopped: their retries are not written again."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import confluent_kafka
import pytest

from tests.chaos.writer import NewEpochs
from tests.faults.client import Client, batch_of, produce_request
from tests.faults.faulty_disk import InProcess, faulty_broker
from tests.faults.test_pipelined import ask_at_once, outcome
from tests.support.cold_disk import ColdDisk
from tests.support.ports import free_ports
from tests.support.raw import RawConnection
from tests.support.tcp_proxy import TcpProxy
from tests.support.wait import eventually
from tidelog.cluster.partition import HEAVY_BYTES
from tidelog.errors import ErrorCode
from tidelog.protocol.message import Message
from tidelog.storage.disk import RealDisk

PRODUCER = 4_000
WRITTEN = 8
ALL = [(0, offset) for offset in range(WRITTEN)]
TOO_OLD = (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
KNOWN = [TOO_OLD] * 3 + ALL[3:]
SIZES = pytest.mark.parametrize("size", [10, 6_000, HEAVY_BYTES], ids=["joined", "small", "heavy"])


def request(sequence: int, size: int = 10) -> Message:
    data = batch_of(b"%d" % sequence * size, producer=(PRODUCER, 0, sequence))
    return produce_request("t", 0, bytes(data))


def ask(raw: RawConnection, sequences: Sequence[int], size: int = 10) -> list[tuple[int, int]]:
    """Send these batches with one call; returns their answers, which come in the same order."""
    return [outcome(answer) for answer in ask_at_once(raw, [request(at, size) for at in sequences])]


@contextmanager
def restarted(
    monkeypatch: pytest.MonkeyPatch,
    folder: Path,
    disk: RealDisk,
    size: int = 10,
    configs: Mapping[str, str] | None = None,
) -> Iterator[InProcess]:
    """A broker that was stopped and started after a producer's batches."""
    settings = {"log.dirs": str(folder)}
    with faulty_broker(monkeypatch, disk, settings) as broker, Client(broker.address) as client:
        assert client.create_topic("t", 1, configs) == 0
        with RawConnection(broker.address) as raw:
            assert ask(raw, range(WRITTEN), size) == ALL
    with faulty_broker(monkeypatch, disk, settings) as broker:
        yield broker


@SIZES
def test_all_that_may_be_in_flight_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    with (
        restarted(monkeypatch, tmp_path / "data", RealDisk(), size) as broker,
        RawConnection(broker.address) as raw,
    ):
        assert ask(raw, range(3, WRITTEN + 1), size) == [*ALL[3:], (0, WRITTEN)]
        assert ask(raw, range(WRITTEN + 1), size) == [TOO_OLD] * 4 + [*ALL[4:], (0, WRITTEN)]


@SIZES
def test_answers_keep_their_order_while_the_disk_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """The retries of one read of the connection wait for the disk; other clients do not."""
    disk = ColdDisk()
    with (
        restarted(monkeypatch, tmp_path / "data", disk, size) as broker,
        Client(broker.address) as client,
        RawConnection(broker.address) as raw,
    ):
        assert client.create_topic("hot", 1) == 0
        assert client.produce("hot", 0, batch_of(b"first")).error == 0
        assert client.produce("t", 0, batch_of(b"other")) == (0, WRITTEN)
        disk.evict()
        disk.may_read.clear()
        answers: list[tuple[int, int]] = []
        asking = threading.Thread(
            target=lambda: answers.extend(ask(raw, (2, 3, 4, 5, 6, 7, 8), size)), daemon=True
        )
        asking.start()
        try:
            eventually(lambda: disk.waiting, "the disk is read")
            for _ in range(10):
                assert client.produce("hot", 0, batch_of(b"meanwhile")).error == 0
            assert answers == []
        finally:
            disk.may_read.set()
            asking.join(30)
        assert answers == [TOO_OLD, *ALL[3:], (0, WRITTEN + 1)]


@pytest.mark.parametrize("size", [10, 6_000], ids=["joined", "small"])
def test_a_batch_that_the_broker_has_stamped_is_not_checked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    disk, by_broker = ColdDisk(), {"message.timestamp.type": "LogAppendTime"}
    with (
        restarted(monkeypatch, tmp_path / "data", disk, size, by_broker) as broker,
        Client(broker.address) as client,
        RawConnection(broker.address) as raw,
    ):
        assert client.produce("t", 0, batch_of(b"other")) == (0, WRITTEN)
        disk.evict()
        assert ask(raw, (4, 5, 8), size) == [ALL[4], ALL[5], (0, WRITTEN + 1)]
        assert disk.brought_in


def test_a_disk_that_cannot_be_read_is_an_error_that_a_producer_retries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = ColdDisk()
    with (
        restarted(monkeypatch, tmp_path / "data", disk) as broker,
        Client(broker.address) as client,
        RawConnection(broker.address) as raw,
    ):
        assert client.produce("t", 0, batch_of(b"other")) == (0, WRITTEN)
        disk.evict()
        disk.error = OSError(errno.EIO, os.strerror(errno.EIO))
        failed = (ErrorCode.KAFKA_STORAGE_ERROR, -1)
        assert ask(raw, (4, 5)) == [failed, failed]
        disk.error = None
        assert ask(raw, (4, 5)) == [ALL[4], ALL[5]]


@pytest.mark.parametrize("size", [10, HEAVY_BYTES], ids=["small", "heavy"])
def test_librdkafka_goes_on_in_its_epoch_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """In a higher epoch it would send again what the broker has written."""
    port, epochs, failures = free_ports(1)[0], NewEpochs(), []
    wanted = [b"%d" % number * size for number in range(10, 25)]

    def write(writer: confluent_kafka.Producer, values: list[bytes]) -> None:
        def delivered(error: object, _: object) -> None:
            if error is not None:
                failures.append(str(error))

        for value in values:
            writer.produce("t", value, partition=0, on_delivery=delivered)

    async def story() -> None:
        async with TcpProxy("127.0.0.1", port) as proxy:
            settings = {
                "log.dirs": str(tmp_path / "data"),
                "listeners": f"PLAINTEXT://127.0.0.1:{port}",
                "advertised.listeners": f"PLAINTEXT://{proxy.address}",
            }
            broker = InProcess(settings)
            broker.start()
            with Client(broker.address) as client:
                assert client.create_topic("t", 1) == 0
            writer = confluent_kafka.Producer(
                {
                    "bootstrap.servers": proxy.address,
                    "enable.idempotence": True,
                    "linger.ms": 0,
                    "batch.num.messages": 1,
                    "reconnect.backoff.ms": 20,
                    "reconnect.backoff.max.ms": 100,
                    "retry.backoff.ms": 20,
                    "log_level": 7,
                    "debug": "eos",
                },
                logger=epochs.logger(),
            )
            write(writer, wanted[:5])
            assert await asyncio.to_thread(writer.flush, 30) == 0
            proxy.answers_pass = False
            write(writer, wanted[5:])
            await asyncio.to_thread(
                eventually, lambda: values_of(broker) == wanted[:10], "five are in flight"
            )
            await asyncio.to_thread(broker.stop)
            proxy.answers_pass = True
            broker = InProcess(settings)
            broker.start()
            assert await asyncio.to_thread(writer.flush, 30) == 0
            assert await asyncio.to_thread(values_of, broker) == wanted
            await asyncio.to_thread(broker.stop)

    asyncio.run(story())
    assert failures == []
    assert epochs.numbered == [], epochs.reasons


def has(broker: InProcess, values: list[bytes]) -> bool:
    return values_of(broker) == values


def values_of(broker: InProcess) -> list[bytes | None]:
    with Client(broker.address) as client:
        return [value for stored in client.read_all("t", 0) for value in stored.values]
