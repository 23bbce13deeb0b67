"""Runs seeds in a process of their own, whose hashes do not depend on chance."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).parent.parent.parent


def command(*arguments: object) -> str:
    return " ".join(["python -m tests.simulation", *map(str, arguments)])


def run_seeds(seeds: str, *options: str) -> dict[int, list[str]]:
    """The problems of each seed that has some; `seeds` are several, such as 17,0-49."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.simulation", seeds, *options],
        cwd=PROJECT,
        env={**os.environ, "PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == (1 if found else 0), done.stderr
    return {entry["seed"]: entry["problems"] for entry in found}
