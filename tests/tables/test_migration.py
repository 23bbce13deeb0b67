"""Data folders of the format before Delta become Delta tables: nothing is lost, also after kills."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from click.testing import CliRunner
from deltalake import DeltaTable

from tests.tables.old_tables import STRING, OldFolder, balances, credits
from tidelog.cli.main import main
from tidelog.spark.pipelines import runner
from tidelog.spark.pipelines.migrate import migrate, refuse_old_tables
from tidelog.spark.pipelines.run_options import Options
from tidelog.spark.tables.delta_log import DeltaLog
from tidelog.spark.tables.errors import Fenced, ForeignCheckpoint, TableError
from tidelog.spark.tables.identity import Batch
from tidelog.spark.tables.old_format import is_old, slug, writer_of
from tidelog.spark.tables.store import Store

QUERY = "6a9d2f0e-1111-2222-3333-444455556666"
HASHED = "my-pipe/flow"
LONG = os.environ.get("TIDELOG_LONG") == "1"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data folder with two old tables and the checkpoints that wrote them."""
    for writer in ("collect/credits", "earnings/credits", HASHED):
        checkpoint = tmp_path / "data" / "checkpoints" / writer
        checkpoint.mkdir(parents=True)
        (checkpoint / "metadata").write_text(json.dumps({"id": QUERY}))
    credits(tmp_path / "data" / "tables" / "credits")
    balances(tmp_path / "data" / "tables" / "balances")
    # The hash in the fixture's marker is that of this name.
    markers = tmp_path / "data" / "tables" / "credits" / "_tidelog" / "batches"
    for path in markers.glob("my-pipe-flow-*"):
        path.rename(path.with_name(path.name.replace("my-pipe-flow-d2f5f1f8", slug(HASHED))))
    return tmp_path / "data"


def rows(data: Path, table: str) -> list[dict[str, object]]:
    return list(DeltaTable(str(data / "tables" / table)).to_pyarrow_table().to_pylist())


def check(data: Path, expected: list[str], newest: dict[object, int]) -> None:
    found = rows(data, "credits")
    assert Counter(row["id"] for row in found) == Counter(expected)
    assert {row["id"]: row["late"] for row in found if row["late"] is not None} == {"late": 7}
    assert {row["id"]: row["day"] for row in found if row["id"] in ("a0", "late", "other")} == {
        "a0": "2026-11-15",
        "late": "2026-11-16",
        "other": None,
    }
    of_users = rows(data, "balances")
    assert len(of_users) == len(newest)
    assert {row["user"]: row["balance"] for row in of_users} == newest
    assert set(of_users[0]) == {"user", "balance", "day"}


@pytest.fixture
def expected(tmp_path: Path) -> tuple[list[str], dict[object, int]]:
    return credits(tmp_path / "x" / "credits"), balances(tmp_path / "x" / "balances")


def test_no_row_is_lost_doubled_or_made_up(data: Path, expected: tuple[list[str], dict[object, int]]) -> None:
    done = {table.name: table for table in migrate(str(data))}
    check(data, *expected)
    assert done["credits"].batches == {"collect/credits": 6, HASHED: 3}
    assert (done["balances"].rows, done["balances"].batches) == (15, {"earnings/credits": 4})
    assert (
        DeltaTable(str(data / "tables" / "balances")).metadata().configuration["tidelog.keys"] == '["user"]'
    )
    # The old files are still there, and a second migration finds nothing to do.
    assert list((data / "tables" / "balances").rglob("earnings-credits.*.parquet"))
    assert migrate(str(data)) == []


