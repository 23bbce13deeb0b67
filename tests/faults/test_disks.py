"""A full disk fails the produce and nothing else; a broken one takes its own partitions with it."""

from __future__ import annotations

import errno
import logging
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.client import Client, batch_of, produce_request, surprises
from tests.faults.faulty_disk import FaultyDisk, faulty_broker
from tests.support.broker import Broker
from tests.support.raw import NoAnswer
from tests.support.scale import scale
from tests.support.wait import eventually
from tidelog.errors import ErrorCode
from tidelog.protocol.messages.produce import ProduceRequest, ProduceResponse

STORAGE_ERROR = ErrorCode.KAFKA_STORAGE_ERROR
SMALL_SEGMENTS = {"internal.segment.bytes": "300000", "segment.index.bytes": "4096"}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of a few megabytes."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small file system takes the rights of root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(client: Client, topic: str, size: int) -> int:
    """Produce until the disk is full; how many batches went in."""
    for count in range(100_000):
        error = client.produce(topic, 0, batch_of(b"x" * size)).error
        if error:
            assert error == STORAGE_ERROR
            return count
    raise AssertionError("the disk does not get full")


@pytest.mark.parametrize("size", [900, 200_000], ids=["on the loop", "by the worker"])
def test_a_full_disk_fails_the_produce_and_room_makes_it_work_again(
    tmp_path: Path, small_disk: Path, size: int
) -> None:
    settings = {"log.dirs": str(small_disk / "data"), "log.segment.delete.delay.ms": "0"}
    with Broker(tmp_path, settings) as broker, Client(broker.address) as client:
        assert client.create_topic("t", 1, SMALL_SEGMENTS) == 0
        ballast = small_disk / "ballast"
        ballast.write_bytes(bytes(1_200_000))
        written = fill(client, "t", size)
        assert written
        for _ in range(20):
            assert client.produce("t", 0, batch_of(b"y" * size)).error == STORAGE_ERROR
        # Reading goes on, and so does everything that needs no room.
        assert len(client.read_all("t", 0)) == written
        assert set(client.folders().values()) == {0}
        made = client.create_topic("no-room")
        ballast.unlink()
        if made == 0:
            assert client.produce("no-room", 0, batch_of(b"first")) == (0, 0)
        answer = client.produce("t", 0, batch_of(b"z" * size))
        assert answer == (0, written)
        assert client.create_topic("room") == 0
        assert client.produce("room", 0, batch_of(b"first")) == (0, 0)
        before = client.read_all("t", 0)
        broker.restart(kill=True)
        with Client(broker.address) as again:
            assert again.read_all("t", 0) == before
            assert again.produce("t", 0, batch_of(b"after")).error == 0


def test_a_broker_on_a_full_disk_stops_and_starts_again_with_everything(
    tmp_path: Path, small_disk: Path
) -> None:
    with Broker(tmp_path, {"log.dirs": str(small_disk / "data")}) as broker:
        with Client(broker.address) as client:
            assert client.create_topic("t", 1, SMALL_SEGMENTS) == 0
            assert client.produce("t", 0, batch_of(b"before")).error == 0
            ballast = small_disk / "ballast"
            with ballast.open("wb", buffering=0) as file, pytest.raises(OSError):
                while True:
                    assert file.write(bytes(4096)) == 4096 or file.write(b"x")
            fill(client, "t", 900)
            before = client.read_all("t", 0)
        broker.terminate()
        assert "Traceback" not in broker.log()
        ballast.unlink()
        broker.start()
        with Client(broker.address) as client:
            assert client.read_all("t", 0) == before
            assert client.produce("t", 0, batch_of(b"after")).error == 0


