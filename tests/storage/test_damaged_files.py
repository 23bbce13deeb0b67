"""Whatever stands in the files of a log, it loads, keeps the whole batches before the damage and goes on."""

from __future__ import annotations

import random

import pytest

from tests.storage.helpers import NOW, append, batch, config, end_transaction, open_log
from tests.support.scale import scale
from tests.support.simdisk import Inode, SimulatedDisk
from tidelog.errors import KafkaError
from tidelog.records.batch import crc_is_valid, iter_batches
from tidelog.storage.log import Log

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


def look_at_everything(log: Log) -> None:
    offset = log.log_start_offset
    while (found := log.read(offset, 1 << 20).slice) is not None:
        data = found.read()
        whole = list(iter_batches(data))
        if not whole:
            break
        offset = whole[-1][1].next_offset
    log.aborted_transactions(0, log.log_end_offset)
    log.offset_for_timestamp(NOW)
    log.max_timestamp()


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("part", range(4))
def test_damage_of_any_file_is_survived(clean: bool, part: int) -> None:
    origin = written(clean=clean)
    for seed in range(part * RUNS // 4, (part + 1) * RUNS // 4):
        rng = random.Random(seed)
        disk = copy_of(origin)
        done = [damage(disk, rng) for _ in range(rng.randint(1, 4))]
        try:
            log = open_log("/log", SETTINGS, disk=disk, clean=clean)
            try:
                look_at_everything(log)
            except KafkaError:
                pass  # batches that a clean stop vouched for are not read before they are asked for
            log.append_as_leader(batch(), leader_epoch=9, now_ms=NOW)
            stored = log.read(log.log_end_offset - 1, 1).slice
            assert stored is not None
            log.close(NOW)
        except BaseException as error:
            error.add_note(f"seed {seed}: {done}")
            raise


def test_after_a_crash_only_whole_batches_are_left_whatever_the_log_held() -> None:
    origin = written(clean=False)
    for seed in range(RUNS):
        rng = random.Random(seed)
        disk = copy_of(origin)
        done = damage(disk, rng)
        try:
            log = open_log("/log", SETTINGS, disk=disk)
            for segment in log.segments:
                data = segment.file.pread(1 << 20, 0)
                end = 0
                for position, header in iter_batches(data):
                    assert crc_is_valid(data, position, header)
                    end = position + header.total_size
                assert end == len(data) == segment.size
        except BaseException as error:
            error.add_note(f"seed {seed}: {done}")
            raise
