"""A segment is converted whole or not at all, whenever the power goes, and nothing of it is lost."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from tests.legacy.old import message, records_from, without_time, wrapper
from tests.support.scale import scale
from tests.support.simdisk import Crash, SimulatedDisk
from tidelog.records.batch import Record, build_batch, crc_is_valid, iter_batches, read_records
from tidelog.records.codecs import Codec
from tidelog.storage.config import LogConfig
from tidelog.storage.convert import (
    Converted,
    DamagedSegment,
    Limits,
    convert_folder,
    finish_interrupted,
    old_segments,
)
from tidelog.storage.file_cache import FileCache
from tidelog.storage.recovery import LoadedLog, load_log
from tidelog.storage.transaction_index import AbortedTransaction, decode_transaction_index

FOLDER = "/data/old-0"
SEEDS = scale(150, 4000)
CODECS = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4]


def log_path(base: int, suffix: str = ".log") -> str:
    return f"{FOLDER}/{base:020d}{suffix}"


def disk_with(segments: dict[int, bytes], extra: dict[str, bytes] | None = None) -> SimulatedDisk:
    """A disk on which everything has been for years."""
    disk = SimulatedDisk()
    disk.make_dir(FOLDER)
    disk.fsync_dir("/")
    disk.fsync_dir("/data")
    files = {log_path(base): data for base, data in segments.items()}
    for base, data in segments.items():
        files[log_path(base, ".index")] = b"\0\0\0\1\0\0\0\1" if data else b""  # of the old positions
    for path, data in {**files, **(extra or {})}.items():
        disk.write(path, data)
        disk.fsync(path)
    disk.fsync_dir(FOLDER)
    return disk


def load(disk: SimulatedDisk, *, clean: bool, recovery_point: int = 0, compacted: bool = True) -> LoadedLog:
    config = LogConfig()
    config.cleanup_policy = frozenset({"compact"} if compacted else {"delete"})
    return load_log(
        disk,
        FileCache(100),
        FOLDER,
        config,
        clean=clean,
        recovery_point=recovery_point,
        log_start_offset=0,
        now_ms=0,
    )


def contents(disk: SimulatedDisk) -> list[Record]:
    """Every record of the log files, each batch checked."""
    found: list[Record] = []
    for name in disk.listdir(FOLDER):
        if name.endswith(".log"):
            data = disk.read(f"{FOLDER}/{name}")
            end = 0
            for position, header in iter_batches(data):
                assert crc_is_valid(data, position, header)
                assert header.base_offset >= int(name[:20])
                found += read_records(data, position, header=header)
                end = position + header.total_size
            assert end == len(data)
    return found


def random_segment(
    rng: random.Random, offset: int, first: int | None = None
) -> tuple[bytes, list[Record], int]:
    """Messages, wrappers and batches in any order, with gaps; what a reader sees, and where it ends."""
    data, seen = b"", []
    for n in range(rng.randrange(1, 7)):
        magic = first if n == 0 and first is not None else rng.choice([0, 1, 1, 2])
        records = records_from(offset, rng.randrange(1, 6), step=rng.choice([1, 1, 4]))
        if magic == 2:
            data += build_batch(records, base_offset=offset, codec=rng.choice(list(Codec)), leader_epoch=3)
        elif rng.random() < 0.5:
            data += b"".join(message(magic, record) for record in records)
        else:
            data += wrapper(magic, rng.choice(CODECS), records)
        seen += records if magic else without_time(records)
        offset = records[-1].offset + 1 + rng.choice([0, 0, 9])
    return data, seen, offset


def random_log(rng: random.Random) -> tuple[dict[int, bytes], list[Record]]:
    segments: dict[int, bytes] = {}
    seen: list[Record] = []
    offset = rng.choice([0, 500])
    for _ in range(rng.randrange(1, 4)):
        base = offset
        segments[base], records, offset = random_segment(rng, offset, None if segments else rng.randrange(2))
        seen += records
    return segments, seen


def convert(
    disk: SimulatedDisk, limits: Limits | None = None, recovery_point: int | None = None
) -> Converted:
    return convert_folder(disk, FOLDER, recovery_point=recovery_point, limits=limits or Limits())


SMALL = Limits(segment_bytes=400, relative_offset=30, grouped_bytes=150)


# --- what is kept


@pytest.mark.parametrize("limits", [Limits(), SMALL], ids=["one", "split"])
def test_every_record_is_kept(limits: Limits) -> None:
    for seed in range(SEEDS):
        segments, seen = random_log(random.Random(seed))
        disk = disk_with(segments)
        convert(disk, limits)
        assert contents(disk) == seen, f"seed {seed}"
        assert old_segments(disk, FOLDER) == []
        assert {name[20:] for name in disk.listdir(FOLDER)} <= {".log", ".index", ".timeindex"}


@pytest.mark.parametrize("clean", [True, False])
def test_the_log_is_loaded_with_its_ends(clean: bool) -> None:
    for seed in range(SEEDS // 3):
        segments, seen = random_log(random.Random(seed))
        disk = disk_with(segments)
        convert(disk, SMALL if seed % 2 else None, None if clean else 0)
        loaded = load(disk, clean=clean)
        assert (loaded.log_start_offset, loaded.log_end_offset) == (min(segments), seen[-1].offset + 1)
        assert loaded.truncated_bytes == 0
        assert contents(disk) == seen


def test_indexes_are_made_from_the_new_positions() -> None:
    records = records_from(0, 4000)
    disk = disk_with({0: b"".join(message(1, record) for record in records)})
    convert(disk, Limits(grouped_bytes=1000))
    indexes = [disk.read(log_path(0, suffix)) for suffix in (".index", ".timeindex")]
    segment = load(disk, clean=True).segments[0]
    assert [disk.read(log_path(0, suffix)) for suffix in (".index", ".timeindex")] == indexes
    data = disk.read(log_path(0))
    assert len(indexes[0]) > 8 * 10
    for offset in (0, 1, 777, 2500, 3999):
        found = segment.position_of(offset)
        assert found is not None
        assert any(record.offset == offset for record in read_records(data, found[0]))
    assert segment.largest_timestamp() == max(record.timestamp for record in records)


def test_messages_are_grouped_and_wrappers_stay_as_they_were() -> None:
    data = b"".join(message(1, record) for record in records_from(0, 100))
    data += wrapper(1, Codec.SNAPPY, records_from(100, 5)) + wrapper(0, Codec.LZ4, records_from(105, 5))
    disk = disk_with({0: data})
    convert(disk)
    headers = [header for _, header in iter_batches(disk.read(log_path(0)))]
    assert [(h.base_offset, h.last_offset, h.codec) for h in headers] == [
        (0, 99, Codec.NONE),
        (100, 104, Codec.SNAPPY),
        (105, 109, Codec.LZ4),
    ]
    assert {h.partition_leader_epoch for h in headers} == {-1}
    assert headers[2].max_timestamp == -1


def test_the_end_of_the_log_stays_where_compaction_removed_the_last_records() -> None:
    disk = disk_with({0: wrapper(0, Codec.GZIP, records_from(10, 3), offset=20)})
    convert(disk)
    assert load(disk, clean=True).log_end_offset == 21


def test_append_times_stay_append_times() -> None:
    records = [record._replace(timestamp=1000 + record.offset // 3) for record in records_from(0, 9)]
    data = b"".join(message(1, record, 0x08) for record in records)
    data += wrapper(1, Codec.GZIP, records_from(9, 4), append_time=5000)
    disk = disk_with({0: data})
    convert(disk)
    assert all(header.is_log_append_time for _, header in iter_batches(disk.read(log_path(0))))
    assert [record.timestamp for record in contents(disk)] == [r.timestamp for r in records] + [5000] * 4


def test_batches_of_format_2_are_copied_byte_by_byte() -> None:
    batch = build_batch(records_from(5, 3), base_offset=5, producer_id=9, producer_epoch=1, base_sequence=4)
    disk = disk_with({0: message(0, Record(0, -1, None, b"old")) + batch})
    convert(disk)
    assert disk.read(log_path(0)).endswith(batch)


def test_segments_without_old_messages_are_not_touched() -> None:
    batch = build_batch(records_from(50, 3), base_offset=50)
    disk = disk_with({0: message(0, Record(0, -1, None, b"old")), 50: batch, 60: b""})
    assert [old.base_offset for old in old_segments(disk, FOLDER)] == [0]
    inode = disk.files[log_path(50)]
    assert convert(disk).segments == 1
    assert disk.files[log_path(50)] is inode
    before = disk.operations
    assert convert(disk) == Converted()
    assert disk.operations == before


def test_a_log_that_went_back_to_an_old_format_is_seen() -> None:
    data = build_batch(records_from(0, 3), base_offset=0) + message(1, Record(3, 5, None, b"old"))
    assert [old.base_offset for old in old_segments(disk_with({0: data}), FOLDER)] == [0]


def test_the_age_of_a_segment_is_kept() -> None:
    """Records of format 0 have no time: retention goes by the file's."""
    disk = disk_with({0: message(0, Record(0, -1, None, b"old"))})
    disk.set_modified_ms(log_path(0), 1_300_000_000_000)
    convert(disk)
    assert load(disk, clean=True).segments[0].retention_timestamp() == 1_300_000_000_000


