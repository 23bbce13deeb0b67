"""A controller that is killed at any moment leaves a whole tree with every change that it acknowledged."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.scale import scale

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.parametrize("seed", [1, 2])
def test_killed_at_random_moments_nothing_acknowledged_is_lost(tmp_path: Path, seed: int) -> None:
    rounds = scale(25, 150)
    command = [sys.executable, "-m", "tests.controller.crash", str(tmp_path), str(rounds), str(seed)]
    outcome = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert outcome.returncode == 0, outcome.stderr[-3000:]
    survived = json.loads(outcome.stdout)
    # Shows that the kills hit working controllers, and in the middle of their work.
    assert survived["acknowledged"] > rounds
    assert survived["cut_short"] > rounds // 5
