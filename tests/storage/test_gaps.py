"""A gap that a crash left in a compacted log costs nothing that is written later."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.storage.helpers import NOW, batch
from tidelog.clock import ManualClock
from tidelog.records.batch import iter_batches
from tidelog.storage.checkpoints import GAP, RECOVERY_POINTS
from tidelog.storage.config import LogConfig
from tidelog.storage.disk import RealDisk
from tidelog.storage.log import Log
from tidelog.storage.log_manager import LogManager

COMPACTED = LogConfig(cleanup_policy=frozenset({"compact"}))
DELETED = LogConfig(cleanup_policy=frozenset({"delete"}))


class Start:
    """A broker's storage on a folder; `crash` ends it with what it wrote, and nothing more."""

    def __init__(self, folder: Path, config: LogConfig) -> None:
        self.manager = LogManager([str(folder)], config, disk=RealDisk(), clock=ManualClock(NOW))
        self.manager.log_dirs.lock()
        self.manager.log_dirs.claim("cluster", 0)
        self.manager.load()
        self.log = self.manager.get_or_create("topic", 0, None, config)

    def append(self, count: int = 1) -> None:
        for _ in range(count):
            self.log.appender.append_as_leader(batch(), leader_epoch=0, now_ms=NOW)

    def crash(self) -> None:
        self.log.release()
        self.manager.log_dirs.unlock()

    def stop(self) -> None:
        self.manager.shutdown()


def offsets(log: Log) -> list[int]:
    return [header.base_offset for segment in log.segments for _, header in segment.batches()]


@pytest.fixture
def with_gap(tmp_path: Path) -> Path:
    """Three segments of two batches; the last one of the second did not reach the disk."""
    start = Start(tmp_path, COMPACTED)
    for _ in range(3):
        start.append(2)
        start.log.roll(NOW)
    path = Path(start.log.segments[1].path(".log"))
    start.crash()
    data = path.read_bytes()
    path.write_bytes(data[: list(iter_batches(data))[1][0]])
    return tmp_path


def test_a_compacted_log_keeps_what_is_behind_a_gap(with_gap: Path) -> None:
    assert offsets(Start(with_gap, COMPACTED).log) == [0, 1, 2, 4, 5]


def test_a_log_knows_where_a_gap_begins_until_it_ends_there(with_gap: Path) -> None:
    log = Start(with_gap, COMPACTED).log
    assert log.gap == 3
    assert log.truncate_to(4, NOW)
    assert log.gap == 3
    assert log.truncate_to(3, NOW)
    assert log.gap is None
    assert (log.log_end_offset, offsets(log)) == (3, [0, 1, 2])
    log.appender.append_as_leader(batch(), leader_epoch=0, now_ms=NOW)
    assert offsets(log) == [0, 1, 2, 3]


def test_a_log_that_is_cut_at_a_torn_batch_has_no_gap(with_gap: Path) -> None:
    path = with_gap / "topic-0" / f"{2:020}.log"
    path.write_bytes(path.read_bytes() + bytes(20))  # the beginning of the batch that is missing
    log = Start(with_gap, COMPACTED).log
    assert (log.log_end_offset, offsets(log)) == (3, [0, 1, 2])
    assert log.gap is None


def test_a_log_that_ends_where_its_gap_begins_has_none_once_a_follower_goes_on(with_gap: Path) -> None:
    log = Start(with_gap, COMPACTED).log
    log.gap = log.log_end_offset
    log.forget_empty_epoch()
    assert log.gap is None


def test_any_other_log_ends_at_a_gap(with_gap: Path) -> None:
    assert offsets(Start(with_gap, DELETED).log) == [0, 1, 2]


@pytest.mark.parametrize("flush", [True, False])
def test_a_gap_that_was_kept_stays_so_when_the_log_is_no_longer_compacted(
    with_gap: Path, flush: bool
) -> None:
    start = Start(with_gap, COMPACTED)
    start.append()
    if flush:
        start.log.flush(NOW)  # and nothing has written down yet how far
    start.crash()
    assert offsets(Start(with_gap, DELETED).log) == [0, 1, 2, 4, 5, 6]


def test_how_far_a_log_with_a_gap_is_on_disk_is_written_down_before_it_is_served(with_gap: Path) -> None:
    start = Start(with_gap, COMPACTED)
    assert start.log.recovery_point == 6
    assert "topic 0 6" in (with_gap / RECOVERY_POINTS).read_text()


@pytest.mark.parametrize("end", [Start.stop, Start.crash])
def test_a_gap_is_known_after_the_next_start(with_gap: Path, end: Callable[[Start], None]) -> None:
    """A follower may be restarted before it has fetched from the gap."""
    end(Start(with_gap, COMPACTED))
    second = Start(with_gap, COMPACTED)
    assert (second.log.gap, offsets(second.log)) == (3, [0, 1, 2, 4, 5])
    second.append()
    end(second)
    assert Start(with_gap, COMPACTED).log.gap == 3


@pytest.mark.parametrize("end", [Start.stop, Start.crash])
@pytest.mark.parametrize("forget", [lambda log: log.truncate_to(3, NOW), Log.forget_gap])
def test_a_gap_that_is_gone_is_not_found_again(
    with_gap: Path, forget: Callable[[Log], object], end: Callable[[Start], None]
) -> None:
    start = Start(with_gap, COMPACTED)
    forget(start.log)
    end(start)
    assert Start(with_gap, COMPACTED).log.gap is None


@pytest.mark.parametrize("damaged", [b"", b"0\n1\n-3\n", b"0\n2\n3\n4\n", b"0\n1\nthree\n"])
def test_a_damaged_file_of_a_gap_is_ignored(with_gap: Path, damaged: bytes) -> None:
    Start(with_gap, COMPACTED).crash()
    (with_gap / "topic-0" / GAP).write_bytes(damaged)
    assert Start(with_gap, COMPACTED).log.gap is None
