"""Compactors as processes that are paused and killed beside each other and beside merges: no row is lost or
doubled."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.support.wait import eventually
from tidelog.spark.tables.compactor import Compactor
from tidelog.spark.tables.store import Store

LONG = os.environ.get("TIDELOG_LONG") == "1"
ROUNDS = 60 if LONG else 8


@contextmanager
def process(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    started = subprocess.Popen(
        [sys.executable, "-m", "tests.tables.compacting", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    try:
        yield started
    finally:
        started.kill()
        started.communicate()


def said(started: subprocess.Popen[str]) -> str:
    assert started.stdout is not None
    return started.stdout.readline().strip()


def go_on(started: subprocess.Popen[str]) -> str:
    """Let a process that waits at its step finish; returns its last line."""
    out, _ = started.communicate("\n")
    assert started.returncode == 0
    return out.strip().splitlines()[-1]


@pytest.fixture
def table(tmp_path: Path) -> str:
    uri = str(tmp_path / "table")
    for batch in range(6):
        rows = pa.table({"id": [f"{batch}/{n}" for n in range(5)], "batch": [batch] * 5, "day": ["d"] * 5})
        write_deltalake(uri, rows, mode="append", partition_by=["day"])
    return uri


def ids(uri: str) -> Counter[str]:
    return Counter(DeltaTable(uri).to_pyarrow_table()["id"].to_pylist())


EXPECTED = Counter(f"{batch}/{n}" for batch in range(6) for n in range(5))


@pytest.mark.parametrize("step", ["write", "commit"])
def test_a_compactor_that_is_killed_changes_nothing_and_the_next_one_compacts(table: str, step: str) -> None:
    with process("compact", table, step) as victim:
        assert said(victim) == step
        victim.send_signal(signal.SIGKILL)
        victim.wait()
    assert ids(table) == EXPECTED
    assert Compactor(Store.of(None, table), small_files=4).run() == 6
    assert ids(table) == EXPECTED


@pytest.mark.parametrize("step", ["write", "commit"])
def test_a_compactor_that_slept_while_another_one_finished_gives_way(table: str, step: str) -> None:
    with process("compact", table, step) as sleeper:
        assert said(sleeper) == step
        sleeper.send_signal(signal.SIGSTOP)
        assert Compactor(Store.of(None, table), small_files=4).run() == 6
        sleeper.send_signal(signal.SIGCONT)
        assert go_on(sleeper) == "replaced 0"
    assert ids(table) == EXPECTED
    assert len(list(Path(table).rglob("compacted-*"))) == 1


@pytest.mark.parametrize("step", ["write", "commit"])
def test_a_compactor_that_slept_while_rows_were_merged_gives_way(table: str, step: str) -> None:
    with process("compact", table, step) as sleeper:
        assert said(sleeper) == step
        sleeper.send_signal(signal.SIGSTOP)
        DeltaTable(table).update({"batch": "77"}, predicate="id IN ('0/0', '5/4')")
        DeltaTable(table).delete("id = '3/3'")
        sleeper.send_signal(signal.SIGCONT)
        assert go_on(sleeper) == "replaced 0"
    rows = DeltaTable(table).to_pyarrow_table()
    assert Counter(rows["id"].to_pylist()) == EXPECTED - Counter(["3/3"])
    assert rows["batch"].to_pylist().count(77) == 2


def test_two_compactors_beside_two_writers_and_a_merge_with_kills(table: str) -> None:
    with (
        process("again", table) as first,
        process("again", table) as second,
        process("append", table, "a", str(ROUNDS)) as one,
        process("append", table, "b", str(ROUNDS)) as other,
        process("merge", table, str(ROUNDS // 2)) as merging,
    ):
        for _ in range(ROUNDS // 4):
            start = DeltaTable(table).version()
            eventually(lambda at=start: DeltaTable(table).version() > at + 2, "commits", 60)  # type: ignore[misc]
            with process("again", table) as victim:
                eventually(lambda at=start: DeltaTable(table).version() > at + 4, "commits", 60)  # type: ignore[misc]
                victim.kill()
        assert [said(each) for each in (one, other, merging)] == ["appended", "appended", "merged"]
        assert [each.poll() for each in (first, second)] == [None, None]
    written = Counter(f"{name}/{batch}/{n}" for name in "ab" for batch in range(ROUNDS) for n in range(3))
    assert ids(table) == EXPECTED + written + Counter(f"k{n}" for n in range(40))
    rows = DeltaTable(table).to_pyarrow_table().to_pylist()
    assert {row["batch"] for row in rows if row["id"].startswith("k")} == {100 + ROUNDS // 2 - 1}
    operations = [entry.get("tidelog") for entry in DeltaTable(table).history()]
    assert any(operations), "no compaction came through"