@pytest.mark.parametrize("size", [100, 100_000], ids=["on the loop", "by the worker"])
def test_a_batch_that_only_half_fits_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    disk = FaultyDisk()
    folder = tmp_path / "data"
    settings = {"log.dirs": str(folder)}
    with faulty_broker(monkeypatch, disk, settings) as broker, Client(broker.address) as client:
        producer = client.producer_id()
        assert client.create_topic("t", 1, {"internal.segment.bytes": "350000"}) == 0
        for round_ in range(scale(12, 100)):
            sequence = round_ * 2
            data = [batch_of(b"%d" % n * size, producer=(producer, 0, sequence + n)) for n in range(2)]
            assert client.produce("t", 0, data[0]) == (0, sequence)
            disk.fail(folder, errno.ENOSPC)
            assert client.produce("t", 0, data[1]).error == STORAGE_ERROR
            assert client.produce("t", 0, data[1]).error == STORAGE_ERROR
            assert len(client.read_all("t", 0)) == sequence + 1
            disk.heal(folder)
            # The producer's retry is no duplicate and no gap.
            assert client.produce("t", 0, data[1]) == (0, sequence + 1)
        before = client.read_all("t", 0)
        assert disk.faults.refused
    with (
        faulty_broker(monkeypatch, disk, {"log.dirs": str(folder)}) as broker,
        Client(broker.address) as client,
    ):
        assert client.read_all("t", 0) == before


