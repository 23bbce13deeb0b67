"""A batch is found by its offset, whatever the sizes of batches, the gaps between them, and the index say."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.storage.helpers import batch, config, open_log
from tests.support.scale import scale
from tidelog.records.batch import patch_header
from tidelog.storage.disk import DiskFile
from tidelog.storage.index import GrowingOffsetIndex
from tidelog.storage.log import Log
from tidelog.storage.reads import Reads, WaitingReads

Place = tuple[int, int, int]  # position, size and base offset


class CountedReads(WaitingReads):
    def __init__(self) -> None:
        self.count = 0

    def pread(self, file: DiskFile, size: int, position: int, whole: int = 0) -> bytes | bytearray:
        self.count += 1
        return super().pread(file, size, position, whole)


def filled(folder: Path, rng: random.Random, sizes: tuple[int, ...], gaps: bool) -> tuple[Log, list[Place]]:
    """A log of one segment, and where its batches are; `gaps` as a cleaner leaves them."""
    log, places, offset, position = open_log(folder, config(index_interval_bytes=4096)), [], 0, 0
    for _ in range(60):
        offset += rng.choice((0, 0, 1, 50)) if gaps else 0
        data = batch(rng.randrange(1, 4), value=bytes(rng.choice(sizes)))
        patch_header(data, 0, offset, 0)
        result = log.append_as_follower(data, 0)
        assert result is not None
        places.append((position, len(data), offset))
        position += len(data)
        offset = result.last_offset + 1
    return log, places


def expected(log: Log, places: list[Place], offset: int) -> Place:
    ends = [base for _, _, base in places[1:]]
    for place, following in zip(places, [*ends, log.log_end_offset], strict=True):
        if offset < following:
            inside = offset <= place[2] + last_delta(log, place)
            return place if inside else places[places.index(place) + 1]
    raise AssertionError(f"there is no batch behind offset {offset}")


def last_delta(log: Log, place: Place) -> int:
    return log.segments[0].header_at(place[0]).last_offset_delta


@pytest.mark.parametrize("gaps", [False, True], ids=["dense", "with gaps"])
@pytest.mark.parametrize("sizes", [(10,), (9_000,), (10, 5_000, 20_000)], ids=["small", "large", "mixed"])
@pytest.mark.parametrize("seed", range(scale(2, 30)))
def test_every_offset_is_found(tmp_path: Path, seed: int, sizes: tuple[int, ...], gaps: bool) -> None:
    log, places = filled(tmp_path / "log", random.Random(seed), sizes, gaps)
    for offset in range(log.log_end_offset):
        assert log.segments[0].position_of(offset) == expected(log, places, offset)


def test_a_large_batch_is_found_with_one_read(tmp_path: Path) -> None:
    log, places = filled(tmp_path / "log", random.Random(1), (9_000,), gaps=False)
    for position, size, base in places[2:-1]:
        reads: Reads = CountedReads()
        assert log.segments[0].position_of(base, reads) == (position, size, base)
        assert isinstance(reads, CountedReads)
        assert reads.count == 1


@pytest.mark.parametrize("seed", range(scale(10, 200)))
def test_an_index_that_is_wrong_costs_time_and_not_truth(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    log, places = filled(tmp_path / "log", rng, (10, 9_000, 20_000), gaps=bool(seed % 2))
    segment = log.segments[0]
    wrong = GrowingOffsetIndex(1 << 20)
    entries = sorted(rng.sample(range(1, log.log_end_offset), 12))
    for offset, position in zip(entries, sorted(rng.choices(range(segment.size), k=12)), strict=True):
        wrong.append(offset, position)
    segment._growing_offsets = segment._offset_index = wrong
    for offset in range(log.log_end_offset):
        assert segment.position_of(offset) == expected(log, places, offset)
