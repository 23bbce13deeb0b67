"""Indexes in memory and on disk give the same answers as a plain list."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.simdisk import Inode, SimulatedDisk, SimulatedFile
from tidelog.storage import index as index_module
from tidelog.storage.index import GrowingOffsetIndex, GrowingTimeIndex, StoredOffsetIndex, StoredTimeIndex

PATCHED = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]  # the same for every example
INT_MAX = (1 << 31) - 1
rising = st.lists(st.integers(0, INT_MAX), unique=True, max_size=30).map(sorted)


LOG_SIZE = 1 << 32


@pytest.fixture(autouse=True, params=["held in memory", "read in blocks"])
def in_blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "read in blocks":
        monkeypatch.setattr(index_module, "HELD_BYTES", 0)
        monkeypatch.setattr(index_module, "BLOCK_BYTES", 40)


def file_of(data: bytes) -> SimulatedFile:
    return SimulatedFile(SimulatedDisk(), "index", Inode(data))


@settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=PATCHED)
@given(rising, rising, st.lists(st.integers(0, INT_MAX), max_size=10))
def test_offset_lookups(offsets: list[int], positions: list[int], asked: list[int]) -> None:
    entries = list(zip(offsets, positions, strict=False))
    growing = GrowingOffsetIndex(1 << 20)
    for entry in entries:
        growing.append(*entry)
    data = growing.encode()
    stored, loaded = StoredOffsetIndex(file_of(data), LOG_SIZE), GrowingOffsetIndex(1 << 20, data)
    assert loaded.encode() == data
    for value in [*asked, *offsets, *positions]:
        before = [position for offset, position in entries if offset <= value]
        behind = [offset for offset, position in entries if position >= value]
        next_one = [position for offset, position in entries if offset >= value]
        for index in (growing, stored, loaded):
            assert index.lookup(value) == (before[-1] if before else 0)
            assert index.around(value) == (index.lookup(value), next_one[0] if next_one else -1)
            assert index.offset_after(value) == (behind[0] if behind else None)


@settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=PATCHED)
@given(
    st.lists(st.tuples(st.integers(-1, 1 << 62), st.integers(0, INT_MAX)), max_size=30),
    st.lists(st.integers(-1, 1 << 62), max_size=10),
)
def test_time_lookups(appended: list[tuple[int, int]], asked: list[int]) -> None:
    entries: list[tuple[int, int]] = []
    growing = GrowingTimeIndex(1 << 20)
    for timestamp, offset in appended:
        growing.maybe_append(timestamp, offset)
        if timestamp > (entries[-1][0] if entries else -1):
            entries.append((timestamp, offset))
    data = growing.encode()
    assert len(data) == 12 * len(entries)
    stored, loaded = StoredTimeIndex(file_of(data)), GrowingTimeIndex(1 << 20, data)
    for value in [*asked, *(timestamp for timestamp, _ in appended)]:
        before = [offset for timestamp, offset in entries if timestamp <= value]
        for index in (growing, stored, loaded):
            assert index.lookup(value) == (before[-1] if before else 0)
            assert index.last() == (entries[-1] if entries else None)


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=PATCHED)
@given(rising, st.integers(0, INT_MAX))
def test_truncation_keeps_what_is_below(offsets: list[int], at: int) -> None:
    index = GrowingOffsetIndex(1 << 20)
    for place, offset in enumerate(offsets):
        index.append(offset, place)
    index.truncate(at)
    assert list(index.offsets) == [offset for offset in offsets if offset < at]
    assert len(index.positions) == len(index.offsets)