def test_a_broken_folder_takes_only_its_own_partitions_offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folders = [tmp_path / "one", tmp_path / "two"]
    disk = FaultyDisk()
    settings = {"log.dirs": ",".join(map(str, folders))}
    with faulty_broker(monkeypatch, disk, settings) as broker, Client(broker.address) as client:
        assert client.create_topic("t", 6) == 0
        for index in range(6):
            assert client.produce("t", index, batch_of(b"%d" % index)) == (0, 0)
        lost = {int(path.name[2:]) for path in folders[1].glob("t-*")}
        kept = set(range(6)) - lost
        assert lost
        assert kept
        disk.fail(folders[1], errno.EIO)
        with caplog.at_level(logging.CRITICAL):
            for index in lost:
                assert client.produce("t", index, batch_of(b"x")).error == STORAGE_ERROR
                assert client.fetch("t", index, 0).error_code == STORAGE_ERROR
        for index in kept:
            assert client.produce("t", index, batch_of(b"x")) == (0, 1)
            assert len(client.read_all("t", index)) == 2
        assert client.folders() == {str(folders[0]): 0, str(folders[1]): STORAGE_ERROR}
        eventually(
            lambda: {i for i, error in client.partition_errors("t").items() if error} == lost,
            "clients are told that the partitions have no leader",
        )
        # New partitions go where the disk works.
        assert client.create_topic("new", 4) == 0
        assert set(client.partition_errors("new").values()) == {0}
        assert not broker.has_given_up
    disk.heal(folders[1])
    with faulty_broker(monkeypatch, disk, settings) as broker, Client(broker.address) as client:
        for index in range(6):
            assert len(client.read_all("t", index)) == (1 if index in lost else 2)
            assert client.produce("t", index, batch_of(b"again")).error == 0


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.ENOMEM])
def test_a_folder_that_fails_while_flushing_is_not_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Writes reach the cache, and the disk does not take them: whatever it says, it is broken."""
    folders = [tmp_path / "one", tmp_path / "two"]
    disk = FaultyDisk()
    settings = {"log.dirs": ",".join(map(str, folders))}
    with faulty_broker(monkeypatch, disk, settings) as broker, Client(broker.address) as client:
        assert client.create_topic("t", 2, {"flush.messages": "1"}) == 0
        for index in range(2):
            assert client.produce("t", index, batch_of(b"%d" % index)) == (0, 0)
        (lost,) = (int(path.name[2:]) for path in folders[1].glob("t-*"))
        disk.fail(folders[1], number, "sync")
        assert client.produce("t", lost, batch_of(b"x")).error == STORAGE_ERROR
        disk.heal(folders[1])
        assert client.produce("t", 1 - lost, batch_of(b"x")) == (0, 1)
        assert client.fetch("t", lost, 0).error_code == STORAGE_ERROR
        assert client.produce("t", lost, batch_of(b"x")).error == STORAGE_ERROR
        assert client.folders()[str(folders[1])] == STORAGE_ERROR


def test_a_retry_is_not_acknowledged_before_its_first_arrival_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FaultyDisk()
    settings = {"log.dirs": str(tmp_path / "data")}
    with (
        faulty_broker(monkeypatch, disk, settings) as broker,
        Client(broker.address) as first,
        Client(broker.address) as second,
    ):
        assert first.create_topic("t", 1, {"flush.messages": "1"}) == 0
        request = produce_request("t", 0, batch_of(b"once", producer=(first.producer_id(), 0, 0)))
        disk.may_sync.clear()
        first.send(request, 9)
        eventually(lambda: first_batch_is_written(tmp_path / "data" / "t-0"), "the batch is written")
        second.send(request, 9)
        with pytest.raises(NoAnswer):
            second.receive_frame(0.3)
        disk.may_sync.set()
        for client in (first, second):
            answer = client.receive(ProduceRequest, 9)
            assert isinstance(answer, ProduceResponse)
            outcome = answer.responses[0].partition_responses[0]
            assert (outcome.error_code, outcome.base_offset) == (0, 0)
        assert len(first.read_all("t", 0)) == 1


def first_batch_is_written(folder: Path) -> bool:
    return (folder / f"{0:020d}.log").stat().st_size > 0


def test_the_last_folder_that_fails_ends_the_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = FaultyDisk()
    folder = tmp_path / "data"
    with (
        faulty_broker(monkeypatch, disk, {"log.dirs": str(folder)}) as broker,
        Client(broker.address) as client,
    ):
        assert client.create_topic("t") == 0
        assert client.produce("t", 0, batch_of(b"x")).error == 0
        disk.fail(folder, errno.EIO)
        assert client.produce("t", 0, batch_of(b"x")).error == STORAGE_ERROR
        eventually(lambda: broker.has_given_up, "the broker gives up")
        disk.heal(folder)


def test_a_folder_that_is_taken_away_fails_its_partitions_and_the_others_go_on(tmp_path: Path) -> None:
    folders = [tmp_path / "one", tmp_path / "two"]
    with Broker(tmp_path, {"log.dirs": ",".join(map(str, folders))}) as broker:
        with Client(broker.address) as client:
            assert client.create_topic("t", 2, SMALL_SEGMENTS) == 0
            (lost,) = (int(path.name[2:]) for path in folders[1].glob("t-*"))
            folders[1].rename(tmp_path / "away")
            errors = [client.produce("t", lost, batch_of(b"x" * 90_000)).error for _ in range(6)]
            assert errors[-1] == STORAGE_ERROR  # at the latest when a new segment is due
            assert client.produce("t", 1 - lost, batch_of(b"x")) == (0, 0)
            assert client.folders()[str(folders[1])] == STORAGE_ERROR
        assert broker.terminate() == 0


def test_folders_that_are_gone_at_the_start_leave_the_others_to_serve(tmp_path: Path) -> None:
    folders = [tmp_path / "one", tmp_path / "two"]
    with Broker(tmp_path, {"log.dirs": ",".join(map(str, folders))}) as broker:
        with Client(broker.address) as client:
            assert client.create_topic("t", 2) == 0
            for index in range(2):
                assert client.produce("t", index, batch_of(b"%d" % index)) == (0, 0)
            (kept,) = (int(path.name[2:]) for path in folders[0].glob("t-*"))
        broker.terminate()
        folders[1].rename(tmp_path / "away")
        folders[1].write_text("no folder")
        broker.start()
        with Client(broker.address) as client:
            assert len(client.read_all("t", kept)) == 1
            assert client.produce("t", kept, batch_of(b"x")) == (0, 1)
            assert client.produce("t", 1 - kept, batch_of(b"x")).error != 0
            assert client.folders()[str(folders[1])] == STORAGE_ERROR
        broker.terminate()
        folders[1].unlink()
        (tmp_path / "away").rename(folders[1])
        broker.start()
        with Client(broker.address) as client:
            assert [len(client.read_all("t", index)) for index in (kept, 1 - kept)] == [2, 1]
        assert surprises(broker.log()) == []