def test_the_old_checkpoint_continues_exactly_and_another_one_is_refused(data: Path) -> None:
    migrate(str(data))
    for table, writer, newest in (("credits", "collect/credits", 6), ("balances", "earnings/credits", 4)):
        snapshot = DeltaLog(str(data / "tables" / table)).snapshot()
        assert snapshot.has(Batch(writer, newest, QUERY)), "the batch may be replayed, and is skipped"
        assert not snapshot.has(Batch(writer, newest + 1, QUERY))
        with pytest.raises(ForeignCheckpoint):
            snapshot.has(Batch(writer, newest + 1, "another query"))
        with pytest.raises(Fenced):
            snapshot.has(Batch(writer, newest - 1, QUERY))
        # A batch that computes from the table before it finds that version.
        commit = snapshot.commit_of(writer, newest)
        assert commit is not None
        before = DeltaTable(str(data / "tables" / table), version=commit.version - 1).to_pyarrow_table()
        assert before.num_rows < snapshot.table.to_pyarrow_table().num_rows
    before_batch = {row["user"]: row["balance"] for row in before.to_pylist()}
    assert before_batch["u7"] == 30


def run_and_kill(data: Path, at: int) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "tests.tables.old_tables", str(data), str(at)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, -9), done.stderr
    return done.stdout.strip()


def test_a_migration_that_is_killed_at_any_step_continues(
    data: Path, tmp_path: Path, expected: tuple[list[str], dict[object, int]]
) -> None:
    """Each attempt dies one step later than the one before; all of them work on the same folder."""
    step = 0
    said = ""
    while not said:
        step += 1 if LONG else 4
        said = run_and_kill(data, step)
    assert step > 8
    check(data, *expected)
    assert not is_old(Store.of(None, data / "tables" / "credits"))


@pytest.mark.parametrize("at", [4])
def test_one_kill_then_a_whole_attempt(
    data: Path, at: int, expected: tuple[list[str], dict[object, int]]
) -> None:
    assert run_and_kill(data, at) == ""
    migrate(str(data))
    check(data, *expected)


def test_the_command_reports_and_says_what_can_be_removed(
    data: Path, expected: tuple[list[str], dict[object, int]]
) -> None:
    result = CliRunner().invoke(main, ["pipeline", "migrate", "--data", str(data)])
    assert result.exit_code == 0, result.output
    assert "credits: 14 rows, up to batch 6 of collect/credits, batch 3 of my-pipe/flow" in result.output
    assert "balances: 15 rows, up to batch 4 of earnings/credits" in result.output
    assert f"rm -r {data}/tables/balances/_tidelog {data}/tables/credits/_tidelog" in result.output
    for table in ("balances", "credits"):
        shutil.rmtree(data / "tables" / table / "_tidelog")
    check(data, *expected)
    again = CliRunner().invoke(main, ["pipeline", "migrate", "--data", str(data)])
    assert "no table" in again.output


def test_an_old_folder_is_refused_with_the_command_that_helps(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "check_spark", lambda: None)
    with pytest.raises(TableError, match=f"tidelog pipeline migrate --data {data}"):
        runner.start(["collect"], Options(data=f"{data}/"))
    store = Store.of(None, data / "tables")
    with pytest.raises(TableError, match=f"tidelog pipeline migrate --data {data}"):
        refuse_old_tables(store, str(data))
    migrate(str(data))
    refuse_old_tables(store, str(data))


def test_a_writer_that_cannot_be_told_is_asked_for(tmp_path: Path) -> None:
    old = OldFolder(tmp_path / "tables" / "t", {"id": STRING, "day": STRING})
    old.batch(slug(HASHED), 0, {"id": ["x"]})
    with pytest.raises(TableError, match="give its name, --writer NAME"):
        migrate(str(tmp_path))
    [done] = migrate(str(tmp_path), writers=[HASHED])
    assert done.batches == {HASHED: 0}
    assert writer_of("t", "collect-left_swipes", []) == "collect/left_swipes"


def test_a_delta_table_that_is_not_of_a_migration_is_not_touched(data: Path) -> None:
    import pyarrow as pa
    from deltalake import write_deltalake

    write_deltalake(str(data / "tables" / "credits"), pa.table({"id": ["foreign"]}))
    with pytest.raises(TableError, match="not of a migration"):
        migrate(str(data))


def test_a_running_pipeline_is_not_migrated(data: Path) -> None:
    from tidelog.spark.pipelines.state import StateFolder, this_process

    folder = StateFolder(str(data))
    claim = folder.claim("collect")
    try:
        folder.write(this_process("collect"))
        with pytest.raises(TableError, match="collect runs on"):
            migrate(str(data))
    finally:
        claim.close()
