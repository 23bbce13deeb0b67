"""The walk through a new pipeline in docs/new-pipeline.md: its file is saved, described and run."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from tidelog.cli.main import main
from tidelog.testing.pipelines import PipelineTest

DOCS = Path(__file__).parent.parent.parent / "docs" / "new-pipeline.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", DOCS.read_text(), re.MULTILINE | re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "long_looks.py").write_text(blocks("python")[0])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    return tmp_path


def test_the_new_pipeline_describes_itself_as_shown(folder: Path) -> None:
    [block] = [block for block in blocks("console") if "describe" in block]
    command, _, shown = block.partition("\n")
    result = CliRunner().invoke(main, command.removeprefix("$ tidelog ").split())
    assert result.exit_code == 0, result.output
    assert result.output == shown


def test_the_flags_of_the_walk_are_those_of_the_tool() -> None:
    help_text = CliRunner().invoke(main, ["pipeline", "run", "--help"]).output
    flags = set(re.findall(r"--[a-z][a-z-]+", DOCS.read_text()))
    assert flags - set(re.findall(r"--[a-z][a-z-]+", help_text)) == set()


def test_the_new_pipeline_passes_its_test(folder: Path, tidelog_pipeline: PipelineTest) -> None:
    [code] = [block for block in blocks("python") if "def test_long_looks" in block]
    space: dict[str, object] = {}
    try:
        exec(compile(code, str(DOCS), "exec"), space)
        check = space["test_long_looks"]
        assert callable(check)
        check(tidelog_pipeline)
    finally:
        sys.modules.pop("long_looks", None)
