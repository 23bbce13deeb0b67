"""A seed determines a run: the same seed has the same history, to the byte."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys

import pytest

from tidelog.simulation.story import Story
from tidelog.slices import SLICE_NS


@pytest.mark.parametrize(("brokers", "replicas"), [(1, 1), (3, 1), (3, 3)])
def test_the_same_seed_has_the_same_history(brokers: int, replicas: int) -> None:
    first, second = (Story(7, brokers, fault_seconds=6, replicas=replicas).run() for _ in range(2))
    assert first.history == second.history
    assert len(first.history) > 200


def test_a_slow_machine_replays_the_history(monkeypatch: pytest.MonkeyPatch) -> None:
    """Real time decides nothing: here a slice of long work has time for one item."""
    first = Story(7, 3, fault_seconds=2).run()
    ticks = itertools.count(0, SLICE_NS // 2)
    monkeypatch.setattr("tidelog.slices.perf_counter_ns", lambda: next(ticks))
    second = Story(7, 3, fault_seconds=2).run()
    assert first.history == second.history


def test_different_seeds_have_different_histories() -> None:
    first, second = (Story(seed, 1, fault_seconds=3).run() for seed in (1, 2))
    assert first.history != second.history


def test_another_process_replays_the_history() -> None:
    texts = [
        subprocess.run(
            [sys.executable, "-m", "tidelog.simulation", "5", "--seconds", "4"],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    ]
    assert texts[0] == texts[1]
    assert "is the controller" in texts[0]


def test_the_history_of_single_processes() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tidelog.simulation", "5", "--seconds", "1", "--who", "zookeeper"],
        capture_output=True,
        text=True,
        check=True,
    )
    *lines, last = done.stdout.splitlines()
    assert "is the controller" in lines[0]
    assert {line.split()[1] for line in lines} == {"zookeeper"}
    assert last == "0 problems"


def test_a_range_of_seeds_prints_problems_only() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tidelog.simulation", "5-6", "--brokers", "1", "--seconds", "1"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == ""
