"""The comparison of clusters puts each figure beside Kafka's, with its goal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.benchmark.programs import imported


@pytest.fixture(scope="module")
def bench() -> Iterator[dict[str, ModuleType]]:
    with imported("report", "clusters_against_kafka") as modules:
        yield modules


def pair(bench: dict[str, ModuleType], name: str, ours: float, kafka: float, **more: Any) -> Any:
    figure = bench["report"].Figure
    (row,) = bench["clusters_against_kafka"].paired(
        [figure(name, ours, "s", **more), figure("of ours alone", 1.0, "s")], [figure(name, kafka, "s")]
    )
    return row


def test_a_figure_that_both_have_is_a_row_with_its_ratio(bench: dict[str, ModuleType]) -> None:
    row = pair(bench, "x", 2.0, 8.0, target=3.0)
    assert (row.ratio, row.is_missed, row.goal) == (0.25, False, "at most 3.00")
    assert pair(bench, "x", 4.0, 8.0, target=3.0).goal == "at most 3.00, missed"
    assert pair(bench, "x", 4.0, 8.0, target=3.0, at_least=True).goal == "at least 3.00"
    assert pair(bench, "x", 2.0, 8.0, target=3.0, at_least=True).goal == "at least 3.00, missed"
    assert pair(bench, "x", 2.0, 8.0).goal == ""


def test_latencies_of_replicas_have_a_share_of_kafkas_as_goal(bench: dict[str, ModuleType]) -> None:
    (name, *_) = bench["clusters_against_kafka"].RATIO_GOALS
    assert pair(bench, name, 0.9, 2.0).goal == "at most 0.5 of Kafka"
    assert pair(bench, name, 1.1, 2.0).goal == "at most 0.5 of Kafka, missed"


def test_the_page_has_the_rows_of_all_scenarios_in_order(
    bench: dict[str, ModuleType], tmp_path: Path
) -> None:
    module = bench["clusters_against_kafka"]
    file = tmp_path / "results.json"
    results = module.Results(file)
    results.add("replicated-idle", [pair(bench, "idle", 4.0, 10.0, target=3.0)])
    results.add("cluster-create", [pair(bench, "create", 1.0, 10.0, target=3.0)])
    later = module.Results(file)
    later.take_earlier()
    page = later.page("a\n<!-- the table of clusters -->\nold\n<!-- end of the table of clusters -->\nz\n")
    rows = [line for line in page.splitlines() if line.startswith("| ") and "figure" not in line]
    assert rows == [
        "| create | s | 1.00 | 10.0 | 0.10 | at most 3.00 |",
        "| idle | s | **4.00** | 10.0 | 0.40 | at most 3.00, missed |",
    ]
    assert "old" not in page


def test_the_table_for_a_terminal_has_a_line_for_each_row(bench: dict[str, ModuleType]) -> None:
    module = bench["clusters_against_kafka"]
    heading, line = module.text([pair(bench, "create", 1.0, 10.0, target=3.0)]).splitlines()
    assert heading.split() == " ".join(module.HEADINGS).split()
    assert line.split() == ["create", "s", "1.00", "10.0", "0.10", "at", "most", "3.00"]


def test_all_its_scenarios_exist(bench: dict[str, ModuleType]) -> None:
    module = bench["clusters_against_kafka"]
    assert set(module.NAMES) <= set(sys.modules["scenarios"].SCENARIOS)
