"""A log takes batches at its end, gives them back from any offset, rolls, indexes and cuts as Kafka does."""

from __future__ import annotations

import errno
import os
import struct
from pathlib import Path

import pytest

from tests.storage.helpers import (
    NOW,
    append,
    batch,
    config,
    end_transaction,
    headers,
    offsets,
    open_log,
    records,
)
from tidelog.errors import KafkaStorageError, OffsetOutOfRange, RecordListTooLarge
from tidelog.records.batch import iter_batches, read_header
from tidelog.records.check import check_produced
from tidelog.storage.append import DuplicateBatch, PendingAppend, write_together
from tidelog.storage.disk import RealDisk, RealFile
from tidelog.storage.file_cache import FileCache
from tidelog.storage.log import Log

DAY = 86_400_000


def prepare(log: Log, data: bytearray) -> PendingAppend:
    pending = log.appender.prepare(
        check_produced(memoryview(data), log.appender.rules, NOW), leader_epoch=0, now_ms=NOW
    )
    assert isinstance(pending, PendingAppend)
    return pending


def index_entries(path: Path) -> list[tuple[int, int]]:
    return list(struct.iter_unpack(">ii", path.read_bytes()))


# -- append


def test_offsets_and_epoch_are_put_into_the_header_and_nothing_else_changes(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, batch(3), epoch=7)
    sent = batch(2)
    original = bytes(sent)
    result = append(log, sent, epoch=7)
    assert (result.base_offset, result.last_offset, result.log_append_time) == (3, 4, -1)
    assert log.log_end_offset == 5
    stored = (tmp_path / "00000000000000000000.log").read_bytes()[len(batch(3)) :]
    header = read_header(stored)
    assert (header.base_offset, header.partition_leader_epoch) == (3, 7)
    assert stored[12 + 4 :] == original[12 + 4 :]


def test_log_append_time_is_answered_where_the_broker_sets_it(tmp_path: Path) -> None:
    log = open_log(tmp_path, config(message_timestamp_type="LogAppendTime"))
    assert append(log, batch(2, timestamp=5), now_ms=NOW + 9).log_append_time == NOW + 9
    assert {record.timestamp for _, record in records(log)} == {NOW + 9}


def test_a_segment_is_rolled_when_the_next_batch_does_not_fit(tmp_path: Path) -> None:
    size = len(batch(1))
    log = open_log(tmp_path, config(segment_bytes=3 * size))
    for _ in range(7):
        append(log)
    assert log.segments.bases() == [0, 3, 6]
    assert offsets(records(log)) == list(range(7))


def test_a_segment_is_rolled_by_the_time_between_its_first_batch_and_the_next(tmp_path: Path) -> None:
    log = open_log(tmp_path, config(segment_ms=1000, message_timestamp_after_max_ms=DAY))
    append(log, batch(timestamp=NOW))
    append(log, batch(timestamp=NOW + 1000))
    assert log.segments.bases() == [0]
    append(log, batch(timestamp=NOW + 1001))
    assert log.segments.bases() == [0, 2]


def test_jitter_takes_from_the_time_of_a_segment(tmp_path: Path) -> None:
    log = open_log(tmp_path, config(segment_ms=1000, segment_jitter_ms=1000))
    append(log)
    log.roll(NOW)
    append(log)
    assert 0 <= log.active_segment.jitter_ms <= 1000
    log.active_segment.jitter_ms = 900
    log.update_config(log.config)
    append(log, batch(timestamp=NOW + 101))
    assert log.segments.bases() == [0, 1, 2]


def test_a_segment_is_rolled_when_its_index_is_full(tmp_path: Path) -> None:
    log = open_log(tmp_path, config(index_interval_bytes=0, segment_index_bytes=8 * 3))
    for _ in range(12):
        append(log)
    assert len(log.segments) > 1
    assert offsets(records(log)) == list(range(12))