def test_gaps_that_no_segment_can_span() -> None:
    """Old brokers compacted segments together until offsets were further apart than an index can say."""
    far = 1 << 33
    records = [Record(0, 1, b"a", b"1"), Record(far, 2, b"b", b"2"), Record(far + (1 << 32), 3, b"c", b"3")]
    disk = disk_with({0: b"".join(message(1, record) for record in records)})
    convert(disk)
    assert contents(disk) == records
    assert load(disk, clean=True).log_end_offset == far + (1 << 32) + 1
    disk = disk_with({0: wrapper(0, Codec.GZIP, records)})
    convert(disk)
    assert contents(disk) == without_time(records)


def test_aborted_transactions_go_with_their_batches() -> None:
    entries = [AbortedTransaction(7, 10, 20, 10), AbortedTransaction(8, 40, 60, 40)]
    data = b"".join(message(1, record) for record in records_from(0, 100))
    extra = {log_path(0, ".txnindex"): b"".join(entry.encode() for entry in entries)}
    disk = disk_with({0: data}, extra)
    convert(disk, Limits(relative_offset=49, grouped_bytes=500))
    found = {
        int(name[:20]): decode_transaction_index(disk.read(f"{FOLDER}/{name}"), int(name[:20]))
        for name in disk.listdir(FOLDER)
        if name.endswith(".txnindex")
    }
    assert [entries[0]] in found.values()
    assert [entries[1]] in found.values()
    assert sum(map(len, found.values())) == 2


