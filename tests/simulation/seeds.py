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


def run_seeds(first: int, last: int, *options: str) -> dict[int, list[str]]:
    """The problems of each seed that has some."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.simulation", f"{first}-{last}", *options],
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
