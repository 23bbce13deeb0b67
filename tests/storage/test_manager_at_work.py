"""Regular work and deletions of logs while something else is under way."""

from __future__ import annotations

import errno
from pathlib import Path

from tests.storage.helpers import NOW, append, batch, config
from tests.support.simdisk import SimulatedDisk, SimulatedFile
from tidelog.clock import ManualClock, SimulatedScheduler
from tidelog.records.check import check_produced
from tidelog.storage.append import PendingAppend
from tidelog.storage.config import LogConfig
from tidelog.storage.disk import Disk, RealDisk
from tidelog.storage.log import Log
from tidelog.storage.log_manager import Intervals, LogManager

OLD_ID, NEW_ID = bytes(range(16)), bytes(range(1, 17))
SMALL_SEGMENTS = config(segment_bytes=200, retention_ms=1000)


class BusyDisk(SimulatedDisk):
    """Runs out of descriptors when told so."""

    out_of_descriptors = False

    def open(self, path: str, *, create: bool = False) -> SimulatedFile:
        if self.out_of_descriptors:
            raise OSError(errno.EMFILE, "too many open files", path)
        return super().open(path, create=create)


def managed(*dirs: str, disk: Disk | None = None) -> tuple[LogManager, SimulatedScheduler]:
    scheduler = SimulatedScheduler(ManualClock(NOW))
    manager = LogManager(
        dirs or ("/data",),
        LogConfig(),
        disk=disk or SimulatedDisk(),
        clock=scheduler.clock,
        scheduler=scheduler,
    )
    manager.log_dirs.lock()
    manager.log_dirs.claim("cluster", 1)
    manager.load()
    return manager, scheduler


def prepared(log: Log) -> PendingAppend:
    checked = check_produced(memoryview(batch()), log.appender.rules, NOW)
    pending = log.appender.prepare(checked, leader_epoch=0, now_ms=NOW)
    assert isinstance(pending, PendingAppend)
    return pending


def test_a_flush_that_ends_after_its_log_was_deleted_does_not_harm_the_next_log_of_that_name(
    tmp_path: Path,
) -> None:
    manager, scheduler = managed(str(tmp_path / "a"), str(tmp_path / "b"), disk=RealDisk())
    log = manager.get_or_create("topic", 0, OLD_ID)
    for name in ("other", "third"):
        manager.get_or_create(name, 0, OLD_ID)
    log.assign_epoch(3, 0)
    append(log)
    manager.flushes.flush(log)
    for name in ("topic", "other"):
        manager.delete(name, 0)
    new = manager.get_or_create("topic", 0, NEW_ID)
    assert new.dir == str(tmp_path / "b" / "topic-0")
    scheduler.run_pending()
    assert [folder.offline for folder in manager.log_dirs] == [None, None]
    append(new)
    manager.shutdown()


def test_what_a_deleted_log_still_writes_stays_out_of_the_next_log_of_that_name() -> None:
    manager, scheduler = managed()
    log = manager.get_or_create("topic", 0, OLD_ID)
    log.assign_epoch(3, 0)
    append(log)
    manager.flushes.flush(log)
    manager.delete("topic", 0)
    new = manager.get_or_create("topic", 0, NEW_ID)
    scheduler.run_pending()
    new.leader_epochs.load()
    assert new.leader_epochs.entries() == []
    assert new.log_end_offset == 0


def test_retention_goes_on_while_appends_are_under_way() -> None:
    manager, scheduler = managed()
    log = manager.get_or_create("topic", 0, OLD_ID, SMALL_SEGMENTS)
    for _ in range(6):
        append(log)
        log.update_high_watermark(log.log_end_offset)
    scheduler.advance(10)
    pending = prepared(log)
    assert manager.retention.run() > 0
    assert log.segments[len(log.segments) - 1] is pending.segment
    pending.write()
    log.appender.finish(pending, NOW)
    assert log.log_start_offset == pending.segment.base_offset
    assert log.read(pending.base_offset, 1).slice is not None


def test_regular_work_that_failed_once_is_done_the_next_time() -> None:
    disk = BusyDisk()
    manager, scheduler = managed(disk=disk)
    log = manager.get_or_create("topic", 0, OLD_ID, SMALL_SEGMENTS)
    for _ in range(6):
        append(log)
        log.update_high_watermark(log.log_end_offset)
    manager.shutdown()

    manager, scheduler = managed(disk=disk)
    log = manager.get_or_create("topic", 0, OLD_ID, SMALL_SEGMENTS)
    log.update_high_watermark(log.log_end_offset)
    manager.start(Intervals(log_retention_check_interval_ms=60_000))
    disk.out_of_descriptors = True
    scheduler.advance(60)
    assert log.log_start_offset == 0
    disk.out_of_descriptors = False
    scheduler.advance(60)
    assert log.log_start_offset == 6