def test_progress_tells_every_byte() -> None:
    segments, _ = random_log(random.Random(3))
    disk = disk_with(segments)
    told: list[int] = []
    expected = sum(old.size for old in old_segments(disk, FOLDER))
    done = convert_folder(disk, FOLDER, recovery_point=None, progress=told.append)
    assert sum(told) == expected == done.old_bytes
    assert done.new_bytes == sum(len(disk.read(log_path(old))) for old in segments if done.segments)


# --- tails and damage


def test_a_torn_tail_is_left_to_recovery() -> None:
    whole = records_from(0, 6)
    last = message(1, Record(6, 9, None, b"torn" * 20))
    for cut in range(1, len(last), 7):
        data = b"".join(message(1, record) for record in whole) + last[:-cut]
        disk = disk_with({0: data})
        done = convert(disk, recovery_point=3)
        assert done.torn == {log_path(0): len(last) - cut}
        assert disk.read(log_path(0)).endswith(last[:-cut])
        loaded = load(disk, clean=False, recovery_point=3)
        assert (loaded.log_end_offset, loaded.truncated_bytes) == (6, len(last) - cut)
        assert contents(disk) == whole


def test_a_message_whose_crc_is_wrong_ends_the_log_after_a_crash() -> None:
    whole, damaged = message(1, Record(0, 9, None, b"whole")), bytearray(message(1, Record(1, 9, None, b"x")))
    damaged[-1] ^= 1
    disk = disk_with({0: whole + damaged + message(1, Record(2, 9, None, b"behind"))})
    convert(disk, recovery_point=0)
    assert load(disk, clean=False).log_end_offset == 1


def damages() -> dict[str, tuple[dict[int, bytes], int | None, str]]:
    good, bad = message(1, Record(0, 9, None, b"good")), bytearray(message(1, Record(1, 9, None, b"bad")))
    bad[-1] ^= 1
    unpackable = message(1, Record(1, 0, None, b"no gzip"), Codec.GZIP)
    batch = bytearray(build_batch(records_from(1, 2), base_offset=1))
    batch[-1] ^= 1
    return {
        "after a clean stop": ({0: good + bad}, None, "does not match its CRC"),
        "cut after a clean stop": ({0: good + bad[:-3]}, None, "it is truncated"),
        "a batch": ({0: good + batch}, None, "does not match its CRC"),
        "below the recovery point": ({0: good + bad, 5: b""}, 5, "does not match its CRC"),
        "in a wrapper": ({0: good + unpackable}, 0, "gzip data cannot be unpacked"),
        "out of order": ({0: good * 2}, 0, "offsets 0 to 0, where 1 was to follow"),
        "below the segment": ({7: good}, 0, "offsets 0 to 0, where 7 was to follow"),
    }


