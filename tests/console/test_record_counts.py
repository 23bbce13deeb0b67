"""Exact numbers of records, compared with what a consumer reads: transactions, compaction, deletions."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidelog.console.record_counts import HEADER, LogExtent, RecordCounts

KEY = ("t", 0)


def batch(
    base: int, records: int, *, control: bool = False, last_delta: int | None = None, body: int = 20
) -> bytes:
    """The header of a batch and bytes in the place of its records."""
    delta = records - 1 if last_delta is None else last_delta
    attributes = 0x20 if control else 0
    return HEADER.pack(
        base, HEADER.size - 12 + body, 0, 2, 0, attributes, delta, base + delta, records
    ) + bytes(body)


class Logs:
    """Segment files of one log, and its extent."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files: dict[int, bytes] = {}
        self.generation = 0

    def write(self, base: int, data: bytes) -> None:
        self.files[base] = data
        path = self.folder / f"{base:020d}.log"
        path.unlink(missing_ok=True)
        path.write_bytes(data)

    def append(self, base: int, data: bytes) -> None:
        self.files[base] += data
        with (self.folder / f"{base:020d}.log").open("ab") as file:
            file.write(data)

    def extent(self, start: int, end: int) -> dict[tuple[str, int], LogExtent]:
        segments = tuple((base, len(data)) for base, data in sorted(self.files.items()))
        return {KEY: LogExtent(str(self.folder), self.generation, start, end, segments)}


@pytest.fixture
def logs(tmp_path: Path) -> Logs:
    return Logs(tmp_path)


def test_markers_and_compacted_records_do_not_count(logs: Logs) -> None:
    logs.write(0, batch(0, 5) + batch(5, 1, control=True) + batch(6, 2, last_delta=9))
    logs.write(16, batch(16, 4, body=300_000) + batch(20, 1))
    counts = RecordCounts()
    assert counts.count(logs.extent(0, 21), 10) == {KEY: 12}
    assert counts.newest_ms(KEY) == 20, "the helper gives each batch its last offset as timestamp"


def test_new_batches_are_added_and_old_ones_taken_away(logs: Logs) -> None:
    counts = RecordCounts()
    logs.write(0, batch(0, 5))
    assert counts.count(logs.extent(0, 5), 10) == {KEY: 5}
    logs.append(0, batch(5, 3) + batch(8, 2))
    assert counts.count(logs.extent(0, 8), 10) == {KEY: 8}, "a batch above the high watermark does not count"
    assert counts.count(logs.extent(0, 10), 10) == {KEY: 10}
    assert counts.count(logs.extent(2, 10), 10) == {KEY: 8}, "the log begins within a batch"
    assert counts.count(logs.extent(8, 10), 10) == {KEY: 2}
    assert counts.count(logs.extent(10, 10), 10) == {KEY: 0}


def test_a_compacted_or_truncated_segment_is_counted_again(logs: Logs) -> None:
    counts = RecordCounts()
    logs.write(0, batch(0, 5) + batch(5, 5))
    assert counts.count(logs.extent(0, 10), 10) == {KEY: 10}
    logs.write(0, batch(0, 1, last_delta=4, body=8) + batch(5, 5))
    assert counts.count(logs.extent(0, 10), 10) == {KEY: 6}
    logs.generation = 1
    logs.write(0, batch(0, 2) + batch(2, 4))
    assert counts.count(logs.extent(0, 6), 10) == {KEY: 6}


def test_a_count_goes_on_where_its_time_ended(logs: Logs) -> None:
    counts = RecordCounts()
    logs.write(0, batch(0, 5))
    assert counts.count(logs.extent(0, 5), 0) == {KEY: None}
    assert counts.count(logs.extent(0, 5), 10) == {KEY: 5}


def test_a_missing_file_or_an_old_format_has_no_count(logs: Logs) -> None:
    logs.write(0, batch(0, 5).replace(b"\x02", b"\x01", 1))
    assert RecordCounts().count(logs.extent(0, 5), 10) == {KEY: None}
    (logs.folder / f"{0:020d}.log").unlink()
    assert RecordCounts().count(logs.extent(0, 5), 10) == {KEY: None}
