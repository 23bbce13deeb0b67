"""Keyed tables in other folders than new ones get: they go on working, and can be moved in one commit."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner

from tests.tables.arrow_rows import frame, without_spark
from tidelog.cli.main import main
from tidelog.spark.pipelines.state import StateFolder, this_process
from tidelog.spark.tables import TableError, Tables, layout
from tidelog.spark.tables.layout import lay_out

DAYS = (date(2026, 11, 14), date(2026, 11, 15))
TABLE = "daily_earnings"


def earn(tables: Tables, batch: int, *rows: tuple[str, date, int], by_day: bool) -> None:
    users, days, earned = (list(column) for column in zip(*rows, strict=True))
    columns = {"user_id": pa.array(users), "day": pa.array(days), "earned": pa.array(earned, pa.int64())}
    folders = ("day",) if by_day else ()
    named = {"writer": "earnings/credits", "batch": batch}
    tables.write(frame(columns), TABLE, keys=("user_id", "day"), partition_by=folders, **named)  # type: ignore[arg-type]


def held(tables: Tables) -> dict[tuple[str, date], int]:
    rows = tables.delta(TABLE).to_pyarrow_table().to_pylist()
    found = {(row["user_id"], row["day"]): row["earned"] for row in rows}
    assert len(found) == len(rows), "one row for each key"
    return found


@pytest.fixture
def tables(tmp_path: Path) -> Tables:
    """A table that an earlier version made, without folders."""
    tables = without_spark(tmp_path / "data" / "tables")
    earn(tables, 0, ("ann", DAYS[0], 1), ("ben", DAYS[1], 2), by_day=False)
    return tables


def test_a_table_without_folders_takes_the_batches_of_a_version_that_would_make_some(tables: Tables) -> None:
    earn(tables, 1, ("ann", DAYS[0], 10), ("ann", DAYS[1], 3), by_day=True)
    assert held(tables) == {("ann", DAYS[0]): 10, ("ben", DAYS[1]): 2, ("ann", DAYS[1]): 3}
    assert tables.delta(TABLE).metadata().partition_columns == []


def test_migrate_moves_it_into_folders_and_its_writer_goes_on(tables: Tables, tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    done = CliRunner().invoke(main, ["pipeline", "migrate", "--data", data])
    assert done.exit_code == 0, done.output
    assert "daily_earnings: 2 rows in new folders" in done.output
    again = CliRunner().invoke(main, ["pipeline", "migrate", "--data", data])
    assert "none has other folders" in again.output
    found = tables.delta(TABLE)
    assert found.metadata().partition_columns == ["day"]
    assert all("/day=2026-11-1" in uri for uri in found.file_uris())
    earn(tables, 0, ("ann", DAYS[0], 99), by_day=True)  # a replay: the table has the batch
    earn(tables, 1, ("ann", DAYS[0], 10), by_day=True)
    assert held(tables) == {("ann", DAYS[0]): 10, ("ben", DAYS[1]): 2}


def test_folders_stay_while_a_pipeline_runs_or_another_writer_is_faster(
    tables: Tables, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = StateFolder(str(tmp_path / "data"))
    claim = folder.claim("earnings")
    folder.write(this_process("earnings"))
    done = CliRunner().invoke(main, ["pipeline", "migrate", "--data", str(tmp_path / "data")])
    claim.close()
    assert done.exit_code == 1
    assert "earnings runs on" in done.output
    place = tables.store.below(TABLE)
    write = layout.write_deltalake

    def overtaken(*given: object, **named: object) -> None:
        earn(tables, 1, ("ann", DAYS[0], 10), by_day=True)
        write(*given, **named)  # type: ignore[call-overload]

    monkeypatch.setattr(layout, "write_deltalake", overtaken)
    with pytest.raises(TableError, match="another writer has changed table daily_earnings meanwhile"):
        lay_out(place, ("day",))
    assert held(tables) == {("ann", DAYS[0]): 10, ("ben", DAYS[1]): 2}


def test_a_table_without_keys_stays_as_it_is(tmp_path: Path) -> None:
    tables = without_spark(tmp_path)
    tables.write(frame({"n": pa.array([1])}), "plain", writer="w", batch=0)
    with pytest.raises(TableError, match="table plain has no keys"):
        lay_out(tables.store.below("plain"), ("n",))
