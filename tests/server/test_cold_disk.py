"""While one client's data comes from a slow disk, the other clients are served."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pytest

from tests.faults.client import TOPIC, Client, batch_of
from tests.faults.faulty_disk import InProcess, faulty_broker
from tests.support.cold_disk import ColdDisk
from tests.support.wait import eventually
from tidelog.errors import ErrorCode
from tidelog.protocol.offset_specs import EARLIEST, MAX_TIMESTAMP
from tidelog.storage import index

T = TypeVar("T")
START, BATCHES = 1_700_000_000_000, 60
SMALL_SEGMENTS = {"segment.bytes": "1048576", "index.interval.bytes": "4096", "retention.ms": "-1"}


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[ColdDisk]:
    monkeypatch.setattr(index, "HELD_BYTES", 16)  # so that indexes stay in their files
    disk = ColdDisk()
    yield disk
    disk.may_read.set()


@pytest.fixture
def broker(disk: ColdDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[InProcess]:
    """A broker that was restarted on a topic of several segments; nothing of it is in the page cache."""
    settings = {
        "log.dirs": str(tmp_path / "data"),
        "log.retention.check.interval.ms": "50",
        "replica.high.watermark.checkpoint.interval.ms": str(1 << 50),
    }
    with faulty_broker(monkeypatch, disk, settings) as running, Client(running.address) as client:
        assert client.create_topic("cold", 1, SMALL_SEGMENTS) == 0
        assert client.create_topic("hot") == 0
        for at in range(BATCHES):
            assert client.produce("cold", 0, batch_of(value_of(at), timestamp=START + at)) == (0, at)
    with faulty_broker(monkeypatch, disk, settings) as running:
        with Client(running.address) as client:
            assert client.produce("hot", 0, batch_of(b"first")) == (0, 0)
        disk.evict()
        try:
            yield running
        finally:
            disk.may_read.set()


def value_of(at: int) -> bytes:
    return at.to_bytes(2, "big") * 25_000


@contextmanager
def others_served_meanwhile(disk: ColdDisk, broker: InProcess) -> Iterator[None]:
    """The body lets the broker run into a read that does not end; then others are served, and it goes on."""
    with Client(broker.address, timeout=20) as other:
        assert other.produce("hot", 0, batch_of(b"before")).error == 0
        disk.may_read.clear()
        yield
        eventually(lambda: disk.waiting, "the disk is read")
        for _ in range(20):
            produced = other.produce("hot", 0, batch_of(b"meanwhile"))
            assert produced.error == 0
            assert other.fetch("hot", 0, produced.offset).error_code == 0
        disk.may_read.set()


def while_cold(disk: ColdDisk, broker: InProcess, ask: Callable[[Client], T]) -> T:
    with ThreadPoolExecutor(1) as pool, Client(broker.address, timeout=30) as client:
        with others_served_meanwhile(disk, broker):
            asked = pool.submit(ask, client)
        return asked.result(30)


def test_a_fetch_of_old_data(broker: InProcess, disk: ColdDisk) -> None:
    found = while_cold(disk, broker, lambda client: client.read_all("cold", 0))
    assert [batch.values for batch in found] == [[value_of(at)] for at in range(BATCHES)]
    assert any(path.endswith(".index") for path, _, _ in disk.brought_in)


@pytest.mark.parametrize(("timestamp", "offset"), [(START + 33, 33), (MAX_TIMESTAMP, BATCHES - 1)])
def test_a_lookup_by_time(broker: InProcess, disk: ColdDisk, timestamp: int, offset: int) -> None:
    assert while_cold(disk, broker, lambda client: client.offset("cold", 0, timestamp)) == offset
    assert any(path.endswith(".timeindex") for path, _, _ in disk.brought_in)


def test_retention(broker: InProcess, disk: ColdDisk) -> None:
    with Client(broker.address, timeout=30) as client:
        with others_served_meanwhile(disk, broker):
            assert client.set_configs(TOPIC, "cold", {"retention.ms": "1000"}) == 0
        eventually(lambda: client.offset("cold", 0, EARLIEST) == BATCHES, "the old segments are dropped")


def test_a_lookup_that_fails_is_an_error_of_that_partition(broker: InProcess, disk: ColdDisk) -> None:
    disk.error = OSError(errno.EIO, os.strerror(errno.EIO))
    error = while_cold(disk, broker, lambda client: client.fetch("cold", 0, 0).error_code)
    assert error == ErrorCode.KAFKA_STORAGE_ERROR
