"""The walk through a new pipeline in docs/new-pipeline.md: its file is saved, described and run."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from tests.spark.hands import Hands
from tidelog.cli.main import main

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DOCS = Path(__file__).parent.parent.parent / "docs" / "new-pipeline.md"
TOPIC = "ml_ad_left_slide_log"
NOON = 1_750_000_000_000


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", DOCS.read_text(), re.MULTILINE | re.DOTALL)


def swipe(number: int, ad: str, screen_ms: int) -> str:
    return json.dumps(
        {
            "event_id": f"swipe-{number}",
            "version": 1,
            "ts": NOON + number,
            "user_id": "user-1",
            "device_id": "phone",
            "ip": "10.0.0.1",
            "ad_id": ad,
            "screen_ms": screen_ms,
        }
    )


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "long_looks.py").write_text(blocks("python")[0])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return tmp_path


def test_the_new_pipeline_describes_itself_as_shown(folder: Path) -> None:
    command, _, shown = blocks("console")[0].partition("\n")
    result = CliRunner().invoke(main, command.removeprefix("$ tidelog ").split())
    assert result.exit_code == 0, result.output
    assert result.output == shown


def test_the_flags_of_the_walk_are_those_of_the_tool() -> None:
    help_text = CliRunner().invoke(main, ["pipeline", "run", "--help"]).output
    flags = set(re.findall(r"--[a-z][a-z-]+", DOCS.read_text()))
    assert flags - set(re.findall(r"--[a-z][a-z-]+", help_text)) == set()


def test_the_new_pipeline_finds_long_looks(folder: Path, spark: SparkSession, hands: Hands) -> None:
    hands.topic(2, name=TOPIC)
    looks = [swipe(1, "ad-1", 100), swipe(2, "ad-1", 4000), swipe(3, "ad-2", 3000), swipe(4, "ad-1", 9000)]
    hands.produce(TOPIC, [*looks, looks[1], "no JSON"])
    space: dict[str, object] = {}
    exec(compile(blocks("python")[1], str(DOCS), "exec"), space)
    check = space["check"]
    assert callable(check)
    rows, found = check(spark, hands.bootstrap, str(folder / "data"))
    assert rows >= 5
    assert sorted((row.ad_id, row.looks, row.longest_ms) for row in found) == [
        ("ad-1", 2, 9000),
        ("ad-2", 1, 3000),
    ]
    assert len(hands.values("ml_long_looks")) == 2
