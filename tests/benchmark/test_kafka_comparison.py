"""The comparison with Kafka says what was measured: ratios of pairs, warm-up, table, picture and page."""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import ModuleType
from xml.etree import ElementTree

import pytest

from tests.benchmark.programs import BENCH, imported


@pytest.fixture(scope="module")
def bench() -> Iterator[dict[str, ModuleType]]:
    with imported("ratios", "chart", "broker", "against_kafka") as modules:
        yield modules


@pytest.fixture
def ratios(bench: dict[str, ModuleType]) -> ModuleType:
    return bench["ratios"]


def test_the_ratio_is_the_median_over_pairs_not_the_ratio_of_medians(ratios: ModuleType) -> None:
    # The machine was three times as slow during the second pair: the ratios do not notice.
    pairs = ratios.Pairs(ratios.Row("x", "s", 0.5), [1.0, 3.0, 1.2], [2.0, 6.0, 8.0])
    assert pairs.ratios == [0.5, 0.5, pytest.approx(0.15)]
    assert pairs.ratio == 0.5
    assert pairs.spread == (pytest.approx(0.15), 0.5)
    assert pairs.reached is True


def test_a_goal_bounds_costs_from_above_and_rates_from_below(ratios: ModuleType) -> None:
    cost, rate = ratios.Row("x", "s", 0.5), ratios.Row("x", "1 / s", 1.8, True)
    assert [cost.reached(0.49), cost.reached(0.51)] == [True, False]
    assert [rate.reached(1.79), rate.reached(1.81)] == [False, True]
    assert ratios.Row("x", "s").reached(3.0) is None


def test_rounds_without_their_partner_are_an_error(ratios: ModuleType) -> None:
    with pytest.raises(ValueError):
        _ = ratios.Pairs(ratios.Row("x", "s"), [1.0, 2.0], [1.0]).ratios


@pytest.mark.parametrize(
    ("costs", "warm"),
    [
        ([9, 7, 5], False),
        ([9, 7, 5, 4], False),
        ([9, 7, 5, 4, 3.9], False),
        ([9, 7, 5, 4, 3.9, 3.9], True),
        ([5, 5, 5, 5], True),
        # One slow round among falling ones is no end of the falling.
        ([9, 7, 5, 8, 4], False),
    ],
)
def test_a_broker_is_warm_once_it_gets_no_cheaper(ratios: ModuleType, costs: list[float], warm: bool) -> None:
    assert ratios.settled(costs) is warm


def test_the_brokers_take_turns_and_each_pair_is_begun_by_the_other(bench: dict[str, ModuleType]) -> None:
    from contextlib import contextmanager

    against = bench["against_kafka"]
    order: list[str] = []

    @contextmanager
    def scenario(source: str, scale: object) -> Iterator[object]:
        value = {"ours": 1.0, "kafka": 4.0}[source]

        def work() -> dict[str, float]:
            order.append(source)
            return {"small": value}

        yield against.Loaded(work)

    outcome = against.contest(scenario, ("ours", "kafka"), against.Scale(quick=True), 3)
    assert order == ["ours", "kafka", *("ours", "kafka"), *("kafka", "ours"), *("ours", "kafka")]
    assert outcome.pairs["small"].ratios == [0.25, 0.25, 0.25]


def test_the_table_names_what_misses_its_goal(ratios: ModuleType) -> None:
    good = ratios.Pairs(ratios.Row("good", "s", 0.5), [1.0, 1.0], [4.0, 5.0])
    bad = ratios.Pairs(ratios.Row("bad", "1 / s", 1.8, True), [1500.0], [1000.0])
    lines = ratios.markdown([good, bad]).splitlines()[2:]
    assert lines == [
        "| good | s | 1.00 | 4.50 | 0.23 | 0.20 - 0.25 | at most 0.5 |",
        "| bad | 1 / s | 1,500 | 1,000 | **1.50** | 1.50 - 1.50 | at least 1.8, missed |",
    ]


def test_the_table_has_rows_without_a_goal(ratios: ModuleType) -> None:
    pairs = ratios.Pairs(ratios.Row("judged by nobody", "s"), [3.0], [1.0])
    assert ratios.markdown([pairs]).splitlines()[2:] == [
        "| judged by nobody | s | 3.00 | 1.00 | 3.00 | 3.00 - 3.00 |  |"
    ]
    assert ratios.text([pairs]).splitlines()[1].split() == [
        *("judged", "by", "nobody", "s", "3.00", "1.00", "3.00", "3.00", "-", "3.00")
    ]


