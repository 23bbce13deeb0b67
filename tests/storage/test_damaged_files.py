"""Whatever stands in the files of a log, it loads, keeps the whole batches before the damage and goes on."""

from __future__ import annotations

import random
from contextlib import suppress
from itertools import takewhile

import pytest

from tests.storage.helpers import NOW, append, batch, config, end_transaction, open_log
from tests.support.scale import scale
from tests.support.simdisk import Inode, SimulatedDisk
from tidelog.errors import KafkaError
from tidelog.records.batch import (
    HEADER_SIZE,
    MAGIC,
    crc_is_valid,
    iter_batches,
    read_control_record,
    read_header,
    read_records,
)
from tidelog.storage.log import Log
from tidelog.storage.log_segment import LOG

RUNS = scale(300, 6000)
SETTINGS = config(segment_bytes=900, index_interval_bytes=200)


def written(*, clean: bool) -> SimulatedDisk:
    disk = SimulatedDisk()
    log = open_log("/log", SETTINGS, disk=disk)
    for sequence in range(30):
        append(log, batch(2, producer=(1, 0, 2 * sequence), transactional=True), epoch=sequence // 10)
        end_transaction(log, 1, commit=sequence % 3 > 0)
    log.flush(NOW)
    if clean:
        log.close(NOW)
    return disk


def damage(disk: SimulatedDisk, rng: random.Random) -> str:
    path = rng.choice(sorted(path for path in disk.files if path.startswith("/log/")))
    data = disk.files[path].data
    kind = rng.choice(["flip", "cut", "extend", "zeros", "remove", "garbage", "swap"])
    if kind == "flip" and data:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    elif kind == "cut":
        del data[rng.randint(0, len(data)) :]
    elif kind == "extend":
        data += rng.randbytes(rng.randint(1, 100))
    elif kind == "zeros":
        data += bytes(rng.randint(1, 5000))
    elif kind == "remove":
        del disk.files[path]
    elif kind == "garbage":
        data[:] = rng.randbytes(rng.randint(0, 300))
    elif kind == "swap" and len(data) > 20:
        at, other = rng.randrange(len(data) - 8), rng.randrange(len(data) - 8)
        data[at : at + 8], data[other : other + 8] = data[other : other + 8], data[at : at + 8]
    return f"{kind} {path}"


def copy_of(disk: SimulatedDisk) -> SimulatedDisk:
    twin = SimulatedDisk()
    twin.dirs = set(disk.dirs)
    twin.files = {path: Inode(bytes(inode.data)) for path, inode in disk.files.items()}
    return twin


Aborted = tuple[int, int, int]


class Whole:
    """What a log is to hold, by a plain reading of its files: batches up to the first that is not whole."""

    def __init__(self, disk: SimulatedDisk) -> None:
        paths = sorted(path for path in disk.files if path.endswith(".log"))
        bases = [int(path.rpartition("/")[2].removesuffix(".log")) for path in paths]
        self.start = self.end = bases[0] if bases else 0
        self.batches: list[bytes] = []
        for base, path in zip(bases, paths, strict=True):
            if base != self.end or not self._read(base, bytes(disk.files[path].data)):
                break

    def _read(self, base: int, data: bytes) -> bool:
        """Whether all of a file is whole. A CRC does not cover offsets, and cleaning leaves gaps in them."""
        at = 0
        while len(data) - at >= HEADER_SIZE:
            header = read_header(data, at)
            total = header.total_size
            if header.magic != MAGIC or total < HEADER_SIZE or total > len(data) - at:
                break
            if not self.end <= header.base_offset <= header.last_offset < base + (1 << 31):
                break
            if not crc_is_valid(data, at, header):
                break
            self.batches.append(data[at : at + total])
            self.end = header.next_offset
            at += total
        return at == len(data)

    def aborted(self) -> list[Aborted]:
        """Producer, first and last offset of every aborted transaction."""
        began: dict[int, int] = {}
        found: list[Aborted] = []
        for data in self.batches:
            header = read_header(data)
            if not header.is_control:
                began.setdefault(header.producer_id, header.base_offset)
                continue
            ended = read_control_record(read_records(data)[0])
            assert ended is not None
            first = began.pop(header.producer_id, None)
            if first is not None and not ended.commit:
                found.append((header.producer_id, first, header.last_offset))
        return found


def held(log: Log) -> list[bytes]:
    """Every batch that the log gives to a reader."""
    found: list[bytes] = []
    offset = log.log_start_offset
    while (piece := log.read(offset, 1 << 20).slice) is not None:
        data = piece.read()
        for position, header in iter_batches(data):
            found.append(data[position : position + header.total_size])
            offset = header.next_offset
    return found


def aborted(log: Log) -> list[Aborted]:
    return [
        (found.producer_id, found.first_offset, found.last_offset)
        for found in log.aborted_transactions(log.log_start_offset, log.log_end_offset)
    ]


def goes_on(log: Log) -> None:
    """What is appended is stored, found by offset and time, and there after a stop."""
    result = log.appender.append_as_leader(batch(value=b"next"), leader_epoch=9, now_ms=NOW)
    stored = log.read(result.base_offset, 1).slice
    assert stored is not None
    assert read_records(stored.read())[0].value == b"next"
    with suppress(KafkaError):  # these may meet a damaged batch
        log.offset_for_timestamp(NOW)
        log.max_timestamp()
    log.close(NOW)


@pytest.mark.parametrize("part", range(4))
def test_after_a_crash_every_whole_batch_before_the_damage_is_kept(part: int) -> None:
    origin = written(clean=False)
    for seed in range(part * RUNS // 4, (part + 1) * RUNS // 4):
        rng = random.Random(seed)
        disk = copy_of(origin)
        done = [damage(disk, rng) for _ in range(rng.randint(1, 4))]
        expected = Whole(disk)
        try:
            log = open_log("/log", SETTINGS, disk=disk)
            assert (log.log_start_offset, log.log_end_offset) == (expected.start, expected.end)
            assert held(log) == expected.batches
            assert aborted(log) == expected.aborted()
            for segment in log.segments:
                assert disk.size(segment.path(LOG)) == segment.size
            goes_on(log)
        except BaseException as error:
            error.add_note(f"seed {seed}: {done}")
            raise


@pytest.mark.parametrize("part", range(4))
def test_after_a_clean_stop_no_damage_changes_a_batch_that_is_whole(part: int) -> None:
    """Files that a clean stop vouched for are not read before they are asked for. What is read then is what
    was written, up to the first batch that is damaged; a transaction index that is wrong is not believed."""
    origin = written(clean=True)
    original = Whole(origin)
    for seed in range(part * RUNS // 4, (part + 1) * RUNS // 4):
        rng = random.Random(seed)
        disk = copy_of(origin)
        done = damage(disk, rng)
        start, present = Whole(disk).start, set(Whole(disk).batches)
        expected = list(takewhile(present.__contains__, original.batches)) if start == 0 else []
        try:
            log = open_log("/log", SETTINGS, disk=disk, clean=True)
            assert log.log_start_offset == start
            found = batches_until_damage(log)
            assert found[: len(expected)] == expected
            if ".log" not in done:
                assert found == original.batches
            if ".log" not in done and ".txnindex" not in done:
                assert aborted(log) == original.aborted()
            goes_on(log)
        except BaseException as error:
            error.add_note(f"seed {seed}: {done}")
            raise


def batches_until_damage(log: Log) -> list[bytes]:
    found: list[bytes] = []
    offset = log.log_start_offset
    try:
        while (piece := log.read(offset, 1).slice) is not None:
            data = piece.read()
            header = read_header(data)
            if not crc_is_valid(data, 0, header):
                break
            found.append(data[: header.total_size])
            offset = header.next_offset
    except KafkaError:
        pass
    return found
