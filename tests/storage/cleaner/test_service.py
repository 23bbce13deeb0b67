"""The cleaner among everything else that happens to logs: pauses, deletions, failures, settings."""

from __future__ import annotations

import errno
import logging
from dataclasses import replace
from pathlib import Path

import pytest

from tests.storage.cleaner.helpers import KEY, World, offsets, records, settings
from tests.storage.helpers import NOW
from tests.support.faults import Fault
from tests.support.simdisk import SimulatedDisk
from tidelog.storage.cleaner.log_cleaner import CleanerSettings, Throttle
from tidelog.storage.disk import RealDisk


def filled(world: World | None = None, count: int = 6) -> World:
    world = world or World()
    for at in range(count):
        world.append((b"a", b"%d" % at), (b"k%d" % at, b"v"))
    world.roll()
    return world


def slow() -> World:
    """One piece of a segment a step, so that things can happen in between."""
    return filled(
        World(step_bytes=1, cleaner=CleanerSettings(backoff_ms=1000, io_max_bytes_per_second=10_000))
    )


def test_it_looks_again_after_its_rest() -> None:
    world = filled()
    world.scheduler.advance(0.9)
    assert world.cleaner.figures.passes == 0
    world.scheduler.advance(0.2)
    assert world.cleaner.figures.passes == 1
    world.append((b"a", b"new"))
    world.roll()
    world.scheduler.advance(1.1)
    assert world.cleaner.figures.passes == 2


def test_the_dirty_ratio_decides() -> None:
    world = filled(World(settings(min_cleanable_dirty_ratio=0.5)), 30)
    world.clean()
    assert world.cleaner.figures.passes == 1
    world.append((b"a", b"new"))
    world.clean()
    assert world.cleaner.figures.passes == 1
    assert 0 < world.cleaner.figures.max_dirty_percent < 50
    world.log.update_config(settings(min_cleanable_dirty_ratio=0.01))
    world.clean()
    assert world.cleaner.figures.passes == 2


def test_topics_that_are_not_compacted_are_left_alone() -> None:
    world = filled(World(settings(cleanup_policy=frozenset({"delete"}))))
    world.clean()
    assert world.cleaner.figures.passes == 0
    world.log.update_config(settings())
    world.clean()
    assert world.cleaner.figures.passes == 1


@pytest.mark.parametrize("off", [CleanerSettings(enable=False), CleanerSettings(threads=0)])
def test_it_can_be_switched_off(off: CleanerSettings) -> None:
    world = filled(World(cleaner=replace(off, backoff_ms=10)))
    world.scheduler.advance(5)
    assert world.cleaner.figures.passes == 0


def test_the_checkpoint_has_kafkas_format_and_is_read_at_the_next_start() -> None:
    world = filled()
    world.clean()
    assert world.disk.read("/data/cleaner-offset-checkpoint") == b"0\n1\ntopic 0 12\n"
    world.restart()
    assert world.cleaner.checkpoints == {KEY: 12}
    assert world.cleaner.range_of(world.log).dirty_bytes == 0


def test_a_folder_whose_checkpoint_cannot_be_read_is_taken_offline() -> None:
    world = filled()
    world.clean()
    assert isinstance(world.disk, SimulatedDisk)
    world.disk.faults.add(Fault(errno.EIO, ("read",), "cleaner-offset-checkpoint"))
    world.cleaner.start()
    assert [log_dir.path for log_dir in world.manager.log_dirs.offline] == ["/data"]


