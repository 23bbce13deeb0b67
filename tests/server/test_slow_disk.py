"""While partitions are made or deleted on a disk that takes its time, the other requests are answered."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.faults.client import Client, batch_of
from tests.faults.faulty_disk import FaultyDisk, InProcess, faulty_broker
from tests.support.wait import eventually
from tidelog.controller.single import SingleController
from tidelog.errors import ErrorCode
from tidelog.protocol.messages.metadata import MetadataRequest, MetadataResponse


class SlowDisk(FaultyDisk):
    """Every sync waits while `slow()`; `asked` counts them."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0
        self.waiting = 0
        self._go = threading.Event()
        self._go.set()

    def slow(self) -> None:
        self._go.clear()

    def go_on(self) -> None:
        self._go.set()

    def fsync(self, path: str) -> None:
        self._wait()
        super().fsync(path)

    def fsync_dir(self, path: str) -> None:
        self._wait()
        super().fsync_dir(path)

    def atomic_write(self, path: str, data: bytes) -> None:
        self._wait()
        super().atomic_write(path, data)

    def _wait(self) -> None:
        self.asked += 1
        self.waiting += 1
        assert self._go.wait(60)
        self.waiting -= 1


@pytest.fixture
def disk() -> Iterator[SlowDisk]:
    disk = SlowDisk()
    yield disk
    disk.go_on()


@pytest.fixture
def broker(disk: SlowDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[InProcess]:
    # No checkpoints meanwhile, so that every sync is one of the partitions.
    quiet = {
        "log.dirs": str(tmp_path / "data"),
        "replica.high.watermark.checkpoint.interval.ms": str(1 << 50),
        "auto.create.topics.enable": "true",
    }
    monkeypatch.setattr(SingleController, "retry_seconds", 0.05)
    with faulty_broker(monkeypatch, disk, quiet) as running:
        try:
            yield running
        finally:
            disk.go_on()


def others_are_served_while(
    disk: SlowDisk, broker: InProcess, change: Callable[[Client], int], other: Client
) -> None:
    """Let `change` run into a sync that does not end, use the broker, then let it go on."""
    disk.slow()
    with ThreadPoolExecutor(1) as pool, Client(broker.address) as client:
        try:
            changing: Future[int] = pool.submit(change, client)
            eventually(lambda: disk.waiting, "the disk is asked to sync")
            for _ in range(20):
                assert other.produce("there", 0, batch_of(b"meanwhile")).error == 0
                assert other.partition_errors("there") == {0: 0}
            assert not changing.done()
        finally:
            disk.go_on()
        assert changing.result(30) == 0


def test_others_are_served_while_partitions_are_made_and_deleted(broker: InProcess, disk: SlowDisk) -> None:
    with Client(broker.address, timeout=20) as other:
        assert other.create_topic("there") == 0
        others_are_served_while(disk, broker, lambda client: client.create_topic("new", 50), other)
        assert set(other.partition_errors("new").values()) == {0}
        assert other.produce("new", 49, batch_of(b"first")) == (0, 0)
        others_are_served_while(disk, broker, lambda client: client.grow_topic("new", 60), other)
        assert other.produce("new", 59, batch_of(b"first")) == (0, 0)
        others_are_served_while(disk, broker, lambda client: client.delete_topic("new"), other)
        assert "new" not in other.partitions()


def test_a_topic_that_a_client_only_asks_for_is_made_so_too(broker: InProcess, disk: SlowDisk) -> None:
    with Client(broker.address, timeout=20) as other:
        assert other.create_topic("there") == 0

        def ask(client: Client) -> int:
            wanted = MetadataRequest.MetadataRequestTopic(name="asked")
            request = MetadataRequest(topics=[wanted], allow_auto_topic_creation=True)
            client.ask(request, MetadataResponse, 9)
            eventually(lambda: client.partition_errors("asked") == {0: 0}, "the topic is there", 30)
            return 0

        others_are_served_while(disk, broker, ask, other)
        assert other.produce("asked", 0, batch_of(b"first")) == (0, 0)


def test_a_hundred_partitions_cost_as_many_syncs_as_one(broker: InProcess, disk: SlowDisk) -> None:
    with Client(broker.address) as client:
        costs = []
        for name, partitions in (("one", 1), ("hundred", 100)):
            before = disk.asked
            assert client.create_topic(name, partitions) == 0
            created = disk.asked
            assert client.delete_topic(name) == 0
            costs.append((created - before, disk.asked - created))
        assert costs == [(1, 1), (1, 1)]


def test_a_partition_that_no_room_was_left_for_is_led_when_there_is_some(
    broker: InProcess, disk: SlowDisk, tmp_path: Path
) -> None:
    with Client(broker.address) as client:
        disk.fail(tmp_path / "data", errno.ENOSPC)
        assert client.create_topic("t", 3) == 0
        assert set(client.partition_errors("t").values()) == {ErrorCode.LEADER_NOT_AVAILABLE}
        assert client.produce("t", 0, batch_of(b"x")).error != 0
        assert client.create_topic("gone") == 0
        assert client.delete_topic("gone") == 0
        disk.heal(tmp_path / "data")
        eventually(lambda: set(client.partition_errors("t").values()) == {0}, "the partitions are led")
        assert client.produce("t", 2, batch_of(b"x")) == (0, 0)
        assert set(client.folders().values()) == {0}
