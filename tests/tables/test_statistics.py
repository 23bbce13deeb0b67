"""Statistics of files: readers may skip a file by them, so they must never be narrower than the rows."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from tests.tables.delta_files import add, new_log
from tidelog.spark.tables.identity import Batch
from tidelog.spark.tables.statistics import TEXT_LENGTH, statistics


def of(path: Path, table: pa.Table, **options: object) -> dict[str, object]:
    pq.write_table(table, path / "file.parquet", **options)
    found = json.loads(statistics(pq.read_metadata(path / "file.parquet")))
    assert isinstance(found, dict)
    return found


def test_bounds_and_nulls_of_every_kind_of_column(tmp_path: Path) -> None:
    moment = datetime(2026, 11, 15, 12, 30, 1, 234567, UTC)
    table = pa.table(
        {
            "n": pa.array([3, None, -1], pa.int64()),
            "text": ["b", "a", None],
            "day": [date(2026, 11, 14), date(2026, 11, 15), None],
            "at": pa.array([moment, None, None], pa.timestamp("us", "UTC")),
            "x": [1.0, float("nan"), 2.0],
            "yes": [True, False, None],
            "price": [Decimal("1.20"), None, None],
            "raw": [b"\xff", b"\x00", None],
            "nothing": pa.array([None, None, None], pa.string()),
            "inner": [{"a": 1, "b": "x"}, {"a": 2, "b": None}, None],
            "many": [[1, 2], [], None],
        }
    )
    found = of(tmp_path, table, row_group_size=2)
    assert found == {
        "numRecords": 3,
        "minValues": {
            "n": -1,
            "text": "a",
            "day": "2026-11-14",
            "at": "2026-11-15T12:30:01.234567Z",
            "inner": {"a": 1, "b": "x"},
        },
        "maxValues": {
            "n": 3,
            "text": "b",
            "day": "2026-11-15",
            "at": "2026-11-15T12:30:01.234567Z",
            "inner": {"a": 2, "b": "x"},
        },
        "nullCount": {
            "n": 1,
            "text": 1,
            "day": 1,
            "at": 2,
            "x": 0,
            "yes": 1,
            "price": 2,
            "raw": 1,
            "nothing": 3,
            "inner": {"a": 1, "b": 2},
        },
    }


def test_long_texts_are_cut_to_wider_bounds(tmp_path: Path) -> None:
    low, high = "a" * 100, "z" * 100
    found = of(tmp_path, pa.table({"text": [low, high]}))
    bounds = found["minValues"], found["maxValues"]
    assert bounds[0] == {"text": "a" * TEXT_LENGTH}
    cut = bounds[1]["text"]  # type: ignore[index]
    assert len(cut) == TEXT_LENGTH + 1
    assert cut > high


def test_int96_timestamps_have_no_bounds(tmp_path: Path) -> None:
    table = pa.table({"at": pa.array([datetime(2026, 11, 15, tzinfo=UTC)], pa.timestamp("us", "UTC"))})
    found = of(tmp_path, table, use_deprecated_int96_timestamps=True)
    assert found == {"numRecords": 1, "minValues": {}, "maxValues": {}, "nullCount": found["nullCount"]}


def test_a_file_without_rows_has_no_bounds(tmp_path: Path) -> None:
    found = of(tmp_path, pa.table({"n": pa.array([], pa.int64())}))
    assert found["numRecords"] == 0
    assert found["minValues"] == {}


@pytest.mark.parametrize("wanted", [1, 150, 999])
def test_a_reader_that_skips_files_finds_every_row(tmp_path: Path, wanted: int) -> None:
    log = new_log(tmp_path)
    files = [add(log, [1, 2]), add(log, [100, 200, 150]), add(log, [999])]
    log.commit(log.snapshot(), Batch("w", 0), files)
    found = DeltaTable(log.uri).to_pyarrow_table(filters=[("n", "=", wanted)])
    assert found.column("n").to_pylist() == [wanted]