def test_a_checkpoint_that_cannot_be_right_has_the_whole_log_cleaned(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = filled()
    world.cleaner.checkpoints[KEY] = 999
    world.clean()
    assert world.cleaner.checkpoints[KEY] == 12
    assert "checkpoint 999 is outside of the log, 0 to 12" in caplog.text


def test_the_dirtiest_of_several_logs_is_first() -> None:
    world = filled()
    world.clean()
    other = world.manager.get_or_create("other", 0, None, world.config)
    world.append((b"a", b"1"))
    world.roll()
    world.append((b"a", b"1"), (b"b", b"2"), log=other)
    world.roll(other)
    order: list[str] = []
    world.cleaner._step = lambda running: order.append(running.log.topic)  # type: ignore[method-assign]
    world.cleaner.clean_dirtiest()
    assert order == ["other"]


def test_several_threads_clean_several_logs_at_a_time() -> None:
    world = World(cleaner=CleanerSettings(threads=2, backoff_ms=1000))
    logs = [world.log, *(world.manager.get_or_create(name, 0, None, world.config) for name in "xyz")]
    for log in logs:
        for value in (b"1", b"2"):
            world.append((b"a", value), log=log)
        world.roll(log)
    world.cleaner.clean_dirtiest()
    assert sum(world.cleaner.is_cleaning((log.topic, 0)) for log in logs) == 2
    world.clean(roll=False)
    assert [offsets(log) for log in logs] == [[1]] * 4


def test_the_throttle_spreads_the_work_over_time() -> None:
    world = filled(World(cleaner=CleanerSettings(backoff_ms=1000, io_max_bytes_per_second=100), step_bytes=1))
    size = world.log.size
    world.cleaner.clean_dirtiest()
    world.scheduler.advance(2 * size / 100 - 1)
    assert world.cleaner.is_cleaning(KEY)
    world.scheduler.advance(size / 100 + 1)
    assert not world.cleaner.is_cleaning(KEY)
    assert world.cleaner.figures.max_clean_time_secs > 1


def test_small_debts_to_the_throttle_add_up() -> None:
    throttle = Throttle(1_000_000)
    assert throttle.delay(500, 0.0) == 0.0
    assert throttle.delay(600, 0.0) == pytest.approx(0.0011)
    assert throttle.delay(0, 1.0) == 0.0


def test_a_paused_partition_is_given_up_and_taken_up_again() -> None:
    world = slow()
    before = offsets(world.log)
    world.cleaner.clean_dirtiest()
    world.scheduler.run_pending()
    assert world.cleaner.is_cleaning(KEY)
    world.cleaner.pause(KEY)
    world.cleaner.pause(KEY)
    world.scheduler.advance(100)
    assert not world.cleaner.is_cleaning(KEY)
    assert offsets(world.log) == before
    assert not [name for name in world.names() if name.endswith(".cleaned")]
    world.cleaner.resume(KEY)
    world.scheduler.advance(100)
    assert world.cleaner.figures.passes == 0
    world.cleaner.resume(KEY)
    world.scheduler.advance(100)
    assert world.cleaner.figures.passes == 1


def test_a_deleted_partition_is_forgotten() -> None:
    world = slow()
    world.cleaner.checkpoints[KEY] = 0
    world.cleaner.clean_dirtiest()
    world.scheduler.run_pending()
    world.manager.delete("topic", 0)
    world.scheduler.advance(100)
    assert not world.cleaner.is_busy
    assert KEY not in world.cleaner.checkpoints
    assert not world.cleaner.uncleanable
    assert world.manager.log_dirs[0].offline is None
    assert world.disk.listdir("/data") == [".lock", "cleaner-offset-checkpoint"] or not world.disk.exists(
        world.log.dir
    )


def test_truncation_under_a_pass_wins(tmp_path: Path) -> None:
    world = slow()
    world.cleaner.clean_dirtiest()
    world.scheduler.run_pending()
    world.log.truncate_to(3, world.now)
    world.log.update_high_watermark(world.log.log_end_offset)
    for _ in range(5):
        world.append((b"b", b"other"))
    world.scheduler.advance(0.5)
    assert offsets(world.log) == [0, 1, 2, 3, 4, 5, 6]


def test_a_truncation_below_the_checkpoint_moves_it_back() -> None:
    world = filled()
    world.clean()
    world.log.truncate_to(5, world.now)
    assert world.cleaner.checkpoints[KEY] <= 5
    world.scheduler.run_pending()
    assert int(world.disk.read("/data/cleaner-offset-checkpoint").split()[-1]) <= 5


def test_retention_under_a_pass_wins() -> None:
    config = settings(cleanup_policy=frozenset({"compact", "delete"}), retention_ms=1000, segment_bytes=200)
    world = World(
        config, step_bytes=1, cleaner=CleanerSettings(backoff_ms=500, io_max_bytes_per_second=10_000)
    )
    for at in range(8):
        world.append((b"a", b"%d" % at), timestamp=NOW + 700 * at)
    world.roll()
    world.cleaner.clean_dirtiest()
    world.scheduler.run_pending()
    world.scheduler.advance(0.01)
    world.scheduler.clock.jump_to(NOW + 5200)
    gone = world.log.delete_old_segments(world.now)
    assert gone > 0
    world.scheduler.advance(5)
    assert not world.cleaner.uncleanable
    assert world.manager.log_dirs[0].offline is None
    world.clean()
    assert offsets(world.log) == [7]


def test_both_policies_together() -> None:
    config = settings(cleanup_policy=frozenset({"compact", "delete"}), retention_ms=10_000)
    world = World(config)
    world.append((b"old", b"1"))
    world.roll()
    world.scheduler.advance(6)
    world.append((b"new", b"1"))
    world.append((b"new", b"2"))
    world.clean()
    assert offsets(world.log) == [0, 2]
    world.scheduler.advance(6)
    assert world.manager.retention.run() == 0  # one segment now, as old as its newest record
    world.scheduler.advance(6)
    assert world.manager.retention.run() == 1
    assert records(world.log) == []


def test_damage_sets_the_partition_aside_and_names_it(caplog: pytest.LogCaptureFixture) -> None:
    world = filled()
    file = world.disk.open(world.log.segments[0].path(".log"))
    file.pwrite(b"\xff", 70)
    other = world.manager.get_or_create("other", 0, None, world.config)
    world.append((b"a", b"1"), log=other)
    world.append((b"a", b"2"), log=other)
    world.roll(other)
    with caplog.at_level(logging.ERROR):
        world.clean()
    assert list(world.cleaner.uncleanable) == [KEY]
    assert "topic-0 cannot be cleaned" in caplog.text
    assert "CRC" in caplog.text
    assert offsets(other) == [1]
    folder = world.manager.log_dirs[0]
    assert world.cleaner.uncleanable_count(folder) == 1
    assert world.cleaner.uncleanable_bytes(folder) == world.log.segments[0].size
    world.append((b"a", b"x"))
    assert world.log.log_end_offset == 13


def test_a_full_disk_only_puts_the_cleaning_off() -> None:
    world = filled()
    disk = world.disk
    assert isinstance(disk, SimulatedDisk)
    before = offsets(world.log)
    disk.free_bytes = 10
    world.scheduler.advance(1.1)
    assert world.cleaner.figures.passes == 0
    assert world.manager.log_dirs[0].offline is None
    assert not world.cleaner.uncleanable
    assert offsets(world.log) == before
    disk.free_bytes = None
    world.scheduler.advance(1.1)
    assert world.cleaner.figures.passes == 1


def test_a_broken_disk_takes_its_folder_offline() -> None:
    world = filled()
    disk = world.disk
    assert isinstance(disk, SimulatedDisk)
    disk.broken = "/data"
    world.scheduler.advance(1.1)
    assert world.manager.log_dirs[0].offline is not None


def test_a_stop_under_a_pass_leaves_the_log_as_it_was(tmp_path: Path) -> None:
    world = filled(
        World(
            disk=RealDisk(),
            folder=tmp_path,
            step_bytes=1,
            cleaner=CleanerSettings(backoff_ms=1000, io_max_bytes_per_second=10_000),
        )
    )
    before = offsets(world.log)
    world.cleaner.clean_dirtiest()
    world.scheduler.run_pending()
    world.restart()
    assert offsets(world.log) == before
    assert not [name for name in world.names() if ".cleaned" in name]


def test_settings_change_while_it_runs() -> None:
    world = filled(World(cleaner=CleanerSettings(backoff_ms=100_000)))
    world.cleaner.update_settings(CleanerSettings(backoff_ms=1000))
    world.scheduler.advance(1.1)
    assert world.cleaner.figures.passes == 1
    assert world.cleaner.figures.recopy_percent > 0
    assert world.cleaner.figures.max_buffer_utilization_percent > 0
    assert world.cleaner.ms_since_last_run() <= 1000