def test_a_batch_larger_than_a_segment_is_refused(tmp_path: Path) -> None:
    log = open_log(tmp_path, config(segment_bytes=100))
    with pytest.raises(RecordListTooLarge):
        append(log, batch(1, value=bytes(200)))
    assert append(log, batch(1)).base_offset == 0


def test_indexes_hold_an_entry_every_interval_and_one_at_the_end(tmp_path: Path) -> None:
    log = open_log(tmp_path, config(index_interval_bytes=150))
    size = len(batch(1))
    for at in range(8):
        append(log, batch(timestamp=NOW + at))
    log.close(NOW)
    step = 150 // size + 1
    entries = index_entries(tmp_path / "00000000000000000000.index")
    assert entries == [(at, at * size) for at in range(step, 8, step)]
    times = list(struct.iter_unpack(">qi", (tmp_path / "00000000000000000000.timeindex").read_bytes()))
    assert times[-1] == (NOW + 7, 7)
    assert [offset for _, offset in times[: len(entries)]] == [offset for offset, _ in entries]


# -- the steps of an append


def test_what_is_prepared_is_not_read_before_it_is_finished(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log)
    pending = prepare(log, batch(2))
    pending.write()
    assert log.log_end_offset == 1
    assert len(headers(log)) == 1
    log.appender.finish(pending, NOW)
    assert (log.log_end_offset, len(headers(log))) == (3, 2)


def test_appends_prepared_together_are_written_together_even_over_a_roll(tmp_path: Path) -> None:
    log = open_log(tmp_path, config(segment_bytes=3 * len(batch(1))))
    pendings = [prepare(log, batch(1)) for _ in range(8)]
    write_together(pendings)
    assert [log.appender.finish(pending, NOW).base_offset for pending in pendings] == list(range(8))
    assert offsets(records(log)) == list(range(8))
    assert log.segments.bases() == [0, 3, 6]
    log.close(NOW)
    assert open_log(tmp_path, clean=True).log_end_offset == 8