def test_only_what_stands_between_the_marks_is_rewritten(ratios: ModuleType) -> None:
    page = "before\n<!-- t -->\nold\nlines\n<!-- end of t -->\nafter\n"
    once = ratios.rewritten(page, "t", "new")
    assert once == "before\n<!-- t -->\nnew\n<!-- end of t -->\nafter\n"
    assert ratios.rewritten(once, "t", "new") == once


@pytest.mark.parametrize(
    "page", ["", "<!-- t -->", "<!-- end of t --><!-- t -->", 2 * "<!-- t --><!-- end of t -->"]
)
def test_a_page_without_its_marks_is_left_alone(ratios: ModuleType, page: str) -> None:
    with pytest.raises(ValueError, match="the page needs"):
        ratios.rewritten(page, "t", "new")


def test_results_are_read_back_as_they_were_written(ratios: ModuleType) -> None:
    row = ratios.Row("x", "s", 0.5)
    written = json.loads(ratios.as_json({"x": ratios.Pairs(row, [1.0, 2.0], [3.0, 4.0])}, date="now"))
    assert ratios.rounds_of(written, {"y": row, "x": row}) == {"x": ratios.Pairs(row, [1.0, 2.0], [3.0, 4.0])}


def test_the_picture_has_a_bar_as_long_as_each_ratio(bench: dict[str, ModuleType]) -> None:
    ratios, chart = bench["ratios"], bench["chart"]
    rows = [
        ratios.Pairs(ratios.Row("half & half", "s", 0.5), [1.0], [2.0]),
        ratios.Pairs(ratios.Row("missed", "s", 0.5), [3.0], [3.0]),
        ratios.Pairs(ratios.Row("rate", "1 / s", 1.2, True), [3.0], [2.0]),
    ]
    drawing = ElementTree.fromstring(chart.picture(rows))
    bars = [part for part in drawing.iter() if part.get("class") in ("bar", "missed")]
    assert [part.get("class") for part in bars] == ["bar", "missed", "bar"]
    half, whole, _ = (float(part.attrib["width"]) for part in bars)
    assert whole == pytest.approx(2 * half, rel=0.01)


def test_the_picture_leaves_out_rows_without_a_goal(bench: dict[str, ModuleType]) -> None:
    ratios, chart = bench["ratios"], bench["chart"]
    judged = ratios.Pairs(ratios.Row("judged", "s", 0.5), [1.0], [2.0])
    other = ratios.Pairs(ratios.Row("other", "s"), [20.0], [1.0])
    assert chart.picture([judged, other]) == chart.picture([judged])
    ElementTree.fromstring(chart.picture([other]))


def test_a_broker_that_each_round_starts_has_one_round_of_warm_up(bench: dict[str, ModuleType]) -> None:
    against = bench["against_kafka"]
    costs = iter([9.0, 7.0, 5.0, 4.0, 4.0, 4.0])

    def work() -> dict[str, float]:
        return {"start": next(costs)}

    assert against.warm_up(against.Loaded(work), against.Scale()) == 1


def test_measured_brokers_keep_their_bytecode(
    bench: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setenv("TIDELOG_OTHER", "kept")
    found = bench["broker"].environment()
    assert "PYTHONDONTWRITEBYTECODE" not in found
    assert found["TIDELOG_OTHER"] == "kept"


def test_every_scenario_stands_in_the_readme(bench: dict[str, ModuleType]) -> None:
    _, _, section = (BENCH / "README.md").read_text().partition("## In turns with Apache Kafka")
    named = {
        name
        for line in section.splitlines()
        if line.startswith("| ")
        for name in line.split("|")[1].strip().split(", ")
    }
    assert set(bench["against_kafka"].SCENARIOS) <= named


def test_the_page_of_the_project_has_the_marks_and_shows_the_picture(bench: dict[str, ModuleType]) -> None:
    against = bench["against_kafka"]
    page = against.PAGE.read_text()
    results = against.Results(None)
    pairs = bench["ratios"].Pairs(against.ROWS["small"], [1.0], [4.0])
    results.add("small", against.Outcome({"small": pairs}))
    assert "| 1.00 | 4.00 | 0.25 |" in results.page(page)
    assert f"]({against.PICTURE.name})" in page
    assert against.PICTURE.exists()
