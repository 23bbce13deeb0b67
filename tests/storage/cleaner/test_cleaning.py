"""What a cleaning leaves of a log: every rule by itself, through the real storage."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.storage.cleaner.helpers import (
    KEY,
    World,
    batches,
    bytes_of,
    committed,
    headers,
    offsets,
    records,
    settings,
)
from tests.storage.helpers import NOW
from tidelog.errors import DuplicateSequenceNumber, OutOfOrderSequenceNumber
from tidelog.records.codecs import Codec
from tidelog.storage.cleaner.log_cleaner import CleanerSettings
from tidelog.storage.disk import RealDisk
from tidelog.storage.log import Log
from tidelog.storage.log_segment import CleanedFiles, LogSegment

CODECS = list(Codec)


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name.lower())
def test_the_last_record_of_each_key_stays_at_its_offset(codec: Codec) -> None:
    world = World()
    world.append((b"a", b"1"), (b"b", b"1"), (b"c", b"1"), codec=codec)
    world.append((b"a", b"2"), (b"b", b"2"), codec=codec)
    world.append((b"a", b"3"), codec=codec)
    world.clean()
    assert bytes_of(records(world.log)) == [(b"c", b"1"), (b"b", b"2"), (b"a", b"3")]
    assert offsets(world.log) == [2, 4, 5]
    assert [header.codec for header in headers(world.log)] == [codec] * 3
    assert [record.timestamp for record in records(world.log)] == [NOW + 2, NOW + 1, NOW]
    assert world.log.log_start_offset == 0
    assert world.log.log_end_offset == 6


def test_the_active_segment_keeps_everything_and_still_counts_for_nothing() -> None:
    world = World()
    world.append((b"a", b"1"))
    world.roll()
    world.append((b"a", b"2"))
    world.append((b"a", b"3"))
    world.clean(roll=False)
    assert offsets(world.log) == [0, 1, 2]


def test_what_a_pass_builds_on_is_on_disk_before_anything_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.append((b"a", b"1"), producer=(1, 0, 0), transactional=True)
    world.append((b"a", b"2"))
    world.log.roll(world.now)
    marker = world.end_transaction(1, commit=True)
    world.append((b"b", b"1"))
    swaps: list[tuple[int, bytes]] = []
    original = Log.replace_segments

    def noting(log: Log, old: list[LogSegment], cleaned: CleanedFiles) -> bool:
        swaps.append((log.recovery_point, world.disk.read("/data/recovery-point-offset-checkpoint")))
        return original(log, old, cleaned)

    monkeypatch.setattr(Log, "replace_segments", noting)
    assert world.log.recovery_point == 0
    world.clean(roll=False)
    assert swaps == [(marker + 2, b"0\n1\ntopic 0 3\n")], "recovery begins in the active segment"


def test_records_without_a_key_go_when_a_topic_becomes_compacted() -> None:
    world = World(settings(cleanup_policy=frozenset({"delete"})))
    world.append((None, b"1"), (b"a", b"1"))
    world.log.update_config(settings())
    world.clean()
    assert offsets(world.log) == [1]


def test_tombstones_stay_for_the_retention_from_their_first_cleaning_on() -> None:
    world = World()
    world.append((b"a", b"1"))
    world.append((b"a", None))
    world.scheduler.advance(1000)  # their age does not count
    world.clean()
    cleaned_at = world.now
    assert bytes_of(records(world.log)) == [(b"a", None)]
    header = headers(world.log)[0]
    assert header.has_delete_horizon
    assert header.base_timestamp == cleaned_at + 60_000
    world.scheduler.advance(59.999)
    world.append((b"x", b"1"))
    world.clean()
    assert (b"a", None) in bytes_of(records(world.log))
    assert headers(world.log)[0].base_timestamp == cleaned_at + 60_000
    world.scheduler.advance(0.001)
    world.append((b"x", b"2"))
    world.clean()
    assert bytes_of(records(world.log)) == [(b"x", b"2")]


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name.lower())
def test_a_horizon_leaves_the_timestamps_of_records_alone(codec: Codec) -> None:
    world = World()
    world.append((b"a", None), (b"b", b"1"), (b"c", b"1"), codec=codec)
    world.append((b"c", b"2"))
    world.clean()
    assert [record.timestamp for record in records(world.log)] == [NOW, NOW + 1, NOW]
    assert headers(world.log)[0].codec is codec
    assert headers(world.log)[0].max_timestamp == NOW + 1


def test_the_last_batch_of_a_producer_stays_for_its_sequence() -> None:
    world = World()
    world.append((b"a", b"1"), (b"b", b"1"), producer=(7, 0, 0))
    world.append((b"a", b"1"), (b"b", b"1"), producer=(7, 0, 2))
    world.append((b"a", b"2"), (b"b", b"2"), producer=(8, 0, 0))
    world.append((b"a", b"3"), (b"b", b"3"))
    world.clean()
    kept = headers(world.log)
    assert [(h.producer_id, h.base_sequence, h.record_count, h.last_offset) for h in kept] == [
        (7, 2, 0, 3),
        (8, 0, 0, 5),
        (-1, -1, 2, 7),
    ]
    # Without any snapshot the sequences come from what is left of the log.
    world.cleaner.close()
    world.manager.shutdown()
    for name in world.names():
        if name.endswith(".snapshot"):
            world.disk.unlink(f"{world.log.dir}/{name}")
    world.disk.unlink("/data/.kafka_cleanshutdown")
    world.disk.unlink("/data/recovery-point-offset-checkpoint")
    log = world.start()
    assert log.producers.entries[7].last_sequence == 3
    with pytest.raises((OutOfOrderSequenceNumber, DuplicateSequenceNumber)):
        world.append((b"a", b"9"), producer=(7, 0, 9))
    world.append((b"a", b"9"), producer=(7, 0, 4))


def test_the_end_of_what_was_cleaned_is_not_forgotten() -> None:
    world = World()
    world.append((b"a", b"1"))
    world.append((b"a", None))
    world.clean()
    world.scheduler.advance(61)
    world.append((b"b", None))
    world.clean()
    world.scheduler.advance(61)
    world.append((b"c", b"1"))
    world.append((b"c", None))
    world.clean()
    last = headers(world.log)[-1]
    assert last.last_offset == world.log.log_end_offset - 1


def test_aborted_records_go_and_what_they_replaced_stays() -> None:
    world = World()
    world.append((b"a", b"1"), (b"b", b"1"))
    world.append((b"a", b"2"), producer=(1, 0, 0), transactional=True)
    world.append((b"b", b"2"), producer=(2, 0, 0), transactional=True)
    world.end_transaction(1, commit=False)
    world.end_transaction(2, commit=True)
    world.append((b"z", b"1"), producer=(1, 0, 1))
    world.append((b"z", b"1"), producer=(2, 0, 1))
    world.clean()
    assert bytes_of(records(world.log)) == [(b"a", b"1"), (b"b", b"2"), (b"z", b"1")]
    assert bytes_of(committed(world.log)) == [(b"a", b"1"), (b"b", b"2"), (b"z", b"1")]


def test_markers_go_once_nothing_of_their_transaction_is_left_and_the_retention_has_passed() -> None:
    world = World()
    world.append((b"a", b"1"), producer=(1, 0, 0), transactional=True)
    abort = world.end_transaction(1, commit=False)
    world.append((b"a", b"2"), producer=(1, 0, 1), transactional=True)
    commit = world.end_transaction(1, commit=True)
    world.append((b"z", b"1"), producer=(1, 0, 2))

    def markers() -> list[tuple[int, bool]]:
        return [(h.base_offset, h.has_delete_horizon) for h in headers(world.log) if h.is_control]

    world.clean()  # the aborted batch is met for the last time
    assert markers() == [(abort, False), (commit, False)]
    assert world.log.aborted_transactions(0, 10)
    world.append((b"a", b"3"))
    world.clean()  # nothing of it is met: the clock of the abort marker starts
    assert markers() == [(abort, True), (commit, False)]
    assert not world.log.aborted_transactions(0, 10)
    world.scheduler.advance(60)
    world.append((b"a", b"4"))
    world.clean()
    assert markers() == [(commit, True)]
    world.scheduler.advance(60)
    world.append((b"a", b"5"))
    world.clean()
    assert markers() == []


def test_the_marker_that_is_all_a_producer_left_stays_for_its_epoch() -> None:
    world = World()
    world.append((b"a", b"1"), producer=(1, 0, 0), transactional=True)
    world.end_transaction(1, commit=True, epoch=3)  # a new epoch: no batch of it is known
    assert world.log.producers.entries[1].last_offset == -1
    for value in (b"2", b"3", b"4"):
        world.append((b"a", value))
        world.clean()
        world.scheduler.advance(100)
    kept = [header for header in headers(world.log) if header.is_control]
    assert [(header.producer_epoch, header.record_count) for header in kept] == [(3, 0)]


def test_a_transaction_that_ends_behind_the_cleaned_part_is_known_to_be_aborted() -> None:
    world = World()
    world.append((b"a", b"1"))
    world.append((b"a", b"2"), producer=(1, 0, 0), transactional=True)
    world.roll()
    world.end_transaction(1, commit=False)
    world.append((b"b", b"1"))
    world.clean(roll=False)
    assert world.cleaner.checkpoints[KEY] == 2
    assert bytes_of(committed(world.log)) == [(b"a", b"1"), (b"b", b"1")]


def test_small_segments_become_one() -> None:
    world = World(settings(segment_bytes=400))
    for at in range(20):
        world.append((b"k%d" % (at % 3), b"v" * 60))
    before = len(world.log.segments)
    world.clean()  # by their sizes before it, none fits beside another
    assert len(world.log.segments) == before + 1 > 6
    world.append((b"k0", b"x"))
    world.clean()
    assert world.log.segments.bases() == [0, 20, 21]
    assert offsets(world.log) == [17, 19, 20]
    assert world.log.read(5, 1000).slice is not None
    snapshots = [name for name in world.names() if name.endswith(".snapshot")]
    assert snapshots == ["00000000000000000020.snapshot", "00000000000000000021.snapshot"]


def test_a_map_that_is_full_takes_several_passes() -> None:
    world = World(cleaner=CleanerSettings(backoff_ms=1000, dedupe_buffer_size=24 * 10))
    for turn in range(3):
        world.append(*[(b"k%d" % at, b"%d" % turn) for at in range(30)])
    world.clean()
    assert world.cleaner.figures.passes > 3
    assert offsets(world.log) == list(range(60, 90))
    assert world.cleaner.checkpoints[KEY] == 90


def test_batches_larger_than_the_buffer_are_cleaned() -> None:
    world = World(cleaner=CleanerSettings(backoff_ms=1000, io_buffer_size=1024))
    world.append((b"a", b"x" * 5000), (b"b", b"y" * 9000))
    world.append((b"a", b"z" * 3000))
    world.append(*[(b"k%d" % at, b"v" * 700) for at in range(30)], (b"t", None), codec=Codec.ZSTD)
    world.append((b"k3", b""))
    world.clean()
    assert [len(record.value or b"") for record in records(world.log)][:2] == [9000, 3000]
    assert len(records(world.log)) == 33


def test_a_reader_in_the_middle_of_a_replaced_segment_finishes(tmp_path: Path) -> None:
    world = World(disk=RealDisk(), folder=tmp_path)
    for value in range(50):
        world.append((b"a", b"%d" % value))
    piece = world.log.read(10, 1 << 20).slice
    assert piece is not None
    before = piece.read()
    world.clean()
    world.scheduler.advance(5)
    assert piece.read() == before
    assert offsets(world.log) == [49]
    assert not [name for name in world.names() if name.endswith((".deleted", ".cleaned", ".swap"))]


def test_indexes_of_cleaned_segments_find_batches_by_offset_and_time(tmp_path: Path) -> None:
    world = World(disk=RealDisk(), folder=tmp_path)
    for at in range(300):
        world.append((b"k%d" % at if at % 3 else b"same", b"v" * 50), timestamp=NOW + at)
    world.clean()
    segment = world.log.segments[0]
    assert world.disk.size(segment.path(".index")) > 400
    assert world.disk.size(segment.path(".timeindex")) > 400
    for at in (0, 1, 100, 151, 298):
        wanted = next(record for record in records(world.log) if record.offset >= at)
        found = world.log.offset_for_timestamp(NOW + at)
        assert found is not None
        assert found.offset == wanted.offset
        piece = world.log.read(at, 1)
        assert piece.slice is not None
    held = offsets(world.log)
    world.restart()
    assert offsets(world.log) == held
    assert world.log.segments[0].largest_timestamp() == NOW + 299


def test_log_append_time_is_kept() -> None:
    world = World(settings(message_timestamp_type="LogAppendTime"))
    world.append((b"a", b"1"), (b"b", b"1"), timestamp=5)
    world.append((b"a", None), timestamp=5)
    world.clean()
    assert [record.timestamp for record in records(world.log)] == [NOW, NOW]
    assert all(header.is_log_append_time for header in headers(world.log))


def test_what_is_cleaned_again_does_not_change() -> None:
    world = World()
    world.append((b"a", b"1"), (b"b", None), (b"c", b"1"))
    world.append((b"c", b"2"))
    world.clean()
    before = batches(world.log)
    world.append((b"x", b"1"))
    world.clean()
    assert batches(world.log)[: len(before)] == before


def test_a_transaction_that_was_aborted_before_the_dirty_part_does_not_count_for_a_later_one() -> None:
    world = World()
    world.append((b"a", b"1"), producer=(1, 0, 0), transactional=True)
    world.end_transaction(1, commit=False)
    world.clean()
    world.append((b"b", b"1"))
    world.append((b"b", None), producer=(1, 0, 1), transactional=True)
    world.end_transaction(1, commit=True)
    world.clean()
    assert bytes_of(records(world.log)) == [(b"b", None)]


def test_a_log_start_that_was_moved_is_on_disk_before_anything_changes() -> None:
    world = World()
    world.append((b"a", b"1"), (b"b", b"1"))
    world.append((b"a", b"2"))
    world.log.delete_records_before(1)
    world.clean()
    assert world.disk.read("/data/log-start-offset-checkpoint") == b"0\n1\ntopic 0 1\n"
