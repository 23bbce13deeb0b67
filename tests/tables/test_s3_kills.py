"""Drivers on S3 that are killed at each step of a write, a merge and a compaction, or that sleep there.

Another driver finishes meanwhile: no row is lost or doubled, whoever reads, and the one that slept gives way
with a sentence. Against moto here, against versitygw in `make test-s3`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.spark.readers import Expected, readers, table_faults
from tests.support.s3 import S3, s3_server
from tests.support.versitygw import versitygw
from tests.support.wait import patience
from tests.tables.table_driver import BALANCES, EVENTS, ROWS, STEPS, rows_of
from tidelog.spark.tables.store import s3_options

BATCHES = 5
ROOT = "s3://tables/root"
SHORT = ("commit",)


@pytest.fixture(params=["moto", pytest.param("versitygw", marks=pytest.mark.s3)])
def s3(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[S3]:
    with s3_server() if request.param == "moto" else versitygw(tmp_path) as server:
        yield server


@contextmanager
def driver(server: S3, step: str, batches: int = BATCHES) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.tables.table_driver", ROOT, step, str(batches)],
        env={**os.environ, **server.environment},
        cwd=Path(__file__).parents[2],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def go_on(process: subprocess.Popen[str]) -> list[str]:
    """Let a driver finish; returns the lines that it says."""
    out, _ = process.communicate("\n", timeout=patience(120))
    assert process.returncode == 0
    return out.strip().splitlines()


def faults(server: S3) -> list[str]:
    events = (row for batch in range(BATCHES) for row in rows_of(batch))
    balances = ((f"user-{number}", BATCHES - 1) for number in range(ROWS))
    expected = {
        EVENTS: Expected.of(("id", "day"), events),
        BALANCES: Expected.of(("user", "balance"), balances),
    }
    options = s3_options("tables", server.hadoop, {})
    return table_faults(readers(ROOT, None, options), expected)


every_step = pytest.mark.parametrize(
    "step", [pytest.param(step, marks=[] if step in SHORT else [pytest.mark.long]) for step in STEPS]
)


@every_step
def test_a_driver_that_is_killed_is_succeeded_without_a_lost_or_doubled_row(s3: S3, step: str) -> None:
    with driver(s3, step) as victim:
        assert said(victim) == step
        victim.send_signal(signal.SIGKILL)
        victim.wait()
    with driver(s3, "") as successor:
        assert go_on(successor) == ["done"]
    assert faults(s3) == []


@every_step
def test_a_driver_that_sleeps_while_another_one_finishes_gives_way(s3: S3, step: str) -> None:
    with driver(s3, step) as sleeper:
        assert said(sleeper) == step
        sleeper.send_signal(signal.SIGSTOP)
        with driver(s3, "") as other:
            assert go_on(other) == ["done"]
        sleeper.send_signal(signal.SIGCONT)
        lines = go_on(sleeper)
    if step.startswith("compact"):
        assert lines[0] == f"replaced {3 if step == 'compacted' else 0}"
    assert lines[-1].startswith("Fenced: table ")
    assert "from another driver" in lines[-1]
    assert faults(s3) == []
