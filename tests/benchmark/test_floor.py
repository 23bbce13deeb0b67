"""The floor of a broker: a C program that the load generator takes for one, and processes on one core."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests.benchmark.programs import imported

NAMES = ("floor", "machine", "workloads", "kafka_scenarios", "broker")


@pytest.fixture
def bench() -> Iterator[dict[str, ModuleType]]:
    with imported(*NAMES) as modules:
        yield modules


def test_the_generator_takes_the_floor_for_a_broker(bench: dict[str, ModuleType], tmp_path: Path) -> None:
    with bench["floor"].server(tmp_path) as server:
        (file,) = tmp_path.iterdir()
        first = bench["workloads"].one_connection(server, "any-name", 100)
        once = file.stat().st_size
        second = bench["workloads"].one_connection(server, "any-name", 100)
        assert [first.requests, second.requests] == [100, 100]
        assert first.p50_us > 0
        # Each connection begins the file again with 100 requests and those of the warm-up.
        assert once == file.stat().st_size
        assert once % 600 == 0
        assert file.read_bytes()[: once // 600].find(b"any-name") > 0
    assert not list(tmp_path.iterdir())


def test_what_starts_on_one_core_stays_there(bench: dict[str, ModuleType]) -> None:
    before = os.sched_getaffinity(0)
    with bench["machine"].on_core(max(before)):
        assert os.sched_getaffinity(0) == {max(before)}
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    with child:
        assert os.sched_getaffinity(0) == before
        assert os.sched_getaffinity(child.pid) == {max(before)}


def test_the_scenario_measures_broker_and_floor(bench: dict[str, ModuleType], tmp_path: Path) -> None:
    scenarios = bench["kafka_scenarios"]
    source = bench["broker"].Source(tmp_path)
    with scenarios.SCENARIOS["latency-floor"](source, lambda _: 50) as loaded:  # few: one core may be busy
        figures = loaded.work()
        assert len(os.sched_getaffinity(loaded.broker.pid)) == 1
    assert set(figures) == {"one-core p50", "one-core p99", "floor", "one-core floor"}
    assert set(figures) <= set(scenarios.ROWS)
    assert all(value > 0 for value in figures.values())
    assert all(scenarios.ROWS[key].goal is None for key in figures)
