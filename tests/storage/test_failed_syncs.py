"""A sync that fails takes its folder offline, whatever the reason: the kernel may have dropped anything."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.storage.helpers import NOW, append, batch, end_transaction, open_log, records
from tests.support.simdisk import SimulatedDisk
from tidelog.clock import ManualClock, SimulatedScheduler
from tidelog.errors import KafkaStorageError
from tidelog.storage.checkpoints import RECOVERY_POINTS
from tidelog.storage.config import LogConfig
from tidelog.storage.disk import RealDisk, SyncFailed
from tidelog.storage.log import Log
from tidelog.storage.log_manager import LogManager

NUMBERS = [errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.ENOMEM]
SETTINGS = LogConfig(segment_bytes=400, transaction_verification_enable=False)


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize(
    "sync",
    [
        lambda disk, path: disk.open(path).fsync(),
        lambda disk, path: disk.fsync(path),
        lambda disk, path: disk.fsync_dir(os.path.dirname(path)),
        lambda disk, path: disk.atomic_write(path, b"new"),
    ],
    ids=["file", "path", "directory", "atomic write"],
)
def test_the_disk_tells_a_failed_sync_from_other_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sync: Callable[[RealDisk, str], None], number: int
) -> None:
    disk, path = RealDisk(), str(tmp_path / "file")
    disk.write(path, b"old")

    def fails(_: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fails)
    monkeypatch.setattr(os, "fdatasync", fails)
    with pytest.raises(SyncFailed) as caught:
        sync(disk, path)
    assert caught.value.errno == number
    assert disk.read(path) == b"old"


class Broker:
    def __init__(self, disk: SimulatedDisk) -> None:
        self.disk = disk
        self.scheduler = SimulatedScheduler(ManualClock(NOW))
        self.manager = LogManager(
            ["/data"], SETTINGS, disk=disk, clock=self.scheduler.clock, scheduler=self.scheduler
        )
        self.manager.log_dirs.lock()
        self.manager.log_dirs.claim("cluster", 1)
        self.manager.load()
        self.log = self.manager.get_or_create("t", 0, b"i" * 16)

    @property
    def is_offline(self) -> bool:
        return self.manager.log_dirs[0].offline is not None

    def transaction(self, producer: int) -> None:
        append(self.log, batch(2, producer=(producer, 0, 0), transactional=True), epoch=producer)
        end_transaction(self.log, producer, commit=False)


SUFFIXES = [
    ".log",
    ".index",
    ".timeindex",
    ".txnindex",
    ".snapshot",
    "leader-epoch-checkpoint",
    "/t-0",
    "recovery-point-offset-checkpoint",
    "log-start-offset-checkpoint",
    "replication-offset-checkpoint",
]


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_sync_that_fails_once_takes_the_folder_offline(suffix: str, number: int) -> None:
    """The next sync would pass, over what the first has lost."""
    disk = SimulatedDisk()
    broker = Broker(disk)
    for producer in range(4):
        broker.transaction(producer)
    broker.scheduler.advance(1)
    before = broker.log.recovery_point
    assert before > 0
    broker.log.update_high_watermark(3)
    broker.log.delete_records_before(1)
    disk.fail(suffix, number, "sync", times=1)
    for producer in range(4, 10):
        if not broker.is_offline:
            broker.transaction(producer)
            broker.scheduler.advance(1)
            broker.manager.checkpoints.write_recovery_points()
            broker.manager.checkpoints.write_log_start_offsets()
            broker.manager.checkpoints.write_high_watermarks()
            broker.scheduler.advance(1)
    assert disk.faults.refused == 1
    assert broker.is_offline
    assert broker.log.closed
    broker.manager.shutdown()
    assert not disk.exists("/data/.kafka_cleanshutdown")


@pytest.mark.parametrize("number", NUMBERS)
def test_the_recovery_point_does_not_move_over_what_a_failed_sync_covers(number: int) -> None:
    disk = SimulatedDisk()
    log = open_log("/log", SETTINGS, disk=disk)
    append(log, batch(3))
    log.flush(NOW)
    append(log, batch(3))
    first, second = log.begin_flush(), log.begin_flush()
    assert first is not None
    assert second is not None
    disk.fail(".log", number, "sync", times=1)
    with pytest.raises(SyncFailed):
        first.run()
    with pytest.raises(SyncFailed):
        second.run()
    with pytest.raises(KafkaStorageError):
        log.flush(NOW)
    assert log.recovery_point == 3


def test_a_full_disk_that_only_refuses_writes_keeps_its_folder() -> None:
    disk = SimulatedDisk()
    broker = Broker(disk)
    for suffix in (".index", ".timeindex", ".txnindex", ".snapshot"):
        disk.fail(suffix, errno.ENOSPC, "write")
    for producer in range(9):
        broker.transaction(producer)
        broker.scheduler.advance(1)
    assert disk.faults.refused
    assert not broker.is_offline
    assert broker.log.recovery_point < broker.log.segments[1].base_offset
    disk.heal()
    broker.manager.flushes.flush(broker.log)
    broker.scheduler.advance(1)
    assert broker.log.recovery_point == broker.log.log_end_offset
    broker.manager.checkpoints.write_recovery_points()
    broker.scheduler.advance(1)
    assert broker.manager.log_dirs[0].checkpoint(RECOVERY_POINTS).read() == {
        ("t", 0): broker.log.log_end_offset - 1
    }
    expected = broker.log.aborted_transactions(0, 1000), len(records(broker.log))
    assert len(expected[0]) == 9
    for seed in range(20):
        again = Broker(disk.after_crash(random.Random(seed))).log
        assert isinstance(again, Log)
        assert (again.aborted_transactions(0, 1000), len(records(again))) == expected