def test_appends_finish_in_their_order(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    first, second = prepare(log, batch()), prepare(log, batch())
    with pytest.raises(KafkaStorageError):
        log.appender.finish(second, NOW)
    log.appender.finish(first, NOW)
    log.appender.finish(second, NOW)


def test_an_abandoned_append_takes_the_later_ones_with_it(tmp_path: Path) -> None:
    log = open_log(tmp_path, config(segment_bytes=3 * len(batch(1, producer=(5, 0, 0)))))
    append(log, batch(1, producer=(5, 0, 0)))
    doomed = [prepare(log, batch(1, producer=(5, 0, sequence))) for sequence in range(1, 5)]
    doomed[0].write()
    doomed[3].write()
    log.appender.abandon(doomed[0])
    with pytest.raises(OSError, match="earlier append"):
        doomed[1].write()
    with pytest.raises(KafkaStorageError):
        log.appender.finish(doomed[1], NOW)
    assert not log.has_pending
    assert (log.log_end_offset, log.segments.bases()) == (1, [0])
    assert append(log, batch(1, producer=(5, 0, 1))).base_offset == 1
    log.close(NOW)
    assert sorted(path.name for path in tmp_path.glob("*.log")) == ["00000000000000000000.log"]
    again = open_log(tmp_path, clean=True)
    assert (again.log_end_offset, offsets(records(again))) == (2, [0, 1])


def test_a_duplicate_is_recognised_while_its_first_copy_is_still_being_written(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    pending = prepare(log, batch(2, producer=(1, 0, 0)))
    checked = check_produced(memoryview(batch(2, producer=(1, 0, 0))), log.appender.rules, NOW)
    twin = log.appender.prepare(checked, leader_epoch=0, now_ms=NOW)
    assert isinstance(twin, DuplicateBatch)
    assert (twin.result.base_offset, twin.result.last_offset) == (0, 1)
    log.appender.finish(pending, NOW)


def test_flush_messages_asks_for_a_flush(tmp_path: Path) -> None:
    log = open_log(tmp_path, config(flush_messages=3))
    assert [append(log).needs_flush for _ in range(3)] == [False, False, True]
    log.flush(NOW)
    assert log.recovery_point == 3
    assert not append(log).needs_flush


# -- read


@pytest.fixture
def stored(tmp_path: Path) -> Log:
    """Batches of three records each, over many segments."""
    log = open_log(tmp_path, config(segment_bytes=1000, index_interval_bytes=300))
    for at in range(40):
        append(log, batch(3, timestamp=NOW + 10 * at))
    return log


def test_a_read_begins_with_the_batch_that_holds_the_offset(stored: Log) -> None:
    for offset in range(stored.log_end_offset):
        found = stored.read(offset, 1).slice
        assert found is not None
        header = read_header(found.read())
        assert header.base_offset == offset - offset % 3
        assert found.size == header.total_size


def test_a_read_stops_at_the_bound_that_it_was_given(stored: Log) -> None:
    for bound in range(3, stored.log_end_offset, 7):
        found = stored.read(max(0, bound - 3), 1 << 20, max_offset=bound).slice
        if found is not None:
            data, last = found.read(), 0
            while data:
                header = read_header(data)
                last, data = header.last_offset, data[header.total_size :]
            assert last < bound
    assert stored.read(6, 1 << 20, max_offset=6).slice is None


def test_a_first_batch_that_does_not_fit_comes_whole_or_not_at_all(stored: Log) -> None:
    whole = stored.read(0, 10).slice
    assert whole is not None
    assert stored.read(0, whole.size - 1, min_one_message=False).slice is None
    cut = stored.read(0, whole.size + 10, min_one_message=False).slice
    assert cut is not None
    assert cut.size == whole.size + 10


def test_offsets_outside_the_log_are_refused_and_its_end_is_empty(stored: Log) -> None:
    end = stored.log_end_offset
    assert stored.read(end, 100).slice is None
    for offset in (-1, end + 1, 1 << 62):
        with pytest.raises(OffsetOutOfRange):
            stored.read(offset, 100)


def test_the_upper_bound_of_a_read_is_behind_all_its_batches(stored: Log) -> None:
    for offset in range(0, stored.log_end_offset, 5):
        result = stored.read(offset, 400)
        assert result.slice is not None
        last = max(header.last_offset for _, header in iter_batches(result.slice.read()))
        assert last < stored.upper_bound(result) <= stored.log_end_offset


def test_reads_work_with_few_open_files(tmp_path: Path) -> None:
    files = FileCache(3)
    log = open_log(tmp_path, config(segment_bytes=100), files=files)
    for _ in range(30):
        append(log)
    assert len(log.segments) == 30
    before = len(os.listdir("/proc/self/fd"))
    assert offsets(records(log)) == list(range(30))
    assert len(files) <= 3
    assert len(os.listdir("/proc/self/fd")) <= before + 9


def test_a_slice_outlives_the_deletion_of_its_segment(stored: Log) -> None:
    found = stored.read(0, 1 << 20).slice
    assert found is not None
    data = found.read()
    stored.update_high_watermark(stored.log_end_offset)
    stored.delete_records_before(60)
    assert stored.delete_old_segments(NOW) > 0
    assert not os.path.exists(found.handle.path)
    assert found.read() == data


def test_an_index_that_lies_costs_time_and_not_truth(tmp_path: Path) -> None:
    settings = config(segment_bytes=1500, index_interval_bytes=100)
    log = open_log(tmp_path, settings)
    for _ in range(40):
        append(log, batch(2))
    log.close(NOW)
    for path in tmp_path.glob("*.index"):
        entries = index_entries(path)
        path.write_bytes(b"".join(struct.pack(">ii", offset, position + 17) for offset, position in entries))
    again = open_log(tmp_path, settings, clean=True)
    assert offsets(records(again)) == list(range(80))
    for offset in range(80):
        found = again.read(offset, 1).slice
        assert found is not None
        assert read_header(found.read()).base_offset == offset - offset % 2


# -- lookup by time


def test_the_first_record_at_or_after_a_time_is_found(stored: Log) -> None:
    for at in range(40):
        for extra in range(3):
            found = stored.offset_for_timestamp(NOW + 10 * at + extra)
            assert found is not None
            assert (found.timestamp, found.offset) == (NOW + 10 * at + extra, 3 * at + extra)
    found = stored.offset_for_timestamp(NOW + 5)
    assert found is not None
    assert found.offset == 3
    assert stored.offset_for_timestamp(NOW + 10_000) is None
    assert stored.offset_for_timestamp(NOW + 200, max_offset=60) is None


def test_times_below_the_log_start_are_not_found(stored: Log) -> None:
    stored.update_high_watermark(stored.log_end_offset)
    stored.delete_records_before(50)
    found = stored.offset_for_timestamp(NOW)
    assert found is not None
    assert found.offset == 50


def test_the_greatest_timestamp_is_the_first_record_that_has_it(tmp_path: Path) -> None:
    log = open_log(tmp_path, config(segment_bytes=300))
    assert log.max_timestamp() is None
    for timestamp in (5, 9, 3, 9, 1):
        append(log, batch(2, timestamp=NOW + timestamp, step=0), epoch=4)
    assert log.max_timestamp() == (NOW + 9, 2, 4)
    log.close(NOW)
    assert open_log(tmp_path, config(segment_bytes=300), clean=True).max_timestamp() == (NOW + 9, 2, 4)


# -- retention


def retained(log: Log, now_ms: int) -> list[int]:
    log.update_high_watermark(log.log_end_offset)
    log.delete_old_segments(now_ms)
    return log.segments.bases()


def test_segments_older_than_retention_ms_go(tmp_path: Path) -> None:
    log = open_log(tmp_path, config(retention_ms=1000, segment_bytes=100))
    for at in range(5):
        append(log, batch(timestamp=NOW + at * 100))
    assert retained(log, NOW + 1000) == [0, 1, 2, 3, 4]
    assert retained(log, NOW + 1201) == [3, 4]
    assert log.log_start_offset == 3
    assert sorted(path.name for path in tmp_path.glob("*.log")) == [f"{base:020d}.log" for base in (3, 4)]


def test_an_old_active_segment_is_rolled_and_goes_too(tmp_path: Path) -> None:
    log = open_log(tmp_path, config(retention_ms=1000))
    append(log, batch(3))
    assert retained(log, NOW + 2000) == [3]
    assert (log.log_start_offset, log.log_end_offset, log.size) == (3, 3, 0)
    assert retained(log, NOW + 9000) == [3]


def test_the_oldest_segments_go_while_the_log_is_larger_than_retention_bytes(tmp_path: Path) -> None:
    size = len(batch())
    log = open_log(tmp_path, config(retention_bytes=2 * size, segment_bytes=size))
    for _ in range(5):
        append(log)
    assert retained(log, NOW) == [3, 4]


def test_nothing_above_the_high_watermark_is_deleted(tmp_path: Path) -> None:
    log = open_log(tmp_path, config(retention_ms=1, segment_bytes=100))
    for _ in range(5):
        append(log)
    log.update_high_watermark(2)
    log.delete_old_segments(NOW + DAY)
    assert log.segments.bases() == [2, 3, 4]


def test_compacted_logs_lose_only_what_is_below_their_start(tmp_path: Path) -> None:
    log = open_log(
        tmp_path,
        config(cleanup_policy=frozenset({"compact"}), retention_ms=1, retention_bytes=1, segment_bytes=100),
    )
    for _ in range(5):
        append(log)
    assert retained(log, NOW + DAY) == [0, 1, 2, 3, 4]
    log.delete_records_before(2)
    assert retained(log, NOW + DAY) == [2, 3, 4]


def test_records_are_deleted_up_to_the_high_watermark_and_not_beyond(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, batch(10), epoch=3)
    log.update_high_watermark(8)
    with pytest.raises(OffsetOutOfRange):
        log.delete_records_before(9)
    assert log.delete_records_before(4) == 4
    assert log.delete_records_before(2) == 2
    assert log.log_start_offset == 4
    with pytest.raises(OffsetOutOfRange):
        log.read(3, 100)
    assert log.leader_epochs.entries() == [(3, 4)]
    assert log.delete_records_before(-1) == 8


# -- truncation


def test_a_truncated_log_ends_there_and_goes_on(tmp_path: Path) -> None:
    settings = config(segment_bytes=200, index_interval_bytes=0)
    log = open_log(tmp_path, settings)
    for sequence in range(20):
        append(log, batch(2, producer=(1, 0, 2 * sequence)), epoch=sequence // 5)
    log.flush(NOW)
    log.update_high_watermark(40)
    assert log.truncate_to(22, NOW)
    assert not log.truncate_to(22, NOW)
    assert (log.log_end_offset, log.high_watermark, log.recovery_point) == (22, 22, 22)
    assert offsets(records(log)) == list(range(22))
    assert log.leader_epochs.entries() == [(0, 0), (1, 10), (2, 20)]
    assert log.producers.entries[1].last_sequence == 21
    assert append(log, batch(2, producer=(1, 0, 22))).base_offset == 22
    log.close(NOW)
    assert offsets(records(open_log(tmp_path, settings, clean=True))) == list(range(24))


def test_truncation_inside_a_batch_drops_the_batch(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, batch(5))
    append(log, batch(5))
    log.truncate_to(7, NOW)
    assert log.log_end_offset == 5


def test_a_log_can_start_anew_at_any_offset(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, batch(5, producer=(1, 0, 0)))
    log.truncate_fully_and_start_at(1000, NOW)
    assert (log.log_start_offset, log.log_end_offset, log.high_watermark) == (1000, 1000, 1000)
    assert not log.producers.entries
    assert append(log).base_offset == 1000
    log.close(NOW)
    again = open_log(tmp_path, clean=True)
    assert (again.log_start_offset, again.log_end_offset) == (1000, 1001)


def test_a_log_that_finds_no_room_to_start_anew_can_do_so_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(tmp_path)
    append(log, batch(5))
    log.roll(NOW)
    with monkeypatch.context() as full:

        def refuse(disk: RealDisk, path: str, *, create: bool = False) -> RealFile:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)

        full.setattr(RealDisk, "open", refuse)
        with pytest.raises(KafkaStorageError):
            log.truncate_fully_and_start_at(1000, NOW)
    log.truncate_fully_and_start_at(1000, NOW)
    assert (log.log_start_offset, log.log_end_offset, len(log.segments)) == (1000, 1000, 1)
    assert append(log).base_offset == 1000


# -- transactions


def test_an_open_transaction_holds_the_last_stable_offset(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log)
    append(log, batch(2, producer=(1, 0, 0), transactional=True))
    append(log, batch(2, producer=(2, 0, 0), transactional=True))
    append(log)
    log.update_high_watermark(6)
    assert log.last_stable_offset == 1
    end_transaction(log, 1, commit=True)
    log.update_high_watermark(6)
    assert log.last_stable_offset == 1, "the marker is not yet below the high watermark"
    log.update_high_watermark(7)
    assert log.last_stable_offset == 3
    end_transaction(log, 2, commit=False)
    log.update_high_watermark(log.log_end_offset)
    assert log.last_stable_offset == log.log_end_offset == 8


def test_aborted_transactions_are_found_for_the_offsets_they_touch(tmp_path: Path) -> None:
    settings = config(segment_bytes=400)
    log = open_log(tmp_path, settings)
    for sequence in range(6):
        append(log, batch(1, producer=(1, 0, sequence), transactional=True))
        append(log)
        end_transaction(log, 1, commit=sequence % 2 == 0)
    ranges = [(entry.first_offset, entry.last_offset) for entry in log.aborted_transactions(0, 100)]
    assert ranges == [(3, 5), (9, 11), (15, 17)]
    assert [entry.first_offset for entry in log.aborted_transactions(6, 10)] == [9]
    log.close(NOW)
    for clean in (True, False):
        again = open_log(tmp_path, settings, clean=clean)
        assert again.aborted_transactions(0, 100) == log.aborted_transactions(0, 100)


# -- life of the folder


def test_a_clean_stop_leaves_a_snapshot_and_a_start_reads_it(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for sequence in range(7):
        append(log, batch(1, producer=(9, 2, sequence)), epoch=1)
    log.close(NOW)
    assert (tmp_path / "00000000000000000007.snapshot").exists()
    assert (tmp_path / "leader-epoch-checkpoint").read_text() == "0\n1\n1 0\n"
    again = open_log(tmp_path, clean=True)
    entry = again.producers.entries[9]
    assert (entry.epoch, entry.last_sequence, again.recovery_point) == (2, 6, 7)
    assert append(again, batch(1, producer=(9, 2, 6))).base_offset == 6, (
        "the last batch is known as a duplicate"
    )
    assert append(again, batch(1, producer=(9, 2, 7))).base_offset == 7


def test_a_torn_tail_is_cut_and_the_rest_is_kept(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for _ in range(5):
        append(log, batch(2))
    log.release()
    path = tmp_path / "00000000000000000000.log"
    whole = path.read_bytes()
    size = len(whole) // 5
    for cut in range(4 * size + 1, 5 * size):
        path.write_bytes(whole[:cut])
        assert open_log(tmp_path).log_end_offset == 8
        assert path.stat().st_size == 4 * size


def test_a_deleted_log_moves_out_of_the_way(tmp_path: Path) -> None:
    folder = tmp_path / ("t" * 249 + "-0")
    log = open_log(folder)
    append(log)
    moved = Path(log.delete())
    assert moved.exists()
    assert not folder.exists()
    assert len(moved.name) <= 255
    assert moved.name.endswith("-delete")


def test_closing_gives_up_what_is_not_finished(tmp_path: Path) -> None:
    settings = config(segment_bytes=3 * len(batch(1)))
    log = open_log(tmp_path, settings)
    append(log)
    for _ in range(5):
        prepare(log, batch(1)).write()
    log.close(NOW)
    again = open_log(tmp_path, settings, clean=True)
    assert (again.log_end_offset, again.segments.bases(), again.recovery_point) == (1, [0], 1)


def test_a_truncation_in_steps_lets_nothing_else_change_the_log(tmp_path: Path) -> None:
    log = open_log(tmp_path, config(segment_bytes=200, retention_bytes=0))
    for sequence in range(10):
        append(log, batch(2, producer=(1, 0, 2 * sequence)), epoch=sequence // 5)
    log.commit_all()
    truncation = log.truncation(9, NOW)
    truncation.find()
    assert truncation.offset == 8
    truncation.begin()
    assert log.is_truncating
    assert log.begin_flush() is None
    assert log.delete_old_segments(NOW) == 0
    with pytest.raises(KafkaStorageError):
        log.truncation(5, NOW).begin()
    truncation.cut()
    assert log.producers.entries[1].last_sequence == 19  # the owner of the log changes it, in `end`
    truncation.end()
    assert not log.is_truncating
    assert (log.log_end_offset, log.high_watermark, log.producers.entries[1].last_sequence) == (8, 8, 7)
    assert offsets(records(log)) == list(range(8))


def test_a_truncation_waits_for_no_append(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, batch(5))
    checked = check_produced(memoryview(batch(1)), log.appender.rules, NOW)
    assert isinstance(log.appender.prepare(checked, 0, NOW), PendingAppend)
    with pytest.raises(KafkaStorageError, match="appends are under way"):
        log.truncate_to(2, NOW)
