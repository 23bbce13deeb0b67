"""A follower's log has the leader's bytes, offsets, epochs and producers; what is not right moves nothing."""

from __future__ import annotations

import errno
import random
from pathlib import Path

import pytest

from tests.cluster.world import FailingDisk
from tests.storage.helpers import NOW, append, batch, config, headers, offsets, open_log, records
from tidelog.clock import ManualClock
from tidelog.errors import CorruptMessage, KafkaStorageError
from tidelog.records.batch import Record, build_batch, build_end_transaction_marker
from tidelog.storage.append import AppendOrigin
from tidelog.storage.follower_appender import OffsetsOutOfOrder, UnexpectedAppendOffset
from tidelog.storage.log import Log


def bytes_of(log: Log) -> bytes:
    return b"".join(segment.file.pread(segment.size, 0) for segment in log.segments)


def position(log: Log, offset: int) -> int:
    """Where the batch with the offset begins in the log's only segment, or its end."""
    found = log.active_segment.position_of(offset)
    return log.size if found is None or offset == log.log_end_offset else found[0]


def marker(log: Log, producer: int, *, commit: bool) -> None:
    data = bytearray(
        build_end_transaction_marker(
            producer_id=producer, producer_epoch=0, commit=commit, coordinator_epoch=3, timestamp=NOW
        )
    )
    log.appender.append_as_leader(data, leader_epoch=4, origin=AppendOrigin.COORDINATOR, now_ms=NOW)


def test_a_follower_keeps_the_leaders_bytes(tmp_path: Path) -> None:
    leader = open_log(tmp_path / "leader", config(segment_bytes=200))
    follower = open_log(tmp_path / "follower", config(segment_bytes=300))
    for sequence in range(5):
        append(leader, batch(2, producer=(3, 1, 2 * sequence)), epoch=sequence)
    copied = follower.append_as_follower(bytes_of(leader), NOW)
    assert copied is not None
    assert (copied.base_offset, copied.last_offset, follower.log_end_offset) == (0, 9, 10)
    assert headers(follower) == headers(leader)
    assert follower.leader_epochs.entries() == leader.leader_epochs.entries()
    assert follower.producers.entries[3].batches == leader.producers.entries[3].batches
    assert len(follower.segments) > 1
    follower.close(NOW)
    again = open_log(tmp_path / "follower", config(segment_bytes=300))
    assert bytes_of(again) == bytes_of(leader)
    assert again.producers.entries[3].batches == leader.producers.entries[3].batches


def test_transactions_are_the_same_as_the_leaders(tmp_path: Path) -> None:
    leader, follower = open_log(tmp_path / "leader"), open_log(tmp_path / "follower")
    append(leader, batch(2))
    for producer in (1, 2, 3):
        data = batch(2, producer=(producer, 0, 0), transactional=True)
        append(leader, data)
    marker(leader, 1, commit=False)
    marker(leader, 2, commit=True)
    follower.append_as_follower(bytes_of(leader), NOW)
    for log in (leader, follower):
        log.update_high_watermark(log.log_end_offset)
    assert follower.aborted_transactions(0, 99) == leader.aborted_transactions(0, 99) != []
    assert follower.last_stable_offset == leader.last_stable_offset == 6
    assert follower.producers.encode_snapshot() == leader.producers.encode_snapshot()


