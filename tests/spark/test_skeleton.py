"""`tidelog pipeline new`: its pipeline describes itself, and its test passes with the package's fixtures."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tidelog.cli.main import main
from tidelog.testing.pipelines import PipelineTest


def new(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["pipeline", "new", *arguments])


def test_a_new_pipeline_runs_and_its_test_passes(
    tmp_path: Path, tidelog_pipeline: PipelineTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = new("daily-totals", "--out", str(tmp_path / "mine"))
    assert made.exit_code == 0, made.output
    files = [tmp_path / "mine" / name for name in ("daily_totals.py", "test_daily_totals.py")]
    assert made.output.splitlines()[:2] == [str(path) for path in files]
    described = CliRunner().invoke(main, ["pipeline", "describe", str(files[0])])
    assert "daily_totals_events -> table daily_totals, topic daily_totals_totals" in described.output
    monkeypatch.setattr(sys, "path", [str(files[0].parent), *sys.path])
    tests = importlib.import_module("test_daily_totals")
    try:
        tests.test_events_are_counted_by_user_and_day(tidelog_pipeline)
    finally:
        for name in ("daily_totals", "test_daily_totals"):
            sys.modules.pop(name, None)


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text("precious")
    refused = new("mine", "--out", str(tmp_path))
    assert refused.exit_code == 1
    assert "test_mine.py exists already, and nothing was written" in refused.output
    assert [path.name for path in tmp_path.iterdir()] == ["test_mine.py"]
    assert (tmp_path / "test_mine.py").read_text() == "precious"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Mine", "cannot be the name"),
        ("a/b", "cannot be the name"),
        ("collect", "choose another name"),
        ("class", "class is a word of Python"),
        ("statistics", "Python has a module statistics already"),
        ("pyspark", "Python has a module pyspark already"),
        ("batch-metrics", "every run writes a table batch_metrics of its own"),
        ("quarantine", "every run writes a table quarantine of its own"),
    ],
)
def test_a_name_that_cannot_be_used_is_refused(tmp_path: Path, name: str, words: str) -> None:
    refused = new(name, "--out", str(tmp_path))
    assert refused.exit_code == 1
    assert words in refused.output
    assert not list(tmp_path.iterdir())