@pytest.mark.parametrize("case", damages())
def test_damage_that_recovery_would_not_cut_is_refused_and_left_alone(case: str) -> None:
    segments, recovery_point, reason = damages()[case]
    disk = disk_with(segments)
    before = {path: bytes(inode.data) for path, inode in disk.files.items()}
    with pytest.raises(DamagedSegment, match=reason) as raised:
        convert(disk, recovery_point=recovery_point)
    assert log_path(min(segments)) in str(raised.value)
    assert {path: bytes(inode.data) for path, inode in disk.files.items()} == before


def test_a_disk_that_is_full_leaves_the_old_segment() -> None:
    segments, seen = random_log(random.Random(8))
    disk = disk_with(segments)
    names = disk.listdir(FOLDER)
    disk.free_bytes = 50
    with pytest.raises(OSError, match="No space left"):
        convert(disk)
    assert disk.listdir(FOLDER) == names
    disk.free_bytes = None
    convert(disk)
    assert contents(disk) == seen


# --- crashes


def crash_often(seed: int, start: Callable[[random.Random], SimulatedDisk], limits: Limits) -> SimulatedDisk:
    """Convert, with the power going after some operations, again and again until one run is let through."""
    rng = random.Random(seed)
    disk = start(rng)
    for _ in range(rng.randrange(1, 4)):
        disk.crash_at = disk.operations + rng.randrange(1, 60)
        try:
            convert(disk, limits)
        except Crash:
            disk = disk.after_crash(rng)
    disk.crash_at = None
    convert(disk, limits)
    return disk


@pytest.mark.parametrize("limits", [Limits(), SMALL], ids=["one", "split"])
def test_a_crash_at_any_operation_loses_nothing(limits: Limits) -> None:
    for seed in range(SEEDS * 2):
        expected: list[Record] = []

        def start(rng: random.Random, expected: list[Record] = expected) -> SimulatedDisk:
            segments, seen = random_log(rng)
            expected += seen
            return disk_with(segments)

        disk = crash_often(seed, start, limits)
        assert contents(disk) == expected, f"seed {seed}"
        assert not [name for name in disk.listdir(FOLDER) if name.endswith((".cleaned", ".swap"))]
        loaded = load(disk, clean=True)
        assert loaded.log_end_offset == expected[-1].offset + 1
        assert contents(disk) == expected, f"seed {seed}"


def test_every_single_operation_can_be_the_last() -> None:
    segments, seen = random_log(random.Random(12))
    whole = disk_with(segments)
    first = whole.operations
    convert(whole, SMALL)
    assert whole.operations - first > 20
    for last in range(first + 1, whole.operations + 1):
        for seed in range(3):
            disk = disk_with(segments)
            disk.crash_at = last
            with pytest.raises(Crash):
                convert(disk, SMALL)
            disk = disk.after_crash(random.Random(seed))
            convert(disk, SMALL)
            assert contents(disk) == seen, f"operation {last}, seed {seed}"


def test_a_compaction_that_kafka_had_not_finished_is_finished() -> None:
    """Killed between the new segment and the removal of the two that it was made from."""
    compacted = wrapper(1, Codec.GZIP, records_from(3, 2, step=5))
    extra = {log_path(0, ".log.swap"): compacted, log_path(0, ".index.swap"): b""}
    olds = {base: message(1, Record(base, 1, b"k", b"v")) for base in (0, 5, 9)}
    disk = disk_with(olds, extra)
    convert(disk, recovery_point=0)
    assert [record.offset for record in contents(disk)] == [3, 8, 9]


def test_a_compaction_that_kafka_had_begun_is_forgotten() -> None:
    extra = {log_path(0, ".log.cleaned"): b"half", log_path(5, ".log.swap"): b"made in the same round"}
    olds = {base: message(1, Record(base, 1, b"k", b"v")) for base in (0, 5)}
    disk = disk_with(olds, extra)
    finish_interrupted(disk, FOLDER)
    convert(disk, recovery_point=0)
    assert [record.offset for record in contents(disk)] == [0, 5]
    assert disk.listdir(FOLDER) == sorted(
        f"{base:020d}{suffix}" for base in (0, 5) for suffix in (".log", ".index", ".timeindex")
    )