@pytest.mark.parametrize("seed", range(8))
def test_any_log_in_any_pieces_is_copied(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    leader = open_log(tmp_path / "leader", config(index_interval_bytes=200))
    settings = config(segment_bytes=rng.choice((400, 3000)), index_interval_bytes=rng.choice((0, 300)))
    follower = open_log(tmp_path / "follower", settings)
    sequences = [0, 0]
    for at in range(60):
        count, producer = rng.randrange(1, 5), rng.randrange(3)
        known = (producer, 0, sequences[producer]) if producer < 2 else None
        append(leader, batch(count, timestamp=NOW + rng.randrange(50), producer=known), epoch=at // 20)
        if producer < 2:
            sequences[producer] += count
    data, at = bytes_of(leader), 0
    while at < len(data):
        piece = data[at : at + rng.randrange(100, 4000)]
        before = follower.log_end_offset
        copied = follower.append_as_follower(piece, NOW)
        at = at if copied is None else position(leader, follower.log_end_offset)
        assert copied is None or follower.log_end_offset > before
    assert bytes_of(follower) == data
    for offset in range(follower.log_end_offset):
        found = follower.read(offset, 1)
        assert found.slice is not None
    assert follower.max_timestamp() == leader.max_timestamp()
    assert follower.leader_epochs.entries() == leader.leader_epochs.entries()
    assert follower.producers.encode_snapshot() == leader.producers.encode_snapshot()
    follower.close(NOW)
    again = open_log(tmp_path / "follower", settings)  # recovered: indexes are checked
    assert bytes_of(again) == data


def test_a_wrong_crc_moves_nothing_and_the_same_offset_can_be_fetched_again(tmp_path: Path) -> None:
    follower = open_log(tmp_path)
    good = build_batch([Record(0, NOW, None, b"x")], leader_epoch=1)
    second = build_batch([Record(1, NOW, None, b"y")], base_offset=1)
    bad = bytearray(second)
    bad[-1] ^= 1
    with pytest.raises(CorruptMessage, match="at offset 1 has a wrong CRC"):
        follower.append_as_follower(good + bytes(bad), NOW)
    assert (follower.log_end_offset, follower.size, follower.has_pending) == (0, 0, False)
    assert follower.leader_epochs.entries() == []
    follower.append_as_follower(good + second, NOW)
    assert offsets(records(follower)) == [0, 1]


def test_batches_below_the_log_end_are_refused(tmp_path: Path) -> None:
    follower = open_log(tmp_path)
    good = build_batch([Record(0, NOW, None, b"x")], leader_epoch=1)
    assert follower.append_as_follower(good[:-1], NOW) is None
    follower.append_as_follower(good, NOW)
    with pytest.raises(UnexpectedAppendOffset) as refused:
        follower.append_as_follower(good, NOW)
    assert (refused.value.first_offset, refused.value.last_offset) == (0, 0)
    late = build_batch([Record(9, NOW, None, b"x")], base_offset=9)
    with pytest.raises(OffsetsOutOfOrder):
        follower.append_as_follower(late + late, NOW)
    assert follower.append_as_follower(b"", NOW) is None
    assert follower.log_end_offset == 1
    follower.append_as_follower(late, NOW)  # a gap, as the cleaner of the leader leaves it
    assert offsets(records(follower)) == [0, 9]


def test_a_batch_larger_than_a_segment_gets_its_own(tmp_path: Path) -> None:
    """The leader took it with another segment.bytes: the follower must not stop there."""
    leader, follower = (
        open_log(tmp_path / "leader"),
        open_log(tmp_path / "follower", config(segment_bytes=300)),
    )
    for count in (3, 200, 3):
        append(leader, batch(count))
    follower.append_as_follower(bytes_of(leader), NOW)
    assert bytes_of(follower) == bytes_of(leader)
    assert [segment.base_offset for segment in follower.segments] == [0, 3, 203]


def test_a_write_that_fails_is_taken_back(tmp_path: Path) -> None:
    disk = FailingDisk()
    leader = open_log(tmp_path / "leader")
    follower = open_log(tmp_path / "follower", config(segment_bytes=200), disk=disk)
    for sequence in range(4):
        append(leader, batch(1, producer=(3, 0, sequence)))
    disk.write_errors.extend([0, errno.ENOSPC])
    with pytest.raises(KafkaStorageError):
        follower.append_as_follower(bytes_of(leader), NOW)
    copied = follower.log_end_offset
    assert 0 < copied < 4
    assert follower.producers.entries[3].last_sequence == copied - 1
    rest = bytes_of(leader)[position(leader, copied) :]
    follower.append_as_follower(rest, NOW)
    assert bytes_of(follower) == bytes_of(leader)


def one_by_one(leader: Log) -> list[memoryview]:
    data, found = bytes_of(leader), []
    while data:
        size = 12 + int.from_bytes(data[8:12], "big")
        found.append(memoryview(data[:size]))
        data = data[size:]
    return found


@pytest.mark.parametrize("seed", range(4))
def test_single_batches_are_copied_the_short_way_or_the_long_way(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    leader = open_log(tmp_path / "leader", config(index_interval_bytes=200))
    settings = config(segment_bytes=2000, index_interval_bytes=rng.choice((0, 300)))
    short, long = open_log(tmp_path / "short", settings), open_log(tmp_path / "long", settings)
    for at in range(60):
        producer = (at % 3, 0, at // 3) if at % 3 else None
        append(leader, batch(1, timestamp=NOW + rng.randrange(50), producer=producer), epoch=at // 20)
    clock, taken = ManualClock(NOW), 0
    for data in one_by_one(leader):
        appended = short.follower_appender.append_one(data, clock)
        if appended is None:
            short.append_as_follower(data, NOW)
        else:
            taken += 1
            assert appended == (short.log_end_offset - 1, int.from_bytes(data[12:16], "big"))
        long.append_as_follower(data, NOW)
        assert short.log_end_offset == long.log_end_offset
        assert short.producers.encode_snapshot() == long.producers.encode_snapshot()
    # The first batch of a segment takes the long way, and so does the second, which sets its time to roll.
    assert 60 - 2 * len(short.segments) <= taken < 60
    assert bytes_of(short) == bytes_of(long) == bytes_of(leader)
    assert headers(short) == headers(long)
    assert short.max_timestamp() == long.max_timestamp()
    assert short.leader_epochs.entries() == long.leader_epochs.entries()
    for log in (short, long):
        log.close(NOW)
    for name in sorted(path.name for path in (tmp_path / "long").iterdir()):
        assert (tmp_path / "short" / name).read_bytes() == (tmp_path / "long" / name).read_bytes(), name


def test_what_is_out_of_the_ordinary_is_left_to_the_long_way(tmp_path: Path) -> None:
    clock = ManualClock(NOW)
    follower = open_log(tmp_path)

    def made(base: int, **more: int) -> bytes:
        return build_batch([Record(base, NOW, None, b"x")], base_offset=base, **more)  # type: ignore[arg-type]

    assert follower.follower_appender.append_one(memoryview(made(0)), clock) is None  # a new segment
    follower.append_as_follower(made(0), NOW)
    follower.append_as_follower(made(1), NOW)
    damaged = bytearray(made(2))
    damaged[-1] ^= 1
    transactional = made(2, producer_id=3, producer_epoch=0, base_sequence=0, transactional=True)
    size = follower.size
    for data in (b"", made(2)[:-1], made(2) + made(3), made(1), bytes(damaged), transactional):
        assert follower.follower_appender.append_one(memoryview(data), clock) is None
        assert (follower.log_end_offset, follower.size, follower.has_pending) == (2, size, False)
    assert follower.follower_appender.append_one(memoryview(made(2)), clock) == (2, -1)
    assert offsets(records(follower)) == [0, 1, 2]


def test_a_single_batch_whose_write_fails_is_taken_back(tmp_path: Path) -> None:
    disk = FailingDisk()
    follower = open_log(tmp_path, disk=disk)
    for base in (0, 1):
        follower.append_as_follower(build_batch([Record(base, NOW, None, b"x")], base_offset=base), NOW)
    third = memoryview(build_batch([Record(2, NOW, None, b"y")], base_offset=2))
    disk.write_errors.append(errno.ENOSPC)
    with pytest.raises(KafkaStorageError):
        follower.follower_appender.append_one(third, ManualClock(NOW))
    assert (follower.log_end_offset, follower.has_pending) == (2, False)
    assert follower.follower_appender.append_one(third, ManualClock(NOW)) == (2, -1)
    assert offsets(records(follower)) == [0, 1, 2]
